"""What the text of a cut log adds to a verdict that lacks a cause, or that another line explains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.test_cut_log import OOM, STEPS

from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge.cut_log import CRASHED, FOLLOWED, NOTE, WORDLESS, read
from ddp_run.judge.text_signs import LogEnd
from ddp_run.judge.verdict import Collateral, Confidence, FirstFailure, Verdict
from ddp_run.record.events import ExceptionInfo, Rank

NOTHING = Verdict(None, None)
SEGFAULT = "Fatal Python error: Segmentation fault"
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.json'"
FULL = "OSError: [Errno 28] No space left on device: '/tmp/x'"
WORKER = "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"
LOST = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:2312"


def tree(said: str, rank: int | None = None) -> str:
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 7, in <module>',
        "    main()",
        said,
    ]
    return "\n".join(lines if rank is None else [f"[rank{rank}]: {line}" for line in lines])


def of(text: str, strict: Verdict = NOTHING) -> Verdict:
    return read(LogEnd(SpokenText.of_logs([Log(LogText("log", tuple(text.splitlines())))])), strict)


def failed(
    cause: str | None = "unknown",
    *,
    rank: int | None = None,
    code: int | None = None,
    signal: str | None = None,
    raised: ExceptionInfo | None = None,
    confidence: Confidence = "unknown",
) -> Verdict:
    first = FirstFailure(None if rank is None else Rank(rank), exit_code=code, signal=signal, exception=raised)
    gone = (Collateral(Rank(9), 1, None, "lost its peer"),)
    return Verdict(
        "failed", 1, cause, "DDP000", "as it was", confidence, first_failure=first, collateral=gone, notes=("as noted",)
    )


# ----------------------------------------------------------------------------------------- a shortened summary

SHORT = "Root Cause [0]: rank 1 (local_rank: 1) exitcode: {code} ({name})"
LONG = "Root Cause (first observed failure):\n  rank      : 1 (local_rank: 1)\n  exitcode  : {code} (pid: 7)\n"


@pytest.mark.parametrize("form", [SHORT, LONG])
@pytest.mark.parametrize(
    ("code", "cause", "confidence"),
    [(-11, "segfault", "likely"), (3, "unknown", "unknown"), (-9, "unknown", "unknown")],
)
def test_a_shortened_summary_names_the_rank_and_its_code(form: str, code: int, cause: str, confidence: str) -> None:
    found = of(STEPS + "\n" + form.format(code=code, name="x"))
    first = found.first_failure
    assert first is not None
    assert (found.outcome, first.rank, first.exit_code) == ("failed", 1, code)
    assert (found.cause, found.confidence, found.notes) == (cause, confidence, ())
    assert found.exit_code == (code if code > 0 else 128 - code)


def test_a_summary_of_a_rank_that_ended_with_0_shows_no_failure() -> None:
    assert of(SHORT.format(code=0, name="x")) == NOTHING


def test_the_text_around_a_shortened_summary_is_that_ranks() -> None:
    found = of(f"{OOM}\n{SHORT.format(code=1, name='x')}")
    assert found.first_failure is not None
    assert (found.cause, found.first_failure.rank, found.first_failure.exit_code) == ("cuda-oom", 1, 1)


# ---------------------------------------------------------------------------------------------- no cause is known


def test_a_sign_in_a_log_that_shows_no_end_is_likely_with_all_that_its_rule_says() -> None:
    found = of(tree(OOM, 2))
    assert (found.cause, found.code, found.confidence) == ("cuda-oom", "DDP402", "likely")
    assert found.notes == (NOTE,)
    assert found.first_failure is not None
    assert (found.first_failure.rank, found.first_failure.exit_code) == (2, None)
    assert found.first_failure.exception is not None
    assert found.first_failure.exception.type == "torch.OutOfMemoryError"
    assert found.retry is not None
    assert found.evidence
    assert found.advice


def test_a_rank_that_only_lost_its_peer_is_not_named() -> None:
    found = of(f"[rank3]: {LOST}")
    assert found.first_failure is not None
    assert (found.cause, found.first_failure.rank) == ("peer-died", None)


@pytest.mark.parametrize(
    ("strict", "used"),
    [
        pytest.param(failed(), True, id="nothing is known of it"),
        pytest.param(failed(rank=1), True, id="its code is not"),
        pytest.param(failed(code=1), True, id="its rank is not"),
        pytest.param(failed(rank=1, code=1), True, id="it exited without a word"),
        pytest.param(failed(None, rank=1, code=1), True, id="no cause"),
        pytest.param(failed(rank=1, code=-9), False, id="a signal ended it"),
        pytest.param(failed(rank=1, code=0), False, id="it exited with 0"),
        pytest.param(failed("cuda-oom", rank=1, code=1), False, id="it has a cause"),
        pytest.param(replace(failed(rank=1, code=1), outcome="interrupted"), False, id="it was stopped"),
        pytest.param(
            failed("native-abort", rank=1, code=-6, confidence="likely"), True, id="an abort without a reason"
        ),
        pytest.param(failed("native-abort", rank=1, code=-6, confidence="certain"), False, id="an abort with one"),
        pytest.param(failed("ray-actor-died", rank=1, code=1, confidence="certain"), True, id="Ray's own words"),
    ],
)
def test_only_an_end_without_a_cause_is_explained_by_another_line(strict: Verdict, used: bool) -> None:
    found = of(tree(FULL), strict)
    assert (found.cause == "disk-full") == used
    assert used or found == strict


def test_what_is_known_of_the_rank_stays_and_gets_the_exception() -> None:
    found = of(tree(FULL), failed(rank=1, code=1))
    assert found.first_failure is not None
    assert (found.first_failure.rank, found.first_failure.exit_code) == (1, 1)
    assert found.first_failure.exception is not None
    assert found.notes == ("as noted", NOTE)
    others = of(tree(FULL, 2), failed(rank=1, code=1))
    assert others.first_failure is not None
    assert (others.cause, others.first_failure.rank, others.first_failure.exception) == ("disk-full", 1, None)
    known = ExceptionInfo("ValueError", "bad", None, None)
    kept = of(tree(FULL), failed(rank=1, code=1, raised=known))
    assert kept.first_failure is not None
    assert kept.first_failure.exception == known


def test_of_an_abort_without_a_reason_the_others_words_are_told_as_such() -> None:
    found = of(tree(FULL), failed("native-abort", rank=1, code=-6, confidence="likely"))
    assert found.notes == ("as noted", WORDLESS)


def test_a_victim_of_ray_did_not_fail_first() -> None:
    found = of(tree(FULL), failed("ray-actor-died", rank=1, code=1))
    assert (found.cause, found.collateral, found.notes) == ("disk-full", (), ("as noted", NOTE))
    assert found.first_failure is not None
    assert found.first_failure.rank is None
    strict = failed("ray-actor-died", rank=1, code=1)
    assert of(tree("KeyError: 'x'"), strict) == strict  # it explains no more


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param(tree(FULL), "disk-full", id="an exception"),
        pytest.param(SEGFAULT, "segfault", id="a crash"),
        pytest.param(tree(MISSING), "unknown", id="a file that may be missing for the kill"),
        pytest.param(tree("KeyError: 'x'"), "unknown", id="an exception without a cause of its own"),
        pytest.param(FULL, "disk-full", id="an exception's line"),
        pytest.param("slurmstepd: error: pyxis: zstd: /raid/cache/d9: Permission denied", "unknown", id="a line"),
        pytest.param(
            "It usually means that\nslurmstepd: error: pyxis: zstd: /raid/cache/d9: Permission denied",
            "unknown",
            id="other words of a server that ends itself",
        ),
        pytest.param(
            "slurmstepd: error: pyxis: zstd: /raid/cache/d9: Permission denied\n"
            "Received sigquit from a child process. It usually means the child failed.",
            "permission-denied",
            id="a server that ends itself",
        ),
    ],
)
def test_before_a_kill_only_what_may_have_led_to_it_counts(text: str, cause: str) -> None:
    assert of(text, failed(code=-9, signal="SIGKILL")).cause == cause


def test_a_consequence_does_not_explain_a_failure_that_is_known() -> None:
    assert of(tree(LOST), failed(rank=1, code=1)).cause == "unknown"


# ------------------------------------------------------------------------------------------- an earlier exception


def value_error(message: str = "shapes do not match") -> ExceptionInfo:
    return ExceptionInfo("ValueError", message, "/home/me/train.py", 7)


LAST = tree("ValueError: shapes do not match")
STRICT = failed("python-exception", rank=1, code=1, raised=value_error(), confidence="certain")


@pytest.mark.parametrize(
    ("text", "cause", "confidence"),
    [
        pytest.param(f"{tree(FULL)}\n{LAST}", "disk-full", "likely", id="anybody's"),
        pytest.param(f"{tree(FULL, 1)}\n{LAST}", "disk-full", "likely", id="its own"),
        pytest.param(f"{tree(FULL, 2)}\n{LAST}", "python-exception", "certain", id="another rank's"),
        pytest.param(f"{LAST}\n{tree(FULL)}", "python-exception", "certain", id="a later one"),
        pytest.param(
            f"{LAST}\n{tree(FULL)}\n{tree('KeyError: 1')}",
            "python-exception",
            "certain",
            id="one between it and the last",
        ),
        pytest.param(
            f"{LAST}\n(4, 5)\n{tree(FULL)}\n{tree('KeyError: 1')}",
            *("python-exception", "certain"),
            id="one behind all lines of it",
        ),
        pytest.param(f"{tree('KeyError: 1')}\n{LAST}", "python-exception", "certain", id="one that explains no more"),
        pytest.param(f"{tree(LOST)}\n{LAST}", "python-exception", "certain", id="a lost peer"),
        pytest.param(f"warning: {OOM}\n{LAST}", "python-exception", "likely", id="a line"),
        pytest.param(f"{tree(FULL)}\n{tree(MISSING)}\n{LAST}", "disk-full", "likely", id="the earlier of two"),
        pytest.param(f"{tree(WORKER)}\n{tree(FULL)}\n{LAST}", "disk-full", "likely", id="the surer of two"),
        pytest.param(f"{tree(FULL)}\n{tree('KeyError: 1')}", "disk-full", "likely", id="where its own is not shown"),
        pytest.param(LAST, "python-exception", "certain", id="nothing else"),
    ],
)
def test_an_earlier_exception_of_the_same_program_that_explains_more_is_the_cause(
    text: str, cause: str, confidence: str
) -> None:
    found = of(text, STRICT)
    assert (found.cause, found.confidence) == (cause, confidence)
    assert (FOLLOWED in found.notes) == (cause == "disk-full")


def test_of_an_exceptions_message_the_first_line_tells_it_from_others() -> None:
    first = STRICT.first_failure
    assert first is not None
    longer = replace(STRICT, first_failure=replace(first, exception=value_error("shapes do not match \n(4, 5)")))
    assert of(f"{LAST}\n{tree(FULL)}\n{tree('KeyError: 1')}", longer) == longer


def test_an_unsure_verdict_stays_as_it_is_beside_a_line() -> None:
    unsure = replace(STRICT, confidence="unknown")
    assert of(f"warning: {OOM}\n{LAST}", unsure) == unsure


def test_of_an_exception_that_only_tells_of_another_program_a_line_above_is_the_cause() -> None:
    told = "Command 'python train.py' returned non-zero exit status 1."
    raised = replace(value_error(), type="subprocess.CalledProcessError", message=told)
    strict = failed("unknown", code=1, raised=raised, confidence="unknown")
    text = f"warning: {OOM}\n{tree(f'subprocess.CalledProcessError: {told}')}"
    assert (of(text, strict).cause, of(text, STRICT).cause) == ("cuda-oom", "python-exception")


def test_who_lost_a_peer_lost_it_to_the_crash_that_the_log_shows() -> None:
    lost = failed("peer-died", rank=1, code=1, raised=replace(value_error(), message=LOST), confidence="certain")
    found = of(f"{tree(LOST, 1)}\nSegmentation fault (core dumped)", lost)
    assert (found.cause, found.confidence, found.first_failure) == ("segfault", "likely", None)
    assert found.notes == ("as noted", CRASHED)
    assert of(tree(LOST, 1), lost) == lost
    both = f"{tree(LOST, 1)}\nFatal Python error: Aborted\nSegmentation fault (core dumped)"
    assert of(both, lost).cause == "native-abort"  # the earlier
