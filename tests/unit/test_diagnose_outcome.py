"""How a job ended, and with which exit code: succeeded, refused, stopped, hung, or lost without a rank to blame."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from tests.unit.test_diagnose import SECOND, death, leaver, log, lost_peer, raised_by_agent, run

from ddp_run.evidence.model import AgentEnd, Death, Evidence
from ddp_run.judge.catalogue import Cause, catalogue
from ddp_run.judge.diagnose import failed_by_itself, judge
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule
from ddp_run.record.events import MonotonicNs, NodeRankTaken, NodesCompared, NotEnded, Rank, StallSeen

KILLED = AgentEnd(-9)
BROKEN = Rule("broken", "Broken", "DDP999", Layer.ENDED, Retry(helps=False, reason=""), "0.1")
STALL = StallSeen(MonotonicNs(9), "hang", True, "rank 1 is stuck", (Rank(1),), (Rank(0),), MonotonicNs(1), ())
TAKEN = NodeRankTaken(MonotonicNs(1), 1, "node-a", "node-b")
UNLIKE = NodesCompared(MonotonicNs(1), ("torch: 1 and 2", "script: a and b", "NCCL: 3 and 4"), (), (), refused=True)


def broken(death: Death, run: Evidence) -> Finding | None:
    raise ZeroDivisionError


# ------------------------------------------------------------------------------------------------- succeeded


def test_a_job_whose_ranks_all_exited_with_0_has_certainly_succeeded() -> None:
    assert judge(run(clean_exits=(leaver(0, 5),))).confidence == "certain"


@pytest.mark.parametrize(
    ("evidence", "succeeded"),
    [
        pytest.param(run(clean_exits=(leaver(0, 5), leaver(1, 6)), agent=KILLED, world_size=2), True, id="all ranks"),
        pytest.param(run(clean_exits=(leaver(0, 5),), agent=KILLED, world_size=2), False, id="one of two"),
        pytest.param(run(clean_exits=(leaver(0, 5),), agent=KILLED), False, id="of how many is unknown"),
        pytest.param(run(clean_exits=(leaver(0, 5),), agent=KILLED, world_size=1, nodes=2), False, id="of this node"),
        pytest.param(
            run(clean_exits=(leaver(0, 5),), agent=KILLED, world_size=2, nodes=2, all_nodes_ended_well=True),
            True,
            id="the other node told so",
        ),
        pytest.param(
            run(death(1, None, 6), clean_exits=(leaver(0, 5),), agent=KILLED, world_size=2),
            False,
            id="nobody read the other's code",
        ),
    ],
)
def test_without_the_agent_a_job_succeeded_only_if_every_rank_of_every_node_did(
    evidence: Evidence, succeeded: bool
) -> None:
    assert (judge(evidence).outcome == "succeeded") == succeeded


@pytest.mark.parametrize(("failed", "outcome"), [(5, "failed"), (None, "succeeded")])
def test_a_rank_that_said_it_failed_outweighs_an_agent_that_ended_with_0(failed: int | None, outcome: str) -> None:
    unread = death(1, None, failed=failed, raised="ValueError", message="bad")
    assert judge(run(unread, clean_exits=(leaver(0, 9),), agent=AgentEnd(0))).outcome == outcome


@pytest.mark.parametrize(("last", "outcome"), [(40, "succeeded"), (41, "interrupted")])
def test_a_job_succeeded_if_its_last_rank_ended_no_later_than_the_stop(last: int, outcome: str) -> None:
    evidence = run(clean_exits=(leaver(0, 20), leaver(1, last)), stop_signal=15, stop_at=40)
    assert judge(evidence).outcome == outcome


def test_ranks_that_end_with_0_after_the_agent_was_told_to_stop_have_succeeded() -> None:
    """The agent logs its signal, without a stamp."""
    assert judge(run(clean_exits=(leaver(0, 20),), stop_signal=15)).outcome == "succeeded"


def test_a_failed_program_whose_process_exits_with_0_is_noted_beside_rules_that_raise() -> None:
    masked = death(0, 0, 20, failed=10, raised="ValueError", message="bad")
    verdict = judge(run(masked, agent=AgentEnd(0)), (*catalogue(), Cause(BROKEN, broken)))
    assert verdict.outcome == "succeeded"
    assert [note.partition(":")[0] for note in verdict.notes] == [
        "rule broken failed",
        "rank 0 raised ValueError in train.py",
    ]


# --------------------------------------------------------------------------------------------------- refused


def test_two_nodes_with_one_rank_are_refused_as_a_mistake_in_the_command() -> None:
    verdict = judge(run(rank_taken=TAKEN, agent=AgentEnd(-15), nodes=2))
    assert (verdict.outcome, verdict.exit_code, verdict.cause) == ("refused", 2, "syntax-or-usage")
    assert (verdict.confidence, verdict.phase, verdict.title) == ("certain", "launch", TAKEN.said)


def test_nodes_that_differ_are_refused_and_every_difference_is_told() -> None:
    verdict = judge(run(unlike=UNLIKE, agent=AgentEnd(-15), nodes=2))
    assert (verdict.outcome, verdict.exit_code, verdict.cause) == ("refused", 78, "unlike-nodes")
    assert (verdict.confidence, verdict.phase) == ("certain", "launch")
    assert "torch: 1 and 2" in (verdict.title or "")
    assert verdict.notes == ("nodes differ in script: a and b", "nodes differ in NCCL: 3 and 4")


def test_a_job_that_was_refused_is_not_judged_by_what_its_agent_wrote_before() -> None:
    refused = AgentEnd(2, log("usage: torchrun", "torchrun: error: unrecognized arguments: --x"))
    assert judge(run(unlike=UNLIKE, agent=refused)).cause == "unlike-nodes"


def test_nodes_that_differ_without_being_refused_do_not_decide_how_the_job_ended() -> None:
    warned = replace(UNLIKE, refused=False)
    assert judge(run(clean_exits=(leaver(0, 5),), unlike=warned)).outcome == "succeeded"


# ------------------------------------------------------------------------------------------------ interrupted


def test_ranks_of_a_stopped_job_followed_the_stop_and_no_retry_helps() -> None:
    verdict = judge(run(death(0, -15, 50, sent=(15,)), stop_signal=15, stop_at=40, phase="training", step=7))
    assert (verdict.outcome, verdict.confidence) == ("interrupted", "certain")
    assert (verdict.phase, verdict.step) == ("training", 7)
    assert [(each.rank, each.reason) for each in verdict.collateral] == [(0, "the job was stopped by SIGTERM")]
    assert verdict.retry == Retry(helps=False, reason="the job was stopped by SIGTERM")


@pytest.mark.parametrize(("raised", "outcome"), [("KeyboardInterrupt", "interrupted"), ("ValueError", "failed")])
def test_ctrl_c_that_a_rank_noticed_before_ddp_run_is_the_stop_and_no_failure(raised: str, outcome: str) -> None:
    evidence = run(death(0, 1, 35, failed=30, raised=raised), stop_signal=signal.SIGINT, stop_at=40)
    assert judge(evidence).outcome == outcome


def test_a_rank_that_was_interrupted_by_itself_failed_before_a_later_sigterm() -> None:
    ctrl_c = death(0, 1, 35, failed=30, raised="KeyboardInterrupt")
    assert judge(run(ctrl_c, stop_signal=signal.SIGTERM, stop_at=40)).outcome == "failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_rank_that_exits_without_a_message_before_the_stop_has_failed(number: int) -> None:
    assert judge(run(death(0, 9, 30), stop_signal=number, stop_at=40)).outcome == "failed"
    assert judge(run(death(0, 9, 40), stop_signal=number, stop_at=40)).outcome == "interrupted"


def test_a_failure_counts_where_only_the_agent_knows_that_it_was_told_to_stop() -> None:
    """Its log has no stamp to compare with."""
    assert judge(run(death(0, 9, 30), stop_signal=15, agent=AgentEnd(1))).outcome == "failed"


@pytest.mark.parametrize(
    ("codes", "started", "exit_code"),
    [
        pytest.param((99, 99), 2, 99, id="all chose one"),
        pytest.param((99, 99), 3, 143, id="one never ended"),
        pytest.param((99, 98), 2, 143, id="they differ"),
        pytest.param((1, 1), 2, 1, id="1"),
        pytest.param((0, 0), 2, 143, id="0 does not make it a success"),
        pytest.param((-15, -15), 2, 143, id="a signal"),
        pytest.param((None, None), 2, 143, id="unknown"),
        pytest.param((256 + 7, 256 + 7), 2, 7, id="only its last byte reaches the shell"),
    ],
)
def test_the_exit_code_of_a_stopped_job_is_the_one_that_all_its_ranks_chose(
    codes: tuple[int | None, ...], started: int, exit_code: int
) -> None:
    ends = [death(rank, code, 60 + rank, failed=50 + rank, sent=(15,)) for rank, code in enumerate(codes)]
    verdict = judge(run(*ends, stop_signal=15, stop_at=40, started=started))
    assert (verdict.outcome, verdict.exit_code) == ("interrupted", exit_code)


# ------------------------------------------------------------------------------------------------------ hung


@pytest.mark.parametrize(
    ("code", "failed", "outcome", "said"),
    [
        pytest.param(1, 30, "failed", "rank 1 failed and its process did not exit", id="lingered"),
        pytest.param(0, 30, "failed", "rank 1 failed and its process exited with code 0", id="left with 0"),
        pytest.param(1, 40, "hung", "", id="it failed when the job was ended"),
        pytest.param(3, None, "hung", "", id="only the kernel saw its end"),
    ],
)
def test_a_rank_that_failed_before_the_hang_is_why_the_others_waited(
    code: int, failed: int | None, outcome: str, said: str
) -> None:
    waited = death(0, -15, 60, sent=(15,))
    culprit = death(1, code, 35 if failed is None else 50, failed=failed, raised="ValueError")
    verdict = judge(run(waited, culprit, hung_s=120.0, hung_at=40))
    assert verdict.outcome == outcome
    told = f"{said}; the job was terminated after 120 s without progress (--hang-timeout)"
    assert (told in verdict.notes) == bool(said)


def test_what_stood_still_before_a_failure_is_a_note() -> None:
    failed = run(death(1, 3, 30), stall=STALL)
    assert judge(failed).notes == ("before that, no progress: rank 1 is stuck",)
    assert judge(run(death(1, 3, 30))).notes == ()
    assert judge(run(clean_exits=(leaver(0, 5),), stall=STALL)).notes == ()
    assert "before that" not in str(judge(run(stall=STALL, hung_s=9.0, hung_at=40, agent=KILLED)).notes)


def test_processes_that_sigkill_did_not_end_are_told_with_one_command_for_each_mount() -> None:
    stuck = NotEnded(MonotonicNs(1), 7, Rank(0), 0, "D", "nfs at /data", "umount -f /data")
    left = (stuck, replace(stuck, pid=8, rank=Rank(1)), replace(stuck, pid=9, rank=None, release=None))
    verdict = judge(run(death(1, 3, 30), not_ended=left))
    assert verdict.notes == tuple(each.said for each in left)
    assert verdict.advice.count("umount -f /data   # releases them") == 1


# ------------------------------------------------------------------------------------------- no rank to blame


def test_an_agent_that_is_killed_while_the_ranks_run_is_lost_in_the_phase_that_all_had_reached() -> None:
    verdict = judge(run(agent=KILLED, started=2, phase="training", step=3))
    assert (verdict.outcome, verdict.exit_code) == ("failed", 75)
    assert (verdict.phase, verdict.step) == ("training", 3)
    assert judge(run(agent=KILLED, phase="training")).phase == "launch"


def test_ranks_that_go_with_their_agent_are_told_as_such() -> None:
    agent = AgentEnd(-9, at=MonotonicNs(SECOND))
    verdict = judge(run(death(0, -9, SECOND + 5), agent=agent, phase="training"))
    assert [(each.rank, each.reason) for each in verdict.collateral] == [(0, "lost torch's agent")]
    assert (verdict.phase, verdict.first_failure) == ("training", None)


def test_only_a_rank_that_failed_on_its_own_failed_by_itself() -> None:
    assert failed_by_itself(run(lost_peer(0, 10), death(1, 3, 20)))
    assert not failed_by_itself(run(lost_peer(0, 10), death(1, -15, 20, sent=(15,))))


@pytest.mark.parametrize(
    ("evidence", "outcome", "exit_code"),
    [
        pytest.param(run(rank_taken=TAKEN, agent=KILLED), "refused", 2, id="refused"),
        pytest.param(run(unlike=UNLIKE, agent=KILLED), "refused", 78, id="refused for its nodes"),
        pytest.param(run(death(0, -15, 50, sent=(15,)), stop_signal=15, stop_at=40), "interrupted", 143, id="stopped"),
        pytest.param(run(hung_s=9.0, hung_at=40, stall=STALL, agent=KILLED), "hung", 124, id="hung"),
        pytest.param(run(death(0, 3, 50)), "failed", 3, id="failed"),
        pytest.param(run(agent=KILLED), "failed", 75, id="lost"),
        pytest.param(run(clean_exits=(leaver(0, 5),)), "succeeded", 0, id="succeeded"),
    ],
)
def test_a_job_that_no_rule_explains_still_has_its_outcome_and_exit_code(
    evidence: Evidence, outcome: str, exit_code: int
) -> None:
    verdict = judge(evidence, ())
    assert (verdict.outcome, verdict.exit_code) == (outcome, exit_code)
    assert verdict.cause in (None, "unknown")
    if outcome in ("refused", "interrupted", "succeeded"):
        assert verdict.confidence == "certain"
    if outcome == "interrupted":
        assert verdict.retry == Retry(helps=False, reason="the job was stopped by SIGTERM")


def test_a_log_that_no_rule_explains_shows_no_failure() -> None:
    assert judge(run(agent=AgentEnd(1), logs_only=True), ()).outcome is None


# ---------------------------------------------------------------------------------- pasted logs without a death


@pytest.mark.parametrize(
    ("agent", "outcome", "cause", "exit_code"),
    [
        pytest.param(
            AgentEnd(2, log("usage: torchrun", "torchrun: error: unrecognized arguments: --x")),
            *("failed", "syntax-or-usage", 2),
            id="a code and a cause",
        ),
        pytest.param(
            AgentEnd(None, log("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")),
            *("failed", "rendezvous-timeout", None),
            id="a cause without a code",
        ),
        pytest.param(AgentEnd(1, log("a word")), "failed", "unknown", 1, id="a code without a cause"),
        pytest.param(AgentEnd(None, log("a word")), None, None, None, id="neither"),
        pytest.param(
            raised_by_agent("OSError", "[Errno 24] Too many open files"),
            *("failed", "unknown", 1),
            id="a whole log is not read as the agent's own words",
        ),
    ],
)
def test_a_log_without_a_failed_rank_tells_of_a_launch(
    agent: AgentEnd, outcome: str | None, cause: str | None, exit_code: int | None
) -> None:
    verdict = judge(run(agent=agent, logs_only=True))
    assert (verdict.outcome, verdict.cause, verdict.exit_code) == (outcome, cause, exit_code)
    assert verdict.phase == (None if outcome is None else "launch")
