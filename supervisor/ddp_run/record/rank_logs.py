"""The logs of ranks that a run's folder has, attempt by attempt: found by the folders' names."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddp_run.record import file_names
from ddp_run.values.lines import Stream

STREAMS: dict[Stream, str] = {"stdout": file_names.STDOUT, "stderr": file_names.STDERR}
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


def attempts(run: Path) -> list[int]:
    """The numbers of the attempts that have a folder, in order."""
    return [number for number, _folder in _numbered(run, _ATTEMPT)]


def rank_logs(run: Path, attempt: int) -> list[RankLog]:
    """By restart and rank, stdout before stderr. Links to files count, since a user's own --logs-specs makes such;
    folders that lead elsewhere and what is no file do not."""
    folder = run / file_names.attempt_folder(attempt)
    if folder.is_symlink():
        return []
    return [
        RankLog(rank, stream, attempt, restart, rank_folder / name)
        for restart, parent in ((0, folder), *_numbered(folder, _RESTART))
        for rank, rank_folder in _numbered(parent, _RANK)
        for stream, name in STREAMS.items()
        if _is_file(rank_folder / name)
    ]


def agent_logs(run: Path, attempt: int) -> list[RankLog]:
    """What torch.distributed.run itself wrote; none where there is no file."""
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
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
