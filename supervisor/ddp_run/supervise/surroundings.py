"""What the system shows around the ranks: memory and GPUs all the while; at a death free space and the kernel's log.

Each is optional: what cannot be seen is a note, and the rest goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import final

from ddp_run.observe import gpus, memory, space
from ddp_run.observe.close_look import GpuUse
from ddp_run.observe.gpus import GpuWatch
from ddp_run.observe.kernel_log import KernelLog
from ddp_run.observe.memory import Sampler
from ddp_run.observe.space import StatvfsProbe
from ddp_run.record.events import EventSink, LocalRank, Noted, Rank
from ddp_run.record.journal import now
from ddp_run.supervise.loop import Loop
from ddp_run.values.helper_process import HelperProcesses


@final
class Surroundings:
    """Of one attempt, from its beginning on. Sets timers and watches descriptors of its own.

    `environ`: the agent's; `places`: paths whose free space is of interest after a death; `started`: the pids of all
    ranks that are known, `living`: of those that have not ended.
    """

    def __init__(
        self,
        loop: Loop,
        emit: EventSink,
        *,
        environ: Mapping[str, str],
        places: Sequence[str],
        started: Callable[[], Mapping[Rank, int]],
        living: Callable[[], Mapping[Rank, int]],
        helpers: HelperProcesses,
    ) -> None:
        self._loop = loop
        self._emit = emit
        self._places = places
        self._started = started
        self._living = living
        self._helpers = helpers
        self._kernel_log = KernelLog.open()
        self._may_use_gpus = gpus.wanted(environ)
        self._sampler: Sampler | None = None
        self._sample_after_s = memory.FIRST_LOOK_S
        self._gpus: GpuWatch | None = None
        self._look_at_gpus_after_s = gpus.FIRST_LOOK_S
        self._space: StatvfsProbe | None = None
        self._resting = False
        self._failed = False

    # ------------------------------------------------------------------- moments of the attempt

    def ranks_start(self) -> None:
        """A rank has started; from the first on they are looked at."""
        if self._sampler is None:
            self._sampler = Sampler()
            self._loop.set_timer(self._sample_after_s, self._sample_memory)
            self._watch_gpus()

    def ranks_fail(self) -> None:
        """The first failure of a start of the ranks: what the others leave as they end would hide the cause."""
        self._failed = True
        for sample in self._sampler.at_death(now(), self._living()) if self._sampler is not None else ():
            self._emit(sample)
        for look in self._gpus.at_death(now()) if self._gpus is not None else ():
            self._emit(look)
        if self._space is None and self._places:
            self._ask_for_space()

    def rest(self) -> None:
        """The attempt is over: look no more. What a failure asked for is still awaited."""
        self._resting = True

    def awaited_s(self) -> float:
        """How long what a failure asked for is still to be awaited, at most; it has mostly come long ago."""
        space_s = self._space.process.deadline - time.monotonic() if self._space is not None else 0.0
        return max(space_s, self._gpus.awaited_s(now()) if self._gpus is not None else 0.0)

    def close(self) -> None:
        """The end: await no more, and read what the kernel has logged, if there was a failure."""
        self._end_space()
        self._stop_looking_at_gpus("")
        logged = self._kernel_log.read(now()) if self._failed else None
        if logged is not None:
            self._emit(logged)
        self._kernel_log.close()

    # --------------------------------------------------------------------------------- memory

    def _sample_memory(self) -> None:
        if self._sampler is None or self._resting:
            return
        sample = self._sampler.look(now(), self._living())
        if sample is not None:
            self._emit(sample)
        self._sample_after_s = min(2 * self._sample_after_s, memory.LOOK_S)
        self._loop.set_timer(self._sample_after_s, self._sample_memory)

    # ----------------------------------------------------------------------------------- GPUs

    def gpu_use(self, local_ranks: Mapping[Rank, LocalRank]) -> Sequence[GpuUse]:
        """How busy the GPUs of these ranks are, as far as that is known; asks for more."""
        if self._gpus is None:
            return ()
        self._gpus.ask_again(now())
        return self._gpus.use(now(), local_ranks)

    def _watch_gpus(self) -> None:
        if not self._may_use_gpus:
            return
        try:
            self._gpus = GpuWatch.start()
        except OSError as error:
            self._emit(Noted(now(), f"GPU monitoring disabled: {error}"))
            return
        self._helpers.add(self._gpus.process)
        self._loop.watch(self._gpus.process.fd, self._read_gpus)
        self._look_at_gpus()

    def _look_at_gpus(self) -> None:
        self._read_gpus()
        if self._gpus is None or self._resting:
            return
        if self._gpus.is_silent(now()):
            self._stop_looking_at_gpus("NVML does not respond")
            return
        self._gpus.ask(now())
        self._loop.set_timer(self._look_at_gpus_after_s, self._look_at_gpus)
        self._look_at_gpus_after_s = min(2 * self._look_at_gpus_after_s, gpus.LOOK_S)

    def _read_gpus(self) -> None:
        if self._gpus is None:
            return
        try:
            events, over = self._gpus.read(now(), self._started(), list(self._living()))
        except Exception as error:  # looking is optional: what goes wrong there is no concern of the job
            self._stop_looking_at_gpus(f"{type(error).__name__}: {error}")
            return
        for event in events:
            self._emit(event)
        if over:
            unsaid = "the NVML probe exited"
            self._stop_looking_at_gpus("" if self._gpus.said_why else unsaid)

    def _stop_looking_at_gpus(self, why: str) -> None:
        if self._gpus is None:
            return
        self._loop.cancel_timer(self._look_at_gpus)
        self._loop.unwatch(self._gpus.process.fd)
        self._gpus.process.end()
        self._gpus = None
        if why:
            self._emit(Noted(now(), f"GPU monitoring disabled: {why}"))

    # ----------------------------------------------------------------------------- free space

    def _ask_for_space(self) -> None:
        try:
            self._space = StatvfsProbe.ask(self._places)
        except OSError as error:
            self._emit(Noted(now(), f"free space not checked: {error}"))
            return
        self._helpers.add(self._space.process)
        self._loop.watch(self._space.process.fd, self._read_space)
        self._loop.set_timer(space.WAIT_S, self._end_space)

    def _read_space(self) -> None:
        if self._space is None:
            return
        counted, over = self._space.answers(now())
        for event in counted:
            self._emit(event)
        if over:
            self._end_space()

    def _end_space(self) -> None:
        if self._space is not None:
            self._loop.cancel_timer(self._end_space)
            self._loop.unwatch(self._space.process.fd)
            self._space.process.end()
            self._space = None
