"""Reads what ranks show: boards, stacks, flight recorders. No rank waits for this, and this waits for no rank."""

from __future__ import annotations

import json
import mmap
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.collectives import Collective, Entered, all_entered, last_collectives, times_entered
from ddp_run.observe.movement import Seen
from ddp_run.observe.process_look import ProcessLook, goes_on, process, state
from ddp_run.observe.stack_text import Stack, dumps, is_whole
from ddp_run.observe.stall_watch import RankLook
from ddp_run.rank.board import CALLS, PHASES, Page
from ddp_run.record import file_names
from ddp_run.record.events import MonotonicNs, ProgressSampled, Rank, RankStarted
from ddp_run.record.run_folder import open_run_file
from ddp_run.values import process_table
from ddp_run.values.kernel_text import WITHOUT_PYTHON
from ddp_run.values.process_table import in_masks, send_to_thread

_STACKS_S = 0.2
"""How long a rank usually takes to write its stacks: it checks for a request four times a second."""
_INSIST_S = 0.6
"""How long after the request the signal is sent, if it may be."""
_STACKS_AT_MOST_S = 1.0
_MOST_STACKS = 1 << 20
_MOST_KEPT = 4 << 20
"""Bytes of the stacks of many looks; then the file is emptied."""
_TO_EMPTY = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_RECORDED = 64 << 20
"""Bytes of a flight recorder: NCCL's holds 2,000 entries by default, about 1 KiB each."""
SILENT_S = 5.0
"""The sampling thread runs four times a second."""
_TRIES = 20
_ANSWERING = (ProcessState.RUNNING, ProcessState.SLEEPING, ProcessState.DISK)
_BROKEN = (AttributeError, TypeError, KeyError, ValueError)
"""What a flight recorder's file of another form raises."""


@dataclass(frozen=True, slots=True)
class ThreadLook:
    """A thread at one moment. `switches`: how often it has left a processor, willingly or not."""

    asleep: bool
    stopped: bool
    switches: int


@final
class Board:
    """One rank's page of shared memory."""

    def __init__(self, path: Path, rank: Rank, pid: int, folder: Path, *, may_ask: bool = True) -> None:
        """Without `may_ask`, it can only be read. Raises OSError if there is none, ValueError if its layout differs."""
        self.rank = rank
        self.pid = pid
        self._folder = folder
        with path.open("r+b" if may_ask else "rb") as file:
            access = mmap.ACCESS_WRITE if may_ask else mmap.ACCESS_READ
            self._memory = mmap.mmap(file.fileno(), Page.SIZE, access=access)
        self._words = memoryview(self._memory).cast("q")
        if self._words[Page.VERSION_WORD] != Page.VERSION or self._words[Page.PID] != pid:
            self.close()
            raise ValueError(f"{path} is not the board of process {pid}")
        self._stacks_from = 0
        self._asked: tuple[int, Mapping[int, ThreadLook]] | None = None
        """The rank as it was asked for its stacks: the sampling thread's last beat, and its threads."""

    @classmethod
    def open(
        cls, boards: Path, restart: int, rank: Rank, pid: int, folder: Path, *, may_ask: bool = True
    ) -> Self | None:
        """The board of one start of a rank; None if it has made none yet."""
        try:
            return cls(boards / f"board_{restart}_{rank}", rank, pid, folder, may_ask=may_ask)
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Release the memory."""
        self._words.release()
        self._memory.close()

    def look(self) -> RankLook:
        """What it shows now."""
        phase, call = self._words[Page.PHASE], self._words[Page.CALL]
        return RankLook(
            rank=self.rank,
            phase=PHASES[phase] if 0 <= phase < len(PHASES) else None,
            phase_at=self._words[Page.PHASE_AT],
            steps=self._words[Page.STEPS],
            collectives=self._words[Page.COLLECTIVE],
            collective_at=self._words[Page.COLLECTIVE_AT],
            call=CALLS[call] if 0 <= call < len(CALLS) else "",
        )

    @property
    def uses_nccl(self) -> bool:
        """Whether its default process group does."""
        return self._words[Page.NCCL] == 1

    def is_silent(self, at: int) -> bool:
        """Whether the sampling thread has not run for SILENT_S: another thread keeps the interpreter's lock."""
        beat = self._words[Page.HEARTBEAT]
        return 0 < beat < at - SILENT_S * 1_000_000_000

    def process(self) -> ProcessLook:
        """Its process now, without what ddp-run's thread does in it."""
        return process(self.pid, self._words[Page.SAMPLER])

    # ------------------------------------------------------------------------------------------ stacks

    def ask_for_stacks(self) -> None:
        """Have the rank write its stacks as soon as its sampling thread runs."""
        self._stacks_from = 0
        try:
            with open(os.open(self._folder / file_names.LIVE_STACKS, _TO_EMPTY), "ab") as file:
                if file.tell() > _MOST_KEPT:  # all writers append
                    file.truncate(0)
                self._stacks_from = os.fstat(file.fileno()).st_size
        except OSError:
            pass
        self._asked = self._words[Page.HEARTBEAT], threads(self.pid)
        self._words[Page.STACKS_ASKED] += 1

    def insist_on_stacks(self) -> bool:
        """Ask again by a signal, half a second later, if the sampling thread has not run and nobody runs Python.

        The signal goes to the sampling thread. A handler ends many system calls early, even with SA_RESTART (signal(7):
        sleep, poll, epoll_wait, semop), and C code of the program may not expect that. Without such a thread the main
        one gets it, in a call that goes on afterwards. Returns whether the signal was sent.
        """
        beat, before = self._asked or (None, {})
        if self._words[Page.HEARTBEAT] != beat or self.stack() is not None:
            return False
        number, thread = self._words[Page.STACKS_READY], self._words[Page.SAMPLER]
        if not signal.SIGRTMIN <= number <= signal.SIGRTMAX or not in_masks(self.pid, ("SigCgt",), [number]):
            return False
        now = threads(self.pid)
        if not at_rest(before, now, thread):
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
        """The main thread's stack, written since it was asked for; None until it is there and whole."""
        try:
            with open_run_file(self._folder, file_names.LIVE_STACKS) as file:
                emptied = os.fstat(file.fileno()).st_size < self._stacks_from  # by another process that asks
                file.seek(0 if emptied else self._stacks_from)
                text = file.read(_MOST_STACKS).decode("utf-8", "replace")
        except OSError:
            return None
        if not is_whole(text):
            return None
        found = dumps(text, self._words[Page.MAIN_THREAD] or None)
        return found[-1] if found else None

    # --------------------------------------------------------------------------------- flight recorder

    def ask_for_flight(self) -> None:
        """Have the rank write what its flight recorder holds as soon as its sampling thread runs."""
        self._words[Page.ASKED] += 1

    def flight(self) -> tuple[Mapping[str, Collective], Collective | None]:
        """As `last_collectives`; nothing until the rank has answered."""
        last, current, _ = self.collectives()
        return last, current

    def collectives(
        self,
    ) -> tuple[Mapping[str, Collective], Collective | None, Mapping[str, Collective]]:
        """As `last_collectives` and `all_entered`, of one reading; nothing until the rank has answered."""
        try:
            recorded = self._recorded()
            return *last_collectives(recorded), all_entered(recorded)
        except _BROKEN:
            return {}, None, {}

    def entered(self) -> Entered:
        """When it entered which collectives; nothing until the rank has answered."""
        try:
            return times_entered(self._recorded())
        except _BROKEN:
            return {}

    def _recorded(self) -> Mapping[str, Any]:
        if self._words[Page.ANSWERED] < max(1, self._words[Page.ASKED]):
            return {}
        try:
            with open_run_file(self._folder, file_names.FLIGHT) as file:
                return dict(json.loads(file.read(_MOST_RECORDED)))
        except (OSError, ValueError, TypeError):
            return {}


@final
class Boards:
    """The boards of this node's ranks. `places`: folders that may hold them; `run_folder`: the ranks' own are below.

    Without `may_ask`, they can only be read.
    """

    def __init__(self, places: Sequence[Path], run_folder: Path, *, may_ask: bool = True) -> None:
        self._places = places
        self._run_folder = run_folder
        self._may_ask = may_ask
        self._by_rank: dict[Rank, Board] = {}

    def open(self, alive: Sequence[RankStarted]) -> None:
        """Open the boards that ranks have made since the last call."""
        for event in alive:
            if event.watched and event.rank not in self._by_rank:
                folder = self._run_folder / event.folder
                start = event.restart, event.rank, event.pid, folder
                made = (Board.open(each, *start, may_ask=self._may_ask) for each in self._places)
                if board := next(filter(None, made), None):
                    self._by_rank[event.rank] = board

    def __iter__(self) -> Iterator[Board]:
        return iter(self._by_rank.values())

    def get(self, rank: Rank) -> Board | None:
        """The rank's board; None if it has none."""
        return self._by_rank.get(rank)

    def forget(self, rank: Rank) -> None:
        """Drop a rank that has ended or is replaced by another."""
        board = self._by_rank.pop(rank, None)
        if board is not None:
            board.close()

    def close(self) -> None:
        """Drop all ranks."""
        for rank in [*self._by_rank]:
            self.forget(rank)

    def progress(self, at: MonotonicNs) -> ProgressSampled | None:
        """What the boards show now, as an event; None if there are no boards."""
        looks = [board.look() for board in self]
        if not looks:
            return None
        return ProgressSampled(
            at,
            tuple(look.rank for look in looks),
            tuple(look.phase or "" for look in looks),
            tuple(look.steps for look in looks),
            tuple(look.collectives for look in looks),
            tuple(look.call for look in looks) if any(look.call for look in looks) else (),
        )

    @property
    def use_nccl(self) -> bool:
        """Whether some rank uses NCCL, whose recorder asks CUDA and may wait for other threads there: ask it seldom."""
        return any(board.uses_nccl for board in self)

    def ask_for_flights(self) -> None:
        """Have all ranks write what their flight recorders hold."""
        for board in self:
            board.ask_for_flight()

    def ask_for_stacks(self, alive: Sequence[RankStarted], clock: Callable[[], int]) -> Iterator[float]:
        """Have all ranks write their stacks; those that don't are asked once more, by a signal.

        Gives seconds to wait, again and again, until all that can have answered. `clock`: nanoseconds.
        """
        asked_at = clock()
        for board in self:
            board.ask_for_stacks()
        yield _STACKS_S
        while not self.answered(alive):
            waited_s = (clock() - asked_at) / 1e9
            if waited_s >= _INSIST_S:
                for board in self:
                    board.insist_on_stacks()
            if waited_s >= _STACKS_AT_MOST_S:
                return
            yield _STACKS_S / 2

    def answered(self, alive: Sequence[RankStarted]) -> bool:
        """Whether all ranks that can have written their stacks."""
        boards = [(self.get(event.rank), event.pid) for event in alive]
        return all(board is None or board.stack() is not None or state(pid) not in _ANSWERING for board, pid in boards)

    def seen(self, alive: Sequence[RankStarted]) -> dict[Rank, Seen]:
        """Each rank's stack, if it has a board that shows one, and its process."""
        seen = {}
        for event in alive:
            board = self.get(event.rank)
            seen[event.rank] = (board.stack(), board.process()) if board is not None else (None, process(event.pid))
        return seen


def threads(pid: int) -> dict[int, ThreadLook]:
    """The threads of a process that may run Python, by id; none if the process is gone."""
    found = {}
    try:
        for thread in process_table.threads(pid):
            fields = process_table.status(thread)
            if not WITHOUT_PYTHON.match(fields["Name"]):
                letter = fields["State"][0]
                switches = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
                found[thread] = ThreadLook(letter in "SDI", letter in "Tt", switches)
    except (KeyError, ValueError, IndexError):
        return {}
    return found


def at_rest(before: Mapping[int, ThreadLook], now: Mapping[int, ThreadLook], sampler: int) -> bool:
    """Whether no thread ran Python between two looks half a second apart, nor can now: faulthandler may be called.

    Its handler reads a thread's frames wherever the signal meets it. In the middle of a Python call it follows
    pointers that are not set yet, and ends the process: after 12 to 400 signals in `all(iter(lambda: …, False))`
    (CPython 3.11.7, 3.12.1, 3.13.0), after 8000 in a plain loop (3.13.0), also with `all_threads=False`.

    Either no thread ran at all. Or the sampling thread (`sampler`) ran again and again and, as the caller knows, still
    could not get the interpreter's lock. CPython asks for it every 5 ms, and a thread that runs Python then
    releases it (ceval_gil.c), so the holder is in C. A stopped process may be anywhere, and takes the signal when it
    goes on.
    """
    others = now.keys() - {sampler}
    if not others or any(look.stopped for look in now.values()):
        return False
    if before.keys() - {sampler} == others and all(now[one].asleep and now[one] == before[one] for one in others):
        return True
    return sampler in now and sampler in before and now[sampler].switches - before[sampler].switches >= _TRIES
