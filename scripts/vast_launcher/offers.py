"""Which offer to take: the search that is sent, and the choice among what comes back. Pure.

Fields as the vendor's client documents them: `vastai search offers --help`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vast_launcher.config import LaunchConfig


@dataclass(frozen=True, slots=True)
class Offer:
    """What can be rented. `price` in $/hour with the disk that was asked for."""

    id: int
    gpus: int
    gpu_name: str
    price: float
    reliability: float
    cuda: float
    disk_gb: float
    inet_down: float
    place: str
    verified: bool

    def __str__(self) -> str:
        return (
            f"offer {self.id}: {self.gpus} x {self.gpu_name}, ${self.price:.3f}/h, {self.place or 'place unknown'}, "
            f"reliability {self.reliability:.3f}, CUDA {self.cuda:g}, {self.inet_down:.0f} Mbit/s down"
        )


def search_words(config: LaunchConfig, gpus: int, *, relaxed: bool = False) -> tuple[str, ...]:
    """The words after `vastai`. `relaxed`: only what cannot be given up, to say why nothing fits."""
    wanted = config.offer
    terms = [f"num_gpus={gpus}", "rentable=true"]
    if wanted.gpu_name:
        terms.append(f"gpu_name={wanted.gpu_name.replace(' ', '_')}")
    if relaxed:
        terms.append("verified=any")
    else:
        terms += [f"{name}>={value:g}" for name, value in _least(config) if value is not None]
        terms += [f"dph<={wanted.max_price:g}"] if wanted.max_price is not None else []
        terms.append("verified=true" if wanted.verified else "verified=any")
        terms += [wanted.query] if wanted.query else []
    # --storage: the disk that the price is to include
    words = ("search", "offers", " ".join(terms), "--order", "dph", "--storage", f"{config.disk_gb:g}")
    return (*words, "--limit", "100", "--raw")


def _least(config: LaunchConfig) -> tuple[tuple[str, float | None], ...]:
    wanted = config.offer
    return (
        ("disk_space", config.disk_gb),
        ("reliability", wanted.min_reliability),
        ("cuda_vers", wanted.min_cuda),
        ("inet_down", wanted.min_inet_down),
    )


def read_offers(rows: object) -> list[Offer]:
    """Offers of the client's JSON, without those that lack a number or a price. Raises ValueError for another form."""
    if not isinstance(rows, list):
        raise ValueError("expected a list of offers")
    return [offer for row in rows if isinstance(row, dict) and (offer := _offer(row)) is not None]


def _offer(row: Mapping[str, Any]) -> Offer | None:
    id, price, gpus = row.get("id"), row.get("dph_total"), row.get("num_gpus")
    if not isinstance(id, int) or not isinstance(price, int | float) or not isinstance(gpus, int):
        return None
    return Offer(
        id=id,
        gpus=gpus,
        gpu_name=str(row.get("gpu_name") or "?"),
        price=float(price),
        reliability=_number(row, "reliability", "reliability2"),
        cuda=_number(row, "cuda_max_good"),
        disk_gb=_number(row, "disk_space"),
        inet_down=_number(row, "inet_down"),
        place=str(row.get("geolocation") or ""),
        verified=row.get("verification") == "verified",
    )


def _number(row: Mapping[str, Any], *names: str) -> float:
    return next((float(row[name]) for name in names if isinstance(row.get(name), int | float)), 0.0)


def misfits(offer: Offer, config: LaunchConfig, gpus: int) -> Iterator[str]:
    """Why an offer will not do, each reason in few words. Asked of every answer: a price limit is a promise."""
    wanted = config.offer
    if offer.gpus != gpus:
        yield f"not {gpus} GPUs"
    if wanted.gpu_name and _plain(offer.gpu_name) != _plain(wanted.gpu_name):
        yield f"not {wanted.gpu_name}"
    if wanted.max_price is not None and offer.price > wanted.max_price:
        yield f"above ${wanted.max_price:g}/h"
    if offer.disk_gb < config.disk_gb:
        yield f"with less than {config.disk_gb:g} GB of disk"
    if wanted.min_reliability is not None and offer.reliability < wanted.min_reliability:
        yield f"with reliability below {wanted.min_reliability:g}"
    if wanted.min_cuda is not None and offer.cuda < wanted.min_cuda:
        yield f"with CUDA below {wanted.min_cuda:g}"
    if wanted.min_inet_down is not None and offer.inet_down < wanted.min_inet_down:
        yield f"slower than {wanted.min_inet_down:g} Mbit/s"
    if wanted.verified and not offer.verified:
        yield "not verified"


def _plain(name: str) -> str:
    return name.replace("_", " ").casefold()


def fitting(offers: Iterable[Offer], config: LaunchConfig, gpus: int) -> list[Offer]:
    """Those that will do, the cheapest first; of equal ones the more reliable."""
    fit = [offer for offer in offers if not any(misfits(offer, config, gpus))]
    return sorted(fit, key=lambda offer: (offer.price, -offer.reliability, offer.id))


def why_none(offers: Iterable[Offer], config: LaunchConfig, gpus: int) -> list[str]:
    """Lines that say how many there are without the conditions, and which conditions they fail."""
    every = list(offers)
    kind = f"{gpus} x {config.offer.gpu_name or 'any GPU'}"
    if not every:
        return [f"there is no offer at all with {kind}: ask for another number or kind of GPUs"]
    counted = Counter(reason for offer in every for reason in misfits(offer, config, gpus))
    failed = ", ".join(f"{count} {reason}" for reason, count in counted.most_common())
    cheapest = min(every, key=lambda offer: offer.price)
    return [
        f"{len(every)} offers with {kind}: {failed or 'your query excludes them'}",
        f"the cheapest of them: {cheapest}",
    ]
