"""What ranks leave behind: processes that are still there when their attempt is over. Ended, or named."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import final

from ddp_run.observe import processes
from ddp_run.observe.kernel_wait import PathArgument
from ddp_run.observe.process_look import last_thread
from ddp_run.observe.waited_paths import completed
from ddp_run.record.events import EventSink, Noted, NotEnded, RankStarted, SignalSent, Target
from ddp_run.record.journal import now
from ddp_run.values.process_table import send

_LEFTOVERS_S = 5.0
"""Most that leftovers of ranks get between SIGTERM and SIGKILL."""
_REAP_S = 0.5
_TURN_S, _LONGEST_TURN_S = 0.02, 0.32
"""Between two looks at all processes, longer each time; who ends is our child by then, and wakes us."""


@final
@dataclass(frozen=True, slots=True)
class Leftovers:
    """Everything below ddp-run but for `others`.

    `serve` lets the loop go on for so many seconds at most, and says whether somebody asked meanwhile for the end.
    """

    emit: EventSink
    serve: Callable[[float], bool]
    others: Callable[[], Set[int]]

    def end(self, grace_s: float, killed: Set[int]) -> None:
        """SIGTERM, a while, SIGKILL. `killed`: pids that have had SIGKILL already."""
        left = self.pids()
        if not left:
            return
        unasked = [pid for pid in left if pid not in killed]
        if unasked:
            self.emit(Noted(now(), "left behind: " + ", ".join(processes.descriptions(unasked).values())))
            self._end_all(signal.SIGTERM, min(grace_s, _LEFTOVERS_S), but=killed)
        self._end_all(signal.SIGKILL, _REAP_S)

    def pids(self) -> dict[int, int]:
        """Who is there now, and when each began."""
        return processes.descendants(but=self.others())

    def _end_all(self, signum: int, within_s: float, *, but: Set[int] = frozenset()) -> None:
        deadline = time.monotonic() + within_s
        signalled: set[int] = set()
        turn_s = _TURN_S
        while left := processes.descendants(but=self.others() | but):
            fresh = {pid: began for pid, began in left.items() if pid not in signalled}
            if fresh:
                reached = send(fresh, signum)
                signalled.update(fresh)
                self.emit(SignalSent(now(), Target.LEFTOVERS, signum, reached, "left behind by ranks"))
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            if self.serve(min(remaining, turn_s)) and signum != signal.SIGKILL:
                return
            turn_s = min(2 * turn_s, _LONGEST_TURN_S)


def not_ended(
    left: Iterable[int], ranks: Mapping[int, RankStarted], paths: Mapping[PathArgument, str]
) -> Iterator[NotEnded]:
    """What these wait for: not even SIGKILL ends what waits in the kernel; it ends when that lets go of it.

    `ranks`: by pid; `paths`: those that are known of the ranks' system calls.
    """
    known = {pid: event.rank for pid, event in ranks.items()}
    for pid in sorted(left):
        look = last_thread(pid)
        if look is None:
            continue
        look = completed(look, paths)
        start, mount = ranks.get(pid), look.wait.mount if look.wait is not None else None
        yield NotEnded(
            now(),
            pid,
            start.rank if start is not None else None,
            start.restart if start is not None else None,
            look.state.value,
            look.waits_on(known),
            mount.release if mount is not None else None,
        )
