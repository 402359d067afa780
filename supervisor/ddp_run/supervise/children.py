"""Nothing of a job outlives ddp-run: it adopts orphans, ends leftovers, and has a keeper in case it's killed itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, final

from ddp_run.record.events import EventSink, Noted, NotEnded, RankStarted, SignalSent, Target
from ddp_run.record.journal import now
from ddp_run.values.helper_process import HelperProcess, HelperProcesses, libc_prctl, reap, spawn
from ddp_run.values.process_table import began, below, is_ending, living, send

if TYPE_CHECKING:
    from ddp_run.observe.kernel_wait import PathArgument

_KEEPER = Path(__file__).parents[1] / "keeper.py"
_MOST_KEEPERS = 5
_PR_SET_CHILD_SUBREAPER = 36
_LEFTOVERS_S = 5.0
"""The longest that leftovers get between SIGTERM and SIGKILL."""
_REAP_S = 0.5
_TURN_S, _LONGEST_TURN_S = 0.02, 0.32
"""Between two looks at all processes; it doubles each time. Those that end wake us, since ddp-run has adopted them."""


def become_subreaper() -> bool:
    """Adopt processes whose parent dies (prctl(2), PR_SET_CHILD_SUBREAPER). Returns whether the kernel agreed."""
    return libc_prctl()(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


@final
class BroughtAlong:
    """Processes below ddp-run before it started anything, and their descendants: not the job's, so left alone.

    A shell makes them in the process that becomes ddp-run: the `tee` of `ddp-run … 2> >(tee log)`, which must read
    ddp-run's last line, or what a script puts in the background before `exec ddp-run …`.
    """

    def __init__(self) -> None:
        self._began = below(os.getpid()) or {}

    @property
    def pids(self) -> Set[int]:
        """Those that still run."""
        return living(self._began).keys()

    def add(self, pid: int) -> None:
        """Leave a child of ours alone, too."""
        at = began(pid)
        if at is not None:
            self._began[pid] = at


@final
class Keeper:
    """The process that ends the job's processes if ddp-run itself is killed: `ddp_run/keeper.py`."""

    def __init__(
        self, run_id: str, folders: Sequence[Path], helpers: HelperProcesses, brought_along: BroughtAlong
    ) -> None:
        """`folders`: those of ddp-run's socket and the ranks' boards; the keeper removes them if ddp-run can't."""
        self._brought_along = brought_along
        self._run_id, self._folders = run_id, tuple(map(str, folders))
        self._helpers = helpers
        self._process: HelperProcess | None = None
        self._starts = 0

    @property
    def pid(self) -> int | None:
        """None while there is no keeper."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start it. Raises OSError."""
        self._starts += 1
        others = ",".join(map(str, sorted(self._brought_along.pids)))
        argv = [sys.executable, "-I", "-S", str(_KEEPER), self._run_id, others, *self._folders]
        self._process = spawn(argv, outlives_us=True)
        self._helpers.add(self._process, self._on_end)

    def stopping(self) -> None:
        """ddp-run was told to stop. If it can't, the keeper stops the job."""
        if self._process is not None:
            self._process.tell(b"s")

    def _on_end(self) -> None:
        """The keeper was killed: start another one."""
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._starts < _MOST_KEEPERS:
            try:
                self.start()
            except OSError:
                pass

    def dismiss(self) -> None:
        """The job is over. The keeper ends what is left of it; processes started from now on aren't the job's."""
        process, self._process, self._starts = self._process, None, _MOST_KEEPERS
        if process is None:
            return
        nothing_left = below(os.getpid(), {process.pid, *self._brought_along.pids}) == {}
        if not nothing_left or (process.tell(b"q") and reap(process.pid)):
            process.close()
        else:
            process.end()


def end_leftovers(
    left: Callable[[Set[int]], dict[int, int]],
    serve: Callable[[float], bool],
    emit: EventSink,
    *,
    grace_s: float,
    killed: Set[int],
) -> None:
    """End what an attempt's ranks left behind: SIGTERM, then SIGKILL.

    `left`: `Run.job_processes`. `serve`: `Run.serve`; a stop signal ends the wait for SIGTERM. `killed`: pids that got
    SIGKILL before.
    """

    def end(signum: int, within_s: float, but: Set[int] = frozenset()) -> None:
        deadline, turn_s = time.monotonic() + within_s, _TURN_S
        signalled: set[int] = set()
        while there := left(but):
            fresh = {pid: began for pid, began in there.items() if pid not in signalled and not is_ending(pid)}
            if fresh:
                reached = send(fresh, signum)
                signalled.update(fresh)
                emit(SignalSent(now(), Target.LEFTOVERS, signum, reached, "left behind by ranks"))
            remaining = deadline - time.monotonic()
            if remaining <= 0 or (serve(min(remaining, turn_s)) and signum != signal.SIGKILL):
                return
            turn_s = min(2 * turn_s, _LONGEST_TURN_S)

    # One that is ending isn't left behind: the kernel ends what warm ranks are forked from together with the agent.
    unasked = [pid for pid in left(frozenset()) if pid not in killed and not is_ending(pid)]
    if unasked:
        from ddp_run.observe.process_look import descriptions

        emit(Noted(now(), "left behind: " + ", ".join(descriptions(unasked).values())))
        end(signal.SIGTERM, min(grace_s, _LEFTOVERS_S), killed)
    end(signal.SIGKILL, _REAP_S)


def not_ended(
    left: Iterable[int], ranks: Collection[RankStarted], paths: Mapping[PathArgument, str]
) -> Iterator[NotEnded]:
    """Why processes are still there after SIGKILL: they wait in the kernel, and end when it lets go of them.

    `ranks`: those that haven't ended; `paths`: the known paths of the ranks' system calls.
    """
    from ddp_run.observe.process_look import last_thread
    from ddp_run.observe.waited_paths import completed

    by_pid = {event.pid: event for event in ranks}
    for pid in sorted(left):
        look = last_thread(pid)
        if look is None:
            continue
        look = completed(look, paths)
        start, mount = by_pid.get(pid), look.wait.mount if look.wait is not None else None
        yield NotEnded(
            now(),
            pid,
            start.rank if start is not None else None,
            start.restart if start is not None else None,
            look.state.value,
            look.waits_on({pid: event.rank for pid, event in by_pid.items()}),
            mount.release if mount is not None else None,
        )


def kill_everything_below(brought_along: BroughtAlong) -> bool:
    """As a last resort, SIGKILL all descendants but those brought along. Returns whether certainly none is left.

    Raises nothing. It needs one descriptor and takes that of standard input.
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
