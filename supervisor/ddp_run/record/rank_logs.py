"""The logs of ranks that a run's folder has, attempt by attempt: found by the folders' names."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, final

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
    """Where it leads, where it is a link that ddp-run made."""

    def open(self) -> BinaryIO:
        """To read it. Raises OSError."""
        return open_run_file(self.path.parent, self.path.name, self.links)


def attempts(run: Path) -> list[int]:
    """The numbers of the attempts that have a folder, in order."""
    return [number for number, _folder in _numbered(run, _ATTEMPT)]


def rank_logs(run: Path, attempt: int) -> list[RankLog]:
    """By restart and rank, stdout before stderr. Links count that ddp-run made, for a user's own --logs-specs;
    other links, folders that lead elsewhere, and anything but a file do not."""
    folder = run / file_names.attempt_folder(attempt)
    if folder.is_symlink():
        return []
    links = _Links(run)
    return [
        RankLog(rank, stream, attempt, restart, rank_folder / name, links.of(rank_folder / name))
        for restart, parent in ((0, folder), *_numbered(folder, _RESTART))
        for rank, rank_folder in _numbered(parent, _RANK)
        for stream, name in file_names.OF_A_STREAM.items()
        if _is_file(rank_folder / name) or links.of(rank_folder / name)
    ]


def agent_logs(run: Path, attempt: int) -> list[RankLog]:
    """What torch.distributed.run itself wrote; empty if there is no file."""
    folder = run / file_names.attempt_folder(attempt)
    path = folder / file_names.AGENT_LOG
    found = not folder.is_symlink() and _is_file(path)
    return [RankLog(AGENT, "stdout", attempt, 0, path)] if found else []


def _numbered(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    """The folders of such names, by number."""
    try:
        return sorted(_folders(folder, name))
    except OSError:
        return []


def _folders(folder: Path, name: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            found = name.fullmatch(entry.name)
            if found and entry.is_dir(follow_symlinks=False):
                yield int(found[1]), Path(entry.path)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


@final
class _Links:
    """Those of a run that ddp-run made: its journal, which is read if there are any links, says where they lead."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._made: frozenset[str] | None = None

    def of(self, path: Path) -> frozenset[str]:
        """Where this one leads; nothing where it is none of them."""
        try:
            target = str(path.readlink())
        except OSError:
            return frozenset()
        if self._made is None:
            self._made = frozenset(_made(self._run / file_names.EVENTS))
        return self._made & {target}


def _made(events: Path) -> Iterator[str]:
    try:
        for event in journal.read(events, RankStarted):
            yield from event.links if isinstance(event, RankStarted) else ()
    except OSError:
        return
