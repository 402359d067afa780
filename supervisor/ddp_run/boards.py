"""Reads what the ranks show of themselves: boards, stacks, flight recorder entries; and what /proc says of them.

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

from ddp_run.events import Rank
from ddp_run.launch import catches
from ddp_run.progress import Collective, ProcessState, RankLook
from ddp_run.stack_text import Stack, dumps, is_whole

SIZE = 4096
VERSION = 1
WORDS: tuple[str, ...] = ("VERSION_WORD", "PID", "PHASE", "PHASE_AT", "STEPS", "COLLECTIVE", "COLLECTIVE_AT")
WORDS += ("HEARTBEAT", "STACKS_READY", "ASKED", "ANSWERED", "MAIN_THREAD")
PHASES = ("before-init", "init", "after-init", "training", "shutdown")
_AT = {name: index for index, name in enumerate(WORDS)}
_MOST_STACKS = 1 << 20
SILENT_S = 5.0
"""The sampling thread runs once a second."""
_TICKS = os.sysconf("SC_CLK_TCK")


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
        phase = self._word("PHASE")
        return RankLook(
            rank=self.rank,
            phase=PHASES[phase] if 0 <= phase < len(PHASES) else None,
            phase_at=self._word("PHASE_AT"),
            steps=self._word("STEPS"),
            collectives=self._word("COLLECTIVE"),
            collective_at=self._word("COLLECTIVE_AT"),
        )

    def ask_for_stacks(self) -> bool:
        """Have the rank write its stacks; false where that would not be safe, or it is gone."""
        number = self._word("STACKS_READY")
        if not signal.SIGRTMIN <= number <= signal.SIGRTMAX or not catches(self.pid, number):
            return False
        try:
            self._stacks_from = (self._folder / "live_stacks.txt").stat().st_size
            os.kill(self.pid, number)
        except OSError:
            return False
        return True

    def stack(self) -> Stack | None:
        """The main thread's stack as written since it was asked for; null where it is not there, whole, yet."""
        try:
            with (self._folder / "live_stacks.txt").open("rb") as file:
                file.seek(self._stacks_from)
                text = file.read(_MOST_STACKS).decode("utf-8", "replace")
        except OSError:
            return None
        if not is_whole(text):
            return None
        found = dumps(text, self._word("MAIN_THREAD") or None)
        return found[-1] if found else None

    def is_silent(self, at: int) -> bool:
        """Whether the sampling thread began and has not run for SILENT_S: another thread keeps the lock."""
        beat = self._word("HEARTBEAT")
        return beat > 0 and at - beat > SILENT_S * 1_000_000_000

    def ask_for_flight(self) -> None:
        """Have the rank write what its flight recorder holds, as soon as its sampling thread runs."""
        self._words[_AT["ASKED"]] += 1

    def flight(self) -> tuple[Mapping[str, Collective], Collective | None]:
        """As `last_collectives`; nothing where it has not answered."""
        if self._word("ANSWERED") < max(1, self._word("ASKED")):
            return {}, None
        try:
            recorded = json.loads((self._folder / "flight.json").read_bytes())
            return last_collectives(recorded)
        except (OSError, ValueError, AttributeError, TypeError):
            return {}, None

    def _word(self, name: str) -> int:
        return int(self._words[_AT[name]])


def last_collectives(recorded: Mapping[str, Any]) -> tuple[dict[str, Collective], Collective | None]:
    """The last collective of each process group, and the last of all where it has not ended, of what `rank/flight.py`
    wrote.

    Ended is what is `retired`: with gloo the `state` stays `scheduled` for ever (torch 2.13).
    """
    last: dict[str, Collective] = {}
    latest: Collective | None = None
    for entry in recorded.get("entries") or ():
        number = entry.get("collective_seq_id")
        if not isinstance(number, int) or entry.get("is_p2p"):
            continue
        names = entry.get("process_group") or ("", "")
        group = str(names[0] if isinstance(names, list) else names)
        latest = Collective(
            group,
            number,
            str(entry.get("profiling_name") or ""),
            tuple(tuple(int(n) for n in size) for size in entry.get("input_sizes") or ()),
            tuple(str(kind) for kind in entry.get("input_dtypes") or ()),
            pending=entry.get("retired") is False,
        )
        if group not in last or last[group].number <= number:
            last[group] = latest
    return last, latest if latest is not None and latest.pending else None


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """What /proc says of a process: its state, CPU seconds so far, bytes read and written so far.

    `switches`: how often its main thread has gone to sleep. `waits_on`, `on_lock` and `asleep` as in `CloseLook`.
    """

    state: ProcessState
    cpu_s: float = 0.0
    io_bytes: int = 0
    switches: int = 0
    waits_on: str | None = None
    on_lock: bool = False
    asleep: bool = False


def process(pid: int) -> ProcessLook:
    """A process now, its threads and the children that it has waited for included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        letter = fields[0].decode()
        cpu_s = sum(int(ticks) for ticks in fields[11:15]) / _TICKS
    except (OSError, IndexError, ValueError):
        return ProcessLook(ProcessState.GONE)
    known = {state.value: state for state in ProcessState}
    state = known.get(letter, ProcessState.GONE if letter in "ZX" else ProcessState.SLEEPING)
    name, on, lock = _call(pid)
    if on is None and state is ProcessState.DISK:
        on = _wchan(pid)
    asleep = name == "sleep" or (name is None and _wchan(pid) == "hrtimer_nanosleep")
    return ProcessLook(state, cpu_s, _io(pid), _switches(pid), on, lock, asleep)


_CALLS: dict[str, dict[int, str]] = {
    "x86_64": {0: "read", 1: "write", 17: "read", 18: "write", 74: "fsync", 75: "fsync", 73: "lock"}
    | {2: "open", 257: "open", 202: "futex", 35: "sleep", 230: "sleep", 7: "poll", 271: "poll", 61: "wait"},
    "aarch64": {63: "read", 64: "write", 67: "read", 68: "write", 82: "fsync", 83: "fsync", 32: "lock"}
    | {56: "open", 98: "futex", 101: "sleep", 115: "sleep", 73: "poll", 260: "wait"},
}
"""System calls by number, as far as they say what a thread waits for."""
_ON_FILES = {"read": "read of", "write": "write to", "fsync": "fsync of", "lock": "flock of"}


def _call(pid: int) -> tuple[str | None, str | None, bool]:
    """The system call that the main thread is in, what it concerns, and whether that is a lock without a time-out.

    Needs the right to trace the process, which its ancestor has by default (ptrace_scope 1).
    """
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
        name = _CALLS.get(os.uname().machine, {}).get(int(words[0]))
        arguments = [int(word, 16) for word in words[1:7]]
    except (OSError, ValueError, IndexError):
        return None, None, False
    if name == "futex" and len(arguments) > 3:
        return name, None, arguments[3] == 0
    if name in _ON_FILES and arguments:
        try:
            path = str(Path(f"/proc/{pid}/fd/{arguments[0] & 0xFFFFFFFF}").readlink())
        except OSError:
            path = ""
        return name, f"{_ON_FILES[name]} {path}" if path.startswith("/") else None, False
    return name, "open of a file" if name == "open" else None, False


def _switches(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


def _io(pid: int) -> int:
    """Bytes that its system calls have read and written, files and sockets alike."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(": ") for line in lines if ": " in line)
    return int(values.get("rchar", 0)) + int(values.get("wchar", 0))


def _wchan(pid: int) -> str | None:
    try:
        name = Path(f"/proc/{pid}/wchan").read_text().strip()
    except OSError:
        return None
    return name if name not in ("", "0") else None
