"""The hangs of tests/system/test_hangs.py and what only takes long, under NCCL: three ranks that may share one GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.gpu.conftest import keep
from tests.system.conftest import Launcher
from tests.system.test_hangs import HANGS, SLOW, assert_told, start

KINDS = ("branch", "batches", "spin", "lock", "queue", "gil", "stop", "no-init", "order", "leave", "recv", "poll")
UNDER_NCCL = {kind: HANGS[kind] for kind in KINDS} | {
    # CUDA's threads have no names of ours, and any of them may be what opens a lock.
    **{kind: replace(HANGS[kind], hung=False) for kind in ("lock", "queue", "recv")},
    # These launch their all_reduce, and wait where the CPU next waits for the GPU.
    "handle": replace(HANGS["handle"], hung=False, said="rank 1 waits for a lock"),
    "order": replace(HANGS["order"], has_stack=False),
    # Rank 0 has gone on from its barrier, which ended with the all_reduce of the others.
    "branch": replace(HANGS["branch"], has_stack=False),
    "no-init": replace(HANGS["no-init"], said="ranks 0,2 wait for it"),
}
PAUSES = ("evaluate", "save", "pause", "late-init", "timer")


@pytest.mark.parametrize("kind", UNDER_NCCL)
def test_hang(ddp: Launcher, kind: str) -> None:
    outcome = ddp(*start(kind, "--nccl", options=("--hang-timeout", "5")))
    keep(kind, outcome)
    assert_told(outcome, kind, UNDER_NCCL[kind])


@pytest.mark.parametrize("kind", PAUSES)
def test_what_only_takes_long(ddp: Launcher, kind: str) -> None:
    outcome = ddp(*start(kind, "--nccl"))
    keep(kind, outcome)
    assert outcome.code == 0, outcome.stderr
    seen = outcome.named("StallSeen")
    assert [stall["said"] for stall in seen if stall["hung"]] == []
    assert (SLOW[kind] or "") in "".join(stall["said"] for stall in seen)
