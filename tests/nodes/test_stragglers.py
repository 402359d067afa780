"""Over nodes: a rank that all wait for, or a node whose ranks all come late; two and a half minutes each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.conftest import Launcher
from tests.system.test_stragglers import PROGRAM

from .cluster import Cluster
from .conftest import Job

pytestmark = pytest.mark.slow_system


@pytest.mark.parametrize(
    ("slow", "ranks", "said"),
    [
        ("3", [], "rank 3 on node 1 (node1) is slow: in "),
        ("2,3", [2, 3], "node 1 (node1) is slow: in "),
        ("", [], ""),
    ],
)
def test_who_is_late_is_said_once_on_all_nodes(
    ddp: Launcher, cluster: Cluster, start_job: Callable[..., Job], slow: str, ranks: list[int], said: str
) -> None:
    for outcome in start_job(cluster, ddp.script(PROGRAM), nproc=2, env={"SLOW": slow}).wait(220):
        assert outcome.code == 0, outcome.stderr
        seen = outcome.named("StragglerSeen")
        assert [event["ranks"] for event in seen] == ([ranks] if said else [])
        if said:
            assert seen[0]["node"] == "node 1 (node1)"
            assert 0.05 < seen[0]["waited_s"] < 0.2
            assert outcome.stderr.count(said) == 1
        else:
            assert " is slow" not in outcome.stderr
