"""Looks at a run through its files and its ranks' boards. It only reads them, so that it cannot disturb the job."""

from __future__ import annotations

import os
import shlex
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import final

from ddp_run.observe.boards import Boards
from ddp_run.observe.from_outside import boards_of
from ddp_run.observe.stall_watch import RankLook
from ddp_run.record import file_names, journal
from ddp_run.record.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    GpuSampled,
    MonotonicNs,
    NativeFramesSeen,
    Next,
    PeerFailed,
    Rank,
    RankFailed,
    RankStarted,
    SignalReceived,
    StallEnded,
    StallSeen,
)
from ddp_run.record.job_state import JobState, RankState
from ddp_run.record.recorded_runs import RecordedRun, by_job, recorded_run, recorded_runs
from ddp_run.record.run_folder import open_run_file
from ddp_run.tell.snapshot import BEHIND, Gpu, PrintedProgress, Progress, RankRow, Rate, Slowest, Snapshot, Told, joined
from ddp_run.tell.told import failed_words, told
from ddp_run.values.lines import STREAMS, neutral, readable
from ddp_run.values.signals import STOP_SIGNALS, signal_name

_END_BYTES = 8 << 10
_LONGEST = 500
_MOST_TOLD = 20
_STILL_SLOW_S = 150.0
"""A slow rank is reported once a minute at most."""
_LOOK_FOR_NODES_S = 10.0
_SECOND = 1_000_000_000


@final
class Watched:
    """A run that is looked at again and again. Raises OSError if it has no journal."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._journal = journal.Follower(run.folder / file_names.EVENTS)
        self._state = JobState()
        self._boards: Boards | None = None
        self._told: deque[tuple[int, str]] = deque(maxlen=_MOST_TOLD)
        self._stall: StallSeen | None = None
        """The one that was reported last, while it lasts."""
        self._stalls = 0
        self._ranks: dict[Rank, _Rank] = {}

    def close(self) -> None:
        """Close its files."""
        self._journal.close()
        if self._boards is not None:
            self._boards.close()

    @property
    def over(self) -> bool:
        """Whether the run had ended at the last look."""
        return self._run.state not in ("running", "unknown")

    def look(self) -> Snapshot:
        """The run now. Raises OSError if its journal can't be read any longer."""
        self._run = run = recorded_run(self._run.folder) or self._run
        for event in self._journal.more():
            self._state.take(event)
            self._told.extend((event.at, neutral(line)) for line in _lines_about(event))
            if isinstance(event, StallSeen | StallEnded | AttemptStarted):
                self._stalls += isinstance(event, StallSeen) and self._stall is None
                self._stall = event if isinstance(event, StallSeen) else None
        self._open_boards()
        state, now_ns, at, started = self._state, time.time_ns(), self._now(), run.started
        elapsed_s = run.seconds(now_ns)
        ranks = self._rows(at)
        rates = [each.steps_per_s for each in ranks if each.steps_per_s is not None]
        return Snapshot(
            time=journal.iso(now_ns),
            run=neutral(run.folder.name),
            folder=neutral(str(run.folder)),
            host=None if started is None else neutral(started.host),
            command=neutral(shlex.join(run.script))[:_LONGEST],
            state=neutral(run.state),
            attempt=state.attempt,
            attempts_allowed=1 if started is None else started.max_retries + 1,
            elapsed_s=None if elapsed_s is None else round(elapsed_s, 1),
            world_size=next((each.started.world_size for each in state.ranks.values()), run.ranks),
            steps_per_s=min(rates, default=None),
            slowest=None if self.over else self._slowest(ranks, at),
            progress=None if self.over else self._progress(at),
            ranks=ranks,
            told=tuple(Told(_seconds(at - when), line) for when, line in self._told),
            note=self._note(),
            exit_code=run.exit_code,
            started=None if started is None else started.wall_ns / _SECOND,
            version=None if started is None else neutral(started.version),
            node_rank=self._node_rank(),
            restarts=max((each.started.restart for each in state.ranks.values()), default=None),
            stalls=self._stalls,
            stalled_s=None if self._stall is None or self.over else _seconds(at - self._stall.since),
            cause=None if run.cause is None else neutral(run.cause),
        )

    def _node_rank(self) -> int | None:
        """As it was given, else as torch gave it in the last start of the ranks."""
        started = self._run.started
        if started is not None and started.node_rank is not None:
            return started.node_rank
        return next((each.started.group_rank for each in self._state.ranks.values()), None)

    def _now(self) -> MonotonicNs:
        """On the clock of the journal's stamps; the end of a run that is over."""
        run, started = self._run, self._run.started
        if started is None or run.alive:
            return journal.now()
        ended_ns = run.ended_ns if self.over else None
        return MonotonicNs(started.at + (time.time_ns() if ended_ns is None else ended_ns) - started.wall_ns)

    def _open_boards(self) -> None:
        run, alive = self._run, self._state.alive
        if self._boards is None and run.alive and run.started is not None:
            self._boards = boards_of(run.started, run.folder, may_ask=False)
        if self._boards is None:
            return
        pids = {event.rank: event.pid for event in alive}
        for board in [*self._boards]:
            if pids.get(board.rank) != board.pid:
                self._boards.forget(board.rank)
        self._boards.open(alive)

    def _note(self) -> str | None:
        run, started = self._run, self._run.started
        if self.over or started is None:
            return None
        if run.alive is None:
            return f"runs, or ran, on {neutral(started.host)}: from here only its files are seen, a minute late"
        if self._boards is not None and not [*self._boards] and any(event.watched for event in self._state.alive):
            return "the ranks' boards cannot be read: steps may be a minute old"
        return None

    # --------------------------------------------------------------------------------- the ranks

    def _rows(self, at: MonotonicNs) -> tuple[RankRow, ...]:
        state, looks = self._state, dict[Rank, RankLook]()
        for sample in [*state.progress][-1:]:
            each = zip(sample.ranks, sample.phases, sample.steps, sample.collectives, strict=True)
            looks = {rank: RankLook(rank, phase, steps=steps, collectives=made) for rank, phase, steps, made in each}
        looks |= {board.rank: board.look() for board in self._boards or ()}
        first = max((look.steps for look in looks.values()), default=0)
        return tuple(
            self._row(rank, each, looks.get(rank), first, at) for rank, each in sorted(self._state.ranks.items())
        )

    def _row(self, rank: Rank, state: RankState, look: RankLook | None, first: int, at: MonotonicNs) -> RankRow:
        """`look`: at its board, or at the journal's last sample. `first`: the steps of the rank that has made most."""
        known = self._ranks.get(rank)
        if known is None or known.started != state.started:
            known = self._ranks[rank] = _Rank(self._run.folder, state.started)
        known.read()
        for sample in self._state.progress:
            if rank in sample.ranks:
                known.rate.feed(sample.at / _SECOND, sample.steps[sample.ranks.index(rank)])
        if look is not None and look.phase_at:  # a board's
            known.rate.feed(look.phase_at / _SECOND, 1 if look.phase == "training" else 0)
            known.rate.feed(at / _SECOND, look.steps)
        ended, memory, gpus = state.ended, self._state.memory, self._state.gpus
        through = ended or state.phase in ("failed", "finished")
        return RankRow(
            ranks=(rank,),
            phase=state.phase if through or look is None else look.phase or state.phase,
            step=None if look is None else look.steps,
            steps_per_s=None if through else known.rate.per_s,
            behind=None if look is None or through else first - look.steps,
            collectives=None if look is None else look.collectives,
            memory_bytes=None
            if ended or memory is None
            else dict(zip(memory.ranks, memory.own, strict=True)).get(rank),
            gpus=() if ended or gpus is None else tuple(_gpus(gpus, rank)),
            line_age_s=None if known.written_ns is None else _seconds(time.time_ns() - known.written_ns),
            line=known.lines[-1] if known.lines else "",
        )

    def _slowest(self, rows: Sequence[RankRow], at: MonotonicNs) -> Slowest | None:
        if self._stall is not None:
            return next((Slowest(rank, "others wait for it") for rank in self._stall.culprits), None)
        last = max(rows, key=lambda row: row.behind or 0, default=None)
        if last is not None and (last.behind or 0) >= BEHIND:
            return Slowest(last.ranks[0], f"{last.behind} steps behind")
        late = self._state.straggler
        if late is None or _seconds(at - late.at) > _STILL_SLOW_S:
            return None
        whom = neutral(late.node) if late.ranks else "it"
        return Slowest(late.rank, f"others wait {late.waited_s:.2f} s of {late.step_s:.2f} s for {whom}")

    def _progress(self, at: MonotonicNs) -> Progress | None:
        found = (self._ranks[rank].printed.look(at / _SECOND, self._ranks[rank].lines) for rank in sorted(self._ranks))
        shown = next((each for each in found if each is not None), None)
        return shown if shown is None or self._stall is None else replace(shown, eta_s=None)


@final
class WatchedJob:
    """A run, and the parts of it that other nodes record beside it, as they come. Raises OSError like `Watched`."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._parts: dict[Path, Watched] = {run.folder: Watched(run)}
        self._looked_at = float("-inf")

    def close(self) -> None:
        """Close its files."""
        for part in self._parts.values():
            part.close()

    @property
    def over(self) -> bool:
        """Whether the given node's part had ended at the last look."""
        return self._parts[self._run.folder].over

    def look(self) -> Snapshot:
        """The job now. Raises OSError if a journal can't be read any longer."""
        self._look_for_nodes()
        own, others = self._parts[self._run.folder].look(), list[Snapshot]()
        for folder, part in self._parts.items():
            with suppress(OSError):  # a node's disk may be gone
                others += [part.look()] if folder != self._run.folder else []
        return joined(own, others) if others else own

    def _look_for_nodes(self) -> None:
        nodes = self._run.started.nodes if self._run.started is not None else 1
        if len(self._parts) >= nodes or time.monotonic() - self._looked_at < _LOOK_FOR_NODES_S:
            return
        self._looked_at = time.monotonic()
        with suppress(OSError):
            for job in by_job(recorded_runs(self._run.folder.parent)):
                if any(run.folder == self._run.folder for run in job):
                    self._parts |= {run.folder: Watched(run) for run in job if run.folder not in self._parts}


@final
class _Rank:
    """What is remembered of one start of a rank. `lines`: its last ones, of both streams, the newest last."""

    def __init__(self, folder: Path, started: RankStarted) -> None:
        self.started = started
        self.rate = Rate()
        self.printed = PrintedProgress()
        self.lines: Sequence[str] = ()
        self.written_ns: int | None = None
        self._logs = [
            _Log(folder / started.folder, file_names.OF_A_STREAM[stream], started.links) for stream in STREAMS
        ]

    def read(self) -> None:
        """Read what it has written."""
        for log in self._logs:
            log.read()
        written = sorted((log for log in self._logs if log.lines), key=lambda log: log.written_ns)
        self.lines = [line for log in written for line in log.lines]
        self.written_ns = written[-1].written_ns if written else None


@final
class _Log:
    """The end of one log, read again if it has changed."""

    def __init__(self, folder: Path, name: str, links: Sequence[str]) -> None:
        self._place = folder, name, links
        self._size = 0
        self.written_ns = 0
        self.lines: Sequence[str] = ()

    def read(self) -> None:
        """Its last lines; what a progress bar has overwritten is left out. They stay if it can't be read."""
        try:
            with open_run_file(*self._place) as file:
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) == (self._size, self.written_ns):
                    return
                end = os.pread(file.fileno(), _END_BYTES, max(0, status.st_size - _END_BYTES))
        except OSError:
            return
        self._size, self.written_ns = status.st_size, status.st_mtime_ns
        lines = readable(end, colour=False).decode("utf-8", "replace").split("\n")
        self.lines = [" ".join(line.split())[:_LONGEST] for line in lines if line.strip()]


def _gpus(sample: GpuSampled, rank: Rank) -> Iterator[Gpu]:
    """The GPUs on which this rank holds memory."""
    for gpu, busy in zip(sample.gpus, sample.busy, strict=True):
        held = [
            held
            for on, member, held in zip(sample.on, sample.members, sample.held, strict=True)
            if on == gpu and member == rank
        ]
        if held:
            yield Gpu(gpu, sum(filter(None, held)) if any(each is not None for each in held) else None, busy)


def _lines_about(event: Event) -> Iterator[str]:
    """What ddp-run has told about it on its own console."""
    match event:
        case RankFailed():
            yield failed_words(event)
        case PeerFailed():
            yield event.said
        case SignalReceived() if event.signum in STOP_SIGNALS:
            yield f"told to stop by {signal_name(-event.signum)}"
        case AttemptEnded() if event.decision is Next.RETRY:
            yield f"attempt {event.attempt + 1} {event.outcome} ({event.cause}); another one follows: {event.reason}"
        case NativeFramesSeen():
            pass  # `ddp-run stacks` shows where ranks are now
        case _:
            yield from (line for _level, line in told(event, quotes=False))


def _seconds(nanoseconds: int) -> float:
    return max(0.0, round(nanoseconds / _SECOND, 1))
