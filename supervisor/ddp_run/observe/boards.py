"""Reads what the ranks show of themselves: boards, stacks, flight recorder entries.

The layout of a board is that of `rank/board.py`. Nothing here waits for a rank, and no rank waits for this.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from ddp_run.observe.at_rest import ThreadLook, at_rest, threads
from ddp_run.observe.close_look import Collective
from ddp_run.observe.lateness import Entered
from ddp_run.observe.process_look import ProcessLook, goes_on, process
from ddp_run.observe.processes import catches, send_to_thread
from ddp_run.observe.stack_text import Frame, Stack, dumps, is_whole
from ddp_run.observe.stall_watch import RankLook
from ddp_run.record import file_names
from ddp_run.record.events import Rank
from ddp_run.record.run_folder import open_run_file

SIZE = 4096
VERSION = 1
WORDS: tuple[str, ...] = ("VERSION_WORD", "PID", "PHASE", "PHASE_AT", "STEPS", "COLLECTIVE", "COLLECTIVE_AT")
WORDS += ("HEARTBEAT", "STACKS_READY", "ASKED", "ANSWERED", "MAIN_THREAD", "SAMPLER", "CALL", "NCCL")
WORDS += ("STACKS_ASKED", "STACKS_ANSWERED")
PHASES = ("before-init", "init", "after-init", "training", "shutdown")
REPLACED = "replaced"
"""Said by a rank in place of a phase, and on no board: its process runs another program now."""
CALLS = ("", "torch.cuda.set_device", "DistributedDataParallel()")
_AT = {name: index for index, name in enumerate(WORDS)}
_MOST_STACKS = 1 << 20
_MOST_KEPT = 4 << 20
"""Bytes of the stacks of many looks; then the file begins anew."""
_TO_EMPTY = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_RECORDED = 64 << 20
"""Bytes of a flight recorder: NCCL's holds 2,000 entries by default, of about 1 KiB."""
SILENT_S = 5.0
"""The sampling thread runs four times a second."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a rank was when it was asked for its stacks: its sampling thread's last beat, and its threads."""

    beat: int
    threads: Mapping[int, ThreadLook]


@final
class Board:
    """One rank's page of shared memory."""

    def __init__(self, path: Path, rank: Rank, pid: int, folder: Path) -> None:
        """Raises OSError where there is none, ValueError where it is not of this layout."""
        self.rank = rank
        self.pid = pid
        self._folder = folder
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE)
        self._words = memoryview(self._memory).cast("q")
        if self._words[_AT["VERSION_WORD"]] != VERSION or self._words[_AT["PID"]] != pid:
            self.close()
            raise ValueError(f"{path} is not the board of process {pid}")
        self._stacks_from = 0
        self._asked: _Asked | None = None

    @classmethod
    def open(cls, boards: Path, restart: int, rank: Rank, pid: int, folder: Path) -> Self | None:
        """The board of a rank's start, null where it made none (yet)."""
        try:
            return cls(boards / f"board_{restart}_{rank}", rank, pid, folder)
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._memory.close()

    def look(self) -> RankLook:
        """What it shows now."""
        phase, call = self._word("PHASE"), self._word("CALL")
        return RankLook(
            rank=self.rank,
            phase=PHASES[phase] if 0 <= phase < len(PHASES) else None,
            phase_at=self._word("PHASE_AT"),
            steps=self._word("STEPS"),
            collectives=self._word("COLLECTIVE"),
            collective_at=self._word("COLLECTIVE_AT"),
            call=CALLS[call] if 0 <= call < len(CALLS) else "",
        )

    def ask_for_stacks(self) -> None:
        """Have the rank write its stacks, as soon as its sampling thread runs."""
        self._stacks_from = 0
        try:
            with open(os.open(self._folder / file_names.LIVE_STACKS, _TO_EMPTY), "ab") as file:
                if file.tell() > _MOST_KEPT:  # all who write there append
                    file.truncate(0)
                self._stacks_from = os.fstat(file.fileno()).st_size
        except OSError:
            pass
        self._asked = _Asked(self._word("HEARTBEAT"), threads(self.pid))
        self._words[_AT["STACKS_ASKED"]] += 1

    def insist_on_stacks(self) -> bool:
        """The same by a signal, half a second later, where its sampling thread has not come and nobody runs Python.

        It is sent to the sampling thread: a handler ends many system calls early (signal(7): sleep, poll, epoll_wait,
        semop, even with SA_RESTART), and what C code of the program makes of that is not known. Where there is no such
        thread, the main one gets it in a call that goes on by itself. Whether the signal was sent.
        """
        asked, number = self._asked, self._word("STACKS_READY")
        if asked is None or self._word("HEARTBEAT") != asked.beat or self.stack() is not None:
            return False
        if not signal.SIGRTMIN <= number <= signal.SIGRTMAX or not catches(self.pid, number):
            return False
        now, thread = threads(self.pid), self._word("SAMPLER")
        if not at_rest(asked.threads, now, thread):
            return False
        if thread not in now:
            if not goes_on(self.pid):
                return False
            thread = self.pid
        if not send_to_thread(self.pid, thread, number):
            return False
        self._asked = None
        return True

    def stack(self) -> Stack | None:
        """The main thread's stack as written since it was asked for; null where it is not there, whole, yet."""
        try:
            with open_run_file(self._folder, file_names.LIVE_STACKS) as file:
                file.seek(self._stacks_from)
                text = file.read(_MOST_STACKS).decode("utf-8", "replace")
        except OSError:
            return None
        if not is_whole(text):
            return None
        found = dumps(text, self._word("MAIN_THREAD") or None)
        return found[-1] if found else None

    @property
    def uses_nccl(self) -> bool:
        """Whether its default process group does."""
        return self._word("NCCL") == 1

    def is_silent(self, at: int) -> bool:
        """Whether the sampling thread began and has not run for SILENT_S: another thread keeps the lock."""
        beat = self._word("HEARTBEAT")
        return beat > 0 and at - beat > SILENT_S * 1_000_000_000

    def process(self) -> ProcessLook:
        """Its process now; what ddp-run's own thread does in it is left out."""
        return process(self.pid, self._word("SAMPLER"))

    def ask_for_flight(self) -> None:
        """Have the rank write what its flight recorder holds, as soon as its sampling thread runs."""
        self._words[_AT["ASKED"]] += 1

    def flight(self) -> tuple[Mapping[str, Collective], Collective | None]:
        """As `last_collectives`; nothing where it has not answered."""
        try:
            return last_collectives(self._recorded())
        except (AttributeError, TypeError, KeyError, ValueError):
            return {}, None

    def entered(self) -> Entered:
        """When it entered which collectives; nothing where it has not answered."""
        try:
            return times_entered(self._recorded())
        except (AttributeError, TypeError, KeyError, ValueError):
            return {}

    def _recorded(self) -> Mapping[str, Any]:
        if self._word("ANSWERED") < max(1, self._word("ASKED")):
            return {}
        try:
            with open_run_file(self._folder, file_names.FLIGHT) as file:
                return dict(json.loads(file.read(_MOST_RECORDED)))
        except (OSError, ValueError, TypeError):
            return {}

    def _word(self, name: str) -> int:
        return int(self._words[_AT[name]])


def last_collectives(recorded: Mapping[str, Any]) -> tuple[dict[str, Collective], Collective | None]:
    """The last collective of each process group, and the one that this rank waits for, of what `rank/flight.py` wrote.

    That is the last of all where it has not ended; with NCCL, whose collectives are entered without waiting, the first
    that has not: it does those of a group in their order. With gloo the `state` stays `scheduled` for ever (torch
    2.13), and ended is what is `retired`.
    """
    last: dict[str, Collective] = {}
    latest: Collective | None = None
    waiting: dict[str, Collective] = {}
    """Of NCCL, by group: the first that has not ended."""
    for _, _, entry in _entries(recorded):
        collective = _collective(entry)
        if collective is None:
            continue
        group, latest = collective.group, collective
        if group not in last or last[group].number <= collective.number:
            last[group] = collective
        if not collective.pending:
            waiting.pop(group, None)
        elif collective.nccl:
            waiting.setdefault(group, collective)
    if waiting:
        return last, next(iter(waiting.values()))
    return last, latest if latest is not None and latest.pending else None


def _collective(entry: Mapping[str, Any]) -> Collective | None:
    number = entry.get("collective_seq_id")
    if not isinstance(number, int) or entry.get("is_p2p"):
        return None
    operation = str(entry.get("profiling_name") or "")
    names = entry.get("process_group") or ("", "")
    frames = (Frame(str(each["filename"]), each["line"], str(each["name"])) for each in entry.get("frames") or ())
    return Collective(
        # Each library counts for itself in a group that has several.
        f"{operation.partition(':')[0]}:{names[0] if isinstance(names, list) else names}",
        number,
        operation,
        tuple(tuple(int(n) for n in size) for size in entry.get("input_sizes") or ()),
        tuple(str(kind) for kind in entry.get("input_dtypes") or ()),
        pending=entry.get("retired") is False and entry.get("state") != "completed",
        place=next((frame.place for frame in frames if frame.own), None),
    )


def times_entered(recorded: Mapping[str, Any]) -> Entered:
    """When this rank entered each collective that its recorder still holds."""
    found = {}
    for created, _, entry in _entries(recorded):
        collective = _collective(entry)
        if collective is not None and created:
            found[(collective.group, collective.number)] = created
    return found


def _entries(recorded: Mapping[str, Any]) -> list[tuple[int, int, Mapping[str, Any]]]:
    """Those of all recorders by their time, which an older form lacks; and their place, for the order without it."""
    entries = [entry for each in recorded.get("recorders") or () for entry in each["entries"]]
    timed = [(entry.get("time_created_ns") or 0, place, entry) for place, entry in enumerate(entries)]
    return sorted(timed, key=lambda each: each[:2])
