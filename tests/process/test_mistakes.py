"""Mistakes that people make: what is typed, what the message must hold. Nothing is started, and no name looked up.

The lines are real ones: of public projects' launch scripts, and of people who come from other launchers.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.loaded_process import COMMAND

DDP_RUN = Path(sys.executable).with_name("ddp-run")

# Python's own audit event: whoever asks DNS in this process leaves a file behind.
_NO_DNS = """
import sys
def hook(event, arguments):
    if event == "socket.getaddrinfo":
        open(sys.argv[0] and "asked-dns", "w").close()
sys.addaudithook(hook)
"""
_TYPED = f"{_NO_DNS}\nsys.argv[0] = {str(DDP_RUN)!r}\n{DDP_RUN.read_text()}"
"""As it is typed, with the hook, which processes that it starts have from their sitecustomize."""


@dataclass(frozen=True)
class Said:
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    (work / "pkg" / "tool").mkdir(parents=True)
    (work / "data").mkdir()
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "sitecustomize.py").write_text(_NO_DNS)
    (work / "train.py").write_text("open('started', 'w')")
    (work / "data" / "train.py").write_text("")
    (work / "run.sh").write_text("#!/bin/bash\ncd $(dirname $0)\ntorchrun train.py\n")
    (work / "pkg" / "mod.py").write_text("")
    (work / "pkg" / "tool" / "__init__.py").write_text("")
    (work / "pkg" / "tool" / "main.py").write_text("")
    return work


def say(folder: Path, *words: str, **variables: str) -> Said:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not re.match(r"(DDP_|PET_|MASTER_|NNODES|NODE_RANK|NPROC|MAX_RETRIES|TORCH|COLUMNS|SLURM_|WORKDIR)", name)
    }
    environ = kept | {"PYTHONPATH": str(folder.parent / "hooks"), "HOME": str(folder), "COLUMNS": "120"} | variables
    before = sorted(folder.rglob("*"))
    done = COMMAND.run(_TYPED, *words, cwd=folder, env=environ)
    assert sorted(folder.rglob("*")) == before, "something was started, written or looked up"
    assert "Traceback" not in done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


# What is typed, and what the one block must hold.
REFUSED: dict[str, tuple[list[str], list[str]]] = {
    "master: a URL": (
        ["--nnodes=2", "--master_addr=http://10.0.0.1:29500", "train.py"],
        ["is a URL", "--master-addr=10.0.0.1 --master-port=29500"],
    ),
    "master: with a port": (
        ["--nnodes=2", "--master_addr=10.0.0.1:29500", "train.py"],
        ["has a port", "--master-addr=10.0.0.1 --master-port=29500"],
    ),
    "master: out of range": (
        ["--nnodes=2", "--master_addr=123.456.123.456", "train.py"],
        ["is not an IPv4 address"],
    ),
    "master: a blank behind it": (
        ["--nnodes=2", "--master_addr=10.0.0.1 ", "train.py"],
        ["has a leading or trailing blank", "--master-addr=10.0.0.1"],
    ),
    "master: a carriage return": (
        ["--nnodes=2", "--master_addr=node1\r", "train.py"],
        ["Windows line endings", "sed -i"],
    ),
    "master: empty": (["--nnodes=2", "--master_addr=", "train.py"], ["the value is empty", "is a variable unset?"]),
    "endpoint: a URL": (
        ["--rdzv_backend=c10d", "--rdzv_endpoint=http://10.0.0.1:29400", "train.py"],
        ["is a URL", "--rdzv-endpoint=10.0.0.1:29400"],
    ),
    "endpoint: tcp": (
        ["--rdzv_backend=c10d", "--rdzv_endpoint=tcp://10.0.0.1", "train.py"],
        ["is a URL", "--rdzv-endpoint=10.0.0.1:29500"],
    ),
    "endpoint: no host": (
        ["--rdzv_backend=c10d", "--rdzv_endpoint=:29500", "train.py"],
        ["no host", "is a variable empty?", "--rdzv-endpoint=10.0.0.1:29500"],
    ),
    "endpoint: no port": (
        ["--rdzv_backend=c10d", "--rdzv_endpoint=10.0.0.1:", "train.py"],
        ["no port", "--rdzv-endpoint=10.0.0.1:29500"],
    ),
    "endpoint: out of range": (
        ["--rdzv_backend=c10d", "--rdzv_endpoint=10.0.0.999:29500", "train.py"],
        ["is not an IPv4 address"],
    ),
    "a backend as rendezvous": (
        ["--rdzv-backend=nccl", "train.py"],
        ["unknown rendezvous backend nccl", "the script chooses it", "--rdzv-backend=c10d"],
    ),
    "an empty variable before the script": (
        ["--nproc_per_node", "train.py"],
        ["--nproc-per-node took the script train.py as its value", "is the variable", "empty?"],
    ),
    "an empty variable, and options of the script": (
        ["--nproc_per_node", "train.py", "--lr", "1e-3"],
        ["--nproc-per-node took the script train.py as its value"],
    ),
    "an empty variable before an option": (["--nproc_per_node", "--nnodes=1", "train.py"], ["needs a value", "empty?"]),
    "an unset variable": (["--nnodes=", "train.py"], ["the value is empty", "SLURM_NNODES", "only inside a job"]),
    "a blank behind the backslash": ([" --nnodes=1", "train.py"], ["leading blank", "backslash"]),
    "nothing but that blank": ([" "], ["leading blank", "backslash"]),
    "an en dash": (["\u2013nproc_per_node=2", "train.py"], ["an en dash (U+2013)", "type --nproc_per_node=2"]),
    "an em dash": (["\u2014standalone", "train.py"], ["an em dash (U+2014)", "type --standalone"]),
    "typographic quotes": (["--nproc_per_node=\u201c2\u201d", "train.py"], ["typographic quotes", "type 2"]),
    "typographic quotes at the script": (["\u201ctrain.py\u201d"], ["typographic quotes", "type train.py"]),
    "Windows line endings": (["\r"], ["Windows line endings", "sed -i 's/\\r$//' job.sh"]),
    "Windows line endings at the script": (["train.py\r"], ["Windows line endings", "sed -i 's/\\r$//' job.sh"]),
    "options of the script before it": (
        ["--lr", "1e-3", "--nproc_per_node=2", "train.py"],
        [
            "unknown option --lr",
            "the script's own options go after it",
            "help: ddp-run --nproc_per_node=2 train.py --lr 1e-3\n",
        ],
    ),
    "several of them": (
        ["--lr=1", "--wd", "2", "--nnodes=1", "-r", "3", "train.py", "x"],
        ["unknown option --lr", "help: ddp-run --nnodes=1 -r 3 train.py x --lr=1 --wd 2\n"],
    ),
    "torch.distributed.launch": (
        ["--use_env", "--nproc_per_node=2", "train.py"],
        [
            "--use_env is an option of torch.distributed.launch",
            "always on",
            "help: ddp-run --nproc_per_node=2 train.py\n",
        ],
    ),
    "accelerate's options": (
        ["--multi_gpu", "--num_processes", "4", "--mixed_precision", "fp16", "train.py", "--x", "1"],
        [
            "is an option of accelerate",
            "left out: --mixed_precision fp16",
            "ddp-run --nproc-per-node=4 train.py --x 1\n",
        ],
    ),
    "accelerate's file": (["--config_file", "a.yaml", "train.py"], ["of accelerate", "help: ddp-run train.py\n"]),
    "accelerate's machines": (
        [
            "--num_machines",
            "2",
            "--num_processes",
            "16",
            "--machine_rank=0",
            "--main_process_ip",
            "10.0.0.1",
            "train.py",
        ],
        ["help: ddp-run --nnodes=2 --nproc-per-node=8 --node-rank=0 --master-addr=10.0.0.1 train.py\n"],
    ),
    "deepspeed's options": (
        ["--num_gpus=2", "train.py", "--deepspeed", "c.json"],
        ["is an option of deepspeed", "help: ddp-run --nproc-per-node=2 train.py --deepspeed c.json\n"],
    ),
    "mpirun's options": (["-np", "2", "train.py"], ["is an option of mpirun", "ddp-run --nproc-per-node=2 train.py\n"]),
    "accelerate": (
        ["accelerate", "launch", "--num_processes", "2", "train.py", "--x"],
        ["accelerate is a launcher itself", "ddp-run replaces it", "help: ddp-run --nproc-per-node=2 train.py --x\n"],
    ),
    "deepspeed": (
        ["deepspeed", "--num_gpus", "2", "train.py"],
        ["deepspeed is a launcher itself", "help: ddp-run --nproc-per-node=2 train.py\n"],
    ),
    "mpirun": (
        ["mpirun", "-np", "2", "python", "train.py"],
        ["mpirun is a launcher itself", "help: ddp-run --nproc-per-node=2 train.py\n"],
    ),
    "srun": (
        ["--nproc-per-node=8", "srun", "-N2", "python", "train.py"],
        [
            "srun is a launcher itself",
            "once per node",
            "srun --ntasks-per-node=1 -N2 ddp-run --nproc-per-node=8 train.py\n",
        ],
    ),
    "the launcher's module": (
        ["-m", "torch.distributed.launch", "--nproc_per_node=2", "train.py"],
        ["is a launcher itself", "help: ddp-run --nproc_per_node=2 train.py\n"],
    ),
    "a module with .py": (["-m", "pkg.mod.py", "--x"], ["no .py", "help: ddp-run -m pkg.mod --x\n"]),
    "a package that cannot be run": (["-m", "pkg.tool"], ["has no __main__", "help: ddp-run -m pkg.tool.main\n"]),
    "a module without -m": (["pkg.mod", "--x"], ["pkg.mod is a module", "help: ddp-run -m pkg.mod --x\n"]),
    "a home that was not expanded": (["~/train.py"], ["the shell did not expand", "work/train.py"]),
    "a variable that was not expanded": (["${WORKDIR}/train.py"], ["the shell did not expand", "type data/train.py"]),
    "an empty script": ([""], ["the script name is empty", "is a variable unset?"]),
    "a shell script": (["run.sh", "a"], ["run.sh is a shell script", "help: ddp-run --no-python bash run.sh a\n"]),
    "an unknown choice": (["--console", "loud", "train.py"], ["invalid choice 'loud' (choose from all, rank0"]),
    "no number": (["--max-restarts", "x", "train.py"], ["'x' is not an integer"]),
    "nothing": ([], ["the script is missing"]),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_one_block(folder: Path, mistake: str) -> None:
    typed, holds = REFUSED[mistake]
    said = say(folder, *typed, WORKDIR="data")
    assert said.code == 2, said.stderr
    assert said.stderr.count("error[") == 1, said.stderr
    for text in holds:
        assert text in said.stderr


# What works under torchrun too, and is likely not meant: said at the start. What is typed, variables, what is said.
WARNED: dict[str, tuple[list[str], dict[str, str], str]] = {
    "options behind the script": (
        ["train.py", "--nproc_per_node=2"],
        {},
        "--nproc_per_node=2 comes after the script, so the script gets it; ddp-run's options go before the script",
    ),
    "srun with a task per rank": (
        ["--nproc-per-node=4", "train.py"],
        {"SLURM_STEP_ID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "1,4"},
        "srun starts ddp-run 4 times on this node: use --ntasks-per-node=1",
    ),
    "Windows line endings behind an argument": (["train.py", "--lr", "1\r"], {}, "Windows line endings"),
    "a master that does not resolve here": (
        ["--nnodes=2", "--node-rank=1", "--master-addr=no-such-host.invalid", "train.py"],
        {},
        "the master, no-such-host.invalid, does not resolve here",
    ),
    "several nodes without a number": (
        ["--nnodes=2", "--master-addr=127.0.0.1", "train.py"],
        {},
        "no --node-rank: this is node 0; each other node needs its own number",
    ),
    "several nodes without a master": (
        ["--nnodes=2", "--node-rank=1", "train.py"],
        {},
        "no --master-addr: the nodes would meet at 127.0.0.1, which is each host itself",
    ),
    "a c10d endpoint that does not resolve here": (
        ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=no-such-host.invalid:1", "train.py"],
        {},
        "the master, no-such-host.invalid, does not resolve here",
    ),
}


@pytest.mark.parametrize("case", WARNED)
def test_a_likely_mistake_is_said_with_the_plan(folder: Path, case: str) -> None:
    typed, variables, text = WARNED[case]
    (folder / "asked-dns").touch()  # a dry run may ask once; it does not wait for the name to appear
    said = say(folder, "--dry-run", *typed, **variables)
    assert said.code == 0, said.stderr
    assert said.stdout.startswith("options\n")
    assert said.stderr.startswith("ddp-run: warning: ")
    assert text in said.stderr
    assert said.stderr.count("\n") == 1, said.stderr


def _srun(task: str, tasks: str) -> dict[str, str]:
    return {"SLURM_STEP_ID": "0", "SLURM_LOCALID": task, "SLURM_STEP_TASKS_PER_NODE": tasks}


@pytest.mark.parametrize(
    ("typed", "variables"),
    [
        (["--nnodes=1", "train.py", "--nnodes=2"], {}),
        (["train.py"], _srun("0", "4(x2)")),
        (
            ["--nproc-per-node=2", "train.py", "--lr", "1"],
            _srun("0", "1(x4)"),
        ),
        (
            ["--nproc-per-node=2", "train.py"],
            _srun("3", "4(x2)"),
        ),
    ],
)
def test_nothing_is_said_of_a_good_line(folder: Path, typed: list[str], variables: dict[str, str]) -> None:
    said = say(folder, "--dry-run", *typed, **variables)
    assert (said.code, said.stderr) == (0, "")
