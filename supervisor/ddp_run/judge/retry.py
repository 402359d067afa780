"""Decides whether to make another attempt. Pure. `ddp_run.supervise.job` decides how long to wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_run.judge.catalogue import rule_named
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import PeerFailed, SignalReceived
from ddp_run.values.signals import in_words
from ddp_run.values.words import node_name

_SAME_ENDS = 3
"""Stop after this many attempts that failed the same way without getting further."""
_PORT_ROUNDS = 5
"""How often a port may be taken between our check and the agent's bind before it counts as a failure."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows an attempt.

    `free`: does not count against --max-retries. `backend`: the process-group backend of all ranks from the next
    attempt on; None: unchanged. `port`: the master port of the next attempt, if several nodes have agreed on one.
    """

    retry: bool
    reason: str
    free: bool = False
    backend: str | None = None
    port: int | None = None


def decide(
    verdict: Verdict,
    *,
    policy: str,
    retries_left: int,
    asked: int,
    ports_lost: int,
    port: int | None,
    earlier: Sequence[Verdict] = (),
    fallback: str | None = None,
) -> Decision:
    """Decide whether to retry or stop.

    `port` is the attempt's master port, `ports_lost` how often it was taken, `earlier` the verdicts of previous
    attempts, and `fallback` the backend to try if the program's own fails to initialise.
    """
    if verdict.outcome == "refused" and verdict.retry is not None:
        return Decision(False, verdict.retry.reason)
    if verdict.outcome not in ("failed", "hung"):
        outcome = verdict.outcome or "unknown outcome"
        return Decision(False, _END_REASONS.get(outcome, outcome))
    if _port_stolen(verdict, port) and ports_lost < _PORT_ROUNDS:
        return Decision(True, f"port {port} is taken by another process", free=True)
    if fallback is not None and _failed_to_initialise(verdict):
        reason = f"the process group failed to initialise: all ranks fall back to backend {fallback}"
        return Decision(True, reason, free=True, backend=fallback)
    if asked == 0:
        return Decision(False, _with_catalogue("no retries requested (--max-retries)", verdict))
    if policy == "never":
        return Decision(False, "--retry never")
    if policy == "by-cause" and verdict.retry is not None and not verdict.retry.helps:
        return Decision(False, verdict.retry.reason)
    if retries_left <= 0:
        used = "the only retry is used" if asked == 1 else f"all {asked} retries are used"
        return Decision(False, f"{used} (--max-retries)")
    if policy == "by-cause" and _stands_still([*earlier, verdict]):
        return Decision(False, f"{_SAME_ENDS} attempts failed the same way and none got further")
    if policy == "always":
        return Decision(True, "--retry always")
    return Decision(True, verdict.retry.reason if verdict.retry is not None else "the cause is unknown")


def ended(by: SignalReceived | PeerFailed) -> Decision:
    """No other attempt: a signal stopped the run before the attempt began, or another node of the job ended it."""
    if isinstance(by, PeerFailed):
        return Decision(False, f"{node_name(by.node_rank, by.host)} ended the job before the next attempt: {by.said}")
    return Decision(False, f"ddp-run was stopped by {in_words(-by.signum)} before the next attempt")


ALONE = Decision(False, "this node is not connected to the others and cannot retry alone")


def not_started(number: int, error: OSError) -> Decision:
    """No other attempt: the system could not start it. `number` counts from 1."""
    return Decision(False, f"attempt {number} could not be started: {error}")


def _failed_to_initialise(verdict: Verdict) -> bool:
    """Whether no communicator was created or the backend has no device; NCCL creates one at the first collective."""
    rule = rule_named(verdict.cause)
    return rule is not None and (rule.backend == "always" or (rule.backend == "init" and verdict.phase == "init"))


def _stands_still(verdicts: Sequence[Verdict]) -> bool:
    """Whether the last attempts failed the same way at the same place, and none made more steps than the first."""
    last = verdicts[-_SAME_ENDS:]
    if len(last) < _SAME_ENDS or len({_end(verdict) for verdict in last}) > 1:
        return False
    return all((verdict.step or 0) <= (last[0].step or 0) for verdict in last)


def _end(verdict: Verdict) -> tuple[object, ...]:
    first = verdict.first_failure
    raised = first.exception if first is not None else None
    place = (raised.type, raised.file, raised.line) if raised is not None else ()
    return verdict.cause, first.rank if first is not None else None, verdict.phase, place


def _port_stolen(verdict: Verdict, port: int | None) -> bool:
    cured = verdict.retry is not None and verdict.retry.helps
    return verdict.cause == "port-in-use" and port is not None and cured


UNDECIDED = "ddp-run was killed before deciding"
"""The text about retries in a verdict before the decision."""
_END_REASONS = {"succeeded": "the job succeeded", "interrupted": "ddp-run was stopped"}


def _with_catalogue(reason: str, verdict: Verdict) -> str:
    return f"{reason}; {verdict.retry.reason}" if verdict.retry is not None else reason
