"""The nodes of a job, read from its scheduler's variables."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ddp_run.plan.installed_torch import torch_rows
from ddp_run.settings.options import Options, Source
from ddp_run.settings.parse import parse
from ddp_run.settings.schedulers import slurm

# As `srun --nodes=3 --ntasks-per-node=1` sets them on its second node.
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_STEP_NODELIST": "gpu[03-04],login1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
}
NOTE = "3 nodes, from SLURM job 4711; --standalone makes each node a separate job"


def options(*words: str, environ: Mapping[str, str] = SLURM) -> Options:
    return parse((*words, "train.py"), environ, torch_rows=torch_rows())


def test_srun_needs_no_option() -> None:
    found = options()
    assert (found.min_nodes, found.max_nodes, found.node_rank, found.master_addr) == (3, 3, 1, "gpu03")
    assert found.is_static
    assert found.notes == (NOTE,)
    assert {found.settings[dest].source for dest in ("nnodes", "node_rank", "master_addr", "master_port")} == {
        Source.SCHEDULER
    }
    assert {"--nnodes=3", "--node-rank=1", "--master-addr=gpu03", f"--master-port={found.master_port}"} <= set(
        found.torch_arguments()
    )


def test_all_nodes_agree_on_the_port_and_other_jobs_have_another() -> None:
    ports = {options(environ={**SLURM, "SLURM_NODEID": str(rank)}).master_port for rank in range(3)}
    assert len(ports) == 1
    others = {
        options(environ={**SLURM, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}).master_port
        for job in range(4700, 4720)
        for step in range(10)
    }
    assert len(others) == 200
    assert all(20000 <= (port or 0) < 32768 for port in others)


@pytest.mark.parametrize(
    "words",
    [
        ["--standalone"],
        ["--nnodes=1"],
        ["--nnodes=2"],
        ["--nnodes=1:3"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=gpu03:29500"],
        ["--rdzv-endpoint=gpu03:29500"],
        ["--node-rank=0"],
    ],
    ids=" ".join,
)
def test_what_the_user_says_of_nodes_is_left_alone(words: list[str]) -> None:
    assert options(*words).settings == options(*words, environ={}).settings


def test_what_is_missing_is_filled_in() -> None:
    found = options("--nnodes=3", "--master-addr=10.0.0.3", environ={**SLURM, "MASTER_PORT": "29400"})
    assert (found.max_nodes, found.node_rank, found.master_addr, found.master_port) == (3, 1, "10.0.0.3", 29400)
    assert found.settings["node_rank"].origin == "SLURM_NODEID"
    assert found.notes == ()


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_STEP_NUM_TASKS": "6"},
        {"SLURM_STEP_NUM_TASKS": ""},
        {"SLURM_STEP_NODELIST": ""},
        {"SLURM_NODEID": "x"},
        {"SLURM_HET_SIZE": "2"},
        {"SLURM_STEP_NUM_NODES": "٣", "SLURM_STEP_NUM_TASKS": "٣"},
    ],
    ids=str,
)
def test_what_is_no_step_of_one_task_a_node_says_nothing(change: dict[str, str]) -> None:
    assert slurm.job_nodes({**SLURM, **change}) is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n[1-4]", "n1"), ("gpu-[010,020-022]", "gpu-010"), ("rack[1-2]n[01-16]", "rack1n01"), ("a,b", "a")],
)
def test_the_first_node_is_the_master(nodes: str, first: str) -> None:
    found = slurm.job_nodes({**SLURM, "SLURM_STEP_NODELIST": nodes})
    assert found is not None
    assert found.settings["master_addr"][0] == first
