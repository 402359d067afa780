"""Handles logs in which ranks only lost a peer and nothing shows why. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import ip_address

from ddp_run.judge.catalogue import rule_named
from ddp_run.judge.verdict import Collateral, Verdict

_PEER_DIED = "peer-died"
_REASON = "lost its peer"
_PEER = re.compile(
    r"(?:by peer|[Rr]ead error|[Ww]rite error|\bread|\bwritev?) \[(?P<gloo>[0-9A-Za-z.:_%-]{2,64})\]"
    r"|by remote peer (?P<nccl>[0-9A-Za-z.:_%-]{2,64})<\d"
    r"|\bremote=\[(?P<store>[0-9A-Za-z.:_%-]{2,64})\]"
)


def address(message: str) -> str | None:
    """The lost peer's address or host name, as printed by gloo, NCCL or the store's client; None if not printed."""
    found = _PEER.search(message)
    return None if found is None else found["gloo"] or found["nccl"] or found["store"]


def only_lost(verdict: Verdict) -> bool:
    """Whether the cause is that of a rank that only noticed another's failure. Ray's driver isn't a rank."""
    rule = rule_named(verdict.cause)
    return rule is not None and rule.consequence and rule.name != "ray-actor-died"


def without_the_first(verdict: Verdict, logs: int) -> Verdict:
    """Return a verdict for `logs` texts in which all ranks only noticed: the first failure is not in them.

    The exit code would follow from the first failure, so it is unknown, too.
    """
    title = f"{verdict.title}, which likely failed first" if verdict.cause == _PEER_DIED else verdict.title
    there = "this log" if logs == 1 else "these logs"
    return replace(
        verdict,
        exit_code=None,
        title=title,
        confidence="likely",
        first_failure=None,
        collateral=_followers(verdict),
        notes=(f"this is a consequence: the first failure was not found in {there}", *verdict.notes),
        advice=(*(_where_to_look(verdict) if verdict.cause == _PEER_DIED else verdict.advice), *_together(logs)),
    )


def _followers(verdict: Verdict) -> tuple[Collateral, ...]:
    """Return the rank that seemed to be first, and those that seemed to follow it."""
    first = verdict.first_failure
    if first is None:
        return verdict.collateral
    others = (replace(each, reason=_REASON) if each.reason.startswith(_REASON) else each for each in verdict.collateral)
    return (Collateral(first.rank, first.exit_code, first.signal, _REASON), *others)


def _where_to_look(verdict: Verdict) -> tuple[str, ...]:
    raised = verdict.first_failure.exception if verdict.first_failure is not None else None
    said = [*([] if raised is None else [raised.message]), *(quote.text for quote in verdict.evidence)]
    peer = next(filter(None, map(address, said)), None)
    if peer is None:
        return ("read the logs of the other ranks: what failed there first is the cause",)
    if _is_here(peer):
        return (
            "read the logs of the other ranks on the same host: what failed there first is the cause; "
            "if nothing did, one of them may have been killed, or exited with code 0",
        )
    return (f"read the log of the rank at {peer}: what failed there first is the cause",)


def _is_here(peer: str) -> bool:
    """Whether the address means the host itself, whichever host that is."""
    try:
        return ip_address(peer.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return peer == "localhost"


def _together(logs: int) -> tuple[str, ...]:
    return ("ddp-run explain rank*.log   # the logs of all ranks together, or the run's folder",) if logs == 1 else ()
