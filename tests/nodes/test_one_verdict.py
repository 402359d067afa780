"""One failure anywhere: all nodes end, with one verdict and one exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from ddp_run.supervise.nodes.place import Munge
from tests.waiting import limit

from .cluster import Cluster
from .conftest import PORT, PROGRAMS, TRAIN, WIRES, Job, NodeOutcome

StartJob = Callable[..., Job]
ENDED_WITHIN_S = 5.0
SAVES = PROGRAMS / "saves.py"
SLOW = pytest.mark.slow_system
ABORTED = 128 + signal.SIGABRT
"""torch itself may abort a rank that leaves a process group behind: seen under torchrun as often, on a busy machine."""


def alike(outcomes: Sequence[NodeOutcome]) -> dict[str, object]:
    """What all nodes say, and how: node 0 the whole block, the others two lines. The verdict, as node 0 has it."""
    first = outcomes[0].verdict
    shared = ("outcome", "exit_code", "cause", "code", "title", "confidence")
    for outcome in outcomes:
        assert {key: outcome.verdict[key] for key in shared} == {key: first[key] for key in shared}
        assert outcome.code == first["exit_code"], outcome.stderr
    for outcome in outcomes[1:]:
        told = outcome.stderr.splitlines()[-3:]
        assert re.match(r"(error|interrupted)\[DDP\d+\]: ", told[0]), outcome.stderr
        assert told[1] == f"  --> full verdict on node0: {outcomes[0].folder}"
        assert told[2].startswith("ddp-run: verdict outcome=")
    assert re.search(r"^help: ddp-run rules ", outcomes[0].stderr, re.MULTILINE) or first["outcome"] == "interrupted"
    return dict(first)


@pytest.mark.parametrize(
    ("how", "rank", "code", "causes"),
    [
        ("raise", 1, 1, ["python-exception"]),
        pytest.param("raise", 0, 1, ["python-exception"], marks=SLOW),
        pytest.param("kill", 1, 137, ["unknown"], marks=SLOW),
        # the other node's rank may notice before it is told to end
        pytest.param("os_exit", 1, 7, ["unknown", "peer-died"], marks=SLOW),
        pytest.param("exit0", 1, 1, ["peer-died"], marks=SLOW),
    ],
)
def test_the_first_failing_rank_counts_wherever_it_is(
    cluster: Cluster, start_job: StartJob, how: str, rank: int, code: int, causes: list[str]
) -> None:
    outcomes = start_job(cluster, TRAIN, "--fail-rank", rank, "--how", how, "--step-s", 0.2, "--steps", 50).wait()
    verdict = alike(outcomes)
    first = verdict["first_failure"]
    assert isinstance(first, dict)
    assert (first["rank"], first["node_rank"], first["host"]) == (rank, rank, f"node{rank}")
    assert verdict["exit_code"] in ((code, ABORTED) if how == "raise" else (code,))
    assert verdict["cause"] in causes
    for outcome in outcomes:
        assert outcome.seconds is not None
        assert outcome.seconds < limit(ENDED_WITHIN_S)
    assert outcomes[0].folder is not None
    other = json.loads((outcomes[0].folder / "nodes" / "node_1" / "verdict.json").read_text())
    assert other["outcome"] in ("failed", "succeeded")
    if how == "raise" and rank == 1:
        end = (outcomes[0].folder / "nodes" / "node_1" / "stderr_end.log").read_text()
        assert "ValueError: fault in training\n" in end  # what torch says of its own abort may follow


@pytest.mark.parametrize("rendezvous", ["static"])
def test_two_nodes_that_are_both_node_0(cluster: Cluster, start_job: StartJob) -> None:
    """The same command line on both: the other host does not have the master's address, and asks who does."""
    job = start_job(cluster, TRAIN, "--steps", 2, meeting=("--nnodes", 2, "--master-addr", cluster.node(0).host))
    title = "node0 and node1 both say that they are node 0: give each node its own --node-rank"
    for outcome in job.wait():
        assert (outcome.code, outcome.verdict["outcome"], outcome.verdict["title"]) == (2, "refused", title)
        assert outcome.stderr.count(title) == 1


@SLOW
def test_a_port_that_nothing_protects_is_warned_of_by_node_0(cluster: Cluster, start_job: StartJob) -> None:
    outcomes = start_job(cluster, *WIRES, "--steps", 2, env={"DDP_RUN_SECRET": ""}).wait()
    said = f"anybody who reaches port {PORT + 1} can end the job: set DDP_RUN_SECRET to the same value on all nodes"
    assert [outcome.stderr.count(said) for outcome in outcomes] == [0 if Munge.runs_here() else 1, 0]


def test_a_node_that_would_go_on_computing_is_ended(cluster: Cluster, start_job: StartJob) -> None:
    outcomes = start_job(
        cluster, *WIRES, "--compute-node", 0, "--fail-rank", 1, "--fail-at-step", 0, "--step-s", 60, "--steps", 5
    ).wait()
    verdict = alike(outcomes)
    assert verdict["cause"] == "python-exception"
    assert "rank 0 was killed by SIGTERM" in outcomes[0].stderr
    assert all(outcome.seconds is not None and outcome.seconds < limit(ENDED_WITHIN_S) for outcome in outcomes)


@pytest.mark.slow_system
def test_three_nodes_and_a_failure_on_the_last(clusters: Callable[[int], Cluster], start_job: StartJob) -> None:
    outcomes = start_job(clusters(3), TRAIN, "--fail-rank", 2, "--step-s", 0.2, "--steps", 50).wait()
    verdict = alike(outcomes)
    assert str(verdict["title"]).startswith("rank 2 raised ValueError")


@pytest.mark.parametrize("node", [pytest.param(0, marks=SLOW), 1])
def test_a_node_that_is_told_to_stop_stops_all(cluster: Cluster, start_job: StartJob, node: int) -> None:
    job = start_job(cluster, *WIRES, "--step-s", 0.2, "--steps", 500)
    wait_until_training(job)
    job.mark()
    os.kill(job[node].process.pid, signal.SIGTERM)
    verdict = alike(job.wait())
    assert (verdict["outcome"], verdict["exit_code"]) == ("interrupted", 143)
    assert f"on node {node} (node{node})" in str(verdict["title"])


@SLOW
@pytest.mark.parametrize("node", [0, 1])
def test_a_stop_that_reaches_the_rank_after_its_peer_is_gone_is_still_a_stop(
    cluster: Cluster, start_job: StartJob, node: int
) -> None:
    """The agent of the node that is told to stop is slow to hand the signal on, as on a busy host."""
    job = start_job(cluster, TRAIN, "--step-s", 0.2, "--steps", 500)
    wait_until_training(job)
    (agent,) = job[node].events("AgentStarted")
    os.kill(agent["pid"], signal.SIGSTOP)
    os.kill(job[node].process.pid, signal.SIGTERM)
    (ended,) = job[node].wait_for("RankExited")
    with suppress(ProcessLookupError):  # with its rank it had nothing left to do
        os.kill(agent["pid"], signal.SIGCONT)
    verdict = alike(job.wait())
    assert ended["code"] == 1
    assert (verdict["outcome"], verdict["exit_code"]) == ("interrupted", 143)
    assert f"on node {node} (node{node})" in str(verdict["title"])


@pytest.mark.parametrize("node", [0, pytest.param(1, marks=SLOW)])
def test_a_node_whose_ddp_run_is_killed_is_named(cluster: Cluster, start_job: StartJob, node: int) -> None:
    job = start_job(cluster, *WIRES, "--step-s", 0.2, "--steps", 500)
    wait_until_training(job)
    job.mark()
    os.kill(job[node].process.pid, signal.SIGKILL)
    left = job.wait_for(1 - node)
    assert (left.code, left.verdict["cause"]) == (75, "node-failed")
    first = left.verdict["first_failure"]
    assert (first["node_rank"], first["host"]) == (node, f"node{node}")
    assert f"node {node} (node{node}) was lost" in left.stderr
    assert [event["host"] for event in left.named("NodeReported")] == [f"node{node}"]
    assert "its ddp-run was killed or its host went down" in left.stderr
    assert left.seconds is not None
    assert left.seconds < limit(ENDED_WITHIN_S)


@pytest.mark.slow_system
def test_a_node_that_is_cut_off_is_named_on_both_sides(cluster: Cluster, start_job: StartJob) -> None:
    job = start_job(cluster, TRAIN, "--step-s", 0.2, "--steps", 500)
    wait_until_training(job)
    job.mark()
    cluster.cut(1)
    for rank, outcome in enumerate(job.wait()):
        assert (outcome.code, outcome.verdict["cause"]) == (75, "node-failed")
        assert outcome.verdict["first_failure"]["node_rank"] == 1 - rank
        assert "no sign of life for 13 s; its host does not answer either" in outcome.stderr
        assert outcome.seconds is not None
        assert outcome.seconds < limit(20)


@pytest.mark.slow_system
def test_a_short_cut_harms_nothing(cluster: Cluster, start_job: StartJob) -> None:
    """The ranks do not talk meanwhile: gloo's own connections may break when a wire is pulled."""
    job = start_job(cluster, TRAIN, "--compute-node", 1, "--step-s", 0.5, "--steps", 50)
    for rank, word in enumerate(("step 1 sum", "step 1 computed")):
        job[rank].wait_for_text(word)
    cluster.cut(1)
    time.sleep(10)  # the length of the cut is what is tested
    cluster.heal(1)
    assert [outcome.code for outcome in job.wait()] == [0, 0]


NEVER_CAME = {
    ("static", 0): ("timeout=8", "node-failed", "node 1 did not join within 8 s"),
    ("static", 1): ("timeout=8", "node-failed", "node 0 (10.99.0.1) was not reached within 8 s: connection refused on"),
    ("c10d", 0): ("join_timeout=8", "node-failed", "a node did not join within 8 s"),
    ("c10d", 1): ("read_timeout=8", "rendezvous-timeout", "torch's agent could not reach the store at node0:29500"),
}
"""How long torch waits, and what is said then, by rendezvous and by the node that is here."""


@pytest.mark.parametrize("here", [pytest.param(0, marks=SLOW), 1])
def test_a_node_that_never_comes_is_named_and_ends_the_job_with_75(
    cluster: Cluster, start_job: StartJob, here: int, rendezvous: str
) -> None:
    limits, cause, said = NEVER_CAME[rendezvous, here]
    left = start_job(cluster, TRAIN, options=("--rdzv-conf", limits), later=(1 - here,)).wait_for(here)
    assert (left.code, left.verdict["cause"]) == (75, cause), left.stderr
    assert said in left.verdict["title"]
    if rendezvous == "static":
        assert left.verdict["first_failure"]["node_rank"] == 1 - here
    if here == 1:
        name = "node 0" if rendezvous == "static" else "the endpoint's host"
        assert f"waiting for {name} at 10.99.0.1 (from 10.99.0.2 on eth0) for" in left.stderr


@pytest.mark.slow_system
def test_agents_are_let_go_when_the_ranks_of_all_nodes_have_ended(cluster: Cluster, start_job: StartJob) -> None:
    """The ranks of node 0 end seconds before those of node 1, whose agents talk to the store of node 0's."""
    job = start_job(cluster, TRAIN, "--compute-node", 1, "--step-s", 1, "--steps", 3)
    outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [0, 0]
    for outcome in outcomes:
        assert outcome.folder is not None
        events = [json.loads(line) for line in (outcome.folder / "events.jsonl").read_text().splitlines()]
        names = [event["event"] for event in events]
        assert names.index("RanksEnded") < names.index("AllRanksEnded") < names.index("AgentExited")
        assert [event["signum"] for event in events if event["event"] == "SignalSent"] == [signal.SIGKILL]


@pytest.mark.slow_system
@pytest.mark.parametrize(
    ("stopped", "save_s"), [(1, (0, 0)), (0, (0, 0)), (1, (0, 8))], ids=["another", "node 0", "node 0 is the first"]
)
def test_after_a_stop_no_agent_waits_for_those_that_have_ended(
    cluster: Cluster, start_job: StartJob, stopped: int, save_s: tuple[int, int]
) -> None:
    """torch's agent does where its ranks have ended with 0. But that of node 0 has the store that others may use."""
    job = start_job(cluster, SAVES, *save_s)
    for rank in (0, 1):
        job[rank].wait_for_text("ready")
    os.kill(job[stopped].process.pid, signal.SIGTERM)
    outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [143, 143], outcomes[0].stderr
    assert ["saved" in outcome.stdout for outcome in outcomes] == [True, True], outcomes[1].stderr
    for rank, outcome in enumerate(outcomes):
        assert [event["code"] for event in outcome.named("RankExited")] == [0]
        (rank_ended,), (agent_ended,) = outcome.named("RankExited"), outcome.named("AgentExited")
        print(f"node {rank}: the agent ended {(agent_ended['at'] - rank_ended['at']) / 1e9:.2f} s after its rank")
        assert {event["timer"]["kind"] for event in outcome.named("TimerFired")} <= {
            "unfinished"
        }  # no deadline ended anything
        if save_s[rank]:
            assert f"stopping: waiting up to 28 s for rank {rank} to end" in outcome.stderr
    waited = outcomes[1 - stopped]
    assert [(event["target"], event["signum"]) for event in waited.named("SignalSent")] == [
        ("ranks", signal.SIGTERM),
        ("agent", signal.SIGKILL),
    ]
    if stopped == 1:
        (said,), (agent_ended,) = outcomes[0].named("AllRanksEnded"), outcomes[0].named("AgentExited")
        assert (said["well"], said["at"] < agent_ended["at"]) == (False, True)


@pytest.mark.slow_system
def test_nodes_that_cannot_talk_judge_alone_and_run_well(cluster: Cluster, start_job: StartJob) -> None:
    """Another secret on each; what a healthy job prints stays as it is."""
    job = start_job(cluster, TRAIN, "--steps", 2, options=("--control-port", PORT + 7), later=(1,))
    job.start(1, env={"DDP_RUN_SECRET": "another"})
    outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [0, 0]


def wait_until_training(job: Job) -> None:
    for rank in (0, 1):
        job[rank].wait_for_text("step 1 ")
