"""Logs of jobs in which nothing failed: no rule may find a cause in them, whatever they warn of, retry or catch.

Most are what programs wrote here; those of NCCL, SLURM, DeepSpeed and others that cannot run on a host without GPUs are
in these projects' own words.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_run import transcript
from ddp_run.diagnose import follows_another, judge
from ddp_run.verdict import LogText, Verdict

HEALTHY = Path(__file__).parent / "healthy"
NAMES = sorted(path.stem for path in HEALTHY.glob("*.txt"))
ALARMS: dict[str, str] = {
    "elastic-restart": "transcript: the agent's `failed (exitcode: …)` counts although a restart went on to the end",
    "handled-exceptions": "traceback_text: lines of the program that went on are taken for the message",
    "threads-and-workers": "traceback_text: lines of the program that went on are taken for the message",
    "urllib-retries": "traceback_text: a logger's lines with time stamps are taken for the message",
}
"""Logs that raise a false alarm, and why: to be emptied."""
QUIET = [name for name in NAMES if name not in ALARMS]
END_OF_ANOTHER = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/train/other.py", line 7, in <module>
[rank0]:     raise ValueError("sentinel 41")
[rank0]: ValueError: sentinel 41"""


def _lines(name: str) -> tuple[str, ...]:
    text = (HEALTHY / f"{name}.txt").read_text(encoding="utf-8")
    return tuple(line.rpartition("\r")[2] for line in text.removesuffix("\n").split("\n"))


def _steps(name: str) -> list[int]:
    return [index for index, line in enumerate(_lines(name)) if "step" in line and "loss" in line]


def _verdict(name: str, lines: tuple[str, ...]) -> Verdict:
    return judge(transcript.read([transcript.Log(LogText(f"{name}.txt", lines))], follows_another))


def test_there_are_enough() -> None:
    assert len(NAMES) >= 24
    assert set(ALARMS) <= set(NAMES)
    assert all(20 <= len(_lines(name)) <= 200 for name in NAMES)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.xfail(strict=True, reason=ALARMS[n])) if n in ALARMS else n for n in NAMES],
)
def test_no_alarm(name: str) -> None:
    verdict = _verdict(name, _lines(name))
    assert verdict.outcome in (None, "succeeded"), f"{verdict.code} {verdict.cause}: {verdict.title}"
    assert verdict.cause is None


@pytest.mark.parametrize("name", [name for name in QUIET if _steps(name)])
def test_no_alarm_in_what_was_written_until_then(name: str) -> None:
    """A log that is still being written, or cut by `head`, must not be taken for a failure: cut after a step's line."""
    steps = _steps(name)
    verdict = _verdict(name, _lines(name)[: steps[len(steps) // 2] + 1])
    assert verdict.outcome in (None, "succeeded"), f"{verdict.code} {verdict.cause}: {verdict.title}"


@pytest.mark.parametrize("name", QUIET)
def test_a_failure_after_it_is_seen(name: str) -> None:
    """What makes these logs pass must not be that nothing is looked for."""
    verdict = _verdict(name, (*_lines(name), *END_OF_ANOTHER.split("\n")))
    assert verdict.outcome == "failed"
    assert "sentinel 41" in " ".join([verdict.title or "", *(quote.text for quote in verdict.evidence)])
