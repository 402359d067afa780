"""NCCL on real GPUs: a hang with its evidence, refusals to start, dead peers, broken kernels. One GPU is enough."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ddp_run.observe.collectives import last_collectives
from ddp_run.plan.net import free_port
from tests.gpu.conftest import keep
from tests.system.conftest import Launcher, Outcome

HANG_S = 18
BAD_KERNEL = Path(__file__).parents[1] / "faults" / "jobs" / "bad_kernel.py"
START = """
import os, sys
import torch
import torch.distributed as dist

local = int(os.environ["LOCAL_RANK"])
"""
STUCK_KERNEL = """
torch.cuda.set_device(local)
dist.init_process_group("nccl")
values = torch.ones(20, device="cuda")
dist.all_reduce(values)
torch.cuda.synchronize()
print("training", flush=True)

def step():
    torch.cuda._sleep(150_000_000_000)  # a minute and more; what is entered next has to wait for it
    dist.all_reduce(values)
    torch.cuda.synchronize()

step()
"""
# NCCL refuses two ranks of one host on one GPU: each calls itself another host.
SHARED = """
os.environ |= {"NCCL_HOSTID": f"host-{local}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
torch.cuda.set_device(local % torch.cuda.device_count())
"""
MISSING_RANK = """
import threading
dist.init_process_group("nccl")
values = torch.ones(20, device="cuda")
dist.all_reduce(values)
torch.cuda.synchronize()
if local == 1:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
dist.all_reduce(values)
torch.cuda.synchronize()
"""
DIES = """
import ctypes, signal
dist.init_process_group("nccl")
values = torch.ones(20, device="cuda")

def step():
    dist.all_reduce(values)
    torch.cuda.synchronize()

for _ in range(20): step()
if local == 1:
    {}
while True: step()
"""
ONE_GPU_FOR_TWO = """
torch.cuda.set_device(0)
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(20, device="cuda"))
torch.cuda.synchronize()
"""
EAGER = """
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
backend = dist.get_backend()
values = torch.ones(2, device="cuda" if backend == "nccl" else "cpu")
dist.all_reduce(values)
print("used", backend, values.tolist(), flush=True)
dist.destroy_process_group()
"""
ON_RANK_1 = """
torch.cuda.set_device(0)
torch.ones(1, device="cuda")
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    {}
    torch.cuda.synchronize()
dist.barrier()
"""
ASSERT = "torch.nn.functional.embedding(torch.tensor([99], device='cuda'), torch.ones(10, 4, device='cuda'))"
ILLEGAL = "import bad_kernel; bad_kernel.launch()"


def run(
    ddp: Launcher, name: str, program: str, *words: object, ranks: int = 1, env: dict[str, str] | None = None
) -> Outcome:
    folder = ddp.cwd / "programs"
    folder.mkdir(exist_ok=True)
    shutil.copy(BAD_KERNEL, folder)
    script = folder / f"{name}.py"
    script.write_text(START + program)
    # Its own port for RAS: another job on this machine may have the usual one.
    own = {"NCCL_RAS_ADDR": f"127.0.0.1:{free_port('127.0.0.1')}"}
    outcome = ddp("--nproc-per-node", ranks, *words, script, env=own | (env or {}))
    keep(name, outcome)
    return outcome


def has_ras() -> bool:
    import torch  # not above: every process that collects would load it

    return bool(torch.cuda.nccl.version() >= (2, 24))


def test_a_collective_behind_a_kernel_that_does_not_end(ddp: Launcher) -> None:
    outcome = run(ddp, "stuck_kernel", STUCK_KERNEL, "--hang-timeout", HANG_S)
    assert (outcome.code, outcome.verdict["outcome"], outcome.verdict["cause"]) == (124, "hung", "hang")
    stall = outcome.named("StallSeen")[0]
    assert stall["culprits"] == []
    assert "in all_reduce" in stall["said"]
    assert "none is missing" in stall["said"]
    assert outcome.folder is not None
    folder = outcome.folder / "attempt_0"
    recorded = json.loads((folder / "rank_0" / "flight.json").read_text())
    assert recorded["recorders"][0]["library"] == "nccl"
    last, current = last_collectives(recorded)
    assert list(last) == ["nccl:0"]
    assert current is not None
    assert (current.name, current.sizes, current.nccl) == ("all_reduce", ((20,),), True)
    assert current.place is not None
    assert current.place.startswith("stuck_kernel.py:")
    assert current.place.endswith(" in step")
    if has_ras():
        assert (folder / "ras.txt").read_text().startswith("NCCL version ")


def test_ras_is_let_alone_where_it_is_off(ddp: Launcher) -> None:
    outcome = run(ddp, "ras_off", STUCK_KERNEL, "--hang-timeout", HANG_S, env={"NCCL_RAS_ENABLE": "0"})
    assert outcome.code == 124
    assert outcome.folder is not None
    assert not (outcome.folder / "attempt_0" / "ras.txt").exists()
    assert "RAS" not in " ".join(event["text"] for event in outcome.named("Noted"))


def test_a_rank_that_does_not_come_to_the_collective(ddp: Launcher) -> None:
    outcome = run(ddp, "missing_rank", SHARED + MISSING_RANK, "--hang-timeout", HANG_S, ranks=2)
    assert (outcome.code, outcome.verdict["cause"]) == (124, "hang")
    assert outcome.verdict["first_failure"]["rank"] == 1
    stall = outcome.named("StallSeen")[0]
    assert (stall["culprits"], stall["waiting"]) == ([1], [0])
    if has_ras():
        assert any("launched up to operation" in quote for quote in stall["quotes"])


def test_nccl_ends_a_hang_itself(ddp: Launcher) -> None:
    outcome = run(ddp, "watchdog", SHARED + MISSING_RANK, ranks=2, env={"TORCH_DIST_TIMEOUT": "0.4"})
    verdict = outcome.verdict
    assert (outcome.code, verdict["cause"]) == (134, "nccl-timeout-hang"), outcome.stderr
    assert "rank 1" in verdict["title"]


@pytest.mark.parametrize(
    ("name", "line", "cause", "code"),
    [
        ("raises", "raise ValueError('no such shard')", "python-exception", 1),
        ("exits", "os._exit(9)", "peer-died", 9),
        ("killed", "os.kill(os.getpid(), signal.SIGKILL)", "unknown", 137),
        ("crashes", "ctypes.string_at(0)", "segfault", 139),
        ("leaves", "os._exit(0)", "peer-died", 1),
    ],
)
def test_a_rank_dies_while_the_other_waits_in_nccl(ddp: Launcher, name: str, line: str, cause: str, code: int) -> None:
    outcome = run(ddp, name, SHARED + DIES.format(line), ranks=2, env={"TORCH_DIST_TIMEOUT": "0.5"})
    verdict = outcome.verdict
    assert (outcome.code, verdict["cause"]) == (code, cause), outcome.stderr
    assert verdict["first_failure"]["rank"] == 1


def test_two_ranks_on_one_gpu(ddp: Launcher) -> None:
    outcome = run(ddp, "one_gpu_for_two", ONE_GPU_FOR_TWO, ranks=2)
    assert (outcome.code, outcome.verdict["cause"]) == (1, "duplicate-gpu")
    assert "Duplicate GPU detected" in json.dumps(outcome.verdict)


def test_an_interface_that_does_not_exist(ddp: Launcher) -> None:
    outcome = run(ddp, "no_interface", EAGER, env={"NCCL_SOCKET_IFNAME": "=nosuch0"})
    assert outcome.code == 1
    assert outcome.verdict["cause"] in ("nccl-network", "nccl-init")
    assert outcome.verdict["phase"] == "init"
    assert outcome.verdict["first_failure"]["rank"] == 0


def test_gloo_in_place_of_an_nccl_that_cannot_start(ddp: Launcher) -> None:
    outcome = run(ddp, "fallback", EAGER, "--fallback-backend", "gloo", env={"NCCL_SOCKET_IFNAME": "=nosuch0"})
    assert outcome.code == 0, outcome.stderr
    assert outcome.verdict["attempts"] == 2
    assert "used gloo" in outcome.stdout


@pytest.mark.parametrize(
    ("name", "line"), [("device-side-assert", ASSERT), ("illegal-memory-access", ILLEGAL)], ids=lambda each: each[:12]
)
def test_a_kernel_that_breaks(ddp: Launcher, name: str, line: str) -> None:
    outcome = run(ddp, name, ON_RANK_1.format(line), ranks=2)
    assert outcome.verdict["cause"] == name, outcome.stderr
    assert outcome.verdict["first_failure"]["rank"] == 1
    assert outcome.code in (1, 134)  # CUDA's error may strike again as the process ends
