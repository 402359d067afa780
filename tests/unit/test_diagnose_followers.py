"""Which deaths only followed: of a peer, of a stop, of torch's agent. What each rank is called in the verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.test_diagnose import PEER, SECOND, death, leaver, log, lost_peer, run

from ddp_run.evidence.model import AgentEnd, Death, Evidence, LogText
from ddp_run.judge.catalogue import Cause, catalogue
from ddp_run.judge.diagnose import judge
from ddp_run.judge.findings import LATE_NS
from ddp_run.judge.verdict import Confidence, Finding, FirstFailure, Layer, Retry, Rule
from ddp_run.record.events import LocalRank, MonotonicNs, Rank


def followed(item: Death, agent: AgentEnd | None = None) -> str | None:
    """Why rank 1 followed; None if it failed on its own. Rank 0 failed last of all."""
    verdict = judge(run(item, death(0, 3, 90 * SECOND), agent=agent))
    return next((each.reason for each in verdict.collateral if each.rank == item.rank), None)


@pytest.mark.parametrize(
    ("code", "raised", "sent", "reason"),
    [
        pytest.param(-15, None, (15,), "stopped with the job", id="ended by the signal"),
        pytest.param(-9, None, (15, 9), "stopped with the job", id="ended by the last of two"),
        pytest.param(3, None, (15,), "stopped with the job, after SIGTERM", id="a code without a message"),
        pytest.param(-11, None, (15, 9), "stopped with the job, after SIGTERM", id="a crash on the way out"),
        pytest.param(1, "KeyboardInterrupt", (2,), "stopped with the job, after SIGINT", id="Ctrl-C"),
        pytest.param(1, "SystemExit", (15,), "stopped with the job, after SIGTERM", id="an exit"),
        pytest.param(
            *(1, "torch.distributed.elastic.multiprocessing.api.SignalException", (15,)),
            "stopped with the job, after SIGTERM",
            id="torch's own",
        ),
        pytest.param(1, "ValueError", (15,), None, id="an exception of its own after the signal"),
        pytest.param(1, "SystemExit", (), None, id="an exit that nobody asked for"),
        pytest.param(-15, None, (), None, id="a signal of somebody else"),
        pytest.param(-15, None, (9,), "stopped with the job, after SIGKILL", id="another signal than the one sent"),
        pytest.param(3, None, (), None, id="a code of its own"),
    ],
)
def test_a_rank_that_ended_as_the_stop_asked_it_to_did_not_fail_on_its_own(
    code: int, raised: str | None, sent: tuple[int, ...], reason: str | None
) -> None:
    assert followed(death(1, code, SECOND, raised=raised, sent=sent)) == reason


@pytest.mark.parametrize(
    ("late", "code", "alone"),
    [
        pytest.param(LATE_NS, -11, False, id="a crash at once"),
        pytest.param(LATE_NS + 1, -11, True, id="a crash later"),
        pytest.param(LATE_NS, 3, True, id="an exit"),
        pytest.param(LATE_NS, -15, True, id="the signal"),
    ],
)
def test_a_rank_that_was_crashing_as_the_agent_told_it_to_end_may_have_been_first(
    late: int, code: int, alone: bool
) -> None:
    """The kernel reports a crash late, and the agent may have seen another one first."""
    verdict = judge(run(death(0, -11, SECOND), death(1, code, SECOND + late, sent=(15,))))
    assert [each.reason.startswith("stopped") for each in verdict.collateral] == [alone]
    assert any("which came first is uncertain" in note for note in verdict.notes) is not alone


def test_a_rank_that_lost_its_peer_followed_whatever_it_was_sent() -> None:
    lost = death(1, 1, SECOND, raised="RuntimeError", message=PEER, sent=(15,))
    assert followed(lost) == "lost its peer, rank 0"


AT = 10 * SECOND
"""When the agent was reaped."""
GONE = "lost torch's agent"


@pytest.mark.parametrize(
    ("agent", "code", "died", "reason"),
    [
        pytest.param(AgentEnd(-9, at=MonotonicNs(AT)), -9, AT + 5, GONE, id="SIGKILL after the agent"),
        pytest.param(AgentEnd(-9, at=MonotonicNs(AT)), -15, AT + 5, GONE, id="SIGTERM after the agent"),
        pytest.param(AgentEnd(-9, at=MonotonicNs(AT)), -9, AT - SECOND, GONE, id="reported up to a second before it"),
        pytest.param(AgentEnd(-9, at=MonotonicNs(AT)), -9, AT - SECOND - 1, None, id="more than a second before"),
        pytest.param(AgentEnd(-9, at=MonotonicNs(AT)), -11, AT + 5, None, id="a signal of another kind"),
        pytest.param(AgentEnd(-9, at=MonotonicNs(AT)), 3, AT + 5, None, id="a code"),
        pytest.param(AgentEnd(-9, at=MonotonicNs(AT), killed_by_us=True), -9, AT + 5, None, id="ddp-run killed it"),
        pytest.param(AgentEnd(1, at=MonotonicNs(AT)), -9, AT + 5, None, id="the agent exited"),
        pytest.param(AgentEnd(0, at=MonotonicNs(AT)), -9, AT + 5, None, id="the agent exited with 0"),
        pytest.param(AgentEnd(-9), -9, AT + 5, None, id="when is unknown"),
        pytest.param(AgentEnd(None, at=MonotonicNs(AT)), -9, AT + 5, None, id="how is unknown"),
    ],
)
def test_a_rank_that_the_kernel_ended_with_its_agent_did_not_fail_on_its_own(
    agent: AgentEnd, code: int, died: int, reason: str | None
) -> None:
    assert followed(death(1, code, died), agent) == reason


# ------------------------------------------------------------------------------- of several findings, the best


def matching(name: str, code: str, sure: Confidence = "certain", layer: Layer = Layer.ENDED) -> Cause:
    """A rule that matches every rank."""
    about = Rule(name, name, code, layer, Retry(helps=True, reason=""), "0.1")
    return Cause(about, lambda death, _run: Finding(about, name, confidence=sure))


@pytest.mark.parametrize(
    ("causes", "best"),
    [
        pytest.param([matching("a", "DDP991", "likely"), matching("b", "DDP992")], "b", id="the surer"),
        pytest.param([matching("a", "DDP991", "unknown"), matching("b", "DDP992", "likely")], "b", id="less unsure"),
        pytest.param(
            [matching("a", "DDP991", layer=Layer.FOLLOWED), matching("b", "DDP992", "likely")],
            "b",
            id="a cause before a consequence",
        ),
        pytest.param(
            [matching("a", "DDP991", layer=Layer.UNEXPLAINED), matching("b", "DDP992", "likely")],
            "b",
            id="special",
        ),
        pytest.param([matching("unknown", "DDP000", "unknown")], "unknown", id="nothing else"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_of_several_rules_that_match_one_rank_the_best_counts(causes: list[Cause], best: str, turned: bool) -> None:
    assert judge(run(death(0, 1, 10)), causes[::-1] if turned else causes).cause == best


def test_a_rank_that_no_rule_knows_is_unknown() -> None:
    verdict = judge(run(death(0, 1, 10)), ())
    assert (verdict.cause, verdict.title, verdict.confidence) == ("unknown", "rank 0 exited", "unknown")


def test_rules_that_raise_are_all_told_and_the_others_still_asked() -> None:
    def broken(name: str) -> Cause:
        def match(_death: Death, _run: Evidence) -> Finding | None:
            raise ValueError(name)

        return Cause(replace(matching(name, "DDP990").rule), match)

    verdict = judge(run(death(0, 1, 10)), [broken("x"), broken("y"), matching("b", "DDP992")])
    assert verdict.cause == "b"
    assert verdict.notes == ("rule x failed: ValueError: x", "rule y failed: ValueError: y")


# ------------------------------------------------------------------------------------ how a rank is described


def test_a_rank_that_failed_is_described_with_all_that_is_known_of_it() -> None:
    known = replace(death(3, -9, 20, failed=10), local_rank=LocalRank(1), node_rank=2, host="node-c")
    first = judge(run(replace(known, stderr=LogText("attempt_0/rank_3/stderr.log")))).first_failure
    assert first == FirstFailure(
        rank=Rank(3),
        local_rank=LocalRank(1),
        node_rank=2,
        host="node-c",
        pid=103,
        exit_code=-9,
        signal="SIGKILL",
        at=MonotonicNs(10),
        log="attempt_0/rank_3/stderr.log",
    )


def test_what_is_not_known_of_a_rank_stays_open() -> None:
    assert judge(run(Death(Rank(3), code=3))).first_failure == FirstFailure(Rank(3), exit_code=3)


def test_a_rank_that_left_early_is_described_with_all_that_is_known_of_it() -> None:
    left = replace(leaver(1, 400), local_rank=LocalRank(0), host="node-c", node_rank=2, stderr=log("bye"))
    first = judge(run(lost_peer(0, 500), clean_exits=(left,))).first_failure
    assert first == FirstFailure(
        rank=Rank(1),
        local_rank=LocalRank(0),
        node_rank=2,
        host="node-c",
        pid=101,
        exit_code=0,
        at=MonotonicNs(400),
        log="attempt_0/rank_0/stderr.log",
    )
    silent = judge(run(lost_peer(0, 500), clean_exits=(leaver(1, 400),))).first_failure
    assert silent is not None
    assert silent.log is None


CRASHED = log(
    "Fatal Python error: Segmentation fault",
    "",
    "Current thread 0x00007f (most recent call first):",
    '  File "/home/me/train.py", line 12 in step',
)


@pytest.mark.parametrize("raised", [None, "ValueError"])
def test_a_crash_is_shown_as_the_exception_of_a_rank_that_raised_none(raised: str | None) -> None:
    first = judge(run(death(0, -11, 20, failed=10, raised=raised, stderr=CRASHED))).first_failure
    assert first is not None
    assert first.exception is not None
    assert first.exception.type == (raised or "Fatal Python error")


# ---------------------------------------------------------------------------------- a rank that exited early


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        pytest.param((0,), "rank 1 exited early (exit code 0) while rank 0 was still running", id="one"),
        pytest.param((0, 2), "rank 1 exited early (exit code 0) while ranks 0,2 were still running", id="two"),
        pytest.param((None,), "rank 1 exited early (exit code 0) while others were still running", id="unnamed"),
        pytest.param((None, 2), "rank 1 exited early (exit code 0) while rank 2 was still running", id="one unnamed"),
    ],
)
def test_the_ranks_that_an_early_exit_left_behind_are_named(waiting: tuple[int | None, ...], said: str) -> None:
    lost = [
        replace(lost_peer(0, 500 + place), rank=None if rank is None else Rank(rank))
        for place, rank in enumerate(waiting)
    ]
    verdict = judge(run(*lost, clean_exits=(leaver(1, 400),)))
    assert verdict.title == said


def test_a_rank_that_finished_first_gets_advice_about_uneven_steps() -> None:
    verdict = judge(run(lost_peer(0, 500), lost_peer(2, 501), clean_exits=(leaver(1, 400),)))
    assert verdict.confidence == "certain"
    assert verdict.advice == (
        "make all ranks run the same number of steps: rank 1 exited with code 0 while ranks 0,2 went on",
        "DistributedSampler(dataset, drop_last=True), or torch.distributed.algorithms.join.Join for uneven inputs",
    )
    assert verdict.retry == Retry(helps=False, reason="the ranks will disagree about the number of steps again")
    assert [quote.source for quote in verdict.evidence] == ["attempt_0/rank_0/stderr.log"]


@pytest.mark.parametrize("code", [0, 7])
def test_who_exited_early_is_as_sure_as_its_exit_and_not_as_what_the_others_say(code: int) -> None:
    """What a rule says of the rank that lost its peer, and of a retry, is about another cause."""
    about = matching("peer-died", "DDP501", layer=Layer.FOLLOWED).rule
    no = Retry(helps=False, reason="no")

    def match(death: Death, _run: Evidence) -> Finding | None:
        return Finding(about, "lost", confidence="likely", retry=no) if death.rank == 0 else None

    left = (leaver(1, 400),) if code == 0 else ()
    silent = () if code == 0 else (death(1, code, 400),)
    verdict = judge(run(lost_peer(0, 500), *silent, clean_exits=left), [Cause(about, match)])
    assert (verdict.cause, verdict.confidence) == ("peer-died", "certain")
    assert verdict.retry not in (no, None)


def test_a_rank_without_a_number_exited_early() -> None:
    verdict = judge(run(replace(death(1, 7, 90), rank=None), lost_peer(0, 100)))
    assert verdict.title == "a rank exited early (exit code 7) while rank 0 was still running"


@pytest.mark.parametrize(("code", "confidence"), [(7, "certain"), (None, "likely")])
def test_a_rank_that_left_without_a_word_keeps_its_own_last_line_and_advice(code: int | None, confidence: str) -> None:
    silent = death(1, code, 90, stderr=LogText("attempt_0/rank_1/stderr.log", ("step 7",)))
    verdict = judge(run(silent, lost_peer(0, 100)))
    own = judge(run(silent), [cause for cause in catalogue() if cause.rule.name == "unknown"])
    assert verdict.confidence == confidence
    assert [quote.source for quote in verdict.evidence] == [f"attempt_0/rank_{rank}/stderr.log" for rank in (1, 0)]
    assert verdict.advice == own.advice
    assert verdict.retry is not None
    assert verdict.retry.helps
