"""The logs of ranks in a run's folder, attempt by attempt, found by the folders' names."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from ddp_run.record import file_names, journal
from ddp_run.record.events import RankStarted
from ddp_run.record.run_folder import open_run_file
from ddp_run.values.lines import Stream

AGENT = -1
"""In place of a rank: the agent."""
_ATTEMPT = re.compile(r"attempt_(\d{1,9})")
_RESTART = re.compile(r"restart_(\d{1,9})")
_RANK = re.compile(r"rank_(\d{1,9})")


@dataclass(frozen=True, slots=True)
class RankLog:
    """One stream of one rank. `restart`: how often the agent had started its ranks before."""

    rank: int
    stream: Stream
    attempt: int
    restart: int
    path: Path
    links: frozenset[str] = frozenset()
    """Where it leads, if it is a link that ddp-run made."""

    def open(self) -> BinaryIO:
        """Open it to read. Raises OSError."""
        return open_run_file(self.path.parent, self.path.name, self.links)


def attempts(run: Path) -> list[int]:
    """The numbers of the attempts that have a folder, in order."""
    return [number for number, _folder in _numbered(run, _ATTEMPT)]


def rank_logs(run: Path, attempt: int) -> list[RankLog]:
    """By restart and rank, stdout before stderr. Of links only those count that ddp-run made, for a user's own
    --logs-specs; folders that lead elsewhere, and anything but a file, don't."""
    folder = run / file_names.attempt_folder(attempt)
    made = cache(lambda: frozenset(_made(run / file_names.EVENTS)))
    found = []
    for restart, parent in ((0, folder), *_numbered(folder, _RESTART)) if not folder.is_symlink() else ():
        for rank, rank_folder in _numbered(parent, _RANK):
            for stream, name in file_names.OF_A_STREAM.items():
                path = rank_folder / name
                links = made() & target if (target := _target(path)) else frozenset()
                if links or _is_file(path):
                    found.append(RankLog(rank, stream, attempt, restart, path, links))
    return found


def agent_logs(run: Path, attempt: int) -> list[RankLog]:
    """What torch.distributed.run itself wrote; empty if there is no file."""
    folder = run / file_names.attempt_folder(attempt)
    path = folder / file_names.AGENT_LOG
    found = not folder.is_symlink() and _is_file(path)
    return [RankLog(AGENT, "stdout", attempt, 0, path)] if found else []


def _numbered(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    """The folders of such names, by number."""
    try:
        with os.scandir(folder) as entries:
            folders = [
                (name.fullmatch(entry.name), Path(entry.path))
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []
    return sorted((int(found[1]), path) for found, path in folders if found)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _target(link: Path) -> set[str]:
    """Where a link leads; empty if it isn't one."""
    try:
        return {str(link.readlink())}
    except OSError:
        return set()


def _made(events: Path) -> Iterator[str]:
    """Where the links lead that ddp-run made: its journal says so."""
    try:
        for event in journal.read(events, RankStarted):
            yield from event.links if isinstance(event, RankStarted) else ()
    except OSError:
        return
