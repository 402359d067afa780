"""What is kept about hosts between runs: a line for each failed run that speaks against its host.

Many nodes and users may share the folder (DDP_RUN_HOSTS_DIR). Each user has a file for each host, as readable as the
folder is; nobody can write to another user's. A line is appended in one write.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ddp_run.values import private_files, typed_fields

VARIABLE = "DDP_RUN_HOSTS_DIR"
_MOST_BYTES = 64 << 10
_KEPT_BYTES = _MOST_BYTES // 2
_MOST_FILES = 4096
_SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class HostFailure:
    """One failed run. `wall_s`: seconds since the epoch; `title` is the verdict's, without secrets."""

    host: str
    wall_s: float
    cause: str
    confidence: str
    run_id: str
    title: str


def folder(environ: Mapping[str, str]) -> Path | None:
    """Where they are kept; None if neither the variable nor a home directory is set."""
    if given := environ.get(VARIABLE):
        return Path(given)
    state = environ.get("XDG_STATE_HOME", "")
    home = environ.get("HOME", "")
    if not state.startswith("/") and not home.startswith("/"):  # the specification: ignore relative paths
        return None
    return (Path(state) if state.startswith("/") else Path(home) / ".local" / "state") / "ddp-run" / "hosts"


def append(where: Path, failure: HostFailure) -> None:
    """Add a line; a file that has grown too large keeps its newer half. Raises OSError."""
    if not where.is_dir():
        private_files.make_folders(where, 0o700)
    path = where / f"{_plain(failure.host)}.{os.geteuid()}{_SUFFIX}"
    line = json.dumps(asdict(failure), ensure_ascii=True).encode() + b"\n"
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(path, flags, 0o600), "r+b", buffering=0) as file:
        os.write(file.fileno(), line)
        _share(file.fileno(), where)
        size = file.seek(0, os.SEEK_END)
        if size <= _MOST_BYTES:
            return
        file.seek(size - _KEPT_BYTES)
        newer = file.read(_KEPT_BYTES).partition(b"\n")[2]
    with private_files.replacing(path, path.with_name(f".{path.name}.{os.urandom(4).hex()}")) as half:
        half.write(newer)
        _share(half.fileno(), where)


def _share(opened: int, where: Path) -> None:
    """Set the mode despite the umask: users who can read a shared folder should see what speaks against a host."""
    os.fchmod(opened, 0o600 | where.stat().st_mode & 0o044)


def read(where: Path) -> Iterator[HostFailure]:
    """All of them, by host. Leaves out malformed lines."""
    try:
        names = sorted(name for name in os.listdir(where) if name.endswith(_SUFFIX))  # noqa: PTH208
    except OSError:
        return
    for name in names[:_MOST_FILES]:
        try:
            with private_files.open_file(where / name) as file:
                lines = file.read(2 * _MOST_BYTES).splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                yield typed_fields.read(HostFailure, json.loads(line))
            except (ValueError, RecursionError):
                continue


def _plain(host: str) -> str:
    return re.sub(r"[^\w.\-]", "_", host, flags=re.ASCII).lstrip(".")[:200] or "unknown"
