"""What the values of options may be, and what they mean: torchrun's own forms, checked before anything starts. Pure.

Each `read_*` raises `ValueError` with a reason that completes "…: REASON"; forms are those of torch 2.13's
torch/distributed/run.py, elastic/multiprocessing/api.py (Std) and elastic/rendezvous/utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag

DEVICE_WORDS = ("auto", "cpu", "gpu", "xpu")
# Names that torch plug-ins give to torchrun's "privateuse1" backend; which is installed only torch itself can tell.
PLUG_IN_WORDS = ("privateuseone", "npu", "mlu", "musa", "hpu", "gcu")


class Streams(IntFlag):
    """Which of a rank's streams an option is about, as torch's `Std`."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


@dataclass(frozen=True, slots=True)
class PerRank:
    """Streams for every local rank, or for those named."""

    every: Streams = Streams.NONE
    ranks: Mapping[int, Streams] = field(default_factory=dict)

    def of(self, local_rank: int) -> Streams:
        """The streams for one local rank; a rank that is not named has none."""
        return self.ranks.get(local_rank, Streams.NONE) if self.ranks else self.every


def convert(text: str, type: str) -> int | float | str:
    """The value as argparse's `type=` makes it; converters of torch's own are left to the agent."""
    if type == "int":
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not an integer") from None
    if type == "float":
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
    return text


def read_switch(text: str) -> bool:
    """A `PET_` variable of an option without a value: torchrun takes whole numbers only."""
    try:
        return bool(int(text))
    except ValueError:
        raise ValueError(f"{text!r} is neither 0 nor 1") from None


def says_no(text: str) -> bool:
    """Whether a variable of ddp-run's own says that an option without a value is not wanted."""
    return text.strip().lower() in ("", "0", "false", "no", "off", "n", "f")


def read_nnodes(text: str) -> tuple[int, int]:
    """`N` or `MIN:MAX` nodes."""
    try:
        counts = [int(part) for part in text.split(":")]
    except ValueError:
        counts = []
    if len(counts) not in (1, 2):
        raise ValueError(f"{text!r} is neither a number of nodes nor MIN:MAX")
    low, high = counts[0], counts[-1]
    if low < 1:
        raise ValueError("at least 1 node is needed")
    if low > high:
        raise ValueError(f"the minimum, {low}, is above the maximum, {high}")
    return low, high


def read_nproc(text: str) -> int | None:
    """Ranks per node; null for a word that means "one per device" or "per CPU"."""
    try:
        count = int(text)
    except ValueError:
        if text in DEVICE_WORDS or text in PLUG_IN_WORDS:
            return None
        raise ValueError(f"{text!r} is neither a number nor one of {', '.join(DEVICE_WORDS)}") from None
    if count < 1:
        raise ValueError("at least 1 rank per node is needed")
    return count


def read_port(port: int) -> int:
    """A TCP port; 0 means any."""
    if not 0 <= port <= 65535:
        raise ValueError(f"{port} is not a port (0 to 65535)")
    return port


def read_host(text: str) -> str:
    """A host name or an IP address, alone; IPv6 with or without brackets. Only its form is looked at, DNS is not asked.

    What cannot be a name would be looked up for a minute, as a pod's name may appear later.
    """
    if "://" in text:
        raise ValueError(f"{text!r} is a URL; expected only a host name or an address")
    if text != text.strip():
        raise ValueError(f"{text!r} has a leading or trailing blank")
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if re.fullmatch(r"[^:\[\]]+:\d*", bare) or re.fullmatch(r"\[.*\]:\d*", bare):
        raise ValueError(f"{text!r} has a port; expected only a host name or an address")
    if re.fullmatch(r"[\d.]+", bare) and bare.count(".") == 3 and not _is_address(bare):
        raise ValueError(f"{text!r} is not an IPv4 address (four numbers from 0 to 255)")
    if not (_is_address(bare) or re.fullmatch(r"[\w.-]+", bare)):
        raise ValueError(f"{text!r} is neither a host name nor an address")
    return bare


def _is_address(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def read_endpoint(text: str) -> tuple[str, int | None]:
    """Host and port of `HOST[:PORT]` or `[IPV6][:PORT]`, by torch's own rule; the host without brackets."""
    if "://" in text:
        raise ValueError(f"{text!r} is a URL; expected HOST:PORT")
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        host, colon, port = text, "", ""
    else:
        host, colon, port = text.rpartition(":")
        host, port = (host, port) if colon else (text, "")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if colon and not host:
        raise ValueError(f"{text!r} has no host before its port: is a variable empty?")
    if colon and not port:
        raise ValueError(f"{text!r} has no port after its colon: is a variable empty?")
    if colon and not (port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{port!r} is not a port (0 to 65535)")
    if not re.fullmatch(r"[\w.:-]+", host):
        raise ValueError(f"{host!r} is neither a host name nor an address")
    if re.fullmatch(r"[\d.]+", host) and host.count(".") == 3:
        read_host(host)
    return host, int(port) if colon else None


def read_streams(text: str) -> PerRank:
    """`0`, `1`, `2` or `3` for all local ranks, or `LOCAL_RANK:STREAMS,…`."""
    if re.fullmatch(r"[0-3]", text):
        return PerRank(Streams(int(text)))
    if re.fullmatch(r"\d:[0-3](,\d:[0-3])*", text):
        pairs = (pair.split(":") for pair in text.split(","))
        return PerRank(ranks={int(rank): Streams(int(streams)) for rank, streams in pairs})
    raise ValueError(f"{text!r} is neither 0, 1 (stdout), 2 (stderr), 3 (both) nor LOCAL_RANK:STREAMS,… (0:1,1:3)")


def read_ranks(text: str) -> frozenset[int] | None:
    """A comma-separated list of local ranks; null (all of them) where it is empty."""
    if not text:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a comma-separated list of local ranks") from None


def read_rdzv_conf(text: str) -> dict[str, str]:
    """`KEY=VALUE,…`."""
    result: dict[str, str] = {}
    for pair in text.strip().split(",") if text.strip() else []:
        key, _, value = pair.partition("=")
        if not key.strip() or not value.strip():
            raise ValueError(f"{pair.strip()!r} is not KEY=VALUE")
        result[key.strip()] = value.strip()
    return result


def read_count(number: int) -> int:
    """A number that is not negative."""
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def read_deadline(seconds: float) -> float:
    """A number of seconds above 0."""
    if not 0 < seconds < 1e9:
        raise ValueError(f"{seconds:g} is not a number of seconds above 0")
    return seconds


def read_interval(seconds: float) -> float:
    """Seconds that can be slept."""
    if not 0 <= seconds < 1e9:
        raise ValueError(f"{seconds} is not a number of seconds")
    return seconds
