"""Where a job's time went, against what its ranks say themselves; a quarter of a minute: `-m slow_system`."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from ddp_run.values.words import duration_in_words

from .conftest import Launcher

PROGRAM = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def stamp(what):
    print("STAMP", os.environ["RANK"], what, time.monotonic_ns(), flush=True)

time.sleep(1)
stamp("init")
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
time.sleep(1)
for step in range(20):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 0:
        stamp("training")
    time.sleep(0.2)
    if step == 10 and dist.get_rank() == 0 and os.environ["SAVES"] == "1":
        os.makedirs("checkpoints", exist_ok=True)
        with open(f"checkpoints/step_{step}.pt", "wb") as file:
            time.sleep(2.5)  # written slowly
            torch.save(model.state_dict(), file)
        stamp("saved")
    dist.barrier()
if dist.get_rank() == 1:
    stamp("failed")
    raise ConnectionError("Connection reset by peer")
dist.barrier()
"""


@pytest.mark.slow_system
@pytest.mark.parametrize("saves", [True, False])
def test_within_five_per_cent(ddp: Launcher, saves: bool) -> None:
    words = () if saves else ("--checkpoint-dir", str(ddp.cwd))
    retries = ("--max-retries", "1", "--retry", "always")
    job = ddp("--nproc-per-node", "2", *retries, *words, ddp.script(PROGRAM), env={"SAVES": str(int(saves))})
    stamps: dict[str, list[int]] = defaultdict(list)
    for what, at in re.findall(r"STAMP \d (\w+) (\d+)", job.stdout):
        stamps[what].append(int(at))
    begins = [event["at"] for event in job.named("AttemptStarted")]
    ends = [event["at"] for event in job.named("RankExited")]
    assert len(begins) == 2
    assert len(ends) == len(stamps["init"]) == len(stamps["training"]) == 4
    expected = {
        "start": sum(stamps["init"]) - 2 * sum(begins),
        "init": sum(stamps["training"]) - sum(stamps["init"]),
        "steps": 2 * sum(stamps["failed"]) - sum(stamps["training"]),
        "after_failure": sum(ends) - 2 * sum(stamps["failed"]),
        "between_attempts": 2 * (begins[1] - max(ends[:2])),
    }
    time = job.verdict["time"]
    for what, ns in expected.items():
        assert time["rank_seconds"][what] == pytest.approx(ns / 1e9, rel=0.05), what
    since = stamps["saved"] if saves else [min(stamps["training"][:2]), min(stamps["training"][2:])]
    lost = sum(stamps["failed"]) - sum(since)
    assert time["lost"]["rank_seconds"] == pytest.approx(2 * lost / 1e9, rel=0.05)
    assert time["lost"]["attempts"] == 2
    assert f"= note: lost {duration_in_words(time['lost']['seconds'])} of 2 ranks in 2 attempts" in job.stderr
