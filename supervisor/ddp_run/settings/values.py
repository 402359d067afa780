"""What the values of options may be, and what they mean: torchrun's own forms, checked before anything starts. Pure.

Each `read_*` raises `ValueError` with a reason that completes "…: REASON". Forms are those of torch 2.13's
torch/distributed/run.py, elastic/multiprocessing/api.py (Std) and elastic/rendezvous/utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

DEVICE_WORDS = ("auto", "cpu", "gpu", "xpu")
# Names that torch plug-ins give to torchrun's "privateuse1" backend; only torch knows which one is installed.
_PLUG_IN_WORDS = ("privateuseone", "npu", "mlu", "musa", "hpu", "gcu")


def convert(text: str, type: str) -> int | float | str:
    """Convert a text like argparse's `type=`; converters of torch's own are left to the agent."""
    try:
        return int(text) if type == "int" else float(text) if type == "float" else text
    except ValueError:
        raise ValueError(f"{text!r} is not {'an integer' if type == 'int' else 'a number'}") from None


def read_switch(text: str) -> bool:
    """Read a `PET_` variable of an option without a value: torchrun takes only integers."""
    try:
        return bool(int(text))
    except ValueError:
        raise ValueError(f"{text!r} is not 0 or 1") from None


def says_no(text: str) -> bool:
    """Whether one of ddp-run's variables turns off an option without a value."""
    return text.strip().lower() in ("", "0", "false", "no", "off", "n", "f")


def read_nnodes(text: str) -> tuple[int, int]:
    """`N` or `MIN:MAX` nodes."""
    try:
        counts = [int(part) for part in text.split(":")]
    except ValueError:
        counts = []
    if len(counts) not in (1, 2):
        raise ValueError(f"{text!r} is not a number of nodes or MIN:MAX")
    low, high = counts[0], counts[-1]
    if low < 1:
        raise ValueError("must be at least 1")
    if low > high:
        raise ValueError(f"the minimum, {low}, is greater than the maximum, {high}")
    return low, high


def read_nproc(text: str) -> int | None:
    """Ranks per node; None for a word that means one per device or CPU."""
    try:
        count = int(text)
    except ValueError:
        if text in DEVICE_WORDS or text in _PLUG_IN_WORDS:
            return None
        raise ValueError(f"{text!r} is not a whole number or one of {', '.join(DEVICE_WORDS)}") from None
    if count < 1:
        raise ValueError("must be at least 1")
    return count


def read_port(port: int) -> int:
    """A TCP port; 0 means any."""
    if not 0 <= port <= 65535:
        raise ValueError(f"{port} is not a port (0 to 65535)")
    return port


def read_host(text: str) -> str:
    """A host name or an IP address; IPv6 with or without brackets. Checks only the form, without asking DNS.

    Text that cannot be a name would be looked up for a minute, as a pod's name may appear later.
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
    if not (re.fullmatch(r"[\w.-]+", bare) or _is_address(bare)):
        raise ValueError(f"{text!r} is not a host name or an address")
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
    host, colon, port = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        host, colon, port = text, "", ""
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if colon and not (host and port):
        missing = "port after its colon" if host else "host before its port"
        raise ValueError(f"{text!r} has no {missing}: is a variable empty?")
    if colon and not (port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{port!r} is not a port (0 to 65535)")
    if not re.fullmatch(r"[\w.:-]+", host):
        raise ValueError(f"{host!r} is not a host name or an address")
    if re.fullmatch(r"[\d.]+", host) and host.count(".") == 3:
        read_host(host)
    return host, int(port) if colon else None


def read_streams(text: str) -> int | Mapping[int, int]:
    """`0`, `1`, `2` or `3` for all local ranks, or by local rank from `LOCAL_RANK:STREAMS,…`; like torch's `Std`."""
    if re.fullmatch(r"[0-3]", text):
        return int(text)
    if re.fullmatch(r"\d:[0-3](,\d:[0-3])*", text):
        return {int(pair[0]): int(pair[2]) for pair in text.split(",")}
    raise ValueError(f"{text!r} is not 0, 1 (stdout), 2 (stderr), 3 (both) or LOCAL_RANK:STREAMS,… (example: 0:1,1:3)")


def read_ranks(text: str) -> frozenset[int]:
    """A comma-separated list of local ranks; empty: all of them."""
    try:
        return frozenset(int(part) for part in text.split(",") if text)
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
        raise ValueError("must be at least 0")
    return number


def read_size(text: str) -> int:
    """Bytes, with K, M, G or T for powers of 1024; at least 8 MiB, of whose end the judgement reads 4."""
    found = re.fullmatch(r"(\d{1,12})([KMGT])?(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text!r} is not a size")
    size = int(found[1]) << 10 * ("KMGT".index(found[2].upper()) + 1 if found[2] else 0)
    if size < 8 << 20:
        raise ValueError("must be at least 8M")
    return size


def read_deadline(seconds: float) -> float:
    """A number of seconds greater than 0."""
    if seconds <= 0:
        raise ValueError("must be greater than 0")
    return read_interval(seconds)


def read_interval(seconds: float) -> float:
    """A number of seconds that a process can sleep."""
    if seconds < 0:
        raise ValueError("must be at least 0")
    if not seconds < 1e9:
        raise ValueError(f"{seconds} is not a number of seconds")
    return seconds
