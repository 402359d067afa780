"""A known difference between nodes as a possible reason of a failure: of which causes, by values."""

from __future__ import annotations

import pytest

from ddp_run.judge.known_differences import noted
from ddp_run.judge.verdict import Outcome, Verdict
from ddp_run.record.events import MonotonicNs, NodesCompared

TORCH = "torch: 2.13.0 on node 0 (a), 2.12.1 on node 1 (b)"
SCRIPT = "script (SHA-256): aa on node 0 (a), bb on node 1 (b)"
ALGORITHM = "NCCL_ALGO: Ring on node 0 (a), Tree on node 1 (b)"


def notes(cause: str | None, *breaking: str, outcome: Outcome = "failed") -> tuple[str, ...]:
    compared = NodesCompared(MonotonicNs(1), breaking, ("MTU: 1 on node 0, 2 on node 1",), (), refused=False)
    return noted(Verdict(outcome, 1, cause), [compared]).notes


@pytest.mark.parametrize(
    ("cause", "difference", "explains"),
    [
        ("collective-mismatch", TORCH, True),
        ("rendezvous-timeout", TORCH, True),
        ("version-mismatch", TORCH, True),
        ("segfault", TORCH, True),
        ("hang", ALGORITHM, True),
        ("nccl-timeout-hang", ALGORITHM, True),
        ("gloo-timeout-hang", ALGORITHM, False),
        ("python-exception", SCRIPT, True),
        ("python-exception", TORCH, False),
        ("host-oom", TORCH, False),
        ("disk-full", SCRIPT, False),
        ("node-failed", TORCH, False),
        ("no-such-cause", TORCH, False),
        (None, TORCH, False),
    ],
)
def test_which_failures_a_difference_may_explain(cause: str | None, difference: str, explains: bool) -> None:
    assert notes(cause, difference) == ((f"a possible reason: nodes differ in {difference}",) if explains else ())


def test_the_verdict_itself_stays() -> None:
    verdict = Verdict("failed", 3, "hang", title="t", confidence="certain", notes=("before",))
    compared = NodesCompared(MonotonicNs(1), (SCRIPT, TORCH, ALGORITHM), (), (), refused=False)
    told = noted(verdict, [compared])
    assert told.notes == ("before", *(f"a possible reason: nodes differ in {each}" for each in (SCRIPT, TORCH)))
    assert (told.cause, told.confidence, told.exit_code) == ("hang", "certain", 3)
    assert noted(verdict, []) == verdict


def test_a_job_that_did_not_fail_needs_no_reason() -> None:
    assert notes("hang", TORCH, outcome="hung") != ()
    assert notes("preempted-sigterm", TORCH, outcome="interrupted") == ()
    assert notes(None, TORCH, outcome="succeeded") == ()
    assert notes("unlike-nodes", TORCH, outcome="refused") == ()
