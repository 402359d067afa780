"""A rank that all others wait for is told of while the job runs; two and a half minutes each: `-m slow_system`."""

from __future__ import annotations

import pytest

from tests.waiting import limit

from .conftest import Launcher

PROGRAM = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
end = time.monotonic() + 150
go_on = torch.ones(1)
while go_on.item():
    late = str(dist.get_rank()) in os.environ["SLOW"].split(",")
    time.sleep(0.1 + 0.1 * late)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    go_on.fill_(float(time.monotonic() < end))
    dist.broadcast(go_on, 0)
dist.destroy_process_group()
"""


@pytest.mark.slow_system
@pytest.mark.parametrize("slow", [2, -1])
def test_the_slow_rank_is_named_once_and_nobody_else(ddp: Launcher, slow: int) -> None:
    outcome = ddp.start("--nproc-per-node", "3", ddp.script(PROGRAM), env={"SLOW": str(slow)}).wait(limit(220))
    assert outcome.code == 0, outcome.stderr
    seen = outcome.named("StragglerSeen")
    assert [event["rank"] for event in seen] == ([slow] if slow >= 0 else [])
    if slow >= 0:
        assert 0.05 < seen[0]["waited_s"] < 0.2
        assert outcome.stderr.count("rank 2 is slow: in ") == 1
