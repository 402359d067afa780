"""The paths of `--data-path`, as this host sees them; what is in them is compared by the ranks."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, failed, warned
from ddp_run.values.helper_process import answer_of, fork

_LIMIT_S = 1.0


def _look(around: Surroundings) -> Iterator[Finding]:
    for path in around.data_paths:
        yield judged(path, _opened(path))


def _opened(path: Path) -> str | None:
    """Empty where it can be listed or read, `empty`, the error's words, or null without an answer: the server of a
    mount may be gone."""
    said = answer_of(fork(lambda fd: _answer(path, fd), _LIMIT_S))
    return str(json.loads(said)) if said else None


def _answer(path: Path, fd: int) -> None:
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            with os.scandir(path) as entries:
                said = "" if next(entries, None) is not None else "empty"
        else:
            with open(path, "rb") as file:
                said = "" if file.read(1) else "empty"
    except OSError as error:
        said = error.strerror or str(error)
    os.write(fd, json.dumps(said).encode())


def judged(path: Path, said: str | None) -> Finding:
    """What opening it gave."""
    name = f"data {path}"
    if said is None:
        helps = f"timeout 5 ls {path}; mount | grep -E 'nfs|lustre|fuse'"
        return failed(name, "no answer", f"its file system did not answer in {_LIMIT_S:.0f} s", helps)
    if said == "empty":
        return warned(name, "empty", "is it mounted here?", f"findmnt -T {path}")
    if said:
        return failed(name, said, "the ranks could not read it", f"ls -ld {path}; findmnt -T {path}; id")
    return Finding(name, "readable")


CHECK = Check(
    "data_paths",
    Group.DATA,
    "Each `--data-path`: exists, can be read, is not empty; fails if it cannot be read.",
    _look,
)
