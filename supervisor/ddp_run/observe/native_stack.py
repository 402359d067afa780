"""Native frames of a rank that stands still, from py-spy (the extra `stacks`), in a separate process.

py-spy pauses the process while it looks, so ranks that work are not examined, nor ranks in state D, which cannot be
paused. It uses PTRACE_SEIZE: if py-spy is killed meanwhile, the kernel resumes the process. (pystack isn't used: it
attaches with SIGSTOP, which would stay.)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import final

from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.process_look import state
from ddp_run.observe.stack_text import native_frames
from ddp_run.record.events import Event, MonotonicNs, NativeFramesSeen, Noted, Rank
from ddp_run.values.helper_process import HelperProcess, HelperProcesses, answer_of, fork

TOOL = "py-spy"
_WAIT_S = 40.0
"""Reading libtorch's symbols takes seconds, and many on a busy host."""
_MOST = 2
"""Ranks examined per stall."""


def dump(pid: int) -> HelperProcess:
    """Start py-spy on a process. Says nothing if it isn't installed. Raises OSError."""
    return fork(lambda fd: _become_tool(pid, fd), _WAIT_S)


def native_now(pid: int) -> tuple[str, ...]:
    """Where a process is in native code, or a line on why that can't be seen. Waits for py-spy, which pauses it."""
    if state(pid) is ProcessState.DISK:
        return (f"none: {TOOL} cannot pause a process in state D",)
    try:
        said = answer_of(dump(pid))
    except OSError as error:
        said = str(error).encode()
    if said == b"":
        return (f"none: {TOOL} is not installed (pip install 'ddp-run[stacks]')",)
    try:
        return native_frames((said or b"").decode("utf-8", "replace"), pid)
    except ValueError:
        return (f"none: {TOOL}: {_why_none(said) if said is not None else 'timed out'}",)


def _why_none(said: bytes) -> str:
    return said.decode("utf-8", "replace").strip().partition("\n")[0][:200]


@final
class NativeFrames:
    """Gets the native frames of the culprits: one rank at a time, each once per stall."""

    def __init__(self, helpers: HelperProcesses) -> None:
        self._helpers = helpers
        self._question: tuple[Rank, int, HelperProcess] | None = None
        """The rank, its pid, and py-spy examining it."""
        self._wanted: dict[Rank, int] = {}
        self._asked: set[Rank] = set()
        self._off = False
        """py-spy doesn't work here."""

    def want(self, pids: Mapping[Rank, int]) -> None:
        """Ask for the frames of the first few of these ranks. `pids`: by rank."""
        fresh = [rank for rank in pids if rank not in self._asked]
        self._wanted = {rank: pids[rank] for rank in fresh[:_MOST]}

    @property
    def holds_one(self) -> bool:
        """Whether py-spy may be pausing a rank right now, which then looks stopped."""
        return self._question is not None

    def take(self, at: MonotonicNs) -> list[Event]:
        """The frames that have come, or a note on why there are none. Starts on the next rank if none is pending."""
        if self._question is None:
            self._ask()
            return []
        rank, pid, process = self._question
        said, over = process.read()
        if not over and not process.late:
            return []
        process.end()
        self._question = None
        if over and not said:  # py-spy is not there
            self._off = True
            return []
        try:
            return [NativeFramesSeen(at, rank, native_frames(said.decode("utf-8", "replace"), pid))]
        except ValueError:
            self._off = True
            return [Noted(at, f"no native frames of rank {rank} ({TOOL}: {_why_none(said) if over else 'timed out'})")]

    def end(self) -> None:
        """Drop all questions: the ranks work again, or the attempt is over."""
        self._wanted.clear()
        self._asked.clear()
        if self._question is not None:
            self._question[2].end()
            self._question = None

    def _ask(self) -> None:
        if self._off or not self._wanted:
            return
        rank, pid = self._wanted.popitem()
        self._asked.add(rank)
        try:
            process = dump(pid)
        except OSError:
            return
        self._question = rank, pid, process
        self._helpers.add(process)


def _become_tool(pid: int, fd: int) -> None:
    """Run py-spy. It is looked up in this process, as a folder of PATH can be on a dead mount."""
    os.nice(10)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    os.execvpe(TOOL, [TOOL, "dump", "--native", "--json", "--pid", str(pid)], {**os.environ, "PATH": path})  # noqa: S606
