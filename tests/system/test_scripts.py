"""The scripts that test a node, several nodes, and start a training: run for real, with gloo, and made to fail."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.ports import unused_port
from tests.waiting import limit

from .conftest import DDP_RUN, Launcher

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


class Shell:
    """Scripts, started in a folder of their own as users start them."""

    def __init__(self, ddp: Launcher) -> None:
        self.cwd = ddp.cwd
        self.environ = ddp.environ({"PATH": f"{DDP_RUN.parent}:{os.environ['PATH']}"})

    def start(self, name: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [SCRIPTS / name, *words],
            cwd=self.cwd,
            env=self.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str, *words: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(name, *words, **variables)
        out, err = process.communicate(timeout=limit(240))
        return process.returncode, out, err


@pytest.fixture
def shell(ddp: Launcher) -> Shell:
    return Shell(ddp)


@pytest.mark.slow_system
def test_a_single_node_passes(shell: Shell) -> None:
    """Variables of a job on several nodes do not matter to it."""
    code, out, err = shell.run("test_single_node.sh", DDP_BACKEND="gloo", NNODES="4", MASTER_ADDR="no.such.host")
    assert code == 0, err
    assert [out.count(f"[rank{rank}]: [DDP-TEST] rank {rank}: PASSED all steps") for rank in (0, 1)] == [1, 1]
    assert "single node: passed" in err


@pytest.mark.slow_system
def test_a_single_node_fails_with_the_tests_code(shell: Shell) -> None:
    code, _out, err = shell.run("test_single_node.sh", "--console", "none", DDP_BACKEND="no-such", NPROC_PER_NODE="1")
    assert code == 1
    assert "single node: exit code 1, so it is not the network between nodes" in err
    assert err.splitlines()[-1].startswith("ddp-run: verdict outcome=failed ")


@pytest.mark.slow_system
@pytest.mark.parametrize(("backend", "code"), [("gloo", 0), ("no-such", 1)])
def test_two_nodes_end_with_one_code(shell: Shell, backend: str, code: int) -> None:
    node = {"NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port()), "NPROC_PER_NODE": "1"}
    started = [
        shell.start("test_distributed_setup.sh", **node, NODE_RANK=str(rank), DDP_BACKEND=backend) for rank in (0, 1)
    ]
    ended = [process.communicate(timeout=limit(240)) for process in started]
    assert [process.returncode for process in started] == [code, code], ended
    for rank, (_out, err) in enumerate(ended):
        assert f"node {rank}: {'passed' if code == 0 else 'exit code 1'}" in err


def test_a_worker_must_be_told_where_node_0_is(shell: Shell) -> None:
    assert shell.run("test_distributed_setup.sh", NODE_RANK="1") == (
        2,
        "",
        "node 1 needs MASTER_ADDR, the address of node 0 (there: hostname -I)\n",
    )


@pytest.mark.slow_system
def test_a_training_is_retried_and_its_code_is_real(shell: Shell) -> None:
    """A port that is lost, or a node, would be tried again; a wrong program is not, whatever MAX_RETRIES says."""
    words = (str(SCRIPTS / "example_train.py"), "--fail-at", "2")
    code, _out, err = shell.run("train_example.sh", *words, NPROC_PER_NODE="2")
    assert code == 3
    assert "attempts=1 " in err.splitlines()[-1]
    again = shell.cwd / "again.py"
    again.write_text(
        "import pathlib, sys\nseen = pathlib.Path('seen')\nfirst = not seen.exists()\nseen.touch()\n"
        "sys.exit(1 if first else 0)"
    )
    code, _out, err = shell.run("train_example.sh", str(again), NPROC_PER_NODE="1", DDP_RUN_RETRY="always")
    assert code == 0, err


@pytest.mark.parametrize(
    ("variables", "code", "said"),
    [
        ({"DATA_PATH": "/no/such/data"}, 78, "fail: data /no/such/data: No such file or directory"),
        ({"NNODES": "2", "NODE_RANK": "1"}, 2, "node 1 needs MASTER_ADDR"),
    ],
)
def test_checks_before_a_training(shell: Shell, variables: dict[str, str], code: int, said: str) -> None:
    ended, _out, err = shell.run("train_example.sh", "train.py", **variables)
    assert ended == code
    assert said in err


@pytest.mark.parametrize(("variables", "shown"), [({"MASTER_ADDR": "localhost"}, "localhost -> 127.0.0.1"), ({}, ".")])
def test_a_training_on_two_nodes_meets_at_an_address(shell: Shell, variables: dict[str, str], shown: str) -> None:
    words = ("--dry-run", str(SCRIPTS / "example_train.py"))
    code, out, err = shell.run("train_example.sh", *words, NNODES="2", NPROC_PER_NODE="1", **variables)
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("  master-addr ")]
    assert shown in line
    assert "--nnodes=2" in out and "--node-rank=0" in out and "--master-port=29500" in out
