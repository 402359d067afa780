"""Which rank a verdict names, what it says of the others, and how sure it is: by values, with rules made for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.unit.test_diagnose import SECOND, death, leaver, lost_peer, named, run

from ddp_run.evidence.model import AgentEnd, Death, Evidence, LogText, Quote, SummaryEntry
from ddp_run.judge.catalogue import Cause, catalogue
from ddp_run.judge.diagnose import LEAVING_NS, judge
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, Verdict
from ddp_run.record.events import ExceptionInfo, LocalRank, Rank


def rule(name: str, code: str = "DDP599") -> Rule:
    return Rule(name, name, code, Layer.CHANGEABLE, Retry(helps=True, reason=""), "0.1")


def blames(culprits: Mapping[int, int]) -> Cause:
    """A rule by which each of these ranks names another one."""
    about = rule("named")

    def match(death: Death, _run: Evidence) -> Finding | None:
        if death.rank is None or death.rank not in culprits:
            return None
        culprit = Rank(culprits[death.rank])
        return Finding(about, f"rank {death.rank} names {culprit}", culprit=culprit)

    return Cause(about, match=match)


def first_of(verdict: Verdict) -> tuple[int | None, int | None]:
    first = verdict.first_failure
    assert first is not None
    return first.rank, first.exit_code


# ------------------------------------------------------------------------------------------ a rank that names one


@pytest.mark.parametrize(
    ("culprits", "title", "first"),
    [
        pytest.param({2: 0, 0: 1}, "rank 0 names 1", (1, 11), id="a chain"),
        pytest.param({2: 3}, "rank 2 names 3", (3, 13), id="a rank that names nobody"),
        pytest.param({2: 1, 1: 3, 3: 0}, "rank 3 names 0", (0, 10), id="a longer chain"),
        pytest.param({2: 0, 0: 2}, "rank 0 names 2", (2, 12), id="two that name each other"),
        pytest.param({2: 2}, "rank 2 names 2", (2, 12), id="itself"),
        pytest.param({2: 7, 0: 1}, "rank 2 names 7", (7, None), id="a rank of which nothing is known"),
    ],
)
def test_blame_is_followed_to_the_last_rank_that_is_named(
    culprits: dict[int, int], title: str, first: tuple[int, int | None]
) -> None:
    ends = [death(rank, 10 + rank, 100 * place) for place, rank in enumerate((2, 3, 1, 0))]
    verdict = judge(run(*ends), [blames(culprits), *catalogue()])
    assert (verdict.title, first_of(verdict)) == (title, first)


def test_a_rank_without_a_number_is_named_by_nobody() -> None:
    nobody = replace(death(0, 1, 300), rank=None)
    verdict = judge(run(death(1, 5, 100), nobody), [blames({1: 2})])
    assert first_of(verdict) == (2, None)
    assert verdict.exit_code == 5


def test_the_reporters_code_stands_in_for_a_named_rank_that_was_killed_by_the_stop() -> None:
    verdict = judge(run(death(0, 5, 100), death(1, -15, 200, sent=(15,))), [blames({0: 1}), *catalogue()])
    assert (first_of(verdict), verdict.exit_code) == ((1, None), 5)


def test_the_named_rank_is_not_among_those_that_followed() -> None:
    ends = [death(0, 5, 100), death(1, 6, 200), death(2, -15, 300, sent=(15,))]
    verdict = judge(run(*ends), [blames({0: 1}), *catalogue()])
    assert [(each.rank, each.reason) for each in verdict.collateral] == [(2, "stopped with the job")]


@pytest.mark.parametrize(("culprit", "shown"), [(0, "RuntimeError"), (1, None)])
def test_an_exception_is_shown_only_for_a_rank_that_reports_itself(culprit: int, shown: str | None) -> None:
    """What the named rank raised may be about anything else."""
    ends = [death(0, 1, 100, raised="RuntimeError", message="late"), death(1, 1, 900, raised="ValueError")]
    verdict = judge(run(*ends), [blames({0: culprit}), *catalogue()])
    assert verdict.first_failure is not None
    assert (verdict.first_failure.exception and verdict.first_failure.exception.type) == shown


# ------------------------------------------------------------------------------------- the others, in their words


def test_why_each_of_the_others_ended() -> None:
    culprit = death(1, 3, 5 * SECOND, failed=1, raised="ValueError", message="bad")
    later = death(2, 3, 6 * SECOND, failed=2 * SECOND, raised="ValueError", message="bad")
    other = death(3, -11, 7 * SECOND)
    told = death(4, -15, 8 * SECOND, sent=(15,))
    verdict = judge(run(culprit, lost_peer(0, 10), later, other, told))
    assert [(each.rank, each.exit_code, each.signal, each.reason) for each in verdict.collateral] == [
        (0, 1, None, "lost its peer, rank 1"),
        (2, 3, None, "failed later the same way as rank 1"),
        (3, -11, "SIGSEGV", "failed after rank 1: rank 3 crashed in native code"),
        (4, -15, "SIGTERM", "stopped with the job"),
    ]


def test_why_the_others_ended_where_one_left_early() -> None:
    told = death(2, -15, 700, sent=(15,))
    verdict = judge(run(lost_peer(0, 500), told, clean_exits=(leaver(1, 400),)))
    assert verdict.outcome == "failed"
    assert [(each.rank, each.reason) for each in verdict.collateral] == [
        (0, "lost its peer, rank 1"),
        (2, "stopped with the job"),
    ]


def test_the_verdict_has_the_phase_the_step_and_the_call_of_the_rank_that_failed() -> None:
    failed = replace(death(0, 3, 10), phase="training", step=7, call="torch.cuda.set_device")
    verdict = judge(run(failed, phase="init", step=2))
    assert (verdict.phase, verdict.step, verdict.call) == ("training", 7, "torch.cuda.set_device")


def test_a_rank_that_left_early_gives_its_own_phase_and_step() -> None:
    left = replace(leaver(1, 400), phase="shutdown", step=9)
    verdict = judge(run(lost_peer(0, 500), clean_exits=(left,), phase="training", step=3))
    assert (verdict.phase, verdict.step) == ("shutdown", 9)


@pytest.mark.parametrize(("after", "rank"), [(LEAVING_NS - 1, 1), (LEAVING_NS, 0)])
def test_a_rank_that_exits_with_0_within_a_second_of_the_loss_is_the_peer_that_was_lost(after: int, rank: int) -> None:
    assert named(run(lost_peer(0, 500), clean_exits=(leaver(1, 500 + after),)))[1] == rank


def test_only_the_first_rank_that_exited_with_0_can_be_the_one_that_was_lost() -> None:
    ends: tuple[Death, ...] = (leaver(2, 300), leaver(1, 400))
    assert named(run(lost_peer(0, 500), clean_exits=ends)) == ("peer-died", 2, 1)


# ---------------------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("code", "logs_only", "exit_code"),
    [(None, False, 1), (None, True, None), (3, True, 3), (3, False, 3), (0, False, 1), (256, False, 1)],
)
def test_a_failed_job_never_exits_with_0_and_a_log_without_a_code_shows_none(
    code: int | None, logs_only: bool, exit_code: int | None
) -> None:
    failed = death(0, code, 10, failed=5, raised="ValueError", message="bad")
    verdict = judge(run(failed, logs_only=logs_only, agent=AgentEnd(1)))
    assert (verdict.outcome, verdict.exit_code) == ("failed", exit_code)


@pytest.mark.parametrize(
    ("code", "title"),
    [
        (1, "rank 1 exited early (exit code 1) while rank 0 was still running"),
        (0, "rank 1 exited early (exit code 0) while rank 0 was still running"),
        (None, "rank 1 exited early (an unknown exit code) while rank 0 was still running"),
        (-9, "rank 1 was killed by SIGKILL; sender unknown"),
    ],
)
def test_a_rank_without_a_word_is_the_peer_that_was_lost_unless_a_signal_ended_it(code: int | None, title: str) -> None:
    verdict = judge(run(death(1, code, 90, failed=None if code else 80), lost_peer(0, 100)))
    assert verdict.title == title
    assert verdict.cause == ("unknown" if code == -9 else "peer-died")


# ------------------------------------------------------------------------------------------------ how sure


def entry(rank: int, time: str, *, root: bool = False) -> SummaryEntry:
    return SummaryEntry(Rank(rank), LocalRank(rank), None, None, 1, time, "", root=root)


def test_a_summary_that_names_the_same_rank_needs_no_word() -> None:
    agent = AgentEnd(1, summary=(entry(0, "t"), entry(3, "t", root=True)))
    assert judge(run(lost_peer(0, 300), death(3, 4, 100), agent=agent)).notes == ()


def test_without_a_stamp_nothing_contradicts_the_summary() -> None:
    agent = AgentEnd(1, summary=(entry(0, "t", root=True),))
    assert judge(run(death(3, 4), agent=agent)).notes == ()


@pytest.mark.parametrize(
    ("entries", "stamped", "confidence"),
    [
        pytest.param((entry(1, "10:00:00", root=True), entry(0, "10:00:00")), False, "likely", id="in one second"),
        pytest.param((entry(1, "10:00:00", root=True), entry(0, "10:00:01")), False, "certain", id="a second apart"),
        pytest.param((entry(1, "10:00:00"), entry(0, "10:00:00")), False, "certain", id="no root"),
        pytest.param((entry(1, "10:00:00", root=True), entry(0, "10:00:00")), True, "certain", id="one has a stamp"),
    ],
)
def test_the_order_of_different_failures_in_one_second_of_the_summary_is_unknown(
    entries: tuple[SummaryEntry, ...], stamped: bool, confidence: str
) -> None:
    ends = (death(1, 1, failed=5 if stamped else None, raised="ValueError"), death(0, 1, raised="OSError"))
    assert judge(run(*ends, agent=AgentEnd(1, summary=entries))).confidence == confidence


def test_of_failures_of_one_kind_the_cause_is_certain_in_any_order() -> None:
    ends = (death(1, 1, raised="ValueError"), death(0, 1, raised="ValueError"))
    summary = (entry(1, "10:00:00", root=True), entry(0, "10:00:00"))
    assert judge(run(*ends, agent=AgentEnd(1, summary=summary))).confidence == "certain"


# -------------------------------------------------------------- pasted logs: an exception above a peer's timeout

WAITED, RAISED = "gloo-timeout-hang", "python-exception"


def shown(lines: Mapping[int, tuple[str, int | None]]) -> list[Cause]:
    """Rules that find for each rank this cause, at this line of the log; None: the line is unknown."""

    def cause(name: str, code: str) -> Cause:
        about = replace(rule(name, code), end=None if name == RAISED else "waited")

        def match(death: Death, _run: Evidence) -> Finding | None:
            found, line = lines[death.rank or 0]
            text = f"{death.rank} {name}"
            return Finding(about, text, (Quote("log.txt", line, text),)) if found == name else None

        return Cause(about, match=match)

    return [cause(WAITED, "DDP504"), cause("nccl-timeout-hang", "DDP503"), cause(RAISED, "DDP600")]


def ended(rank: int, raised: str | None = "ValueError") -> Death:
    exception = ExceptionInfo(raised, "", "train.py", 3) if raised else None
    return Death(Rank(rank), code=1, exception=exception, stderr=LogText("log.txt"))


@pytest.mark.parametrize(
    ("lines", "rank", "confidence"),
    [
        pytest.param({0: (WAITED, 50), 1: (RAISED, 20)}, 1, "likely", id="above"),
        pytest.param({0: (WAITED, 50), 1: (RAISED, 1)}, 1, "likely", id="in the first line"),
        pytest.param({0: (WAITED, 50), 1: (RAISED, 30), 2: (RAISED, 20)}, 2, "likely", id="the earliest of two"),
        pytest.param({0: (WAITED, 50), 1: (RAISED, 80)}, 0, "certain", id="below"),
        pytest.param({0: (WAITED, 50), 1: (RAISED, 50)}, 0, "certain", id="in the same line"),
        pytest.param({0: (WAITED, 50), 1: (RAISED, None)}, 0, "certain", id="in no known line"),
        pytest.param({0: (WAITED, None), 1: (RAISED, 20)}, 0, "certain", id="the timeout in no known line"),
        pytest.param({0: (WAITED, 50), 1: ("nccl-timeout-hang", 20)}, 0, "certain", id="a timeout above"),
        pytest.param({0: (RAISED, 50), 1: (RAISED, 20)}, 0, "certain", id="the first raised, too"),
    ],
)
def test_a_rank_that_raised_above_the_timeout_of_its_peer_is_the_one_that_was_missing(
    lines: dict[int, tuple[str, int | None]], rank: int, confidence: str
) -> None:
    evidence = run(*(ended(each) for each in lines), logs_only=True)
    verdict = judge(evidence, shown(lines))
    assert (first_of(verdict)[0], verdict.confidence) == (rank, confidence)


def test_a_line_above_a_timeout_that_shows_no_exception_is_not_the_missing_rank() -> None:
    lines: dict[int, tuple[str, int | None]] = {0: (WAITED, 50), 1: (RAISED, 20)}
    evidence = run(ended(0), ended(1, raised=None), logs_only=True)
    assert first_of(judge(evidence, shown(lines)))[0] == 0


def test_of_a_live_run_the_stamps_say_who_was_first_and_no_lines() -> None:
    ends = death(0, 1, failed=100, raised="ValueError"), death(1, 1, failed=200, raised="ValueError")
    assert first_of(judge(run(*ends), shown({0: (RAISED, 50), 1: (RAISED, 20)})))[0] == 0
    assert first_of(judge(run(*ends), shown({0: (WAITED, 20), 1: (RAISED, 50)})))[0] == 1


# ---------------------------------------------------------------------------- an exception that all ranks get from one

GATHERED = """Traceback (most recent call last):
  File "/home/me/train.py", line 10, in <module>
    dcp.save(state, checkpoint_id="ck")
  File "/env/lib/python3.11/site-packages/torch/distributed/checkpoint/utils.py", line 263, in all_reduce
    raise final_result
torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([1])
Traceback (most recent call last): (RANK 1)
  File "/home/me/writer.py", line 8, in write_data
    shard = self.shards[plan.name]
KeyError: 'w0'
"""


def gets_it(rank: int, failed: int, text: str = GATHERED) -> Death:
    raised = ExceptionInfo(
        "torch.distributed.checkpoint.api.CheckpointException",
        text.partition("CheckpointException: ")[2],
        "/home/me/train.py",
        10,
        "<module>",
        text,
    )
    return replace(death(rank, 1, failed + 1000, failed=failed), exception=raised)


def test_the_rank_whose_exception_all_ranks_raise_is_named_however_late_it_ended() -> None:
    verdict = judge(run(gets_it(2, 100), gets_it(0, 200), gets_it(1, 300)))
    assert first_of(verdict) == (1, 1)
    assert verdict.title == "rank 1 raised KeyError in writer.py:8: 'w0'"
    assert [each.rank for each in verdict.collateral] == [2, 0]
    assert {each.reason for each in verdict.collateral} == {"got the exception of rank 1 from torch"}


def test_nobody_says_that_it_was_first_if_torchs_summary_names_another() -> None:
    agent = AgentEnd(1, summary=(entry(2, "", root=True),))
    verdict = judge(run(gets_it(2, 100), gets_it(1, 300), agent=agent))
    [note] = [note for note in verdict.notes if "summary" in note]
    assert note == "torchrun's summary names rank 2; the exception that torch passed on is that of rank 1"


def test_it_is_named_too_if_it_ran_on_another_node() -> None:
    verdict = judge(run(gets_it(5, 100), gets_it(4, 200)))
    assert first_of(verdict) == (1, None)
    assert verdict.title == "rank 1 raised KeyError in writer.py:8: 'w0'"


def test_where_several_failed_the_one_that_ended_first_is_named() -> None:
    other = GATHERED[GATHERED.index("Traceback (most recent call last): (RANK") :].replace("RANK 1", "RANK 0")
    both = GATHERED + other.replace("KeyError: 'w0'", "ValueError: no plan")
    verdict = judge(run(gets_it(2, 100, both), gets_it(0, 200, both), gets_it(1, 300, both)))
    assert first_of(verdict) == (0, 1)
    assert verdict.title == "rank 0 raised ValueError in writer.py:8: no plan"


def test_a_call_in_a_library_that_failed_there_has_the_place_of_the_call_that_failed_on_all() -> None:
    inside = GATHERED.replace(
        "/home/me/writer.py", "/env/lib/python3.11/site-packages/torch/distributed/checkpoint/x.py"
    )
    verdict = judge(run(gets_it(2, 100, inside), gets_it(1, 300, inside)))
    assert verdict.title == "rank 1 raised KeyError in train.py:10: 'w0'"
