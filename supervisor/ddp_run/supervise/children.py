"""That nothing of a job outlives ddp-run: orphans become its children, and a keeper ends them should it be killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence, Set
from pathlib import Path
from typing import final

from ddp_run.values.helper_process import HelperProcess, HelperProcesses, libc_prctl, reap, spawn
from ddp_run.values.process_table import below, living, send

_KEEPER = Path(__file__).parents[1] / "keeper.py"

_MOST_KEEPERS = 5

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Make processes whose parent dies our children (prctl(2), PR_SET_CHILD_SUBREAPER). False where refused."""
    return libc_prctl()(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


@final
class BroughtAlong:
    """What was below ddp-run before it started anything, and what is below that: not the job's, and let be.

    A shell makes it in the process that becomes ddp-run: the `tee` of `ddp-run … 2> >(tee log)`, which is to read
    ddp-run's last line, or what a script has put into the background before its `exec ddp-run …`.
    """

    def __init__(self) -> None:
        self._began = below(os.getpid()) or {}

    @property
    def pids(self) -> Set[int]:
        """Those that live."""
        return living(self._began).keys()


@final
class Keeper:
    """The process that ends the job's processes should ddp-run itself be killed: `ddp_run/keeper.py`."""

    def __init__(
        self, run_id: str, folders: Sequence[Path], helpers: HelperProcesses, brought_along: BroughtAlong
    ) -> None:
        """`folders`: of ddp-run's socket and of the ranks' boards; removed at the end."""
        self._brought_along = brought_along
        others = ",".join(map(str, sorted(brought_along.pids)))
        self._argv = [sys.executable, "-I", "-S", str(_KEEPER), run_id, others, *map(str, folders)]
        self._helpers = helpers
        self._process: HelperProcess | None = None
        self._starts = 0

    @property
    def pid(self) -> int | None:
        """Null while there is none."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Raises OSError."""
        self._starts += 1
        self._process = spawn(self._argv, outlives_us=True)
        self._helpers.add(self._process, self._on_end)

    def stopping(self) -> None:
        """ddp-run was told to stop: should it not come to that, the keeper does it."""
        if self._process is not None:
            self._process.tell(b"s")

    def _on_end(self) -> None:
        """Somebody has killed it: it is started again."""
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._starts < _MOST_KEEPERS:
            try:
                self.start()
            except OSError:
                pass

    def dismiss(self) -> None:
        """The job is over: what is left of it the keeper ends now. What is started from now on is not the job's."""
        process, self._process, self._starts = self._process, None, _MOST_KEEPERS
        if process is None:
            return
        nothing_left = below(os.getpid(), {process.pid, *self._brought_along.pids}) == {}
        if not nothing_left or (process.tell(b"q") and reap(process.pid)):
            process.close()
        else:
            process.end()


def kill_everything_below(brought_along: BroughtAlong) -> bool:
    """SIGKILL for all descendants but those, as a last resort; whether nothing is left, as far as that can be seen.

    Raises nothing: it needs one descriptor, and takes that of standard input.
    """
    try:
        os.close(0)
    except OSError:
        pass
    for _ in range(20):
        left = below(os.getpid(), brought_along.pids)
        if not left:
            return left is not None
        send(left, signal.SIGKILL)
        time.sleep(0.02)
    return False
