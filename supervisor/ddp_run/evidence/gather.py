"""Collects all facts about an attempt, only from its events and the files of the run's folder.

So `ddp-run explain FOLDER` on a journal sees the same as the live run after a death. Nothing is judged here.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast, get_args

from ddp_run.evidence import childfailed, resource_evidence
from ddp_run.evidence.last_exception import last_exception
from ddp_run.evidence.model import AgentEnd, Death, Evidence, LogText, Phase
from ddp_run.evidence.rank_ends import RankEnds
from ddp_run.evidence.run_files import RunFiles, rank_folder, with_logs
from ddp_run.evidence.scan import TAIL_BYTES
from ddp_run.record import file_names
from ddp_run.record.attempt_events import AttemptEvents, before_restart, last_restart, of_attempt
from ddp_run.record.events import (
    AgentExited,
    AgentStarted,
    AllRanksEnded,
    EndpointTaken,
    Event,
    HangTimedOut,
    KernelLogged,
    MonotonicNs,
    NativeFramesSeen,
    NodeRankTaken,
    NodesCompared,
    NotEnded,
    ProgressSampled,
    Rank,
    RankPhase,
    RankStarted,
    SignalReceived,
    SignalSent,
    StallEnded,
    StallSeen,
)
from ddp_run.values.signals import STOP_SIGNALS

LOG_BYTES = 32 << 20
"""The total bytes read from the logs of all ranks: the host may have been out of memory."""
_LEAST_BYTES = 64 << 10
NO_FILES = Path("/dev/null")
"""Used as a folder: nothing below it can be read, so an attempt collected there shows only its events."""


def gather(
    folder: Path, events: Sequence[Event], attempt: int, restart: int | None = None, *, rank_files: bool = True
) -> Evidence:
    """Collect everything that rules may see of one attempt. A missing or unreadable file leaves its part empty.

    `restart`: the start of the ranks within it, from 0, as known when the agent restarted them. None: the last start,
    to the attempt's end. Without `rank_files`, only the agent's log is read.
    """
    part = of_attempt(events, attempt)
    to_its_end = restart is None
    if restart is None:
        restart = last_restart(part.events)
    else:
        part = replace(part, events=before_restart(part.events, restart + 1))
    links = frozenset(link for e in part.of(RankStarted) for link in e.links)
    files = RunFiles(folder, links)
    agent = _agent(files, part, attempt)
    if not to_its_end:
        agent = replace(agent, summary=(), exception=None)
    files = files if rank_files else RunFiles(NO_FILES, frozenset())
    started = {e.rank: e for e in part.of(RankStarted) if e.restart == restart}
    ends = RankEnds.of(part, agent, restart)
    died = [start for start in started.values() if ends.died(start)]
    untold = _without_hello(part, agent, started)
    share = _share(len(died) + len(untold))
    deaths = [_death(files, part, start, ends, share) for start in died]
    deaths += [
        with_logs(files, rank_folder(folder, attempt, each.rank), each, share)
        for each in untold
        if each.rank is not None
    ]
    clean_exits = [_leaver(files, part, start, ends) for start in started.values() if ends.left(start)]
    stop = next((e for e in part.of(SignalReceived) if e.signum in STOP_SIGNALS), None)
    agents_stop = childfailed.stop_signal("\n".join(agent.log.lines)) if to_its_end else None
    not_ended = tuple(part.of(NotEnded))
    alive = [start for start in started.values() if any(start.pid == e.pid for e in not_ended)]
    phase, step = _reached(part, list(started.values()), stop.at if stop is not None else None)
    host_kills, cgroup_kills = resource_evidence.oom_kills(part)
    hung, logged = part.last(HangTimedOut), part.last(KernelLogged)
    return Evidence(
        attempt=attempt,
        attempts=attempt + 1,
        deaths=tuple(sorted(deaths, key=lambda death: death.order)),
        clean_exits=tuple(sorted(clean_exits, key=lambda leaver: leaver.order)),
        started=len(started),
        world_size=next((start.world_size for start in started.values()), None),
        agent=agent,
        stop_signal=stop.signum if stop else agents_stop,
        stop_at=stop.at if stop else None,
        phase=phase,
        step=step,
        host_oom_kills=host_kills,
        cgroup_oom_kills=cgroup_kills,
        kernel=LogText("kernel", logged.lines if logged else (), None),
        kernel_pids=logged is not None and logged.own_pids,
        space=resource_evidence.space(part, restart),
        master_port=part.started.port if part.started else None,
        script=_script(part.run.argv) if part.run else None,
        nodes=part.run.nodes if part.run else 1,
        all_nodes_ended_well=any(e.well for e in part.of(AllRanksEnded)),
        folder=str(folder),
        host=part.run.host if part.run else None,
        stall=_stall(part),
        not_ended=not_ended,
        survivors=tuple(_death(files, part, start, ends, share) for start in alive if not ends.died(start)),
        hung_s=hung.after_s if hung is not None else None,
        hung_at=hung.at if hung is not None else None,
        rank_taken=None if started else part.last(NodeRankTaken),
        endpoint_taken=None if started else part.last(EndpointTaken),
        unlike=part.last(NodesCompared),
    )


def _share(ranks: int) -> int:
    """Return the bytes to read of each of their logs, stdout and stderr."""
    return min(TAIL_BYTES, max(_LEAST_BYTES, LOG_BYTES // (2 * max(1, ranks))))


def _stall(part: AttemptEvents) -> StallSeen | None:
    """Return the last observation of a hung job, if it hung to the end."""
    last, ended = part.last(StallSeen), part.last(StallEnded)
    if last is None or (ended is not None and ended.at > last.at):
        return None
    native = {e.rank: e for e in part.of(NativeFramesSeen) if e.at >= last.since}
    more = [quote for rank in last.culprits if rank in native for quote in native[rank].quotes]
    return replace(last, quotes=(*last.quotes, *more))


def _script(argv: Sequence[str]) -> str | None:
    """Return the script or module on a command line, guessed from the form of its words."""
    modules = (word for flag, word in pairwise(argv) if flag in ("-m", "--module"))
    return next((word for word in argv if word.endswith(".py")), None) or next(modules, None)


# -------------------------------------------------------------------------------------------- the agent


def _agent(files: RunFiles, part: AttemptEvents, attempt: int) -> AgentEnd:
    source = f"{file_names.attempt_folder(attempt)}/{file_names.AGENT_LOG}"
    log = files.tail(source)
    text = "\n".join(log.lines)
    summary = childfailed.parse(text)
    if not summary and (part.run is None or part.run.nodes == 1):
        summary = childfailed.observed(text)
    exited = part.last(AgentExited)
    pids = {e.pid for e in part.of(AgentStarted)}
    kills = [e for e in part.of(SignalSent) if e.signum == signal.SIGKILL and pids & set(e.pids)]
    # a SIGKILL for processes that the agent left behind comes after the agent's end
    killed = any(exited is None or e.at <= exited.at for e in kills)
    code, at = (exited.code, exited.at) if exited else (None, None)
    return AgentEnd(code, log, killed, at, summary, last_exception(code, log))


# -------------------------------------------------------------------------------------------- the ranks


def _rank(part: AttemptEvents, start: RankStarted, ended_at: MonotonicNs | None) -> Death:
    """Return who it is and how far it came. Later output of atexit handlers does not show where its program ended."""
    return Death(
        rank=start.rank,
        local_rank=start.local_rank,
        node_rank=part.node_rank,
        host=part.run.host if part.run else None,
        pid=start.pid,
        phase=_phase(part, start, ended_at),
        step=_step(part, start),
    )


def _death(files: RunFiles, part: AttemptEvents, start: RankStarted, ends: RankEnds, share: int) -> Death:
    failed, exited = ends.failed.get(start.rank), ends.exited.get(start.rank)
    death = replace(
        _rank(part, start, failed.at if failed else None),
        code=ends.code(start),
        failed_at=failed.at if failed else None,
        died_at=exited.at if exited else None,
        exception=failed.exception if failed else None,
        signals_sent=ends.signals(start),
        memory=resource_evidence.memory(part, start, exited.at if exited else None),
        gpus=resource_evidence.gpus(part, start, ends),
        core=resource_evidence.core(part, start),
        call=_call(part, start),
    )
    return with_logs(files, start.folder, death, share)


def _phase(part: AttemptEvents, start: RankStarted, until: MonotonicNs | None = None) -> Phase | None:
    """Return the last phase that the rank reported, at first before-init. None if it was not watched, or no longer."""
    own = (e for e in part.of(RankPhase) if (e.rank, e.restart) == (start.rank, start.restart))
    told = [e.phase for e in own if until is None or e.at <= until]
    phase = told[-1] if told else "before-init"
    return cast(Phase, phase) if start.watched and phase in get_args(Phase) else None


def _reached(
    part: AttemptEvents, ranks: Sequence[RankStarted], until: MonotonicNs | None
) -> tuple[Phase | None, int | None]:
    """Return the phase and the optimizer steps that all these ranks had reached, at the end or `until` this time."""
    if until is not None:
        part = replace(part, events=tuple(e for e in part.events if e.at <= until))
    phases = [_phase(part, start) for start in ranks]
    steps = [_step(part, start) for start in ranks]
    seen = [phase for phase in phases if phase is not None]
    made = [step for step in steps if step is not None]
    phase = min(seen, key=get_args(Phase).index) if seen and len(seen) == len(phases) else None
    return phase, min(made) if made and len(made) == len(steps) else None


def _step(part: AttemptEvents, start: RankStarted) -> int | None:
    """Return its optimizer steps when they were last counted: usually at the first death."""
    last = _last_sample(part, start)
    return None if last is None else last.steps[last.ranks.index(start.rank)] or None


def _call(part: AttemptEvents, start: RankStarted) -> str | None:
    """Return the torch call that it was in at that time."""
    last = _last_sample(part, start)
    return last.calls[last.ranks.index(start.rank)] or None if last is not None and last.calls else None


def _last_sample(part: AttemptEvents, start: RankStarted) -> ProgressSampled | None:
    latest = (e for e in reversed(part.of(ProgressSampled)) if e.at > start.at)
    return next((e for e in latest if start.rank in e.ranks), None)


def _leaver(files: RunFiles, part: AttemptEvents, start: RankStarted, ends: RankEnds) -> Death:
    left_at, stderr = ends.left_at(start), files.tail(f"{start.folder}/{file_names.STDERR}", _LEAST_BYTES)
    return replace(_rank(part, start, left_at), code=0, died_at=left_at, stderr=stderr)


def _without_hello(part: AttemptEvents, agent: AgentEnd, started: Mapping[Rank, RankStarted]) -> list[Death]:
    """Return the ranks that only the agent mentions: all of them if the ranks ran without the bootstrap. Root first."""
    entries = [entry for entry in agent.summary if entry.rank not in started and entry.code != 0]
    entries.sort(key=lambda entry: (not entry.root, entry.time or "", entry.rank))
    return [
        Death(
            rank=entry.rank,
            local_rank=entry.local_rank,
            node_rank=part.node_rank,
            host=entry.host or (part.run.host if part.run else None),
            pid=entry.pid,
            code=entry.code,
        )
        for entry in entries
    ]
