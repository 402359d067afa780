"""Compares two looks at a rank, two seconds or half a minute apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_run.observe.close_look import CloseLook, ProcessState
from ddp_run.observe.process_look import ProcessLook, described
from ddp_run.observe.stack_text import Doing, Stack
from ddp_run.record.events import Rank

Seen = tuple[Stack | None, ProcessLook]
_NAPPING = 0.05
"""CPU seconds per second. A loop that only sleeps and polls takes less."""
_SECOND = 1_000_000_000


def close_look(
    rank: Rank,
    first: Seen | None,
    second: Seen,
    apart_s: float,
    ranks: Mapping[int, Rank],
) -> CloseLook:
    """What two looks show, `apart_s` seconds apart; only the second if there is no first. `ranks`: by pid."""
    (stack, now), before = second, first[1] if first is not None else second[1]
    ran = now.state is ProcessState.SLEEPING and (
        before.state is ProcessState.RUNNING or (before.driven and now.driven)
    )
    cpu_s, apart_s = now.cpu_s - before.cpu_s, max(apart_s, 0.1)
    # A look may catch it between two sleeps.
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
    """A rank at the end of a closer look (`at`), and since when it has stood still."""

    stack: Stack | None
    process: ProcessLook
    at: int
    since: int

    def same(self, other: Still) -> bool:
        """Whether nothing has moved since. Allows for the look itself: a few wake-ups and some kilobytes written."""
        one, two, seconds = self.process, other.process, (other.at - self.at) / _SECOND
        frames = None if self.stack is None else self.stack.frames
        return (
            frames == (None if other.stack is None else other.stack.frames)
            and one.state == two.state
            and two.cpu_s - one.cpu_s < 0.02 * seconds + 0.1
            and two.io_bytes - one.io_bytes < 1 << 18
            and two.switches - one.switches < 0.4 * seconds + 4
        )
