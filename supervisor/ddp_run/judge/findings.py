"""What the rules find about one death or the whole attempt, the best of it, and whether a death only followed. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ddp_run.evidence.exception_chain import before_last, handled, raised_again
from ddp_run.evidence.exception_frames import (
    begins_at_module,
    functions,
    in_collective,
    in_exit,
    raised_by_program,
    reports_another,
    statement,
)
from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.catalogue import NAMELESS, Cause
from ddp_run.judge.dead_threads import awaited_by
from ddp_run.judge.order import strongest
from ddp_run.judge.verdict import Finding
from ddp_run.record.events import ExceptionInfo
from ddp_run.values.signals import in_words

_Asked = TypeVar("_Asked")
LATE_NS = 50_000_000
"""The longest delay of the kernel's report of an end, on a busy host."""
_WRITES = re.compile(r"\bopen\((?:[^\n]{1,400}, )?(?:mode=)?['\"][wax][bt+]{0,2}['\"]|\.(?:write\w{0,20}|save|dump)\(")
_REMOVES = re.compile(r"os\.(?:remove|unlink)\(")
_REMOVING = ("rmtree", "unlink")
_WITH_AGENT_NS = 1_000_000_000
"""How long before the agent's end a rank may be reported that went with it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A death and its finding. `reason` says why it is collateral; empty if it failed on its own."""

    death: Death
    finding: Finding
    reason: str


@dataclass
class Rules:
    """Causes to ask about one attempt; `notes` grows by the rules that raise."""

    attempt: Evidence
    causes: tuple[Cause, ...]
    notes: list[str]
    _told: dict[tuple[object, ...], tuple[Cause, ...]] = field(default_factory=dict)
    """The cause, by what a pasted log shows of an end: of many ranks that print the same, one is asked about."""

    def judge(self, death: Death) -> Judged:
        """Return the best finding about a death, and why it is collateral, if it is."""
        best = self._best(death)
        thread = None if self.attempt.logs_only else awaited_by(death)
        if thread is not None and (of_it := self._best(thread)) is not None:
            death, best = thread, replace(of_it, confidence="likely")
        before = _before_its_handler(death, expected=best is not None and best.rule.consequence)
        own = self._best(before) if best is not None and before is not None else None
        if best and before and own and not (own.rule.consequence or own.rule.end == "after"):
            same, blamed = own.rule is best.rule, self._only_followed(death, best, own)
            death, best = (before, own) if blamed else (death, best)
            if best.confidence == "certain" and (blamed or not (same or own.rule.general)):
                # programs also raise on purpose what they handle
                best = replace(best, confidence="likely")
        if best is None:
            best = Finding(NAMELESS, f"{death.who} exited", confidence="unknown")
        return Judged(_as_found(death, best), best, self._why_collateral(death, best))

    def _only_followed(self, death: Death, best: Finding, own: Finding) -> bool:
        """Whether the exception that ended a rank came of the one that it was handling, which is `own`: a clean-up that
        fails, too, or finds its peers gone or in another place, or a report of the failure that doesn't get through."""
        raised = death.exception
        if raised is None:
            return False
        if own.rule is best.rule:
            return own.rule.general and in_exit(raised)
        lost = (best.rule.consequence or in_collective(raised)) and not self._peer_ended(death)
        caught = before_last(raised.traceback)
        last_resort = caught is not None and begins_at_module(caught)
        cleaned_up = _in_files(raised) or (in_exit(raised) and not raised_by_program(raised))
        told = lost or reports_another(raised) or (best.rule.general and raised_again(raised))
        return last_resort or told or cleaned_up or best.rule.end in ("after", "waited") or own.rule.end == "sticky"

    def _peer_ended(self, death: Death) -> bool:
        """Whether another rank had ended before: then this one's program lost it, whatever it was handling."""
        others = (each for each in (*self.attempt.deaths, *self.attempt.clean_exits) if each.rank != death.rank)
        return any(each.order < death.order for each in others)

    def _best(self, death: Death) -> Finding | None:
        if not self.attempt.logs_only:
            return self._asked(death, self.causes)
        raised = death.exception
        texts = (raised and (raised.type, raised.message, raised.traceback), death.stderr.lines, death.stack.lines)
        shown = (death.code, death.name, death.signals_sent, *texts)
        best = self._asked(death, self._told.get(shown, ())) or self._asked(death, self.causes)
        if best is not None:
            self._told[shown] = tuple(cause for cause in self.causes if cause.rule is best.rule)
        return best

    def _asked(self, death: Death, causes: Iterable[Cause]) -> Finding | None:
        return strongest(self.ask(lambda cause: cause.match, lambda ask: ask(death, self.attempt), causes))

    def _why_collateral(self, death: Death, finding: Finding) -> str:
        if finding.rule.consequence:
            return "lost its peer"
        sent = [number for number in death.signals_sent if death.code == -number]
        if sent:
            return "stopped with the job"
        if death.signals_sent and death.obeyed and not self._crashed_with_the_first(death):
            told = in_words(-death.signals_sent[0])
            return f"stopped with the job, after {told}"
        return "lost torch's agent" if self._went_with_agent(death) else ""

    def _crashed_with_the_first(self, death: Death) -> bool:
        """Whether the agent told a rank to end that was crashing already: its end is reported late."""
        return death.crashed and 0 < death.order - self.attempt.deaths[0].order <= LATE_NS

    def _went_with_agent(self, death: Death) -> bool:
        """Whether the kernel killed it because the agent had died before it (PR_SET_PDEATHSIG)."""
        agent = self.attempt.agent
        if agent.at is None or agent.code is None or agent.code >= 0 or death.code not in (-9, -15):
            return False
        if agent.killed_by_us:  # killed after its ranks, or together with them: their own signals are recorded
            return False
        return death.order >= agent.at - _WITH_AGENT_NS

    def ask(
        self,
        choose: Callable[[Cause], _Asked | None],
        put: Callable[[_Asked], Finding | None],
        causes: Iterable[Cause] | None = None,
    ) -> list[Finding]:
        """Return each cause's finding for one question. A rule that raises becomes a note and does not hide others."""
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


def _in_files(raised: ExceptionInfo) -> bool:
    """Whether a file could not be removed or written: a handler cleans up, saves the state or reports the failure."""
    touched = _WRITES.search(statement(raised)) is not None and raised.message.startswith("[Errno ")
    return touched or _REMOVES.search(statement(raised)) is not None or not functions(raised).isdisjoint(_REMOVING)


def _before_its_handler(death: Death, *, expected: bool) -> Death | None:
    before = handled(death.exception, expected=expected) if death.exception is not None else None
    return None if before is None else replace(death, exception=before)


def _as_found(death: Death, finding: Finding) -> Death:
    """Return the death with the exception of its chain that shows the cause: a handler may have raised the last one."""
    raised, shown = death.exception, finding.exception
    if raised is None or shown is None:
        return death
    return death if shown is raised else replace(death, exception=replace(shown, traceback=raised.traceback))
