"""What `--dry-run` shows with several nodes: this node, as it is compared with the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.loaded_process import COMMAND

DDP_RUN = Path(sys.executable).with_name("ddp-run")
TITLE = "facts of this node, compared with the other nodes before the start"


def dry_run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text("open('started', 'w')")
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = COMMAND.run(DDP_RUN, "--dry-run", *words, "train.py", cwd=folder, env=environ | variables)
    assert not (folder / "started").exists()
    return done


def column(text: str) -> set[str]:
    lines = text.splitlines()
    begin = lines.index(TITLE) + 1
    return {" ".join(line.split()) for line in lines[begin : lines.index("route to node 0 (not compared)")]}


SEVERAL = ("--nnodes=2", "--master-addr=127.0.0.1", "--master-port=29876")


def test_dry_runs_of_two_nodes_can_be_compared(tmp_path: Path) -> None:
    one = dry_run(tmp_path, *SEVERAL, "--node-rank=0", NCCL_ALGO="Ring", NCCL_TOKEN="hunter2hunter2")
    other = dry_run(tmp_path, *SEVERAL, "--node-rank=1", NCCL_ALGO="Tree", NCCL_TOKEN="hunter2hunter2")
    assert (one.returncode, one.stderr, other.returncode, other.stderr) == (0, "", 0, "")
    assert "hunter2" not in one.stdout
    assert column(one.stdout) ^ column(other.stdout) == {"NCCL_ALGO Ring", "NCCL_ALGO Tree"}
    assert "  from 127.0.0.1 on lo to 127.0.0.1\n" in one.stdout


@pytest.mark.parametrize(
    "words",
    [(), (*SEVERAL, "--preflight=off"), ("--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")],
    ids=["one node", "not compared", "no known port"],
)
def test_what_is_not_compared_is_not_shown(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = dry_run(tmp_path, *words)
    assert (done.returncode, TITLE in done.stdout) == (0, False)


@pytest.mark.parametrize(
    ("words", "code"),
    [((), 0), (("--preflight=strict",), 2), (("--backend=nccl",), 2), (("--preflight=off",), 0), (("--nnodes=1",), 0)],
    ids=["warned of", "strict", "surely used", "off", "one node"],
)
def test_an_interface_that_is_not_there(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    """The script chooses the backend, so the variable may never be read."""
    done = dry_run(tmp_path, *SEVERAL, "--node-rank=0", *words, NCCL_SOCKET_IFNAME="nosuch0")
    assert done.returncode == code
    said = "NCCL_SOCKET_IFNAME=nosuch0: matches none of this host's interfaces: "
    assert (f"error[DDP205]: {said}" in done.stderr) == (code == 2)
    assert (f"warning: {said}" in done.stderr) == (words == ())
    assert ("export NCCL_SOCKET_IFNAME=lo   # leads to node 0" in done.stderr) == (code == 2)
