"""A ddp-run that did not run for a while knows it, by values."""

from __future__ import annotations

import pytest

from ddp_run.judge.of_nodes import NodeReport, of_nodes
from ddp_run.judge.verdict import Verdict
from ddp_run.supervise.nodes.clocks import Standstill

ENDED = Verdict("failed", 75, "peer-died", "DDP501", "rank 0 lost its connection")


@pytest.mark.parametrize(
    ("beats", "lost_at", "own"),
    [
        pytest.param([1, 2, 19], 21, True, id="others have left meanwhile"),
        pytest.param([1, 2, 19], 32, True, id="others are silent when it is over"),
        pytest.param([1, 2, 19, 20, 40], 80, False, id="long ago"),
        pytest.param([1, 2, 9], 11, False, id="too short for others"),
        pytest.param([*range(1, 15)], 15, False, id="none"),
    ],
)
def test_who_is_lost_after_a_standstill_took_this_node_for_lost(beats: list[int], lost_at: int, own: bool) -> None:
    standstill = Standstill(0.0)
    deaf = [standstill.look(float(beat)) for beat in beats]
    assert any(deaf) == (max(later - one for one, later in zip([0, *beats], beats, strict=False)) > 2)
    standstill.lost(float(lost_at))
    reports = [NodeReport(0, "a", "/a", ENDED, here=True), NodeReport(1, "b", "/b", None, "was lost: gone")]
    verdict = of_nodes(standstill.told_by(reports))
    assert verdict.first_failure is not None
    assert verdict.first_failure.node_rank == (0 if own else 1)
    assert ("node 0 (a) stood still for 17 s" in str(verdict.title)) == own
