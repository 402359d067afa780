"""A launch from its configuration to a rented instance."""

from __future__ import annotations

import os
import secrets
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_run.values.redaction import redact
from vast_launcher.client import Client, ClientError
from vast_launcher.config import ConfigError, LaunchConfig, read_config
from vast_launcher.offers import Offer, fitting, read_offers, search_words, why_none
from vast_launcher.onstart import OnStart, create_words, on_start
from vast_launcher.saying import LOST, UNAVAILABLE, USAGE, Failed, tell

HOOK = Path(__file__).resolve().parents[1] / "vast_onstart.sh"
LABEL = "ddp-run-"
"""What the labels of instances begin with; the launch's id follows."""
MOST_OFFERS = 3
"""Offers that are tried: the first may be taken by somebody else meanwhile."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be rented and run, and what then becomes of the instance."""

    config: LaunchConfig
    gpus: int
    on_start: OnStart
    on_end: str

    @property
    def launch_id(self) -> str:
        """A random word that tells this launch's last line from all others."""
        return self.on_start.settings["LAUNCH_ID"]

    @property
    def label(self) -> str:
        """The instance's, by which `follow` knows it."""
        return LABEL + self.launch_id


def plan(file: str, gpus: int, *, on_end: str | None, auto_shutdown: bool, destroy_on_failure: bool) -> Launch:
    """The launch as asked for. Raises `Failed`."""
    try:
        config = read_config(file, Path(file).read_text(encoding="utf-8"), os.environ)
    except ConfigError as error:
        raise Failed(USAGE, *error.problems) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(USAGE, f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    if config.installs_nothing:
        tell(f"{file}: install is empty: the image must have ddp-run, or the run ends with 127")
    if auto_shutdown and on_end == "keep":
        raise Failed(USAGE, "--auto-shutdown and --on-end keep contradict each other")
    end = on_end or config.on_end
    if auto_shutdown and end == "keep":
        end = "stop"
    if destroy_on_failure and end != "destroy":
        raise Failed(USAGE, f"--destroy-on-failure has no effect with on_end = {end}: add --on-end destroy")
    hook = HOOK.read_text(encoding="utf-8")
    started = on_start(
        config,
        os.environ,
        hook,
        launch_id=secrets.token_hex(4),
        on_end=end,
        destroy_on_failure=destroy_on_failure,
    )
    try:
        started.packed()
    except ValueError as error:
        raise Failed(USAGE, f"{file}: {error}") from None
    return Launch(config, gpus, started, end)


def show_plan(launch: Launch) -> None:
    """What would be sent, with secrets hidden."""
    search = shlex.join(("vastai", *search_words(launch.config, launch.gpus)))
    create = shlex.join(("vastai", *create_words(launch.config, "OFFER", launch.label, "FILE")))
    size = len(launch.on_start.packed())
    print("Nothing is sent. A launch would search:")
    print(f"    {redact(search)}")
    print("rent the cheapest that fits, by its number for OFFER:")
    print(f"    {redact(create)}")
    print(f"with this on-start script as FILE, packed by gzip and base64 to {size} characters:")
    for line in launch.on_start.shown().splitlines():
        print(f"    {line}")
    print(f"follow its log until the run ends, and then {launch.on_end} the instance.")


def choose(client: Client, launch: Launch) -> list[Offer]:
    """What to rent, the best first. Raises `Failed`."""
    fit = fitting(search(client, launch), launch.config, launch.gpus)
    if not fit:
        every = search(client, launch, relaxed=True)
        raise Failed(UNAVAILABLE, "no offer fits", *why_none(every, launch.config, launch.gpus))
    tell(f"offers that fit: {len(fit)}; the cheapest is {fit[0]}")
    return fit


def search(client: Client, launch: Launch, *, relaxed: bool = False) -> list[Offer]:
    """Offers that Vast.ai has. Raises `Failed`."""
    try:
        return read_offers(client.ask(search_words(launch.config, launch.gpus, relaxed=relaxed)))
    except (ClientError, ValueError) as error:
        raise Failed(UNAVAILABLE, f"cannot search offers: {error}") from None


def rent(client: Client, launch: Launch, offers: Sequence[Offer]) -> tuple[int, Offer]:
    """The instance and the offer that it came from. Raises `Failed`."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as file:  # readable by its owner only
        file.write(launch.on_start.packed())
        file.flush()
        for offer in offers[:MOST_OFFERS]:
            try:
                return client.create(create_words(launch.config, str(offer.id), launch.label, file.name)), offer
            except ClientError as error:
                tell(f"offer {offer.id} was not rented: {error}")
                if error.refused:
                    continue
                found = after_no_answer(client, launch)
                if found is not None:
                    return found, offer
    raise Failed(UNAVAILABLE, "nothing was rented")


def after_no_answer(client: Client, launch: Launch) -> int | None:
    """Whether the rental was made all the same. Raises `Failed` where not even that can be told."""
    try:
        found = client.labelled(launch.label)
    except ClientError as error:
        raise Failed(
            LOST,
            f"whether an instance was rented is not known: {error}",
            f"look for the label {launch.label}: vastai show instances",
        ) from None
    return found.id if found is not None else None
