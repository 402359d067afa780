"""Steps and phases of real training loops: what the verdict says of a rank that raises after a known number of turns.

Most kinds are not run by default: `scripts/test -n 2 -m slow_system tests/system/test_training_loops.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.run import ABORTED

from .conftest import Launcher, cases

LOOPS = Path(__file__).parents[1] / "faults" / "loops.py"
TURNS = 5


@dataclass(frozen=True)
class Loop:
    """`steps`: the optimizer steps after TURNS turns, null where torch tells of none."""

    steps: int | None = TURNS
    phase: str = "training"


KINDS = {
    "sgd": Loop(),
    "amp": Loop(),
    "amp-skips": Loop(TURNS - 1),  # the scaler leaves out a step with infinite gradients
    "accumulate": Loop(),
    "gan": Loop(2 * TURNS),  # all optimizers' steps are counted
    "lbfgs": Loop(),
    "compiled-step": Loop(),
    "compiled-turn": Loop(),
    "optimizer-first": Loop(),
    "scheduler": Loop(),
    "own-optimizer": Loop(),
    "own-step": Loop(),
    "late-own-step": Loop(None, "after-init"),  # torch's hooks are no part of it
    "wrapped": Loop(),
    "raised": Loop(TURNS - 1),
    "zero": Loop(),
    "fsdp": Loop(),
    "no-optimizer": Loop(None, "after-init"),
    "no-group": Loop(),
}


@pytest.mark.parametrize("kind", cases(KINDS, ()))
def test_step_and_phase_of_a_failure(ddp: Launcher, kind: str) -> None:
    wanted = KINDS[kind]
    outcome = ddp("--nproc-per-node", "2", LOOPS, "--kind", kind, "--turns", TURNS)
    verdict = outcome.verdict
    code = 134 if ABORTED in outcome.stderr else 1
    assert (outcome.code, verdict["outcome"], verdict["cause"]) == (code, "failed", "python-exception")
    assert (verdict["first_failure"]["rank"], verdict["first_failure"]["exception"]["message"]) == (1, "planned")
    assert (verdict["step"], verdict["phase"]) == (wanted.steps, wanted.phase)
    assert [note["text"] for note in outcome.named("Noted") if "observed" in note["text"]] == []
    assert outcome.named("StallSeen") == []
