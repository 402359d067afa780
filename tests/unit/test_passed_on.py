"""A rank that tells of its failure and leaves after those it told: which rank is named, by values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.unit.test_diagnose import SECOND, death, leaver, log, lost_peer, named, run

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.diagnose import judge
from ddp_run.record.events import ExceptionInfo, MonotonicNs

LIBRARY = "/venv/lib/python3.11/site-packages/torch/utils/data/dataset.py"


def traceback(statement: str, said: str, file: str = "/home/user/train.py", before: str = "") -> str:
    head = f"{before}Traceback (most recent call last):\n"
    return f'{head}  File "{file}", line 42, in main\n    {statement}\n{said}'


def raised(rank: int, at: int, statement: str, said: str, **more: str) -> Death:
    """A rank whose program raised `said` (`Type: message`) by this statement, and then exited with 1."""
    name, _, message = said.partition(": ")
    text = traceback(statement, said, **more)
    exception = ExceptionInfo(name, message, more.get("file", "/home/user/train.py"), 42, "main", text)
    ended = death(rank, 1, at + 20_000_000, failed=at, stderr=log(*text.split("\n")))
    return replace(ended, exception=exception)


def logged(
    rank: int, died: int, *lines: str, said: str = "KeyError: 'cosine'", stdout: bool = False, **more: str
) -> Death:
    """A rank that logged an exception, and was stopped with the job."""
    text = log("ERROR:train:training failed", *traceback('x = d["cosine"]', said, **more).split("\n"), *lines)
    told = death(rank, -15, died, sent=(15,), stderr=log() if stdout else text)
    return replace(told, stdout=text if stdout else log(), phase="shutdown")


def logged_as_json(rank: int, died: int) -> Death:
    record = {"level": "error", "msg": "training failed", "exc": traceback('x = d["cosine"]', "KeyError: 'cosine'")}
    text = log('{"msg": "step 1"}', json.dumps(record), '{"msg": "uploading"}')
    return replace(death(rank, -15, died, sent=(15,)), stdout=text)


def waited(rank: int, at: int) -> Death:
    said = "torch.distributed.DistStoreError: wait timeout after 1000ms, keys: /default_pg/0//ready"
    return raised(rank, at, "store.wait(keys)", said)


def left(rank: int, at: int, code: int = 1) -> Death:
    return replace(raised(rank, at, f"sys.exit({code})", f"SystemExit: {code}"), code=code)


NOT_READ = "rank 0 could not read the config: KeyError: 'lr'"
TYPED = "raise SetupFailed(said)"
OWN = traceback('lr = config["lr"]', "KeyError: 'lr'")
FROM = "\n\nThe above exception was the direct cause of the following exception:\n\n"
FAILED_LATER = raised(0, 900, 'lr = config["lr"]', "KeyError: 'lr'")

PASSED_ON = [
    pytest.param(
        raised(1, 100, TYPED, f"SetupFailed: {NOT_READ}"),
        raised(0, 900, TYPED, f"SetupFailed: {NOT_READ}"),
        "certain",
        id="all raise the same words, which name one of them",
    ),
    pytest.param(
        raised(1, 100, TYPED, f"SetupFailed: {NOT_READ}"),
        raised(0, 900, TYPED, f"SetupFailed: {NOT_READ}", before=OWN + FROM),
        "certain",
        id="and what it came of is known",
    ),
    pytest.param(
        raised(1, 100, "raise error", "ValueError: bad header"),
        raised(0, 900, 'raise ValueError("bad header")', "ValueError: bad header"),
        "certain",
        id="the exception itself was sent",
    ),
    pytest.param(
        raised(1, 100, 'raise RuntimeError(f"{who} has failed")', "RuntimeError: rank 0: KeyError('lr')"),
        FAILED_LATER,
        "certain",
        id="named, and quoted as Python shows it",
    ),
    pytest.param(
        raised(1, 100, 'raise RuntimeError("x")', "RuntimeError: a peer gave up: KeyError: 'lr'"),
        FAILED_LATER,
        "likely",
        id="quoted, not named",
    ),
    pytest.param(
        raised(1, 100, 'raise RuntimeError("x")', "RuntimeError: [rank 1] leaving, as rank 0 has no samples"),
        FAILED_LATER,
        "likely",
        id="named, not quoted",
    ),
    pytest.param(
        raised(1, 100, 'raise PeerFailed("x")', "PeerFailed: rank 0 failed with KeyError: 'cosine'"),
        logged(0, 9 * SECOND),
        "certain",
        id="the one that is named was stopped before it left",
    ),
    pytest.param(lost_peer(1, 100), logged(0, 9 * SECOND), "likely", id="the others lost it while it cleaned up"),
    pytest.param(
        lost_peer(1, 100), logged(0, 9 * SECOND, "INFO:train:closing 3 files"), "likely", id="which it tells of"
    ),
    pytest.param(lost_peer(1, 100), logged(0, 9 * SECOND, stdout=True), "likely", id="its log goes to stdout"),
    pytest.param(lost_peer(1, 100), logged_as_json(0, 9 * SECOND), "likely", id="its log is JSON"),
    pytest.param(waited(1, 100), logged(0, 9 * SECOND), "likely", id="the others waited for it"),
    pytest.param(waited(1, 100), FAILED_LATER, "likely", id="for one that failed later"),
    pytest.param(left(1, 100), FAILED_LATER, "likely", id="the others left before"),
    pytest.param(left(1, 100), logged(0, 9 * SECOND), "likely", id="the others left, and it was stopped"),
    pytest.param(
        death(1, 1, 100), raised(0, SECOND, 'x = d["lr"]', "KeyError: 'lr'"), "likely", id="without any exception"
    ),
]


@pytest.mark.parametrize(("first", "source", "confidence"), PASSED_ON)
def test_the_rank_whose_failure_was_passed_on_is_named(first: Death, source: Death, confidence: str) -> None:
    evidence = run(first, source, death(2, -15, 8 * SECOND, sent=(15,)))
    verdict = judge(evidence)
    assert named(evidence) == ("python-exception", 0, 1)
    assert verdict.confidence == confidence
    assert verdict.first_failure is not None
    assert verdict.first_failure.exception is not None
    assert [each.rank for each in verdict.collateral] == [1, 2]


PEER = lost_peer(0, 1).exception.message  # type: ignore[union-attr]
LOST = traceback("dist.all_reduce(x)", f"RuntimeError: {PEER}", "/venv/site-packages/torch/distributed/c10d.py")
ITS_OWN = [
    pytest.param(
        raised(1, 100, 'raise ValueError("x")', "ValueError: expected 4 values from rank 0, got 3"),
        death(0, -15, 900, sent=(15,)),
        id="the one that it names has not failed",
    ),
    pytest.param(
        raised(1, 100, 'raise ValueError("x")', "ValueError: checksum of rank 0 differs"),
        raised(0, 900, 'raise ValueError("x")', "ValueError: checksum of rank 1 differs"),
        id="both name each other",
    ),
    pytest.param(
        raised(
            1, 100, 'raise RuntimeError("x") from error', "RuntimeError: no rate: KeyError: 'lr'", before=OWN + FROM
        ),
        FAILED_LATER,
        id="it quotes what it had caught itself",
    ),
    pytest.param(
        raised(1, 100, 'raise RuntimeError("x")', "RuntimeError: ranks 0 and 2 differ: rank 0 has 4, rank 2 has 3"),
        FAILED_LATER,
        id="it names several",
    ),
    pytest.param(
        raised(1, 100, "item = self.items[index]", "IndexError: rank 0 has no item 5", file=LIBRARY),
        FAILED_LATER,
        id="a library says it",
    ),
    pytest.param(
        raised(1, 100, 'raise ValueError("bad header")', "ValueError: bad header"),
        raised(0, 900, 'raise ValueError("bad header")', "ValueError: bad header"),
        id="the same words, which name nobody",
    ),
    pytest.param(
        raised(1, 100, 'raise RuntimeError("x")', "RuntimeError: rank 0 is gone"),
        lost_peer(0, 900),
        id="the one that it names lost it",
    ),
    pytest.param(
        raised(1, 100, 'raise ValueError("x")', "ValueError: no such shard"),
        logged(0, 9 * SECOND),
        id="another one logged something else",
    ),
    pytest.param(
        left(1, 100),
        raised(0, 900, 'raise RuntimeError("training failed")', "RuntimeError: training failed", before=LOST + FROM),
        id="the other one failed as it lost the one that left",
    ),
    pytest.param(left(1, 100), left(0, 900), id="another one left, too"),
    pytest.param(
        replace(left(1, 100), exception=None), death(0, -15, SECOND, sent=(15,)), id="nobody shows an exception"
    ),
]


@pytest.mark.parametrize(("first", "other"), ITS_OWN)
def test_a_rank_that_failed_itself_stays_named(first: Death, other: Death) -> None:
    verdict = judge(run(first, other))
    assert verdict.first_failure is not None
    assert verdict.first_failure.rank == 1
    assert verdict.confidence == ("unknown" if first.exception is None else "certain")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(death(0, -15, 9 * SECOND, sent=(15,)), id="it logged nothing"),
        pytest.param(
            logged(0, 9 * SECOND, *(f"step {step}: loss 0.{step}" for step in range(12))), id="it went on after that"
        ),
        pytest.param(
            logged(0, 9 * SECOND, said=f"RuntimeError: {PEER}", file="/x/torch/distributed/c10d.py"),
            id="it lost a peer, too",
        ),
    ],
)
def test_of_ranks_that_only_followed_none_is_made_the_cause(other: Death) -> None:
    assert named(run(lost_peer(1, 100), other))[:2] == ("peer-died", 1)


def test_a_rank_that_logged_its_exception_and_left_with_0_is_named_with_it() -> None:
    text = traceback('x = d["cosine"]', "KeyError: 'cosine'").split("\n")
    left = replace(leaver(0, 90), stderr=log("ERROR:train:training failed", *text))
    evidence = run(lost_peer(1, 100), clean_exits=(left,))
    assert named(evidence) == ("python-exception", 0, 1)
    assert judge(evidence).first_failure.exit_code == 0  # type: ignore[union-attr]


def test_a_rank_that_failed_itself_comes_before_one_that_logged_an_exception() -> None:
    failed = death(2, 3, 700, failed=600, raised="ValueError", message="bad")
    assert named(run(lost_peer(1, 100), failed, logged(0, 9 * SECOND)))[1:] == (2, 3)


def test_what_is_told_of_the_others_and_of_the_order() -> None:
    """Those that ended before are not said to have ended later."""
    told = raised(1, 100, TYPED, f"SetupFailed: {NOT_READ}")
    source = raised(0, 900, TYPED, f"SetupFailed: {NOT_READ}")
    verdict = judge(run(told, source, waited(2, 200), raised(3, 950, 'raise ValueError("x")', "ValueError: late")))
    assert [(each.rank, each.reason) for each in verdict.collateral] == [
        (1, "reported the failure of rank 0"),
        (2, "waited in vain"),
        (3, "failed after rank 0: rank 3 raised ValueError in train.py:42: late"),
    ]
    assert "the exception of rank 1 reports that of rank 0" in verdict.notes


def test_the_phase_of_a_logged_exception_is_unknown_and_the_log_is_the_one_that_shows_it() -> None:
    """The rank had gone on to clean up by the time at which its phase was last seen."""
    verdict = judge(run(lost_peer(1, 100), logged(0, 9 * SECOND, stdout=True)))
    assert verdict.phase is None
    assert verdict.first_failure is not None
    assert (verdict.first_failure.exit_code, verdict.first_failure.signal) == (None, None)
    assert [quote.text for quote in verdict.evidence][-1] == "KeyError: 'cosine'"


def test_those_that_left_before_are_said_to_have_left_before() -> None:
    verdict = judge(run(left(1, 100, 14), left(2, 200, 14), FAILED_LATER))
    assert [(each.rank, each.reason) for each in verdict.collateral] == [
        (1, "left before it"),
        (2, "left before it"),
    ]


def test_the_code_is_that_of_those_that_left_if_the_one_to_blame_was_stopped() -> None:
    assert named(run(left(1, 100, 14), logged(0, 9 * SECOND))) == ("python-exception", 0, 14)


def test_who_was_told_to_leave_has_no_code_of_its_own() -> None:
    """A handler of SIGTERM may call `sys.exit(143)`."""
    told = replace(left(0, 900, 143), code=143, signals_sent=(15,))
    assert (told.own_code, replace(told, signals_sent=()).own_code) == (None, 143)
    assert replace(told, code=17).own_code == 17
    assert replace(raised(0, 900, "x = 1 / 0", "ZeroDivisionError: x"), code=143, signals_sent=(15,)).own_code == 143


def test_a_job_that_was_stopped_stays_interrupted() -> None:
    evidence = run(lost_peer(1, 300), logged(0, 9 * SECOND), stop_signal=15, stop_at=MonotonicNs(50))
    assert judge(evidence).outcome == "interrupted"


def test_a_text_does_not_show_who_was_stopped() -> None:
    evidence: Evidence = run(lost_peer(1, 100), logged(0, 9 * SECOND), logs_only=True)
    assert named(evidence)[0] == "peer-died"


CALLED = """ValueError: On WorkerInfo(id={}, name=worker{}):
ValueError("could not convert string to float: 'n/a'")"""


def test_what_a_remote_call_raised_is_that_of_the_rank_that_was_called() -> None:
    """torch/distributed/rpc/internal.py, `_handle_exception`."""
    caller = raised(0, 100, "results = [f.wait() for f in futs]", f"ValueError: {CALLED.format(2, 2)}")
    called = raised(2, 9 * SECOND, "float(c)", "ValueError: could not convert string to float: 'n/a'")
    verdict = judge(run(caller, death(1, -15, 200, sent=(15,)), called))
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.confidence) == (2, "certain")
    assert verdict.collateral[0].reason == "got the exception of rank 2 from torch"
    alone = judge(run(raised(0, 100, "f.wait()", f"ValueError: {CALLED.format(0, 'r')}"), called))
    assert alone.first_failure is not None
    assert alone.first_failure.rank == 0


def test_a_remote_call_may_hide_a_key_error_in_another_exception() -> None:
    """A KeyError shows its words as Python writes them, and the future raises RuntimeError."""
    said = "RuntimeError: KeyError: 'On WorkerInfo(id=0, name=worker0):\\nKeyError(\\'cosine\\')\\nTraceback'"
    verdict = judge(run(raised(2, 100, "return fut.wait()", said, file=LIBRARY), logged(0, 9 * SECOND)))
    assert named(run(raised(2, 100, "return fut.wait()", said, file=LIBRARY), logged(0, 9 * SECOND)))[:2] == (
        "python-exception",
        0,
    )
    assert "the exception that torch passed on is that of rank 0" in verdict.notes


GONE = "EOFError\n\nThe above exception was the direct cause of the following exception:\n\n"


def test_who_lost_a_connection_to_a_rank_that_had_logged_why_only_followed() -> None:
    before = traceback("raise EOFError", GONE)
    client = raised(2, 100, "raise RuntimeError('the server hung up') from e", "RuntimeError: gone", before=before)
    verdict = judge(run(client, logged(0, 9 * SECOND)))
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.confidence) == (0, "likely")
    assert "rank 2 lost a connection, and rank 0 shows its own exception" in verdict.notes
    for other in (
        death(0, -15, 9 * SECOND, sent=(15,)),
        logged(0, 9 * SECOND, said="ConnectionResetError: [Errno 104] reset"),
    ):
        alone = judge(run(client, other))
        assert alone.first_failure is not None
        assert alone.first_failure.rank == 2


def test_an_exception_of_an_unknown_time_makes_the_order_doubtful() -> None:
    """Rank 0 had logged an exception, went on, and left with 143 when it was told to."""
    late = replace(raised(0, 9 * SECOND, "load(text)", "ParserError: no '}'"), code=143, signals_sent=(15,))
    first = raised(1, 100, "conf['model']", "TypeError: 'NoneType' object is not subscriptable")
    verdict = judge(run(first, late))
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.confidence) == (1, "likely")
    assert any("whether before or after rank 1 failed is unknown" in note for note in verdict.notes)
    assert verdict.collateral[0].reason.startswith("failed, too: rank 0 raised ParserError")
    assert judge(run(first, replace(late, code=1))).confidence == "certain"
