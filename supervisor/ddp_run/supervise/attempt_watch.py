"""What is observed while an attempt runs: the ranks' progress, memory and GPUs; at a death, free space and kernel log.

All of it is optional: if something can't be observed, a note says so and the rest goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from ddp_run.observe import gpus, memory
from ddp_run.observe.file_systems import Checkpoints, answers, ask_for_space
from ddp_run.observe.gpus import GpuWatch
from ddp_run.observe.kernel_log import KernelLog
from ddp_run.observe.memory import Sampler
from ddp_run.record.events import (
    CheckpointSeen,
    Event,
    EventSink,
    HangTimedOut,
    Noted,
    Rank,
    RankStarted,
    SpaceCounted,
)
from ddp_run.record.journal import now
from ddp_run.supervise.ranks import Ranks
from ddp_run.supervise.run import Run
from ddp_run.values.helper_process import HelperProcess

if TYPE_CHECKING:
    from ddp_run.observe.close_look import GpuUse
    from ddp_run.observe.kernel_wait import PathArgument
    from ddp_run.observe.observer import Observer

_FIRST_LOOK_S = 1.0


@final
class AttemptWatch:
    """Watches one attempt, with its own timers and descriptors in the run's loop.

    `folder`: the attempt's. `environ`: the agent's. `is_running`: whether nothing has failed or stopped the job.
    """

    def __init__(
        self,
        run: Run,
        emit: EventSink,
        ranks: Ranks,
        folder: Path,
        environ: Mapping[str, str],
        is_running: Callable[[], bool],
    ) -> None:
        self._run = run
        self._loop = run.loop
        self._emit = emit
        self._ranks = ranks
        self._folder = folder
        self._environ = environ
        self._is_running = is_running
        self._observer: Observer | None = None
        self._sampler: Sampler | None = None
        self._sample_after_s = memory.FIRST_LOOK_S
        self._gpus: GpuWatch | None = None
        self._look_at_gpus_after_s = gpus.FIRST_LOOK_S
        self._space = _Question(run, emit, SpaceCounted)
        self._checkpoints = Checkpoints(run.plan.options.checkpoint_dir)
        self._newest_checkpoint = _Question(run, emit, CheckpointSeen)
        self._is_stopped = False
        self._kernel_log = KernelLog.open()
        self._resting = False
        self._failed_restart: int | None = None
        """The last restart in which a failure was seen."""

    # ------------------------------------------------------------------------ moments of the attempt

    def rank_starts(self, event: RankStarted) -> None:
        """A rank has started; from the first one on, look."""
        if self._sampler is None:
            self._sampler = Sampler()
            self._loop.set_timer(self._sample_after_s, self._sample_memory)
            self._watch_gpus()
        if self._observer is None:
            from ddp_run.observe.observer import Observer

            boards, run_folder = self._run.inbox.board_folders, self._run.folder.path
            places = (boards, run_folder, self._folder)
            others = None if self._run.nodes is None else self._run.nodes.others
            timeout_s = self._run.plan.options.hang_timeout_s
            self._observer = Observer(*places, self._environ, self._run.helpers, others, timeout_s)
            self._loop.set_timer(_FIRST_LOOK_S, self._look_at_progress)
        self._observer.boards.forget(event.rank)

    def rank_leaves(self, rank: Rank) -> None:
        """A rank has ended with 0. The others may still need the first one, so keep where it stood."""
        if self._observer is not None:
            if not any(process.exited_clean for process in self._ranks.latest if process.event.rank != rank):
                self.note_progress(rank)
            self._observer.boards.forget(rank)

    @property
    def has_failed(self) -> bool:
        """Whether a failure was seen."""
        return self._failed_restart is not None

    def fails(self, restart: int) -> None:
        """Something failed: look around, once per restart, since the ends that follow would hide the cause.

        `restart`: -1 for the agent's own death.
        """
        if self._failed_restart == restart:
            return
        self._failed_restart = restart
        self.note_progress()
        for sample in self._sampler.at_death(now(), self._ranks.living) if self._sampler is not None else ():
            self._emit(sample)
        for look in self._gpus.at_death(now()) if self._gpus is not None else ():
            self._emit(look)
        places = _places(self._environ, self._run.folder.path)
        self._space.ask(lambda: ask_for_space(places), "free space")
        self._ask_for_checkpoint()

    def stops(self) -> None:
        """The job is told to stop, so where the ranks stand now counts."""
        self._is_stopped = True
        self.note_progress()

    def rest(self) -> None:
        """The attempt is over: start no more looks. Answers about a failure are still awaited."""
        self._resting = True
        if self._is_stopped and not self._newest_checkpoint.is_asked:
            self._ask_for_checkpoint()
        if self._observer is not None:
            self._observer.close()

    def awaited_s(self) -> float:
        """The longest time to wait for those answers; most have come long ago."""
        gpus_s = self._gpus.awaited_s(now()) if self._gpus is not None else 0.0
        return max(self._space.awaited_s, self._newest_checkpoint.awaited_s, gpus_s)

    def close(self) -> None:
        """Stop waiting, and read what the kernel has logged if there was a failure."""
        self._space.end()
        self._newest_checkpoint.end()
        self._stop_looking_at_gpus("")
        logged = self._kernel_log.read(now()) if self.has_failed else None
        if logged is not None:
            self._emit(logged)
        self._kernel_log.close()

    # ------------------------------------------------------------------------------------- progress

    @property
    def paths(self) -> Mapping[PathArgument, str]:
        """The known paths of the ranks' system calls."""
        return self._observer.paths.known if self._observer is not None else {}

    def note_progress(self, leaving: Rank | None = None) -> None:
        """Record where the ranks stand now. `leaving`: one that has just ended with 0."""
        if self._observer is None:
            return
        boards = self._observer.boards
        try:
            # with --warm they may be over before the first look
            boards.open([each.event for each in self._ranks if not each.exited_clean or each.event.rank == leaving])
            progress = boards.progress(now())
        except (OSError, ValueError):
            return
        if progress is not None:
            self._emit(progress)

    def _look_at_progress(self) -> None:
        if self._observer is None:
            return
        try:
            self._observe(self._observer)
        except Exception as error:
            self._observer.close()
            self._observer = None
            self._emit(Noted(now(), f"progress monitoring disabled: {type(error).__name__}: {error}"))

    def _observe(self, observer: Observer) -> None:
        if self._resting or not self._is_running():
            return
        alive = [process.event for process in self._ranks if process.alive]
        left = sorted(process.event.rank for process in self._ranks.latest if process.exited_clean)
        self._checkpoints.look(alive)
        events, after_s = observer.look(now(), alive, left, self._gpu_use(alive) if observer.looks_closer else ())
        for event in events:
            self._emit(event)
        # Ranks that all work, even without finishing a step, are left alone, and so is a debugger.
        standing = observer.stall is not None and not observer.stall.patient
        stalled_s, timeout_s = observer.stalled_s(now()), self._run.plan.options.hang_timeout_s
        if timeout_s is not None and standing and stalled_s >= timeout_s:
            self._emit(HangTimedOut(now(), stalled_s))
        self._loop.set_timer(after_s, self._look_at_progress)

    def _ask_for_checkpoint(self) -> None:
        self._newest_checkpoint.ask(self._checkpoints.ask, "checkpoints")

    # --------------------------------------------------------------------------------------- memory

    def _sample_memory(self) -> None:
        if self._sampler is None or self._resting:
            return
        sample = self._sampler.look(now(), self._ranks.living)
        if sample is not None:
            self._emit(sample)
        self._sample_after_s = min(2 * self._sample_after_s, memory.LOOK_S)
        self._loop.set_timer(self._sample_after_s, self._sample_memory)

    # ----------------------------------------------------------------------------------------- GPUs

    def _gpu_use(self, alive: Sequence[RankStarted]) -> Sequence[GpuUse]:
        """How busy these ranks' GPUs are, if known. Asks for more."""
        if self._gpus is None:
            return ()
        self._gpus.ask_again(now())
        return self._gpus.use(now(), {event.rank: event.local_rank for event in alive})

    def _watch_gpus(self) -> None:
        if not gpus.wanted(self._environ):
            return
        try:
            self._gpus = GpuWatch.start()
        except OSError as error:
            self._emit(Noted(now(), f"GPU monitoring disabled: {error}"))
            return
        self._run.helpers.add(self._gpus.process)
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
            events, over = self._gpus.read(now(), self._ranks.started, list(self._ranks.living))
        except Exception as error:
            self._stop_looking_at_gpus(f"{type(error).__name__}: {error}")
            return
        for event in events:
            self._emit(event)
        if over:
            self._stop_looking_at_gpus("" if self._gpus.said_why else "the NVML probe exited")

    def _stop_looking_at_gpus(self, why: str) -> None:
        if self._gpus is None:
            return
        self._loop.cancel_timer(self._look_at_gpus)
        self._loop.unwatch(self._gpus.process.fd)
        self._gpus.process.end()
        self._gpus = None
        if why:
            self._emit(Noted(now(), f"GPU monitoring disabled: {why}"))

    # ----------------------------------------------------------------------------------- free space


@final
class _Question:
    """Asked of a helper process, whose answers become events of a kind until it ends or is late."""

    def __init__(self, run: Run, emit: EventSink, kind: type[Event]) -> None:
        self._run, self._emit, self._kind = run, emit, kind
        self._process: HelperProcess | None = None
        self.is_asked = False

    def ask(self, start: Callable[[], HelperProcess | None], what: str) -> None:
        """Start the process, unless one is at work, or there is nothing to ask. `what` is looked at."""
        if self._process is not None:
            return
        self.is_asked = True
        try:
            process = start()
        except OSError as error:
            self._emit(Noted(now(), f"{what} not checked: {error}"))
            return
        if process is not None:
            self._process = process
            self._run.helpers.add(process)
            self._run.loop.watch(process.fd, self._read)
            self._run.loop.set_timer(self.awaited_s, self.end)

    @property
    def awaited_s(self) -> float:
        """The longest time to wait for answers."""
        return max(0.0, self._process.deadline - time.monotonic()) if self._process is not None else 0.0

    def end(self) -> None:
        """Wait no longer."""
        if self._process is not None:
            self._run.loop.cancel_timer(self.end)
            self._run.loop.unwatch(self._process.fd)
            self._process.end()
            self._process = None

    def _read(self) -> None:
        if self._process is None:
            return
        events, over = answers(self._process, self._kind, now())
        for event in events:
            self._emit(event)
        if over:
            self.end()


def _places(environ: Mapping[str, str], run_folder: Path) -> list[str]:
    """Where a job runs out of space: shared memory, ddp-run's files, temporary files, and its working directory."""
    temporary = next((path for name in ("TMPDIR", "TEMP", "TMP") if (path := environ.get(name))), "/tmp")  # noqa: S108
    try:
        here = [str(Path.cwd())]
    except OSError:  # it was removed
        here = []
    return [*dict.fromkeys(["/dev/shm", str(run_folder), temporary, *here])]  # noqa: S108
