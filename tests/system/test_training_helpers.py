"""`ddp_run.training` and `scripts/test_ddp_minimal.py`: real ranks under torchrun, under ddp-run, and alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.loaded_process import LoadedProcess
from tests.ports import unused_port
from tests.waiting import limit

from .conftest import DEADLINE_S, Launcher, cases

TORCHRUN = Path(sys.executable).with_name("torchrun")
REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
MINIMAL = Path(__file__).parents[2] / "scripts" / "test_ddp_minimal.py"
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


_FORKS = """
import os, sys
pids = []
for rank in range(int(os.environ["WORLD_SIZE"])):
    pids.append(os.fork())
    if pids[-1] == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        break
else:
    print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
    sys.exit()
"""


@dataclass(frozen=True)
class Ended:
    """A process that ended: its exit code and texts, and the JSON files that its ranks left."""

    code: int
    stdout: str
    stderr: str
    left: dict[int, Any]


class Runner:
    """Starts programs in a folder of their own, with nothing of this process' launcher in the environment."""

    def __init__(self, folder: Path, loaded: LoadedProcess) -> None:
        self.folder, self._loaded = folder, loaded

    def alone(self, program: Path, *words: str, **env: str) -> Ended:
        """A program without a launcher, where torch is loaded already."""
        answer = self._loaded.run(program, *words, cwd=self.folder, env=Launcher(self.folder).environ(env))
        return Ended(answer.returncode, answer.stdout, answer.stderr, self._left())

    def _left(self) -> dict[int, Any]:
        return {
            int(path.stem.removeprefix("rank_")): json.loads(path.read_text())
            for path in sorted(self.folder.glob("rank_*.json"))
        }

    def program(self, text: str) -> Path:
        path = self.folder / "train.py"
        path.write_text(text)
        return path

    def forked(self, ranks: int, text: str) -> Ended:
        """Ranks that are forks, of which the first has the store; the last line says how each ended."""
        job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
        return self.alone(self.program(_FORKS + text), **job)

    def torchrun(self, ranks: int, program: Path) -> Ended:
        done = subprocess.run(
            [TORCHRUN, f"--nproc-per-node={ranks}", program],
            cwd=self.folder,
            env=Launcher(self.folder).environ({}),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return Ended(done.returncode, done.stdout, done.stderr, self._left())


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedProcess]:
    """Also what DistributedDataParallel loads, which takes as long as torch itself."""
    process = LoadedProcess("import torch._dynamo")
    yield process
    process.end()


@pytest.fixture
def runner(tmp_path: Path, loaded: LoadedProcess) -> Runner:
    return Runner(tmp_path, loaded)


# ------------------------------------------------------------------------------------------ step counts

_STEP_COUNTS = """
import json, time
import torch, torch.distributed as dist
from ddp_run.training import StepCountError, check_step_counts, cleanup, setup_distributed

here = setup_distributed("gloo", timeout_s=60)
seen = {"placement": [here.rank, here.world_size, here.local_rank, str(here.device), here.backend]}

def refused(steps, **more):
    started = time.monotonic()
    try:
        check_step_counts(steps, **more)
    except StepCountError as error:
        return {"text": str(error), "counts": sorted(error.counts.items()), "absent": error.absent,
                "took": time.monotonic() - started}

check_step_counts(5)
store = dist.distributed_c10d._get_default_store()
keys = store.num_keys()
for epoch in range(20):
    check_step_counts(5, what=f"epoch {epoch}")
seen["more keys"] = store.num_keys() - keys
seen["different"] = refused(4 if here.rank == 1 else 5, what="epoch 3")
again = refused(7)

# Rank 2 goes on to the next step's collective while the others are done and compare.
ones = torch.ones(1)
if here.rank != 2:
    store.set(f"here {here.rank}", "")
    store.wait(["here 0", "here 1"])
    seen["absent"] = refused(4, timeout_s=4)
dist.all_reduce(ones)
seen["sum"] = float(ones)
assert again is None
with open(f"rank_{here.rank}.json", "w") as file:
    json.dump(seen, file)
cleanup()
assert not dist.is_initialized()
cleanup()
check_step_counts(here.rank)
"""


@pytest.mark.parametrize("how", cases(("forks", "torchrun"), ("forks",)))
def test_ranks_with_different_step_counts_are_named_on_every_rank(runner: Runner, how: str) -> None:
    if how == "torchrun":
        ended = runner.torchrun(3, runner.program(_STEP_COUNTS))
        assert ended.code == 0, ended.stderr
    else:
        ended = runner.forked(3, _STEP_COUNTS)
        assert ended.stdout == "[0, 0, 0]\n", ended.stderr
    assert sorted(ended.left) == [0, 1, 2]
    for rank, seen in ended.left.items():
        assert seen["placement"] == [rank, 3, rank, "cpu", "gloo"]
        # What 20 checks left in the store: of one or two, not of all.
        assert seen["more keys"] < 20
        different = seen["different"]
        assert different["counts"] == [[0, 5], [1, 4], [2, 5]]
        assert different["absent"] == []
        first, *rest = different["text"].splitlines()
        assert first == "the ranks do different numbers of steps (epoch 3): 5 on ranks 0, 2, 4 on rank 1"
        assert all(line.startswith("help: ") for line in rest)
    # A rank inside a collective is not waited for longer than asked, and the collective is unharmed.
    assert [seen["sum"] for seen in ended.left.values()] == [3.0, 3.0, 3.0]
    assert "absent" not in ended.left[2]
    for rank in (0, 1):
        absent = ended.left[rank]["absent"]
        assert absent["absent"] == [2]
        assert [rank, 4] in absent["counts"]
        assert absent["text"].startswith(f"rank {rank} did 4 steps, and rank 2 did not reach the same check within ")
        assert absent["took"] >= 4


_STORE_IN_RANK_0 = """
import os, time
from ddp_run.training import StepCountError, check_step_counts, setup_distributed

here = setup_distributed("gloo", timeout_s=60)
if here.rank == 0:
    time.sleep(1.5)
try:
    check_step_counts(here.rank)
except StepCountError as error:
    os._exit(3)
"""


def test_rank_0_takes_the_store_away_only_after_the_others_have_read(runner: Runner) -> None:
    """As with launchers that leave the store to rank 0, which here ends at once after the check."""
    ended = runner.forked(2, _STORE_IN_RANK_0)
    assert ended.stdout == "[3, 3]\n", ended.stderr


_UNEVEN_EPOCH = """
import torch.distributed as dist
from ddp_run.training import check_step_counts, cleanup, setup_distributed

setup_distributed("gloo")
try:
    loader = range(10 - dist.get_rank())
    check_step_counts(len(loader), what="epoch 0")
finally:
    cleanup()
"""


@pytest.mark.slow_system
def test_different_step_counts_end_a_run_before_a_rank_waits(ddp: Launcher) -> None:
    outcome = ddp("--nproc-per-node=2", ddp.script(_UNEVEN_EPOCH, "train.py"))
    assert outcome.code == 1
    raised = outcome.verdict["first_failure"]["exception"]
    assert raised["type"] == "ddp_run.training.StepCountError"
    assert raised["message"].startswith("the ranks do different numbers of steps (epoch 0): 10 on rank 0, 9 on rank 1")


def test_the_example_of_the_reference_runs(runner: Runner) -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", REFERENCE.read_text(), re.MULTILINE | re.DOTALL)
    (example,) = (each for each in examples if "ddp_run.training" in each)
    ended = runner.alone(runner.program(example), **ALONE, WORLD_SIZE="1")
    assert ended.code == 0, ended.stderr
    assert "warning: rank" not in ended.stderr


# ------------------------------------------------------------------------------------ unused parameters

_NET = """
import torch
from torch.nn.parallel import DistributedDataParallel
from ddp_run.training import setup_distributed

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        self.frozen = torch.nn.Linear(4, 4).requires_grad_(False)
        self.left, self.right = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, x, right):
        x = self.frozen(self.body(x))
        return self.left(x) + self.right(x) if right else self.left(x)

here = setup_distributed("gloo")
"""

_UNUSED = (
    _NET
    + """
import io, json, os, re, sys
import torch.distributed as dist
from ddp_run.rank import reducer
from ddp_run.training import report_unused_parameters

seen = {}

def report(name, model):
    kept, sys.stderr = sys.stderr, io.StringIO()
    try:
        names = report_unused_parameters(model)
        seen[name] = {"names": names, "text": sys.stderr.getvalue()}
    finally:
        sys.stderr = kept

model = DistributedDataParallel(Net())
report("before", model)
with model.no_sync():
    model(torch.ones(1, 4), right=here.rank == 0).sum().backward()
    report("own", model)
model.zero_grad()
model(torch.ones(1, 4), right=False).sum().backward()
report("all", model)
try:
    model(torch.ones(1, 4), right=False)
except RuntimeError as error:
    seen["torch"] = re.findall(r"did not receive grad for rank \\d+: ([\\d ]+)", str(error))

patient = DistributedDataParallel(Net(), find_unused_parameters=True)
patient(torch.ones(1, 4), right=here.rank == 0).sum().backward()
report("mixed", patient)
plain = Net()
plain(torch.ones(1, 4), right=True).sum().backward()
report("none", plain)


def as_torch_numbers_them(model):
    mine = reducer.numbered(model)
    return [id(each) for _name, each in mine] == [id(each) for each in model._build_params_for_reducer()[0]]

shared, part = Net(), Net()
shared.right = shared.left
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(part, ["left.weight"])
all_trained, some_trained = DistributedDataParallel(torch.nn.Linear(2, 2)), DistributedDataParallel(Net())
seen["numbers"] = [as_torch_numbers_them(DistributedDataParallel(each)) for each in (Net(), shared, part)]
all_trained.module.weight.requires_grad_(False)
some_trained.module.body.weight.requires_grad_(False)
seen["frozen later"] = [name for name, _ in reducer.numbered(all_trained)], reducer.numbered(some_trained)
with open(f"rank_{here.rank}.json", "w") as file:
    json.dump(seen, file)
dist.barrier()
os._exit(0)
"""
)


def test_unused_parameters_are_named_by_each_rank(runner: Runner) -> None:
    ended = runner.forked(2, _UNUSED)
    assert ended.stdout == "[0, 0]\n", ended.stderr
    right = ["right.weight", "right.bias"]
    assert sorted(ended.left) == [0, 1]
    for rank, seen in ended.left.items():
        assert seen["numbers"] == [True, True, True]
        assert seen["frozen later"] == [["weight", "bias"], None]
        assert len(seen["before"]["names"]) == 6
        assert seen["before"]["text"].startswith(f"warning: rank {rank}: none of the 6 parameters has a gradient\n")
        assert seen["own"]["names"] == (right if rank == 1 else [])
        assert seen["all"]["names"] == right
        # The numbers are those of DDP's own error.
        (torchs,) = seen["torch"]
        assert re.findall(r"\((\d+)\)", seen["all"]["text"]) == torchs.split() == ["4", "5"]
        # Gradients of others must not be taken for own ones.
        assert seen["mixed"]["names"] == []
        assert "find_unused_parameters=True gives unused parameters other ranks' gradients" in seen["mixed"]["text"]
        assert "without a gradient on all ranks: none" in seen["mixed"]["text"]
        assert seen["none"] == {"names": [], "text": ""}
    assert ended.left[0]["own"]["text"] == ""
    assert ended.left[1]["own"]["text"].startswith(
        "warning: rank 1: 2 of 6 parameters got no gradient\n  --> right.weight (4), right.bias (5)\nhelp: "
    )


_CLOSED = (
    _NET
    + """
closed = False

class Closed(Net):
    def __getattribute__(self, name):
        if closed:
            raise SystemExit(name)
        return super().__getattribute__(name)

model = DistributedDataParallel(Closed())
model(torch.ones(1, 4), right=False).sum().backward()
closed = True
try:
    model(torch.ones(1, 4), right=False)
except RuntimeError as error:
    raise ValueError("step 2 failed") from error
"""
)


def test_the_verdict_names_unused_parameters(ddp: Launcher) -> None:
    """DDP's error has the numbers alone; the names come from its frames, without a line of the model's code run."""
    ended = ddp("--nproc-per-node=1", ddp.script(_CLOSED, "train.py"))
    assert ended.code == 1, ended.stderr
    named = "rank 0 left 2 parameters without a gradient: right.weight, right.bias of Closed"
    assert ended.verdict["title"].startswith(named)
    forward = _CLOSED[: _CLOSED.index("def forward")].count("\n") + 1
    assert ended.verdict["advice"][0].startswith(f"sed -n '{forward},")


# ------------------------------------------------------------------------------------------------ set-up

_REFUSALS = """
import json, os, sys
import torch, torch.distributed as dist
from ddp_run.training import SetupError, cleanup, placement, setup_distributed

FULL = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
seen = {}

def attempt(name, env, *args, **more):
    for variable in (*FULL, "SLURM_STEP_NUM_TASKS", "DDP_BACKEND"):
        os.environ.pop(variable, None)
    os.environ.update(env)
    try:
        setup_distributed(*args, **more)
        seen[name] = "no error"
    except SetupError as error:
        seen[name] = str(error)
        seen[name + ": cause"] = str(error.__cause__)
    seen[name + ": group"] = dist.is_initialized()
    assert not torch.cuda.is_initialized()

attempt("no launcher", {})
attempt("no master", {**FULL, "MASTER_ADDR": ""})
attempt("words", {**FULL, "WORLD_SIZE": "two"})
attempt("negative", {**FULL, "RANK": "-1"})
attempt("too high", {**FULL, "RANK": "4", "WORLD_SIZE": "4"})
attempt("srun", {"SLURM_STEP_NUM_TASKS": "8"}, single_process=True)
attempt("nccl", FULL, "nccl")
attempt("asked by variable", {**FULL, "DDP_BACKEND": "nccl"}, "gloo")
attempt("nobody comes", {**FULL, "WORLD_SIZE": "2"}, "gloo", timeout_s=1)
attempt("one", {}, single_process=True)
attempt("twice", {}, single_process=True)

def training():
    try:
        raise ValueError("of the training")
    finally:
        cleanup()

try:
    training()
except ValueError as error:
    seen["after"] = [str(error), dist.is_initialized()]
cleanup()
attempt("anew", {}, single_process=True)
cleanup()

said = RuntimeError("CUDA error: invalid device ordinal\\nGPU device may be out of range, do you have enough GPUs?")
for number in (3, 0):
    try:
        placement._refuse_device(f"rank {number} (local rank {number})", number, 2, said)
    except SetupError as error:
        seen[f"GPU {number} of 2"] = str(error)

with open("rank_0.json", "w") as file:
    json.dump(seen, file)
for variable in FULL:
    os.environ.pop(variable, None)
setup_distributed(exit_on_error=True)
"""

_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory, loaded: LoadedProcess) -> Ended:
    runner = Runner(tmp_path_factory.mktemp("refused"), loaded)
    return runner.alone(runner.program(_REFUSALS), **_NO_GPU)


def test_what_cannot_work_is_refused_with_its_reason(refused: Ended) -> None:
    assert 0 in refused.left, refused.stderr
    seen = refused.left[0]
    title = {name: str(text).splitlines()[0] for name, text in seen.items()}
    assert title["no launcher"] == (
        "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not set in this process; "
        "a launcher gives them to each rank"
    )
    assert "help: torchrun --nproc-per-node 2 train.py" in seen["no launcher"]
    assert "single_process=True" in seen["no launcher"]
    assert "single_process=True" not in seen["no master"]
    assert title["no master"] == "MASTER_ADDR is not set in this process; a launcher gives it to each rank"
    assert "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0" in seen["no master"]
    assert title["words"] == "WORLD_SIZE is not a whole number: 'two'"
    assert title["negative"] == "RANK is not a whole number: '-1'"
    assert title["too high"] == "RANK=4 is not below WORLD_SIZE=4"
    assert title["srun"] == "srun started 8 tasks, but RANK is not set in this one"
    for name in ("nccl", "asked by variable"):
        assert title[name] == "rank 0 (local rank 0) cannot use backend nccl: CUDA is not available"
        # torch's own reason, as it gives it.
        assert re.search(r"not compiled with CUDA|NVIDIA driver|No CUDA GPUs", seen[f"{name}: cause"])
        assert seen[f"{name}: cause"].splitlines()[0] in seen[name]
    assert title["nobody comes"] == "making the process group failed on rank 0 (local rank 0), backend gloo"
    assert re.search(r"--> Dist\w+Error: .*\n", seen["nobody comes"])
    assert seen["one"] == seen["anew"] == "no error"
    assert {name for name in seen if seen.get(f"{name}: group")} == {"one", "twice", "anew"}
    assert title["twice"] == "rank 0 already has a process group (backend gloo)"
    assert seen["after"] == ["of the training", False]


def test_an_error_can_end_the_process(refused: Ended) -> None:
    assert refused.code == 1
    assert refused.stderr.startswith("error: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not set")
    assert "Traceback" not in refused.stderr


def test_a_rank_without_a_gpu_is_told_how_many_there_are(refused: Ended) -> None:
    lines = refused.left[0]["GPU 3 of 2"].splitlines()
    assert lines[:2] == [
        "rank 3 (local rank 3) has no GPU 3: 2 are visible, counted from 0",
        "  --> RuntimeError: CUDA error: invalid device ordinal",
    ]
    assert any(line.startswith("help: torchrun --nproc-per-node 2 ") for line in lines)
    assert refused.left[0]["GPU 0 of 2"].startswith("rank 0 (local rank 0) cannot use GPU 0 of 2\n")


def test_the_module_costs_no_torch() -> None:
    code = (
        "import sys, ddp_run.training; print(*(name for name in sys.modules if name[:4] in ('torc', 'ddp_', 'clic')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=limit(120))
    loaded = set(done.stdout.split())
    assert {"ddp_run", "ddp_run.training"} <= loaded, done.stderr
    assert all(name == "ddp_run" or name.startswith("ddp_run.training") for name in loaded)


# ---------------------------------------------------------------------------------------- the minimal test


def _steps(text: str, rank: int) -> list[str]:
    return re.findall(rf"^\[DDP-TEST\] rank {rank}: (step \d/6: .*|PASSED all steps)$", text, re.MULTILINE)


ALL = [
    "step 1/6: environment",
    "step 2/6: versions",
    "step 3/6: process group",
    "step 4/6: device",
    "step 5/6: communication",
    "step 6/6: clean-up",
    "PASSED all steps",
]


def test_the_minimal_test_in_one_process(runner: Runner) -> None:
    ended = runner.alone(MINIMAL)
    assert (ended.code, ended.stderr) == (0, "")
    assert _steps(ended.stdout, 0) == ALL


@pytest.mark.slow_system
def test_the_minimal_test_under_torchrun(runner: Runner) -> None:
    ended = runner.torchrun(2, MINIMAL)
    assert ended.code == 0, ended.stderr
    assert [_steps(ended.stdout, rank) for rank in (0, 1)] == [ALL, ALL]
    assert "[DDP-TEST] rank 1:   mean gradient of DistributedDataParallel: 0.5, as expected\n" in ended.stdout


@pytest.mark.slow_system
def test_the_minimal_test_under_ddp_run(ddp: Launcher) -> None:
    passed = ddp("--nproc-per-node=2", MINIMAL)
    assert passed.code == 0, passed.stderr
    assert passed.stdout.count("PASSED all steps") == 2
    failed = ddp("--nproc-per-node=1", MINIMAL, env={"DDP_BACKEND": "nccl", **_NO_GPU})
    assert failed.code == 1
    assert failed.verdict["cause"] == "cuda-unavailable"
    assert "[DDP-TEST] rank 0: FAILED in step 3/6 (process group)" in failed.stderr


def test_the_minimal_test_waits_for_nobody_for_ever(runner: Runner) -> None:
    ended = runner.alone(MINIMAL, "--timeout", "1", **ALONE, WORLD_SIZE="2")
    assert ended.code == 1
    assert _steps(ended.stdout, 0) == ALL[:3]
    assert ended.stderr.startswith("[DDP-TEST] rank 0: FAILED in step 3/6 (process group)\n")


# ---------------------------------------------------------------------------------------------- with GPUs


def _gpus() -> int:
    listed = subprocess.run(["sh", "-c", "nvidia-smi -L 2>/dev/null"], capture_output=True, text=True)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return 0 if hidden else listed.stdout.count("GPU ")


needs_gpu = pytest.mark.skipif(not _gpus(), reason="needs a CUDA GPU")


@pytest.mark.gpu
@needs_gpu
def test_the_minimal_test_over_nccl(runner: Runner) -> None:
    ended = runner.torchrun(_gpus(), MINIMAL)
    assert ended.code == 0, ended.stderr
    assert f"backend nccl: rank 0 of {_gpus()}" in ended.stdout


@pytest.mark.gpu
@needs_gpu
def test_more_ranks_than_gpus(runner: Runner) -> None:
    program = runner.program(
        "from ddp_run.training import setup_distributed\nsetup_distributed('nccl', timeout_s=30)\n"
    )
    count = _gpus()
    ended = runner.torchrun(count + 1, program)
    assert ended.code == 1
    assert f"rank {count} (local rank {count}) has no GPU {count}: {count} " in ended.stderr
