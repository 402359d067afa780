"""Judges one attempt: all rules over all deaths, one cause, one exit code. Pure.

Order of deaths is `Death.order` (a stamp inside the rank, or the kernel's report), never the agent's summary; that is
the source only for ranks that nothing else speaks of. See docs/causes/ for what each rule looks for.
"""

from __future__ import annotations

import importlib
import pkgutil
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from ddp_run.evidence.crash_text import crash_of
from ddp_run.evidence.model import Death, Evidence, Leaver, Phase, Quote
from ddp_run.judge import rules
from ddp_run.judge.first_end import first_end, how_close
from ddp_run.judge.signs import Sign
from ddp_run.judge.verdict import Area, Collateral, Confidence, Finding, FirstFailure, Retry, Rule, Verdict
from ddp_run.record.events import ExceptionInfo, MonotonicNs, Rank
from ddp_run.values.exit_status import in_words, shell_code, signal_name

LOST = 75
"""Exit code where no rank failed by itself (EX_TEMPFAIL): worth a requeue."""
USAGE = 2
HUNG = 124
"""Exit code of a job that was ended because it hung, as timeout(1) has it."""
_Asked = TypeVar("_Asked")
_FALLBACKS = ("python-exception", "unknown")
_UNORDERED = 2**63
_WITH_AGENT_NS = 1_000_000_000
_STOP_TYPES = frozenset({"KeyboardInterrupt", "SystemExit", "SignalException"})


_LEAVING_NS = 1_000_000_000
"""The kernel closes a dying process' sockets before it reports the death (18 ms before, on a loaded host): its peers
can stamp their failure first."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One rule of the catalogue and what it is asked: of a rank's death, of a launch, of an order to stop."""

    rule: Rule
    match: Callable[[Death, Evidence], Finding | None] | None = None
    match_launch: Callable[[Evidence], Finding | None] | None = None
    match_stop: Callable[[Evidence], Finding | None] | None = None
    signs: tuple[Sign, ...] = ()
    """The words that it looks for in logs, where it does."""
    text: str = ""
    """Its documentation: what happened, how to recognise it, what to do."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """A death and what is said of it. `reason` is why it is collateral, null where it failed by itself."""

    death: Death
    finding: Finding
    reason: str | None


def rule_modules() -> Iterator[str]:
    """Load the rules' modules one by one, giving the name of each; a broken one is `load`'s to tell of."""
    for module_info in pkgutil.iter_modules(rules.__path__):
        with suppress(Exception):
            importlib.import_module(f"{rules.__name__}.{module_info.name}")
        yield module_info.name


@cache
def load() -> tuple[tuple[Cause, ...], tuple[str, ...]]:
    """The catalogue, by code, and a note for each file of `rules/` that could not be loaded."""
    causes: list[Cause] = []
    notes: list[str] = []
    for module_info in pkgutil.iter_modules(rules.__path__):
        try:
            module = importlib.import_module(f"{rules.__name__}.{module_info.name}")
            asked = {name: getattr(module, name, None) for name in ("match", "match_launch", "match_stop")}
            causes.append(Cause(module.RULE, **asked, signs=getattr(module, "SIGNS", ()), text=module.__doc__ or ""))
        except Exception as error:
            notes.append(f"rule {module_info.name} could not be loaded: {type(error).__name__}: {error}")
    return tuple(sorted(causes, key=lambda cause: cause.rule.code)), tuple(notes)


def catalogue() -> tuple[Cause, ...]:
    """All causes, by code."""
    return load()[0]


def judge(evidence: Evidence, causes: Sequence[Cause] | None = None) -> Verdict:
    """The verdict for one attempt, by the given causes or the whole catalogue. Never raises for a broken rule."""
    known, notes = load() if causes is None else (tuple(causes), ())
    court = _Court(evidence.without_secrets(), known, list(notes))
    verdict = court.verdict()
    stall = evidence.stall
    before = (
        (f"before that there was no progress: {stall.said}",)
        if stall and verdict.outcome not in ("hung", "succeeded")
        else ()
    )
    left = tuple(each.said for each in evidence.not_ended)
    release = dict.fromkeys(f"{each.release}   # lets go of them" for each in evidence.not_ended if each.release)
    notes = (*verdict.notes, *before, *left, *court.notes)
    return replace(verdict, notes=notes, advice=(*verdict.advice, *release)).without_secrets()


def stopped_before_retry(verdict: Verdict, signum: int) -> Verdict:
    """The run's verdict where a signal came in place of another attempt; `verdict` is the last attempt's."""
    name = in_words(-signum)
    title = f"stopped by {name} before the next attempt" + (f"; before that, {verdict.title}" if verdict.title else "")
    stopped = replace(verdict, outcome="interrupted", exit_code=128 + signum, title=title, advice=())
    return replace(stopped, retry=Retry(helps=False, reason=f"it was told to stop by {name}"))


def follows_another(exception: ExceptionInfo) -> bool:
    """Whether the catalogue takes this exception for a consequence of another rank's failure."""
    death = Death(rank=None, code=1, exception=exception)
    return any(
        cause.match(death, Evidence(deaths=(death,))) is not None
        for cause in catalogue()
        if cause.rule.consequence and cause.match is not None
    )


@dataclass
class _Court:
    """One judgement in progress; `notes` grows."""

    run: Evidence
    causes: tuple[Cause, ...]
    notes: list[str]
    close: bool = False
    """Another rank may have failed before the one that is named."""

    def verdict(self) -> Verdict:
        run = self.run
        if self._succeeded():
            return Verdict("succeeded", 0, confidence="certain")
        judged = [self._judge_death(death) for death in _by_order(run.deaths)]
        own = [item for item in judged if item.reason is None]
        first = self._first(own) if own else None
        if run.hung_s is not None:
            if first is None or not self._failed_before_hang(first):
                return self._hung(run.hung_s)
            self.notes.append(
                f"{first.death.who} failed and its process did not exit; the job was ended after "
                f"{run.hung_s:.0f} s without progress (--hang-timeout)"
            )
        if run.stop_signal is not None and (first is None or not self._failed_before_stop(first)):
            return self._interrupted(judged)
        if first is not None:
            return self._failed(self._named(first, judged), judged)
        if run.logs_only and not judged:
            return self._from_text_without_deaths()
        return self._without_own_failure(judged)

    # ------------------------------------------------------------------------------------ kinds of end

    def _succeeded(self) -> bool:
        run = self.run
        if any(death.code or death.failed_at is not None for death in run.deaths):
            return False
        # On one node an agent whose ranks have all ended well has nothing to add; ddp-run does not wait for its end.
        everyone = run.nodes == 1 and run.world_size is not None and len(run.leavers) >= run.world_size
        if run.agent.code != 0 and not everyone:
            return False
        return run.stop_signal is None or run.stop_at is None or all(x.left_at <= run.stop_at for x in run.leavers)

    def _failed_before_stop(self, first: _Judged) -> bool:
        """Whether it failed by itself and not because it was told to: signals may reach ranks before ddp-run."""
        stop, death = self.run.stop_signal or 0, first.death
        told = death.code == -stop or (
            stop == signal.SIGINT and death.exception is not None and death.exception.type == "KeyboardInterrupt"
        )
        return not told and (self.run.stop_at is None or death.order < self.run.stop_at)

    def _failed_before_hang(self, first: _Judged) -> bool:
        """Whether its program had failed before the job was ended: the others waited for a process that only stayed."""
        failed_at = first.death.failed_at
        return failed_at is not None and self.run.hung_at is not None and failed_at < self.run.hung_at

    def _interrupted(self, judged: Sequence[_Judged]) -> Verdict:
        stop = self.run.stop_signal or 0
        by = in_words(-stop)
        gone = tuple(_collateral(item.death, f"the job was told to stop by {by}") for item in judged)
        retry = Retry(helps=False, reason=f"it was told to stop by {by}")
        code = self._interrupted_code(stop)
        verdict = Verdict("interrupted", code, confidence="certain", collateral=gone, retry=retry)
        verdict = replace(verdict, phase=self.run.stop_phase, step=self.run.stop_step)
        finding = self._best(self._ask(lambda cause: cause.match_stop, lambda ask: ask(self.run)))
        return verdict if finding is None else _with_finding(verdict, replace(finding, retry=retry))

    def _interrupted_code(self, stop: int) -> int:
        codes = {death.code for death in self.run.deaths}
        everyone = not self.run.leavers and len(self.run.deaths) >= self.run.started
        common = codes.pop() if len(codes) == 1 and everyone else None
        return common & 0xFF if common is not None and common > 0 else 128 + stop

    def _failed(self, first: _Judged, judged: Sequence[_Judged]) -> Verdict:
        first = self._first_to_blame(first, judged)
        death = first.death
        others = [item for item in judged if item.death.rank != death.rank]
        gone = tuple(_collateral(item.death, _reason(item, first)) for item in others)
        first_failure, own_code = _first_failure(death), death.code
        if first.finding.culprit is not None:
            first_failure = self._culprit(first.finding.culprit, death)
            gone = tuple(each for each in gone if each.rank != first.finding.culprit)
            # where the culprit has no code of its own, the job ends with that of the rank that tells of it
            own_code = death.code if first_failure.exit_code is None else first_failure.exit_code
        code = None if self.run.logs_only and own_code is None else shell_code(own_code) or 1
        verdict = Verdict("failed", code, first_failure=first_failure, collateral=gone)
        self._cross_check(death)
        verdict = replace(verdict, phase=death.phase, step=death.step, call=death.call)
        verdict = self._as_sure_as_the_order(_with_finding(verdict, first.finding), judged)
        return replace(verdict, confidence="likely") if self.close and verdict.confidence == "certain" else verdict

    def _first(self, own: Sequence[_Judged]) -> _Judged:
        """The first of those that failed by themselves; what differs from it and may have come before it is noted."""
        index, rivals = first_end([item.death for item in own])
        first = own[index]
        unlike = [own[rival] for rival in rivals if _kind(own[rival]) != _kind(first)]
        if unlike:
            self.close = True
            self.notes.append(how_close([first.death, *(item.death for item in unlike)]))
        elif rivals and first.death.failed_at is None:  # the cause is the same whoever was first
            self.notes.append(how_close([first.death, *(own[rival].death for rival in rivals)]))
        return first

    def _first_to_blame(self, first: _Judged, judged: Sequence[_Judged]) -> _Judged:
        """Rank 2 blames rank 0, and that blames rank 1: what rank 0 says counts."""
        seen = [first]
        while True:
            last = seen[-1]
            named = [
                item for item in judged if last.finding.culprit is not None and item.death.rank == last.finding.culprit
            ]
            if not named or named[0] in seen or named[0].finding.culprit is None:
                return last
            seen.append(named[0])

    def _culprit(self, rank: Rank, reporter: Death) -> FirstFailure:
        """The rank that another one's text names as the cause: its own code counts where nobody had ended it."""
        known = next((death for death in self.run.deaths if death.rank == rank), None)
        if known is None:
            return FirstFailure(rank)
        told = known.code is None or -known.code in known.signals_sent
        found = _first_failure(replace(known, code=None if told else known.code))
        return replace(found, exception=known.exception if known is reporter else None)

    def _without_own_failure(self, judged: Sequence[_Judged]) -> Verdict:
        """Only consequences are known here: of a rank that left with 0, of something outside, or of nothing seen."""
        lost = [item for item in judged if item.finding.rule.consequence]
        leaver = self._culprit_that_left(lost, judged)
        if leaver is not None:
            return self._left_early(leaver, lost, judged)
        if lost and self.run.nodes == 1:
            return self._failed(lost[0], judged)
        gone = tuple(_collateral(item.death, item.reason or "ended with the others") for item in judged)
        findings = self._ask(lambda cause: cause.match_launch, lambda ask: ask(self.run))
        specific = [finding for finding in findings if finding.rule.name not in _FALLBACKS]
        finding = self._best(specific) or (lost[0].finding if lost else self._best(findings))
        phase: Phase | None = None if self.run.started or self.run.deaths else "launch"
        usage = finding is not None and finding.rule.area is Area.LAUNCH
        # A scheduler that requeues a job for its exit code 75 would do so for ever where no retry can help.
        worth_a_try = finding is None or (finding.retry or finding.rule.retry).helps
        verdict = Verdict("failed", USAGE if usage else LOST if worth_a_try else 1, collateral=gone, phase=phase)
        return verdict if finding is None else _with_finding(verdict, finding)

    def _from_text_without_deaths(self) -> Verdict:
        """A launch that failed, as the text shows; else there is nothing to say."""
        findings = self._ask(lambda cause: cause.match_launch, lambda ask: ask(self.run))
        specific = [finding for finding in findings if finding.rule.name not in _FALLBACKS]
        finding = self._best(specific or findings)
        if finding is None or (self.run.agent.code is None and not specific):
            return Verdict(None, None)
        return _with_finding(Verdict("failed", self.run.agent.code, phase="launch"), finding)

    def _hung(self, seconds: float) -> Verdict:
        """Ended because nobody made progress: what was seen of the ranks before says why."""
        stall = self.run.stall
        name = stall.cause if stall is not None else "hang"
        rule = next((cause.rule for cause in self.causes if cause.rule.name == name), _NAMELESS)
        said = (
            stall.said
            if stall is not None
            else f"no rank made progress for {seconds:.0f} s, and none could be looked at"
        )
        rank = stall.culprits[0] if stall is not None and stall.culprits else None
        shown = self._with_stacks(rank)
        quotes = tuple(Quote(self._stacks(shown), None, text) for text in (stall.quotes if stall is not None else ()))
        advice = (
            (f"cat {self.run.path(self._stacks(shown))}   # all threads of rank {shown}",)
            if self._is_here(shown)
            else ()
        )
        reason = f"the job was ended after {seconds:.0f} s without progress (--hang-timeout)"
        first = None
        if rank is not None:
            first = self._hanging(rank)
        gone = tuple(_collateral(death, "ended with the job") for death in self.run.deaths if death.rank != rank)
        verdict = Verdict(
            "hung",
            HUNG,
            first_failure=first,
            collateral=gone,
            phase=self._phase_of(rank),
            call=next((death.call for death in self.run.deaths if death.rank == rank), None),
            notes=(reason,),
        )
        sure: Confidence = "certain" if stall is not None and stall.hung and stall.culprits else "likely"
        return _with_finding(
            verdict, Finding(rule, rank, said, quotes, advice, sure if stall is not None else "unknown")
        )

    def _hanging(self, rank: Rank) -> FirstFailure:
        known = next((death for death in self._ranks if death.rank == rank), None)
        if known is not None:  # its code is that of the signal by which ddp-run ended it
            return replace(_first_failure(known), exit_code=None, signal=None, exception=None)
        left = next((leaver for leaver in self.run.leavers if leaver.rank == rank), None)
        if left is not None:
            return _leaving(left)
        return FirstFailure(rank)

    def _with_stacks(self, rank: Rank | None) -> Rank | None:
        """Whose stacks show the hang: those of a rank that has left do not; those of whoever waits for it do."""
        stall, known = self.run.stall, {death.rank for death in self._ranks}
        if rank in known or stall is None or all(leaver.rank != rank for leaver in self.run.leavers):
            return rank
        return next((each for each in stall.waiting if each in known), rank)

    def _is_here(self, rank: Rank | None) -> bool:
        """Whether it ran on this node: NCCL's RAS may have named a rank of another one."""
        return rank in {death.rank for death in self.run.deaths} | {leaver.rank for leaver in self.run.leavers}

    def _stacks(self, rank: Rank | None) -> str:
        """Where the stacks of a rank are."""
        known = [death for death in self._ranks if rank is None or death.rank == rank]
        source = known[0].stderr.source if known else ""
        return source.replace("stderr.log", "live_stacks.txt") if source else "live_stacks.txt"

    def _phase_of(self, rank: Rank | None) -> Phase | None:
        return next((death.phase for death in self._ranks if rank is None or death.rank == rank), None)

    @property
    def _ranks(self) -> tuple[Death, ...]:
        """Those that ended, and those that could not be ended."""
        return (*self.run.deaths, *self.run.survivors)

    # -------------------------------------------------------------------------------------- who did it

    def _culprit_that_left(self, lost: Sequence[_Judged], judged: Sequence[_Judged]) -> Leaver | None:
        """The first rank that ended with 0 when the others lost it; only where they show nothing else."""
        if not lost or not self.run.leavers:
            return None
        first = self.run.leavers[0]
        return first if all(first.left_at < item.death.order + _LEAVING_NS for item in judged) else None

    def _left_early(self, leaver: Leaver, lost: Sequence[_Judged], judged: Sequence[_Judged]) -> Verdict:
        first = _leaving(leaver)
        gone = tuple(_collateral(item.death, _lost_peer(item, f"rank {leaver.rank}")) for item in judged)
        finding = _departure(leaver.rank, 0, lost)
        return _with_finding(Verdict("failed", 1, first_failure=first, collateral=gone), finding)

    def _named(self, first: _Judged, judged: Sequence[_Judged]) -> _Judged:
        """A rank that ended with a code of its own and no word, while others lost it, is their peer that died."""
        lost = [item for item in judged if item.finding.rule.consequence]
        silent = first.finding.rule.name == "unknown" and (first.death.code is None or first.death.code > 0)
        if not lost or not silent:
            return first
        return replace(first, finding=_departure(first.death.rank, first.death.code, lost, first.finding))

    # ------------------------------------------------------------------------------------- one death

    def _judge_death(self, death: Death) -> _Judged:
        specific = [cause for cause in self.causes if cause.rule.name not in _FALLBACKS]
        findings = self._ask(lambda cause: cause.match, lambda ask: ask(death, self.run), specific)
        best = self._best(findings)
        if best is None:
            best = self._fallback(death)
        return _Judged(death, best, self._why_collateral(death, best))

    def _fallback(self, death: Death) -> Finding:
        for name in _FALLBACKS:
            general = [cause for cause in self.causes if cause.rule.name == name]
            found = self._ask(lambda cause: cause.match, lambda ask: ask(death, self.run), general)
            if found:
                return found[0]
        return Finding(_NAMELESS, death.rank, f"{death.who} ended", confidence="unknown")

    def _why_collateral(self, death: Death, finding: Finding) -> str | None:
        if finding.rule.consequence:
            return "lost its peer"
        sent = [number for number in death.signals_sent if death.code == -number]
        if sent:
            return "ended with the job"
        if death.signals_sent and (finding.rule.name == "unknown" or _is_stop(death)):
            told = in_words(-death.signals_sent[0])
            return f"ended with the job, after {told}"
        return "lost torch's agent" if self._went_with_agent(death) else None

    def _went_with_agent(self, death: Death) -> bool:
        """Killed by the kernel because the agent had died before it (PR_SET_PDEATHSIG)."""
        agent = self.run.agent
        if agent.at is None or agent.code is None or agent.code >= 0 or death.code not in (-9, -15):
            return False
        if agent.killed_by_us:  # after its ranks had ended, or with them: then they have signals of their own
            return False
        return death.order >= agent.at - _WITH_AGENT_NS

    # ------------------------------------------------------------------------------------------ rules

    def _ask(
        self,
        choose: Callable[[Cause], _Asked | None],
        put: Callable[[_Asked], Finding | None],
        causes: Iterable[Cause] | None = None,
    ) -> list[Finding]:
        """What each cause answers to one question; one that raises becomes a note and hides no other."""
        found: list[Finding] = []
        for cause in self.causes if causes is None else causes:
            asked = choose(cause)
            try:
                finding = put(asked) if asked is not None else None
            except Exception as error:
                self.notes.append(f"rule {cause.rule.name} failed: {type(error).__name__}: {error}")
                continue
            if finding is not None:
                found.append(finding)
        return found

    def _best(self, findings: Sequence[Finding]) -> Finding | None:
        """What no other finding beats; a cause before a consequence, the surer one first."""
        beaten = {name for finding in findings for name in finding.rule.beats}
        left = [finding for finding in findings if finding.rule.name not in beaten] or list(findings)
        return min(left, key=_precedence, default=None)

    # ----------------------------------------------------------------------------------- cross-checks

    def _cross_check(self, death: Death) -> None:
        """Says where torch's summary names another rank than the stamps do; it is never followed silently."""
        root = next((entry for entry in self.run.agent.summary if entry.root), None)
        if root is None or root.rank == death.rank or death.order == _UNORDERED:
            return
        seen = (
            f"rank {death.rank} reported its failure first"
            if death.failed_at is not None
            else f"the kernel saw rank {death.rank} end first"
        )
        self.notes.append(f"torchrun's summary names rank {root.rank}; {seen}")

    def _as_sure_as_the_order(self, verdict: Verdict, judged: Sequence[_Judged]) -> Verdict:
        """Without stamps, failures within one second of the agent's clock have no known order.

        That matters only where they differ.
        """
        if len({(item.finding.rule.name, _type(item.death)) for item in judged}) == 1:
            return verdict
        unordered = [death for death in self.run.deaths if death.order == _UNORDERED]
        roots = [entry.time for entry in self.run.agent.summary if entry.root]
        same = [entry for entry in self.run.agent.summary if roots and entry.time == roots[0]]
        if len(unordered) < len(self.run.deaths) or len(same) < 2 or verdict.confidence != "certain":
            return verdict
        return replace(verdict, confidence="likely")


_NAMELESS = Rule(
    "DDP000", "unknown", "Nobody could tell", Area.UNKNOWN, Retry(helps=True, reason="the cause is not known"), "0.1"
)


def _precedence(finding: Finding) -> tuple[bool, int, str]:
    sure: tuple[Confidence, ...] = ("certain", "likely", "unknown")
    return finding.rule.consequence, sure.index(finding.confidence), finding.rule.code


def _by_order(deaths: Iterable[Death]) -> list[Death]:
    return sorted(deaths, key=lambda death: death.order)


def _type(death: Death) -> str | None:
    return death.exception.type if death.exception is not None else None


def _kind(item: _Judged) -> tuple[str, str | None, int | None]:
    return item.finding.rule.name, _type(item.death), item.death.code


def _is_stop(death: Death) -> bool:
    """An exception by which a program obeys a signal; no exception counts as one."""
    return death.exception is None or death.exception.type.rpartition(".")[2] in _STOP_TYPES


def _departure(rank: int | None, code: int | None, lost: Sequence[_Judged], found: Finding | None = None) -> Finding:
    peers = ", ".join(str(item.death.rank) for item in lost if item.death.rank is not None)
    waiting = "others" if not peers else f"rank {peers}" if len(lost) == 1 else f"ranks {peers}"
    who = "a rank" if rank is None else f"rank {rank}"
    advice = (
        (
            f"make all ranks run the same number of steps: {who} ended with 0 while {waiting} went on",
            "DistributedSampler(dataset, drop_last=True), or torch.distributed.algorithms.join.Join for uneven inputs",
        )
        if code == 0
        else (found.advice if found is not None else ())
    )
    return replace(
        lost[0].finding,
        rank=lost[0].death.rank,
        cause=f"{who} left with {in_words(code)} while {waiting} still needed it",
        evidence=(*(found.evidence if found is not None else ()), *lost[0].finding.evidence),
        advice=advice,
        retry=Retry(helps=False, reason="the ranks would disagree about the number of steps again")
        if code == 0
        else None,
        exception=None,
        confidence="likely" if code is None else "certain",
    )


def _with_finding(verdict: Verdict, finding: Finding) -> Verdict:
    return replace(
        verdict,
        cause=finding.rule.name,
        code=finding.rule.code,
        title=finding.cause,
        confidence=finding.confidence,
        evidence=finding.evidence,
        advice=finding.advice,
        retry=finding.retry or finding.rule.retry,
    )


def _first_failure(death: Death) -> FirstFailure:
    crash = crash_of(death) if death.exception is None else None
    return FirstFailure(
        rank=death.rank,
        local_rank=death.local_rank,
        node_rank=death.node_rank,
        host=death.host,
        pid=death.pid,
        exit_code=death.code,
        signal=signal_name(death.code),
        at=None if death.order == _UNORDERED else MonotonicNs(death.order),
        exception=death.exception if crash is None else crash.exception,
        log=death.stderr.source or None,
    )


def _leaving(leaver: Leaver) -> FirstFailure:
    return FirstFailure(
        rank=leaver.rank,
        local_rank=leaver.local_rank,
        node_rank=leaver.node_rank,
        host=leaver.host,
        pid=leaver.pid,
        exit_code=0,
        signal=None,
        at=leaver.left_at,
        exception=None,
        log=leaver.stderr.source or None,
    )


def _collateral(death: Death, reason: str) -> Collateral:
    return Collateral(death.rank, death.code, signal_name(death.code), reason)


def _lost_peer(item: _Judged, who: str) -> str:
    return f"lost its peer, {who}" if item.finding.rule.consequence else item.reason or "ended with the others"


def _reason(item: _Judged, first: _Judged) -> str:
    if item.reason is not None:
        return _lost_peer(item, first.death.who)
    if item.finding.rule.name == first.finding.rule.name:
        return f"failed later in the same way as {first.death.who}"
    return f"failed after {first.death.who}: {item.finding.cause}"
