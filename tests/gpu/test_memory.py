"""Memory and use of a real GPU: NVML beside torch's own numbers, and a verdict when the memory runs out.

In a container the driver may give the host's pids, or none; what is said then is tested too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddp_run.observe.gpus import GpuWatch
from ddp_run.record.events import GpuSampled, LocalRank, MonotonicNs, Rank
from tests.system.conftest import Launcher
from tests.waiting import wait_until

pytest.importorskip("pynvml", reason="needs nvidia-ml-py, the extra `gpu`")

GIB = 1 << 30
HOLDS = """
import json, os, pathlib, time
import torch

marks, rank = pathlib.Path(os.environ["MARKS"]), int(os.environ["RANK"])
torch.cuda.set_device(0)

def hold(size):
    held = torch.empty(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return held

def mark(name, value=None):
    part = marks / (name + ".part")
    part.write_text(json.dumps(value))
    part.replace(marks / name)

def wait(name):
    while not (marks / name).exists(): time.sleep(0.05)
"""
BOTH_HOLD = (
    HOLDS
    + """
held = hold(2 << 30)
mark(f"holds-{rank}")
wait(f"holds-{1 - rank}")
if rank == 0: mark("info", [*torch.cuda.mem_get_info(), str(torch.cuda.get_device_properties(0).uuid)])
wait("go")
"""
)
RUNS_OUT = (
    HOLDS
    + """
free, total = torch.cuda.mem_get_info()
if rank == 0:
    held = hold(free // 2)
    mark("holds")
    time.sleep(300)
wait("holds")
mine = hold(total // 20)
hold(total)
"""
)
COMPUTES = """
import torch
a = torch.randn(4096, 4096, device="cuda")
print("computes", flush=True)
while True:
    a = torch.tanh(a @ a)
    torch.cuda.synchronize()
"""


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def test_a_look_agrees_with_torch(ddp: Launcher, marks: Path) -> None:
    running = ddp.start("--nproc-per-node", 2, ddp.script(BOTH_HOLD), env={"MARKS": str(marks)})
    wait_until((marks / "info").exists, "both ranks to hold memory", 120)
    free, total, uuid = json.loads((marks / "info").read_text())

    def agrees(look: dict[str, Any]) -> bool:
        here = next(index for index, known in enumerate(look["uuids"]) if uuid in known)
        return bool(abs(look["total"][here] - total) < 0.05 * total and abs(look["free"][here] - free) < GIB)

    look = wait_until(lambda: next(filter(agrees, running.events("GpuSampled")), None), "a look that agrees", 40)
    (marks / "go").write_text("")
    outcome = running.wait()
    assert outcome.code == 0
    assert not [note for note in outcome.named("Noted") if "GPU monitoring disabled" in note["text"]]
    if not look["own_pids"]:
        pytest.skip("the memory agrees; the driver shows no pids of this namespace, so whose it is was not compared")
    number = next(number for number, known in zip(look["gpus"], look["uuids"], strict=True) if uuid in known)
    processes = zip(look["members"], look["on"], look["held"], strict=True)
    held = {member: size for member, on, size in processes if on == number and member is not None}
    assert set(held) == {0, 1}
    for size in held.values():
        assert size is None or 2 * GIB <= size < 4 * GIB


def test_a_rank_runs_out_while_another_holds_the_rest(ddp: Launcher, marks: Path) -> None:
    outcome = ddp("--nproc-per-node", 2, ddp.script(RUNS_OUT), env={"MARKS": str(marks)})
    verdict = outcome.verdict
    assert (verdict["cause"], verdict["first_failure"]["rank"]) == ("cuda-oom", 1), outcome.stderr
    assert verdict["first_failure"]["exception"]["type"].endswith("OutOfMemoryError")
    title = verdict["title"]
    assert title.startswith("rank 1 ran out of GPU memory allocating ")
    assert " on GPU 0" in title
    assert " were free" in title
    failed = outcome.named("RankFailed")[0]["at"]
    asked = [look for look in outcome.named("GpuSampled") if -0.5e9 < look["at"] - failed < 2e9]
    assert asked, "a failure asks for a look"
    if asked[0]["own_pids"]:
        assert "rank 0 held " in title
        assert "ranks 0-1 share" in verdict["advice"][0]
        shown = next(quote["text"] for quote in verdict["evidence"] if quote["source"] == "gpu")
        assert "; rank 0 " in shown
        assert "; rank 1 " in shown
    else:
        assert "held " in title
        assert "rank 0 held" not in title


def test_a_gpu_that_computes_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    with subprocess.Popen([sys.executable, "-c", COMPUTES], stdout=subprocess.PIPE, text=True) as job:
        watch = GpuWatch.start()
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "computes\n"
            wait_until(lambda: _share(watch, job.pid) >= 50, "a busy GPU", 60)
        finally:
            job.kill()
            watch.process.end()
            os.waitpid(watch.process.pid, 0)


def _share(watch: GpuWatch, pid: int) -> int:
    at = MonotonicNs(time.monotonic_ns())
    watch.ask_again(at)
    events, over = watch.read(at, {Rank(0): pid}, [Rank(0)])
    assert not over, events
    assert all(isinstance(event, GpuSampled) for event in events), events
    return max((use.busy for use in watch.use(at, {Rank(0): LocalRank(0)})), default=0)
