"""What the running ranks show, asked for as long as an attempt runs; the end of a job that makes no progress.

Optional: what goes wrong here ends the looking, with a note, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, final

from ddp_run.record.events import EventSink, HangTimedOut, Noted, Rank, RankStarted
from ddp_run.record.journal import now
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.ranks import Ranks

if TYPE_CHECKING:
    from ddp_run.observe.close_look import GpuUse
    from ddp_run.observe.kernel_wait import PathArgument
    from ddp_run.observe.observer import Observer

_FIRST_LOOK_S = 1.0


@final
class RankWatch:
    """Of one attempt, from its first rank's hello on.

    `hang_timeout_s`: end the job after so long without progress, where a closer look has shown who waits or stands
    still. `running` says whether the attempt still does; `gpu_use` how busy the GPUs of these ranks are.
    """

    def __init__(
        self,
        loop: Loop,
        emit: EventSink,
        ranks: Ranks,
        *,
        hang_timeout_s: float | None,
        running: Callable[[], bool],
        gpu_use: Callable[[Sequence[RankStarted]], Sequence[GpuUse]],
        observer: Callable[[], Observer],
    ) -> None:
        self._loop = loop
        self._emit = emit
        self._ranks = ranks
        self._hang_timeout_s = hang_timeout_s
        self._running = running
        self._gpu_use = gpu_use
        self._make_observer = observer
        self._observer: Observer | None = None

    def rank_starts(self, event: RankStarted) -> None:
        """A rank says where it stands: look from now on."""
        if self._observer is None:
            self._observer = self._make_observer()
            self._loop.set_timer(_FIRST_LOOK_S, self._look)
        self._observer.forget(event.rank)

    def rank_leaves(self, rank: Rank) -> None:
        """A rank has ended with 0; where the first one stood is kept, as the others may still need it."""
        if self._observer is not None:
            if not any(process.exited_clean for process in self._ranks.latest if process.event.rank != rank):
                self.note_progress()
            self._observer.forget(rank)

    def note_progress(self) -> None:
        """Where the ranks stand just now, for the journal."""
        try:
            progress = self._observer.progress(now()) if self._observer is not None else None
        except (OSError, ValueError):
            return
        if progress is not None:
            self._emit(progress)

    @property
    def paths(self) -> Mapping[PathArgument, str]:
        """The paths that ranks' system calls were given, as far as they were read."""
        return self._observer.paths if self._observer is not None else {}

    def close(self) -> None:
        """The attempt is over."""
        if self._observer is not None:
            self._observer.close()

    def _look(self) -> None:
        try:
            self._observe()
        except Exception as error:  # looking is optional: what goes wrong there is no concern of the job
            self.close()
            self._observer = None
            self._emit(Noted(now(), f"progress monitoring disabled: {type(error).__name__}: {error}"))

    def _observe(self) -> None:
        if self._observer is None or not self._running():
            return
        alive = [process.event for process in self._ranks if process.alive]
        left = sorted(process.event.rank for process in self._ranks.latest if process.exited_clean)
        gpu_use = self._gpu_use(alive) if self._observer.looks_closer else ()
        events, after_s = self._observer.look(now(), alive, left, gpu_use)
        for event in events:
            self._emit(event)
        stalled_s = self._observer.stalled_s(now())
        stall = self._observer.stall  # ranks that all work, if only without a step, are let be, and so is a debugger
        standing = stall is not None and not stall.patient
        if self._hang_timeout_s is not None and standing and stalled_s >= self._hang_timeout_s:
            self._emit(HangTimedOut(now(), stalled_s))
        self._loop.set_timer(after_s, self._look)
