"""The nodes of a job, read from its scheduler's variables."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ddp_run.plan.installed_torch import torch_rows
from ddp_run.settings.options import Options, Source
from ddp_run.settings.parse import parse
from ddp_run.settings.schedulers import host_names, likely_mistakes, slurm
from ddp_run.values.problem import Refused

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
    assert options("--nnodes=3", "--node-rank=1").master_addr == "gpu03"
    assert found.notes == ()


AT = ("--rdzv-backend=c10d", "--rdzv-endpoint=gpu03:29400")


@pytest.mark.parametrize(
    "words",
    [
        ["--spare-nodes=1"],
        ["--nnodes=2"],
        ["--nnodes=2", "--spare-nodes=1"],
        ["--nnodes=2", *AT],
        ["--spare-nodes=1", *AT],
    ],
    ids=" ".join,
)
def test_nodes_that_the_job_does_not_need_wait_if_there_may_be_a_retry(words: list[str]) -> None:
    found = options(*words, "--max-retries=1")
    assert (found.min_nodes, found.max_nodes, found.spare_nodes) == (2, 2, 1)
    assert found.meets_at_c10d
    port = options().master_port
    assert found.rdzv_endpoint == ("gpu03:29400" if AT[1] in words else f"gpu03:{port}")
    assert found.notes == ("3 nodes, 1 of them spare, from SLURM job 4711",)


def test_spare_nodes_without_a_retry_are_refused_for_that() -> None:
    with pytest.raises(Refused) as refused:
        options("--spare-nodes=1")
    assert "--spare-nodes needs --max-retries" in str(refused.value.problems[0])


@pytest.mark.parametrize(
    "words",
    [
        ["--nnodes=2"],
        ["--nnodes=1", "--max-retries=1"],
        ["--nnodes=3", "--max-retries=1"],
        ["--nnodes=2", "--node-rank=1", "--master-addr=gpu03", "--max-retries=1"],
        ["--nnodes=2", "--spare-nodes=0", "--max-retries=1"],
        ["--nnodes=2", "--master-addr=gpu03", "--max-retries=1"],
    ],
    ids=" ".join,
)
def test_other_launches_have_no_spare_nodes(words: list[str]) -> None:
    assert options(*words).spare_nodes == 0


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


def test_the_hosts_of_all_nodes_are_scontrols_to_tell_where_the_job_has_these_nodes() -> None:
    command = ("scontrol", "show", "hostnames", "gpu[03-04],login1")
    assert host_names(options(), SLURM) == command
    assert host_names(options("--node-rank=1", "--nnodes=3", "--master-addr=gpu03"), SLURM) == command
    assert host_names(options("--node-rank=2", "--nnodes=3", "--master-addr=gpu03"), SLURM) == ()
    assert host_names(options("--node-rank=1", "--nnodes=2", "--master-addr=gpu03"), SLURM) == ()
    assert host_names(options("--nnodes=2", "--master-addr=a", environ=INDEXED), INDEXED) == ()


# ------------------------------------------------------------------------------------------------- Kubernetes

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "train-1"}
INDEXED = {**POD, "JOB_COMPLETION_INDEX": "1"}
MASTER = "--master-addr=train-0.training"
# As an older training-operator sets them in the third of four pods.
OLD_OPERATOR = {**POD, "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "4", "RANK": "2"}
# As newer ones set them besides, where WORLD_SIZE counts ranks.
OPERATOR = OLD_OPERATOR | {
    "PET_NNODES": "4",
    "PET_NODE_RANK": "2",
    "PET_MASTER_ADDR": "train-master-0",
    "PET_MASTER_PORT": "23456",
    "PET_NPROC_PER_NODE": "8",
    "WORLD_SIZE": "32",
}


def mistakes(*words: str, environ: Mapping[str, str]) -> list[str]:
    return likely_mistakes(options(*words, environ=environ), environ)


def test_a_pod_of_an_indexed_job_knows_its_node_rank() -> None:
    found = options("--nnodes=2", MASTER, environ=INDEXED)
    assert (found.max_nodes, found.node_rank, found.settings["node_rank"].origin) == (2, 1, "JOB_COMPLETION_INDEX")
    assert "--node-rank=1" in found.torch_arguments()
    by_variables = options(environ={**INDEXED, "NNODES": "2", "MASTER_ADDR": "train-0.training"})
    assert (by_variables.max_nodes, by_variables.node_rank) == (2, 1)


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ([], {}),
        (["--nnodes=1"], {}),
        (["--standalone"], {}),
        (["--nnodes=2", MASTER, "--node-rank=0"], {}),
        (["--nnodes=2", MASTER], {"NODE_RANK": "0"}),
        (["--nnodes=2", MASTER], {"PET_NODE_RANK": "0"}),
        (["--nnodes=2", MASTER], {"JOB_COMPLETION_INDEX": "2"}),
        (["--nnodes=2", MASTER], {"JOB_COMPLETION_INDEX": "-1"}),
        (["--nnodes=1:2", MASTER], {}),
        (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=train-0.training:29500"], {}),
    ],
    ids=str,
)
def test_an_index_that_is_no_node_rank_says_nothing(words: list[str], change: dict[str, str]) -> None:
    without = {name: text for name, text in {**INDEXED, **change}.items() if name != "JOB_COMPLETION_INDEX"}
    assert options(*words, environ={**INDEXED, **change}).settings == options(*words, environ=without).settings


def test_an_indexed_job_without_a_master_is_told_its_name() -> None:
    environ = {**INDEXED, "NNODES": "2"}
    assert options(environ=environ).max_nodes == 1
    assert "MASTER_ADDR=train-0.SUBDOMAIN" in mistakes(environ=environ)[0]
    assert mistakes(environ=INDEXED) == []
    assert mistakes(environ={**environ, "MASTER_ADDR": "train-0.training"}) == []


def test_what_kubeflows_operators_set_needs_no_option_as_under_torchrun() -> None:
    found = options(environ=OPERATOR)
    assert (found.max_nodes, found.node_rank, found.nproc) == (4, 2, "8")
    assert found.master == ("train-master-0", 23456)
    assert found.is_static
    assert found.torch_arguments() == ()
    assert (found.notes, mistakes(environ=OPERATOR)) == ((), [])


def test_an_older_operators_pod_is_one_node_as_under_torchrun_and_told_of_it() -> None:
    assert options(environ=OLD_OPERATOR).max_nodes == 1
    (line,) = mistakes(environ=OLD_OPERATOR)
    assert line.startswith("this pod has RANK=2 and WORLD_SIZE=4, but the job has one node")
    assert "--nnodes=$WORLD_SIZE --node-rank=$RANK" in line
    (line,) = mistakes("--nnodes=4", environ=OLD_OPERATOR)
    assert "no node rank was given, so it is node 0" in line
    assert options("--nnodes=4", environ=OLD_OPERATOR).node_rank == 0


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (["--nnodes=4", "--node-rank=2"], {}),
        (["--nnodes=1"], {}),
        (["--standalone"], {}),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=train-master-0:29400"], {}),
        ([], {"LOCAL_RANK": "0"}),
        ([], {"WORLD_SIZE": "1", "RANK": "0"}),
        ([], {"RANK": "4"}),
        ([], {"MASTER_ADDR": None}),
        ([], {"KUBERNETES_SERVICE_HOST": None}),
        (["--nnodes=4"], {"RANK": "0"}),
        (["--nnodes=2"], {}),
    ],
    ids=str,
)
def test_a_pod_that_is_told_nothing(words: list[str], change: dict[str, str | None]) -> None:
    environ = {name: text for name, text in {**OLD_OPERATOR, **change}.items() if text is not None}
    assert mistakes(*words, environ=environ) == []


# --------------------------------------------------------------------------------------------------- Vast.ai

INSTANCE = {"VAST_CONTAINERLABEL": "C.4711", "PUBLIC_IPADDR": "65.130.162.74", "VAST_TCP_PORT_22": "33526"}
OPEN = {"VAST_TCP_PORT_70000": "33527", "VAST_TCP_PORT_70001": "33540", "VAST_TCP_PORT_29500": "33541"}


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ([], 0),
        (["--nnodes=1", "--master-addr=65.130.162.74"], 0),
        (["--nnodes=2", "--master-addr=10.0.0.2"], 0),
        (["--nnodes=2", "--master-addr=100.64.0.2"], 0),
        (["--nnodes=2", "--master-addr=127.0.0.1"], 0),
        (["--nnodes=2", "--master-addr=localhost"], 0),
        (["--nnodes=2", "--master-addr=172.17.0.2"], 1),
        (["--nnodes=2", "--master-addr=node0"], 1),
        (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=65.130.162.75:29500"], 1),
        (["--nnodes=2", "--node-rank=1", "--master-addr=65.130.162.74"], 1),
        (["--nnodes=2", "--master-addr=65.130.162.74"], 2),
        (["--nnodes=2", "--master-addr=65.130.162.74", "--master-port=33527"], 2),
        (["--nnodes=2", "--master-addr=65.130.162.74", "--master-port=33527", "--control-port=33540"], 1),
    ],
    ids=str,
)
def test_instances_of_vast_ai_share_no_network_by_themselves(words: list[str], lines: int) -> None:
    found = mistakes(*words, environ=INSTANCE | OPEN)
    assert len(found) == lines
    assert all("overlay" in line for line in found[:1])
    assert mistakes(*words, environ={}) == []


def test_which_ports_of_an_instance_have_another_number_outside() -> None:
    words = ["--nnodes=2", "--master-addr=65.130.162.74"]
    assert mistakes(*words, environ=INSTANCE | OPEN)[1].startswith(
        "not open outside under the same number: port 29500 and 29501 of this instance"
    )
    assert "number: port 33528 of" in mistakes(*words, "--master-port=33527", environ=INSTANCE | OPEN)[1]
