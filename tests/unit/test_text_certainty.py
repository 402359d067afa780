"""When an answer for a pasted log is certain: not where the text shows another cause, or that somebody went on."""

from __future__ import annotations

import pytest

from ddp_run import explain
from ddp_run.evidence.model import LogText, Quote
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge.pasted_logs import as_sure_as_the_text
from ddp_run.judge.text_signs import LogEnd
from ddp_run.judge.verdict import Confidence, FirstFailure, Verdict
from ddp_run.record.events import ExceptionInfo, Rank

_FRAMES = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in <module>\n    {source}\n'
_STEPS = "".join(f"step {step} loss {9 - step}.5\n" for step in range(20))
_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
_LIMIT = "slurmstepd: error: *** JOB 7 ON node-1 CANCELLED AT 2025-10-01T10:10:20 DUE TO TIME LIMIT ***"
_MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.json'"
_GOES_ON = "".join(f"file {chr(97 + number)} was written\n" for number in range(16))
_FULL = "OSError: [Errno 28] No space left on device: '/tmp/x'\n"
_ENDED_WELL = f"{_LIMIT}\nloading the checkpoint\nJob completed\nbye\n"
_PLOTTED = "\nplots saved to /tmp/plots\n"
_CHAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"


def raised(said: str, source: str = "main()") -> str:
    """A traceback of the user's own script."""
    return f"{_FRAMES.format(source=source)}{said}\n"


def caught(said: str) -> str:
    """A traceback that a function of it printed."""
    return raised(said).replace("in <module>", "in attempt")


@pytest.mark.parametrize(
    ("text", "cause", "confidence"),
    [
        pytest.param(raised(_OOM), "cuda-oom", "certain", id="one cause"),
        pytest.param(_FULL + raised(_OOM), "cuda-oom", "likely", id="two"),
        pytest.param(raised(_OOM) + raised(_MISSING), "file-not-found", "likely", id="two exceptions"),
        pytest.param(f"{_STEPS}{_LIMIT}\n", "preempted-sigterm", "certain", id="a scheduler's word at the end"),
        pytest.param(_ENDED_WELL, None, "unknown", id="a job that ended well"),
        pytest.param(
            f"{_LIMIT}\n{_GOES_ON}",
            "preempted-sigterm",
            "likely",
            id="somebody went on",
        ),
        pytest.param(caught(_OOM), "cuda-oom", "certain", id="a program that says why it ends"),
        pytest.param(f"{caught(_OOM)}{_PLOTTED}", "cuda-oom", "likely", id="a program that caught it and went on"),
        pytest.param(f"{raised(_OOM)}{_PLOTTED}", "cuda-oom", "certain", id="another one that went on"),
        pytest.param(raised("KeyError: 'labels'"), "python-exception", "certain", id="a plain mistake"),
        pytest.param(raised("RuntimeError: labels out of order"), "python-exception", "likely", id="an operator's"),
        pytest.param(
            raised("RuntimeError: labels out of order", "raise RuntimeError(why)"),
            "python-exception",
            "certain",
            id="own words",
        ),
        pytest.param(raised("OSError: handle is closed"), "python-exception", "likely", id="the system's"),
        pytest.param(raised("my.own.BuildFailed: bad flag"), "python-exception", "likely", id="a class of one's own"),
        pytest.param(
            raised("KeyError: 'cached'") + _CHAIN + raised("ValueError: bad shard"),
            "python-exception",
            "likely",
            id="a chain",
        ),
        pytest.param(
            raised("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"),
            "dataloader-worker-died",
            "likely",
            id="a worker that somebody ended",
        ),
        pytest.param(
            raised("ValueError: Default process group has not been initialized, please make sure to call it."),
            "process-group-misuse",
            "likely",
            id="a group that something else prevented",
        ),
    ],
)
def test_certainty(text: str, cause: str | None, confidence: str) -> None:
    found = explain(text)
    assert (found.cause, found.confidence) == (cause, confidence), found.title


def test_who_only_lost_a_peer_is_no_other_cause() -> None:
    lost = "torch.distributed.DistBackendError: NCCL error, remote process exited or there was a network error"
    told = "".join(f"[rank{rank}]: {line}\n" for rank in (0, 1) for line in raised(lost).splitlines())
    failed = "".join(f"[rank2]: {line}\n" for line in raised(_OOM).splitlines())
    found = explain(failed + told)
    assert (found.cause, found.confidence) == ("cuda-oom", "certain")


# ------------------------------------------------------------------------------ a given verdict beside a given text

_KEY = raised("KeyError: 'x'")
_LAUNCHERS = "subprocess.CalledProcessError: Command 'torchrun train.py' returned non-zero exit status 1."


def verdict(
    cause: str | None = "python-exception",
    *,
    exception: ExceptionInfo | None = None,
    code: int | None = None,
    rank: bool = True,
    line: int | None = 1,
    confidence: Confidence = "certain",
) -> Verdict:
    first = FirstFailure(Rank(0), exit_code=code, exception=exception) if rank else None
    evidence = (Quote("log", line, "as quoted"),)
    return Verdict("failed", code, cause, confidence=confidence, first_failure=first, evidence=evidence)


def beside(found: Verdict, text: str) -> str:
    return as_sure_as_the_text(
        found, LogEnd(SpokenText.of_logs([Log(LogText("log", tuple(text.splitlines())))]))
    ).confidence


def oom(traceback: str = "") -> ExceptionInfo:
    message = _OOM.partition(": ")[2]
    return ExceptionInfo("torch.OutOfMemoryError", message, "/home/me/train.py", 7, "<module>", traceback)


@pytest.mark.parametrize(
    ("exception", "text", "confidence"),
    [
        pytest.param(oom(), raised(_OOM), "certain", id="the same"),
        pytest.param(oom(), _KEY, "likely", id="another"),
        pytest.param(oom(), _KEY + raised(_OOM), "likely", id="both"),
        pytest.param(oom(_KEY + _CHAIN + raised(_OOM)), _KEY, "certain", id="its origin"),
        pytest.param(oom(), raised(_LAUNCHERS), "certain", id="the launcher's"),
        pytest.param(None, _KEY, "likely", id="no exception is known to have ended it"),
    ],
)
def test_an_unrelated_exception_in_the_text_makes_a_cause_less_sure(
    exception: ExceptionInfo | None, text: str, confidence: str
) -> None:
    assert beside(verdict("cuda-oom", exception=exception, code=1), text) == confidence


def test_of_exceptions_without_a_cause_of_their_own_the_one_that_is_named_stays_certain() -> None:
    value = ExceptionInfo("ValueError", "bad shard", "/home/me/train.py", 7, "<module>")
    assert beside(verdict(exception=value, code=1), _KEY) == "certain"


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        pytest.param(_FULL, "likely", id="another cause"),
        pytest.param(f"{_OOM}\n", "certain", id="the same cause"),
        pytest.param(
            "RuntimeError: [gloo/transport/tcp/pair.cc:799] Connection closed by peer [10.0.0.2]:1\n",
            "certain",
            id="a consequence",
        ),
    ],
)
@pytest.mark.parametrize("code", [None, 1])
def test_a_line_that_shows_another_cause_makes_a_cause_less_sure(code: int | None, text: str, confidence: str) -> None:
    assert beside(verdict("cuda-oom", code=code, line=1), text) == confidence


@pytest.mark.parametrize(
    ("found", "confidence"),
    [
        pytest.param(verdict("preempted-sigterm", line=1), "likely", id="no end is known"),
        pytest.param(verdict("preempted-sigterm", line=1, rank=False), "likely", id="not even a rank"),
        pytest.param(verdict("preempted-sigterm", line=1, code=-15), "certain", id="an exit code is known"),
        pytest.param(
            verdict("preempted-sigterm", line=1, exception=oom(raised(_OOM))), "certain", id="an exception is"
        ),
        pytest.param(
            verdict("preempted-sigterm", line=1, exception=oom()), "likely", id="one whose frames are cut off"
        ),
        pytest.param(verdict("preempted-sigterm", line=None), "certain", id="the line is unknown"),
        pytest.param(verdict("preempted-sigterm", line=90), "certain", id="the line is the last"),
    ],
)
def test_a_program_that_wrote_on_makes_a_cause_less_sure_if_nothing_shows_an_end(
    found: Verdict, confidence: str
) -> None:
    assert beside(found, f"as quoted\n{_GOES_ON}") == confidence


def test_without_a_quoted_line_nothing_is_behind_it() -> None:
    bare = verdict("preempted-sigterm")
    assert beside(Verdict(bare.outcome, None, bare.cause, confidence="certain"), f"x\n{_GOES_ON}") == "certain"


@pytest.mark.parametrize(
    ("cause", "confidence"),
    [("cuda-oom", "likely"), ("cuda-oom", "unknown"), (None, "certain"), ("of another version", "certain")],
)
def test_only_a_certain_cause_of_the_catalogue_becomes_less_sure(cause: str | None, confidence: Confidence) -> None:
    assert beside(verdict(cause, confidence=confidence), _FULL) == confidence
