"""Gathers what is known after an attempt, from its events and the files of the run's folder, and from nothing else.

So `ddp-run explain FOLDER` on a journal and the live run after a death see the same. Nothing is judged here.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import cast, get_args

from ddp_run import childfailed, traceback_text
from ddp_run.events import (
    AgentExited,
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    CoreDumped,
    Event,
    ExceptionInfo,
    HangTimedOut,
    KernelLogged,
    MemoryCounted,
    MemorySampled,
    MonotonicNs,
    ProgressSampled,
    Rank,
    RankExited,
    RankFailed,
    RankPhase,
    RankStarted,
    RunStarted,
    SignalReceived,
    SignalSent,
    SpaceCounted,
    StallEnded,
    StallSeen,
)
from ddp_run.log_tail import read_tail
from ddp_run.verdict import (
    AgentEnd,
    Death,
    Evidence,
    Leaver,
    LogText,
    MemoryTrend,
    MemoryUse,
    Phase,
    Space,
    SummaryEntry,
)

_STOPPING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_AGENT_STOPPED = re.compile(r"SignalException: Process \d+ got signal: (\d+)")
_AGENT_KILLS_AFTER_NS = 25_000_000_000
"""The agent's SIGKILL follows its SIGTERM by 30 s (its own default, whatever --shutdown-timeout says)."""
_NOISE = re.compile(r"^\s*$|^\[?(?:rank\d+\]:)?\[?[WE]\d* |resource_tracker|Warning|^\s+warnings\.warn")
_LAST_WORDS = 5
_SHM = "/dev/shm"  # noqa: S108  # not a temporary file: where shared memory lies
_ABOUT_NS = 10_000_000_000
"""Two looks at memory apart."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The events of one attempt, and those of the run that concern it."""

    run: RunStarted | None
    started: AttemptStarted | None
    events: tuple[Event, ...]
    counted_before: MemoryCounted | None


def gather(folder: Path, events: Sequence[Event], attempt: int) -> Evidence:
    """All that rules may see of one attempt. A missing or unreadable file leaves its part empty."""
    part = _attempt(events, attempt)
    restart = max((e.restart for e in part.events if isinstance(e, RankStarted)), default=0)
    started = {e.rank: e for e in part.events if isinstance(e, RankStarted) and e.restart == restart}
    agent = _agent(folder, part, attempt)
    ends = _Ends.of(part, agent, restart)
    deaths = [_death(folder, part, start, ends) for start in started.values() if ends.died(start)]
    deaths += _without_hello(folder, part, attempt, agent, started)
    leavers = [_leaver(folder, part, start, ends) for start in started.values() if ends.left(start)]
    stop = next((e for e in part.events if isinstance(e, SignalReceived) and e.signum in _STOPPING), None)
    host_kills, cgroup_kills = _oom_kills(part)
    logged = next((e for e in reversed(part.events) if isinstance(e, KernelLogged)), None)
    return Evidence(
        attempt=attempt,
        attempts=attempt + 1,
        deaths=tuple(sorted(deaths, key=lambda death: death.order)),
        leavers=tuple(sorted(leavers, key=lambda leaver: leaver.died_at)),
        started=len(started),
        world_size=next((start.world_size for start in started.values()), None),
        agent=agent,
        stop_signal=stop.signum if stop else _agent_stop_signal(agent.log),
        stop_at=stop.at if stop else None,
        host_oom_kills=host_kills,
        cgroup_oom_kills=cgroup_kills,
        kernel=LogText("kernel", logged.lines if logged else (), None),
        kernel_pids=logged is not None and logged.own_pids,
        space=_space(part, restart),
        master_port=part.started.port if part.started else None,
        script=_script(part.run.argv) if part.run else None,
        nodes=part.run.nodes if part.run else 1,
        folder=str(folder),
        host=part.run.host if part.run else None,
        stall=_stall(part),
        hung_s=next((e.after_s for e in part.events if isinstance(e, HangTimedOut)), None),
    )


def _stall(part: _Attempt) -> StallSeen | None:
    """What was seen last of a job that stood still, where it did so to the end."""
    told = [e for e in part.events if isinstance(e, StallSeen | StallEnded)]
    return told[-1] if told and isinstance(told[-1], StallSeen) else None


# ------------------------------------------------------------------------------------------ the journal


def _attempt(events: Sequence[Event], attempt: int) -> _Attempt:
    """The events after the end of the attempt before, up to the end of this one."""
    run = next((e for e in events if isinstance(e, RunStarted)), None)
    starts = [i for i, e in enumerate(events) if isinstance(e, AttemptStarted) and e.attempt == attempt]
    if not starts:
        return _Attempt(run, None, (), None)
    here = starts[-1]
    first = next((i + 1 for i in range(here, -1, -1) if isinstance(events[i], AttemptEnded)), 0)
    end = next((i for i in range(here, len(events)) if _is_over(events[i], attempt)), len(events))
    before = next((e for e in reversed(events[:first]) if isinstance(e, MemoryCounted)), None)
    start = events[here]
    return _Attempt(run, start if isinstance(start, AttemptStarted) else None, tuple(events[first:end]), before)


def _is_over(event: Event, attempt: int) -> bool:
    match event:
        case AttemptEnded():
            return True
        case AttemptStarted(attempt=number):
            return number != attempt
        case _:
            return False


def _oom_kills(part: _Attempt) -> tuple[int | None, int | None]:
    """Kills by the kernel's out-of-memory killer between the first count and the last: of the host, of our cgroup."""
    counts = [e for e in part.events if isinstance(e, MemoryCounted)]
    if len(counts) == 1 and part.counted_before is not None:
        counts.insert(0, part.counted_before)
    if len(counts) < 2:
        return None, None
    first, last = counts[0], counts[-1]
    return (
        _delta(first.host_oom_kills, last.host_oom_kills),
        _delta(first.cgroup_oom_kills, last.cgroup_oom_kills),
    )


def _space(part: _Attempt, restart: int) -> tuple[Space, ...]:
    """What was free when the first rank of this start failed. Of shared memory the least that was seen about then.

    Shared memory is given back as its users end, so the look before the death can tell more than the one after it.
    """
    began = min((e.at for e in part.events if isinstance(e, RankStarted) and e.restart == restart), default=0)
    counted = {e.path: e for e in part.events if isinstance(e, SpaceCounted) and e.at >= began}
    found = {
        path: Space(path, e.free, e.total, e.free_inodes, e.total_inodes) for path, e in counted.items() if e.total > 0
    }
    shared = found.get(_SHM)
    if shared is not None:
        at = counted[_SHM].at
        seen = [
            e.shm_free
            for e in part.events
            if isinstance(e, MemorySampled) and e.shm_free is not None and abs(at - e.at) <= _ABOUT_NS
        ]
        found[_SHM] = replace(shared, free=min([shared.free, *seen]))
    return tuple(found.values())


def _memory(part: _Attempt, start: RankStarted, ended_at: MonotonicNs | None) -> MemoryTrend | None:
    looks = [
        e
        for e in part.events
        if isinstance(e, MemorySampled)
        and start.rank in e.ranks
        and e.at >= start.at
        and (ended_at is None or e.at <= ended_at)
    ]
    looks.sort(key=lambda look: look.at)
    if not looks:
        return None
    uses = []
    for look in looks:
        index = look.ranks.index(start.rank)
        uses.append(MemoryUse(look.at, look.own[index], look.children[index], look.available))
    last = looks[-1]
    limit = last.total if last.cgroup_limit is None else last.cgroup_limit
    return MemoryTrend(
        first=uses[0],
        last=uses[-1],
        peak=max(uses, key=lambda use: use.own + use.children),
        limit=limit,
        ended_at=ended_at,
        cgroup=last.cgroup_limit is not None,
    )


def _core(part: _Attempt, start: RankStarted) -> str | None:
    dumped = next(
        (
            e
            for e in part.events
            if isinstance(e, CoreDumped) and (e.rank, e.restart) == (start.rank, start.restart) and e.at >= start.at
        ),
        None,
    )
    if dumped is None:
        return None
    handed_on = dumped.pattern if dumped.pattern and dumped.pattern.startswith(("|", "@")) else None
    return dumped.path or handed_on


def _delta(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _script(argv: Sequence[str]) -> str | None:
    """The script or module on a command line, as far as its looks tell."""
    named = next((word for word in argv if word.endswith(".py")), None)
    if named is not None:
        return named
    for flag, word in pairwise(argv):
        if flag in ("-m", "--module"):
            return word
    return None


# -------------------------------------------------------------------------------------------- the agent


def _agent(folder: Path, part: _Attempt, attempt: int) -> AgentEnd:
    source = f"attempt_{attempt}/agent.log"
    log = read_tail(folder / source, source)
    text = "\n".join(log.lines)
    summary = childfailed.parse(text)
    if not summary and (part.run is None or part.run.nodes == 1):
        summary = childfailed.observed(text)
    exited = next((e for e in reversed(part.events) if isinstance(e, AgentExited)), None)
    pids = {e.pid for e in part.events if isinstance(e, AgentStarted)}
    killed = any(
        isinstance(e, SignalSent)
        and e.signum == signal.SIGKILL
        and pids & set(e.pids)
        # a SIGKILL for what an agent left behind comes after its end
        and (exited is None or e.at <= exited.at)
        for e in part.events
    )
    return AgentEnd(exited.code if exited else None, log, killed, exited.at if exited else None, summary)


def _agent_stop_signal(log: LogText) -> int | None:
    """The signal that somebody sent to the agent itself; it says so when it ends of it."""
    hit = log.last(_AGENT_STOPPED)
    return int(hit[1][1]) if hit is not None else None


# -------------------------------------------------------------------------------------------- the ranks


@dataclass(frozen=True, slots=True)
class _Ends:
    """How the ranks of the last restart ended, as far as anybody saw it."""

    failed: Mapping[Rank, RankFailed]
    exited: Mapping[Rank, RankExited]
    summary: Mapping[Rank, SummaryEntry]
    sent: tuple[SignalSent, ...]
    agent: AgentEnd
    agent_sent: Mapping[int, tuple[int, ...]]
    first_death: MonotonicNs | None

    @classmethod
    def of(cls, part: _Attempt, agent: AgentEnd, restart: int) -> _Ends:
        failed = {e.rank: e for e in part.events if isinstance(e, RankFailed) and e.restart == restart}
        exited = {e.rank: e for e in part.events if isinstance(e, RankExited) and e.restart == restart}
        summary = {entry.rank: entry for entry in agent.summary}
        dead = [e.at for e in exited.values() if e.code or (e.code is None and e.rank in {*summary, *failed})]
        return cls(
            failed=failed,
            exited=exited,
            summary=summary,
            sent=tuple(e for e in part.events if isinstance(e, SignalSent)),
            agent=agent,
            agent_sent=childfailed.signals_sent(agent.log.lines),
            first_death=min(dead, default=None),
        )

    def code(self, start: RankStarted) -> int | None:
        """Its exit code: the kernel's, else its own word, else the agent's.

        A rank that had failed already and was ended by a signal of ours while it still cleaned up counts with the code
        of its failure.
        """
        exited, failed = self.exited.get(start.rank), self.failed.get(start.rank)
        if exited is not None and exited.code is not None:
            overtaken = failed is not None and -exited.code in self._sent_before(start, exited.at)
            return failed.code if failed is not None and overtaken else exited.code
        if failed is not None:
            return failed.code
        entry = self.summary.get(start.rank)
        return entry.code if entry is not None and entry.pid in (None, start.pid) else None

    def left(self, start: RankStarted) -> bool:
        """Whether it ended with 0: seen, or nobody read the code and nothing speaks of a failure."""
        exited = self.exited.get(start.rank)
        if exited is None or start.rank in self.failed:
            return False
        code = self.code(start)
        if code is not None:
            return code == 0
        return self.agent.code == 0 or (
            bool(self.summary) and (self.first_death is None or exited.at < self.first_death)
        )

    def died(self, start: RankStarted) -> bool:
        """Whether it failed: it said so, it ended and not with 0, or the agent says it did."""
        known = start.rank in self.failed or start.rank in self.exited or self.code(start) is not None
        return known and not self.left(start)

    def signals(self, start: RankStarted) -> tuple[int, ...]:
        """The signals sent to it, by ddp-run or by the agent, before it failed."""
        failed, exited = self.failed.get(start.rank), self.exited.get(start.rank)
        stamps = [event.at for event in (failed, exited) if event is not None]
        return self._sent_before(start, min(stamps, default=None))

    def _sent_before(self, start: RankStarted, at: MonotonicNs | None) -> tuple[int, ...]:
        ours = [e.signum for e in self.sent if start.pid in e.pids and (at is None or e.at <= at)]
        return tuple(dict.fromkeys([*ours, *self._agents(start, at)]))

    def _agents(self, start: RankStarted, at: MonotonicNs | None) -> tuple[int, ...]:
        """What the agent sent: it says so in its log; where it does not, a rank that ended of SIGTERM tells.

        Source: torch/distributed/elastic/multiprocessing/api.py, `_close`: SIGTERM, 30 s later SIGKILL.
        """
        named = self.agent_sent.get(start.pid, ())
        if -(self._end(start) or 0) in named:  # it ended of just that signal, whenever its death was seen
            return named
        told_at = min((e.at for e in self.sent if e.target in ("agent", "job")), default=None)
        causes = [stamp for stamp in (self.first_death, told_at) if stamp is not None]
        if at is None or not causes or at <= min(causes):
            return ()
        if self.agent_sent:
            return named
        exited = self.exited.get(start.rank)
        if exited is not None and exited.code not in (None, -signal.SIGTERM, -signal.SIGKILL):
            return ()
        late = at - min(causes) > _AGENT_KILLS_AFTER_NS
        return (signal.SIGTERM, signal.SIGKILL) if late else (signal.SIGTERM,)

    def _end(self, start: RankStarted) -> int | None:
        """How its process ended: the kernel's word, else the agent's."""
        exited, entry = self.exited.get(start.rank), self.summary.get(start.rank)
        if exited is not None and exited.code is not None:
            return exited.code
        return entry.code if entry is not None and entry.pid in (None, start.pid) else None


def _death(folder: Path, part: _Attempt, start: RankStarted, ends: _Ends) -> Death:
    failed, exited = ends.failed.get(start.rank), ends.exited.get(start.rank)
    death = Death(
        rank=start.rank,
        local_rank=start.local_rank,
        node_rank=part.run.node_rank if part.run else None,
        host=part.run.host if part.run else None,
        pid=start.pid,
        code=ends.code(start),
        failed_at=failed.at if failed else None,
        died_at=exited.at if exited else None,
        exception=failed.exception if failed else None,
        signals_sent=ends.signals(start),
        memory=_memory(part, start, exited.at if exited else None),
        core=_core(part, start),
        phase=_phase(part, start),
        step=_step(part, start),
    )
    return _with_logs(folder, start.folder, death)


def _phase(part: _Attempt, start: RankStarted) -> Phase | None:
    """The last phase that the rank reported; before its first it is in before-init."""
    told = [
        e.phase for e in part.events if isinstance(e, RankPhase) and (e.rank, e.restart) == (start.rank, start.restart)
    ]
    phase = told[-1] if told else "before-init"
    return cast(Phase, phase) if start.watched and phase in get_args(Phase) else None


def _step(part: _Attempt, start: RankStarted) -> int | None:
    """Its optimizer steps when they were counted last: as a rule at the first death."""
    counted = [e for e in part.events if isinstance(e, ProgressSampled) and start.rank in e.ranks and e.at > start.at]
    steps = counted[-1].steps[counted[-1].ranks.index(start.rank)] if counted else 0
    return steps or None


def _leaver(folder: Path, part: _Attempt, start: RankStarted, ends: _Ends) -> Leaver:
    source = f"{start.folder}/stderr.log"
    return Leaver(
        rank=start.rank,
        local_rank=start.local_rank,
        pid=start.pid,
        died_at=ends.exited[start.rank].at,
        host=part.run.host if part.run else None,
        node_rank=part.run.node_rank if part.run else None,
        stderr=read_tail(folder / source, source),
    )


def _without_hello(
    folder: Path, part: _Attempt, attempt: int, agent: AgentEnd, started: Mapping[Rank, RankStarted]
) -> list[Death]:
    """Ranks that only the agent speaks of: all of them where the ranks ran without the bootstrap. Root first."""
    entries = [entry for entry in agent.summary if entry.rank not in started and entry.code != 0]
    entries.sort(key=lambda entry: (not entry.root, entry.time or "", entry.rank))
    deaths = []
    for entry in entries:
        death = Death(
            rank=entry.rank,
            local_rank=entry.local_rank,
            node_rank=part.run.node_rank if part.run else None,
            host=entry.host or (part.run.host if part.run else None),
            pid=entry.pid,
            code=entry.code,
        )
        deaths.append(_with_logs(folder, _rank_folder(folder, attempt, entry.rank), death))
    return deaths


def _rank_folder(folder: Path, attempt: int, rank: Rank) -> str:
    """Where a rank's files lie when no RankStarted tells: in the last restart's folder that has them."""
    base = folder / f"attempt_{attempt}"
    restarts = sorted(base.glob(f"restart_*/rank_{rank}"), key=lambda path: int(path.parent.name[8:] or 0))
    return str((restarts[-1] if restarts else base / f"rank_{rank}").relative_to(folder))


def _with_logs(folder: Path, rank_folder: str, death: Death) -> Death:
    def read(name: str) -> LogText:
        return read_tail(folder / rank_folder / name, f"{rank_folder}/{name}")

    stderr = read("stderr.log")
    exception = death.exception or _error_file(folder / rank_folder / "error.json")
    return replace(
        death,
        stderr=stderr,
        stdout=read("stdout.log"),
        stack=read("stacks.txt"),
        exception=_cause_of_exit(death.code, exception, stderr),
    )


def _cause_of_exit(code: int | None, exception: ExceptionInfo | None, stderr: LogText) -> ExceptionInfo | None:
    """The exception; behind a mere `sys.exit`, the one that led to it, handled or printed."""
    if exception is None:
        return printed_exception(code, stderr)
    if exception.type != "SystemExit":
        return exception
    return traceback_text.before_exit(exception.traceback) or printed_exception(code, stderr) or exception


def _error_file(path: Path) -> ExceptionInfo | None:
    """What torch's `@record` wrote: {"message": {"message": …, "extraInfo": {"py_callstack": …}}}."""
    try:
        content = json.loads(path.read_bytes())
        callstack = content["message"]["extraInfo"]["py_callstack"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return traceback_text.from_text(callstack) if isinstance(callstack, str) else None


def printed_exception(code: int | None, log: LogText) -> ExceptionInfo | None:
    """The exception that a log ends with; null where it ends with anything else, or where a signal ended the rank.

    Earlier ones were handled: the program went on and wrote more.
    """
    if code is not None and code < 0 and code not in (-signal.SIGINT, -signal.SIGABRT):
        return None
    printed = traceback_text.last(log.lines)
    if printed is None:
        return None
    after = [line for line in log.lines[printed.end :] if not _NOISE.search(line)]
    return printed.info if len(after) <= _LAST_WORDS else None
