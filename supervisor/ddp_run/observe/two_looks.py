"""From two looks at a rank, two seconds apart or half a minute, to what of it has moved in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_run.observe.close_look import CloseLook, ProcessState
from ddp_run.observe.process_look import ProcessLook, described
from ddp_run.observe.stack_text import Doing, Stack
from ddp_run.record.events import Rank

Seen = tuple[Stack | None, ProcessLook]
_NAPPING = 0.05
"""Less CPU time than this, in seconds per second, takes what only sleeps and looks again and again."""
_SECOND = 1_000_000_000


def close_look(
    rank: Rank,
    first: Seen | None,
    second: Seen,
    apart_s: float,
    ranks: Mapping[int, Rank],
) -> CloseLook:
    """What two looks show, so many seconds apart; the second alone where the first is missing. `ranks`: by pid."""
    (stack, now), before = second, first[1] if first is not None else second[1]
    ran = now.state is ProcessState.SLEEPING and (
        before.state is ProcessState.RUNNING or (before.driven and now.driven)
    )
    cpu_s, apart_s = now.cpu_s - before.cpu_s, max(apart_s, 0.1)
    # It may be met on its way from one sleep to the next.
    naps = (now.asleep or before.asleep) and now.naps - before.naps > 1 and cpu_s < _NAPPING * apart_s
    awaits_child = now.reaps or (stack is not None and stack.doing is Doing.PROCESS)
    return CloseLook(
        rank=rank,
        state=ProcessState.RUNNING if ran else now.state,
        first=first[0] if first is not None else None,
        second=stack,
        cpu_s=cpu_s,
        io_bytes=now.io_bytes - before.io_bytes,
        apart_s=apart_s,
        waits_on=now.waits_on(ranks),
        on_lock=now.on_lock and before.on_lock,
        asleep=now.asleep,
        naps=naps,
        helpers=now.helpers,
        child=described(now.child).partition(" ")[2] or None if awaits_child and now.child is not None else None,
    )


@dataclass(frozen=True, slots=True)
class Still:
    """How a rank stood at the end of a closer look, and since when it has stood so."""

    stack: Stack | None
    process: ProcessLook
    at: int
    since: int

    def same(self, other: Still) -> bool:
        """Whether nothing has moved since; looking itself wakes a thread a few times and writes some kilobytes."""
        one, two, seconds = self.process, other.process, (other.at - self.at) / _SECOND
        frames = None if self.stack is None else self.stack.frames
        return (
            frames == (None if other.stack is None else other.stack.frames)
            and one.state == two.state
            and two.cpu_s - one.cpu_s < 0.02 * seconds + 0.1
            and two.io_bytes - one.io_bytes < 1 << 18
            and two.switches - one.switches < 0.4 * seconds + 4
        )
