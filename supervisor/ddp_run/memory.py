"""How often the kernel's out-of-memory killer has struck: on the host, and in this process' own memory cgroup.

Sources: /proc/vmstat `oom_kill` (Linux 4.13); cgroup v2 `memory.events` `oom_kill`; cgroup v1 `memory.oom_control`
`oom_kill`. What cannot be read is null.
"""

from __future__ import annotations

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def count_oom_kills() -> tuple[int | None, int | None]:
    """(on the host since boot, in our cgroup since it was made)."""
    return _counter(Path("/proc/vmstat"), "oom_kill"), _in_cgroup()


def _in_cgroup() -> int | None:
    try:
        entries = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for entry in entries:
        _number, controllers, path = entry.split(":", 2)
        if "memory" in controllers.split(","):
            return _counter(_CGROUPS / "memory" / path.lstrip("/") / "memory.oom_control", "oom_kill")
    for entry in entries:
        number, controllers, path = entry.split(":", 2)
        if number == "0" and not controllers:
            return _counter(_CGROUPS / path.lstrip("/") / "memory.events", "oom_kill")
    return None


def _counter(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        word, _, value = line.partition(" ")
        if word == name and value.strip().isdigit():
            return int(value)
    return None
