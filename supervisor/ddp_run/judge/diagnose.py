"""Judges one attempt: applies all rules to all deaths and returns one cause and one exit code. Pure.

Deaths are ordered by `Death.order` (a stamp inside the rank, or the kernel's report), not by the agent's summary. The
summary is used only for ranks that have no other source. docs/causes/ describes what each rule looks for.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_run.evidence import childfailed
from ddp_run.evidence.model import UNORDERED, Death, Evidence, Phase
from ddp_run.judge.catalogue import Cause, load
from ddp_run.judge.dead_threads import note_on
from ddp_run.judge.findings import Judged, Rules
from ddp_run.judge.first_end import (
    FirstEnd,
    doubts_of,
    ended_silently,
    finished_first,
    first_end,
    followed,
    follower,
    lost_peer,
    of_death,
    shown_on,
)
from ddp_run.judge.hung import hung
from ddp_run.judge.order import strongest
from ddp_run.judge.passed_on import Source, source_of
from ddp_run.judge.verdict import OF_THE_LAUNCH, OF_THE_NETWORK, Finding, FirstFailure, Layer, Retry, Verdict
from ddp_run.record.events import Rank
from ddp_run.values.signals import in_words, shell_code

LOST = 75
"""Exit code if no rank failed on its own (EX_TEMPFAIL): worth a requeue."""
USAGE = 2
CANNOT_WORK, UNFIT = 2, 78
"""EX_CONFIG of sysexits.h: the nodes are not fit for the job."""


LEAVING_NS = 1_000_000_000
"""The kernel closes a dying process' sockets before it reports the death (18 ms before, on a loaded host), so its peers
can stamp their failure first."""


def judge(evidence: Evidence, causes: Sequence[Cause] | None = None) -> Verdict:
    """Return the verdict for one attempt, using the given causes or the whole catalogue. Broken rules do not raise."""
    if causes is None and not evidence.deaths and _succeeded(evidence):
        causes = ()  # nothing to ask them about: the catalogue needn't be loaded
    known, notes = load() if causes is None else (tuple(causes), ())
    judgement = _Judgement(evidence.without_secrets(), known, list(notes))
    verdict = judgement.verdict()
    stall = evidence.stall
    before = (
        (f"before that, no progress: {stall.said}",) if stall and verdict.outcome not in ("hung", "succeeded") else ()
    )
    left = tuple(each.said for each in evidence.not_ended)
    release = dict.fromkeys(f"{each.release}   # releases them" for each in evidence.not_ended if each.release)
    notes = (*verdict.notes, *before, *left, *judgement.notes)
    return replace(verdict, notes=notes, advice=(*verdict.advice, *release)).without_secrets()


def failed_by_itself(evidence: Evidence) -> bool:
    """Whether any rank failed on its own, not because it lost a peer or was told to stop."""
    rules = Rules(evidence.without_secrets(), load()[0], [])
    return any(not rules.judge(death).reason for death in rules.attempt.deaths)


def _succeeded(attempt: Evidence) -> bool:
    """Whether the ranks of all nodes exited with 0. If a rank's program failed, its process' exit code decides."""
    if any(death.code or (death.code is None and death.failed_at is not None) for death in attempt.deaths):
        return False
    # If the ranks of all nodes ended well, ddp-run does not wait for the agent: it has nothing to add.
    ranks = attempt.world_size if attempt.nodes == 1 else None
    left = (*attempt.clean_exits, *(death for death in attempt.deaths if death.code == 0))
    ends = [death.died_at for death in left if death.died_at is not None]
    everyone = attempt.all_nodes_ended_well or (ranks is not None and len(ends) >= ranks)
    if attempt.agent.code != 0 and not everyone:
        return False
    return attempt.stop_at is None or all(at <= attempt.stop_at for at in ends)


@dataclass
class _Judgement:
    """One judgement in progress; `notes` grows."""

    attempt: Evidence
    causes: tuple[Cause, ...]
    notes: list[str]
    close: bool = False
    """Another rank may have failed before the named one."""
    why: str = ""
    """Why another rank than the first to end is named."""

    def __post_init__(self) -> None:
        self.rules = Rules(self.attempt, self.causes, self.notes)

    def verdict(self) -> Verdict:
        attempt = self.attempt
        if _succeeded(attempt):
            failed = [self.rules.judge(death) for death in attempt.deaths if death.code == 0]
            self.notes += [f"{each.finding.cause}; its process then exited with code 0" for each in failed]
            return Verdict("succeeded", 0, confidence="certain")
        if attempt.rank_taken is not None:
            return self._refused("syntax-or-usage", CANNOT_WORK)
        if attempt.endpoint_taken is not None:
            return self._refused("port-in-use", CANNOT_WORK)
        if attempt.unlike is not None and attempt.unlike.refused:
            self.notes += [f"nodes differ in {said}" for said in attempt.unlike.breaking[1:]]
            return self._refused("unlike-nodes", UNFIT)
        judged = [self.rules.judge(death) for death in sorted(attempt.deaths, key=lambda death: death.order)]
        own = [item for item in judged if not item.reason]
        end = first_end(own, in_text=attempt.logs_only) if own else None
        first = None if end is None else end.item
        if attempt.hung_s is not None:
            if first is None or not self._failed_before_hang(first):
                return hung(attempt, self.causes, attempt.hung_s)
            stayed = "did not exit" if first.death.code != 0 else "exited with code 0"
            self.notes.append(
                f"{first.death.who} failed and its process {stayed}; the job was terminated after "
                f"{attempt.hung_s:.0f} s without progress (--hang-timeout)"
            )
        stop = attempt.stop_signal
        if stop is not None and (first is None or not self._failed_before_stop(first, stop)):
            return self._interrupted(stop, judged)
        if end is not None:
            return self._failed(self._to_blame(end, judged), judged)
        if attempt.logs_only and not judged:
            return self._from_text_without_deaths()
        return self._without_own_failure(judged)

    # ----------------------------------------------------------------------------------- ways a job can end

    def _refused(self, name: str, code: int) -> Verdict:
        """Return the verdict for a job that was refused before its start; the way its ranks ended does not matter."""
        verdict = Verdict("refused", code, confidence="certain", phase="launch")
        asked = [cause for cause in self.causes if cause.rule.name == name]
        finding = strongest(self.rules.ask(lambda cause: cause.match_launch, lambda ask: ask(self.attempt), asked))
        return verdict if finding is None else verdict.with_finding(finding)

    def _failed_before_stop(self, first: Judged, stop: int) -> bool:
        """Whether it failed on its own and not because of the stop; a signal may reach ranks before ddp-run."""
        death = first.death
        told = death.code == -stop or (
            stop == signal.SIGINT and death.exception is not None and death.exception.type == "KeyboardInterrupt"
        )
        rule, log = first.finding.rule, self.attempt.agent.log
        if self.attempt.logs_only and rule.code.startswith(OF_THE_NETWORK):
            # the connection to a node that was told to stop; what else fails there may be why it was told
            told = told or 0 < childfailed.stopped_on(log) < shown_on(first)
        elif self.attempt.logs_only and death.exception is None and rule.layer <= Layer.ENDED:
            told = told or childfailed.stopped_first(log.lines)
        return not told and (self.attempt.stop_at is None or death.order < self.attempt.stop_at)

    def _failed_before_hang(self, first: Judged) -> bool:
        """Whether a rank's program had failed before the stop, so that the others waited for its lingering process."""
        failed_at = first.death.failed_at
        return failed_at is not None and self.attempt.hung_at is not None and failed_at < self.attempt.hung_at

    def _interrupted(self, stop: int, judged: Sequence[Judged]) -> Verdict:
        by = in_words(-stop)
        gone = tuple(follower(item.death, f"the job was stopped by {by}") for item in judged)
        retry = Retry(helps=False, reason=f"the job was stopped by {by}")
        code = self._interrupted_code(stop, judged)
        verdict = Verdict("interrupted", code, confidence="certain", collateral=gone, retry=retry)
        verdict = replace(verdict, phase=self.attempt.phase, step=self.attempt.step)
        finding = strongest(self.rules.ask(lambda cause: cause.match_stop, lambda ask: ask(self.attempt)))
        return verdict if finding is None else verdict.with_finding(replace(finding, retry=retry))

    def _interrupted_code(self, stop: int, judged: Sequence[Judged]) -> int:
        """Return the exit code that all ranks chose, if they agree. A rank that lost its peer to the stop chose
        none."""
        codes = {None if item.finding.rule.consequence else item.death.code for item in judged}
        everyone = not self.attempt.clean_exits and len(self.attempt.deaths) >= self.attempt.started
        common = codes.pop() if len(codes) == 1 and everyone else None
        return common & 0xFF if common is not None and common > 0 else 128 + stop

    def _failed(self, first: Judged, judged: Sequence[Judged]) -> Verdict:
        first = self._first_to_blame(first, judged)
        death = first.death
        others = [item for item in judged if item.death.rank != death.rank]
        gone = tuple(follower(item.death, followed(item, first)) for item in others)
        first_failure: FirstFailure | None = of_death(death)
        own_code = death.code
        if first.finding.of_the_job:
            first_failure = None
            gone = tuple(follower(item.death, "ended with the job") for item in judged)
        elif first.finding.culprit is not None:
            first_failure = self._culprit(first.finding.culprit, death)
            gone = tuple(each for each in gone if each.rank != first.finding.culprit)
            # if the culprit has no exit code, use the code of the rank that reports it
            own_code = death.code if first_failure.exit_code is None else first_failure.exit_code
        elif own_code is None and self.why:
            own_code = next((each.exit_code for each in gone if (each.exit_code or 0) > 0), None)
        code = None if self.attempt.logs_only and own_code is None else shell_code(own_code) or 1
        verdict = Verdict("failed", code, first_failure=first_failure, collateral=gone)
        self._cross_check(death)
        if not self.attempt.logs_only:
            self._mind_what_it_caught(death)
        verdict = replace(verdict, phase=death.phase, step=death.step, call=death.call)
        verdict = self._as_sure_as_the_order(verdict.with_finding(first.finding), judged)
        return replace(verdict, confidence="likely") if self.close and verdict.confidence == "certain" else verdict

    def _to_blame(self, end: FirstEnd, judged: Sequence[Judged]) -> Judged:
        """Return the rank whose failure the first one passes on, or the first one itself. Adds a note if a different
        failure may have come before it."""
        first = end.item
        source = source_of(first, judged, self.rules)
        if source is not None:
            return self._passed_on(source)
        doubts = doubts_of(end, judged)
        self.close = end.guessed or any(doubt.other for doubt in doubts)
        self.notes += [doubt.note for doubt in doubts]
        return self._named(first, judged)

    def _passed_on(self, source: Source) -> Judged:
        self.why, self.close = source.why, not source.sure
        return source.item

    def _first_to_blame(self, first: Judged, judged: Sequence[Judged]) -> Judged:
        """Follow a chain of blame: if rank 2 blames rank 0, and rank 0 blames rank 1, rank 1 is meant."""
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
        """Return the rank that another rank's text names as the cause, with its exit code if nobody killed it."""
        known = next((death for death in self.attempt.deaths if death.rank == rank), None)
        if known is None:
            return FirstFailure(rank)
        found = of_death(replace(known, code=known.own_code))
        return replace(found, exception=known.exception if known is reporter else None)

    def _without_own_failure(self, judged: Sequence[Judged]) -> Verdict:
        """Return the verdict if only consequences are known: of a rank that exited with 0, of an outside event, of
        nothing."""
        lost = [item for item in judged if item.finding.rule.consequence]
        source = source_of(lost[0], judged, self.rules) if lost else None
        if source is not None:
            return self._failed(self._passed_on(source), judged)
        leaver = self._culprit_that_left(lost, judged)
        if leaver is not None:
            return self._left_early(leaver, lost, judged)
        if lost and self.attempt.nodes == 1:
            return self._failed(lost[0], judged)
        gone = tuple(follower(item.death, item.reason) for item in judged)
        findings, specific = self._of_launch()
        finding = strongest(specific) or (lost[0].finding if lost else strongest(findings))
        phase: Phase | None = self.attempt.phase if self.attempt.started or self.attempt.deaths else "launch"
        usage = finding is not None and finding.rule.code.startswith(OF_THE_LAUNCH)
        # A scheduler that requeues on exit code 75 would loop endlessly if no retry can help.
        worth_a_try = finding is None or (finding.retry or finding.rule.retry).helps
        code = USAGE if usage else LOST if worth_a_try else 1
        verdict = Verdict("failed", code, collateral=gone, phase=phase, step=self.attempt.step)
        return verdict if finding is None else verdict.with_finding(finding)

    def _from_text_without_deaths(self) -> Verdict:
        """Return the verdict for a launch that failed according to the text, if any."""
        findings, specific = self._of_launch()
        finding = strongest(specific or findings)
        if finding is None or (self.attempt.agent.code is None and not specific):
            return Verdict(None, None)
        return Verdict("failed", self.attempt.agent.code, phase="launch").with_finding(finding)

    def _of_launch(self) -> tuple[list[Finding], list[Finding]]:
        """Return the rules' findings about the launch and the agent's own failure, without the general causes."""
        attempt = self.attempt
        findings = self.rules.ask(lambda cause: cause.match_launch, lambda ask: ask(attempt))
        agent = None if attempt.logs_only else attempt.agent.own_failure
        if agent is not None:
            of_itself = [cause for cause in self.causes if not (cause.rule.consequence or cause.rule.general)]
            findings += self.rules.ask(lambda cause: cause.match, lambda ask: ask(agent, attempt), of_itself)
        return findings, [finding for finding in findings if not finding.rule.general]

    # ------------------------------------------------------------------------------------- the responsible rank

    def _culprit_that_left(self, lost: Sequence[Judged], judged: Sequence[Judged]) -> Death | None:
        """Return the first rank that exited with 0 before the others lost it, if they show no other failure."""
        if not lost or not self.attempt.clean_exits:
            return None
        first = self.attempt.clean_exits[0]
        return first if all(first.order < item.death.order + LEAVING_NS for item in judged) else None

    def _left_early(self, leaver: Death, lost: Sequence[Judged], judged: Sequence[Judged]) -> Verdict:
        first = of_death(leaver)
        gone = tuple(follower(item.death, lost_peer(item, f"rank {leaver.rank}")) for item in judged)
        finding = finished_first(leaver.rank, lost[0].finding, [item.death for item in lost])
        verdict = Verdict("failed", 1, first_failure=first, collateral=gone, phase=leaver.phase, step=leaver.step)
        return verdict.with_finding(finding)

    def _named(self, first: Judged, judged: Sequence[Judged]) -> Judged:
        """A rank that exited with an unusual code and no message while others lost it is the peer that died."""
        lost = [item for item in judged if item.finding.rule.consequence]
        silent = first.finding.rule.name == "unknown" and (first.death.code or 0) >= 0
        if not lost or not silent:
            return first
        waiting = [item.death for item in lost]
        return replace(first, finding=ended_silently(first.death, first.finding, lost[0].finding, waiting))

    # ----------------------------------------------------------------------------------- cross-checks

    def _cross_check(self, death: Death) -> None:
        """Add a note if another rank ended first, or is named by torch's summary; never follow that silently."""
        root = next((entry for entry in self.attempt.agent.summary if entry.root), None)
        if root is not None and (root.rank == death.rank or death.order == UNORDERED):
            root = None
        seen = self.why or (
            f"rank {death.rank} reported its failure first"
            if death.failed_at is not None
            else f"the kernel saw rank {death.rank} exit first"
        )
        if root is not None or self.why:
            self.notes.append(f"torchrun's summary names rank {root.rank}; {seen}" if root is not None else seen)

    def _mind_what_it_caught(self, death: Death) -> None:
        """Add notes on exceptions that did not end the rank by themselves: of a thread, or caught and printed."""
        if (note := note_on(death)) is not None:
            self.notes.append(note)
        if death.exception is not None and death.only_printed and (death.code or 0) > 0:
            self.close = True
            self.notes.append(f"{death.who} had caught that {death.exception.type} and printed it before it exited")

    def _as_sure_as_the_order(self, verdict: Verdict, judged: Sequence[Judged]) -> Verdict:
        """Reduce the confidence if the order is unknown. Without stamps, failures within a second cannot be ordered.

        This matters only if the failures differ.
        """
        if len({(item.finding.rule.name, _type(item.death)) for item in judged}) == 1:
            return verdict
        unordered = [death for death in self.attempt.deaths if death.order == UNORDERED]
        roots = [entry.time for entry in self.attempt.agent.summary if entry.root]
        same = [entry for entry in self.attempt.agent.summary if roots and entry.time == roots[0]]
        if len(unordered) < len(self.attempt.deaths) or len(same) < 2 or verdict.confidence != "certain":
            return verdict
        return replace(verdict, confidence="likely")


def _type(death: Death) -> str | None:
    return death.exception.type if death.exception is not None else None
