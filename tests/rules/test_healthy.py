"""Logs of jobs in which nothing failed: no rule may find a cause in them, whatever they warn of, retry or catch.

Most are what programs wrote here; those of NCCL, SLURM, DeepSpeed and others that cannot run on a host without GPUs are
in these projects' own words.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_run import explain
from ddp_run.judge.verdict import Verdict

HEALTHY = Path(__file__).parent / "healthy"
NAMES = sorted(path.stem for path in HEALTHY.glob("*.txt"))
END_OF_ANOTHER = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/train/other.py", line 7, in <module>
[rank0]:     raise ValueError("sentinel 41")
[rank0]: ValueError: sentinel 41"""


def _lines(name: str) -> tuple[str, ...]:
    text = (HEALTHY / f"{name}.txt").read_text(encoding="utf-8")
    return tuple(line.rpartition("\r")[2] for line in text.removesuffix("\n").split("\n"))


def _steps(name: str) -> list[int]:
    return [index for index, line in enumerate(_lines(name)) if "step" in line and "loss" in line]


def _verdict(lines: tuple[str, ...]) -> Verdict:
    return explain("\n".join(lines))


def test_there_are_enough() -> None:
    assert len(NAMES) >= 24
    assert all(20 <= len(_lines(name)) <= 200 for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_alarm(name: str) -> None:
    verdict = _verdict(_lines(name))
    assert verdict.outcome in (None, "succeeded"), f"{verdict.code} {verdict.cause}: {verdict.title}"
    assert verdict.cause is None


@pytest.mark.parametrize("name", [name for name in NAMES if _steps(name)])
def test_no_alarm_in_what_was_written_until_then(name: str) -> None:
    """A log that is still being written, or cut by `head`, must not be taken for a failure: cut after a step's line."""
    lines = _lines(name)
    # Cut right after a traceback, a log of a program that caught it looks like one of a program that did not.
    steps = [step for step in _steps(name) if not any("Traceback" in line for line in lines[max(0, step - 16) : step])]
    verdict = _verdict(lines[: steps[len(steps) // 2] + 1])
    assert verdict.outcome in (None, "succeeded"), f"{verdict.code} {verdict.cause}: {verdict.title}"


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_after_it_is_seen(name: str) -> None:
    """What makes these logs pass must not be that nothing is looked for."""
    verdict = _verdict((*_lines(name), *END_OF_ANOTHER.split("\n")))
    assert verdict.outcome == "failed"
    assert "sentinel 41" in " ".join([verdict.title or "", *(quote.text for quote in verdict.evidence)])
