"""What an instance's log says: lines that are new, and the last line of scripts/vast_onstart.sh. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LAST = re.compile(
    r"vast-onstart: finished id=(?P<id>\S{1,64}) exit=(?P<exit>\d{1,3}) uploaded=(?P<uploaded>yes|no|failed|unknown)"
    r" next=(?P<next>keep|stop|destroy) folder=(?P<folder>.{1,4096})$"
)


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a run, as the instance told it."""

    code: int
    uploaded: str
    next: str
    folder: str


def find_finished(lines: Sequence[str], launch_id: str) -> Finished | None:
    """The last line of that launch. Lines of others (the training can print anything) do not have its id."""
    for line in reversed(lines):
        found = _LAST.search(line.rstrip())
        if found is not None and found["id"] == launch_id and int(found["exit"]) <= 255:
            return Finished(int(found["exit"]), found["uploaded"], found["next"], found["folder"])
    return None


def new_lines(before: Sequence[str], now: Sequence[str]) -> tuple[Sequence[str], bool]:
    """What `now`, the end of a growing log, has behind `before`, an earlier end; and whether lines are missing between.

    The longest overlap counts: lines that repeat are shown rather once too seldom than twice.
    """
    for shared in range(min(len(before), len(now)), 0, -1):
        if list(before[-shared:]) == list(now[:shared]):
            return now[shared:], False
    return now, bool(before) and bool(now)
