"""A number in a log may be of any length and in any script: it costs a reader its line, never the whole answer.

Python's int() refuses more than 4,300 digits, and digits that are none in its eyes (`²`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.unchanged import slow_if_unchanged

from ddp_run.evidence.childfailed import observed, parse
from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted import transcript
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge.diagnose import judge
from ddp_run.judge.text_signs import shows
from ddp_run.judge.verdict import Verdict
from ddp_run.observe import ras_text, stack_text

SAMPLES = Path(__file__).parent / "samples"
LONG = "9" * 4301
HOSTILE = {"long": LONG, "superscript": "²", "nothing": "", "unsorted": "9-1,,7-"}
slow = slow_if_unchanged(__file__)
_NUMBER = re.compile(r"\d+")
_FORM = re.compile(r"\d+|0x[0-9a-f]+|\s+")


def verdict_of(lines: Sequence[str]) -> Verdict:
    return judge(transcript.read(SpokenText.of_logs([Log(LogText("log.txt", tuple(lines)))]), shows))


def texts() -> Iterator[tuple[str, list[str]]]:
    for folder in sorted(path for path in SAMPLES.iterdir() if path.is_dir()):
        logs = [folder / "log.txt"] if (folder / "log.txt").exists() else sorted(folder.rglob("*.log"))
        lines = [line for log in logs for line in log.read_text(errors="replace").split("\n")]
        if lines:
            yield folder.name, lines[-30:]


@pytest.mark.parametrize(
    "number", [pytest.param(each, id=name, marks=[slow] if each == LONG else []) for name, each in HOSTILE.items()]
)
def test_every_number_of_a_sample(number: str) -> None:
    for name, lines in texts():
        assert not failed(verdict_of([_NUMBER.sub(number, line) for line in lines])), name


@slow
def test_every_number_of_every_form_of_line() -> None:
    seen: set[str] = set()
    for name, lines in texts():
        for index, line in enumerate(lines):
            form = _FORM.sub("0", line)
            if form in seen or "0" not in form:
                continue
            seen.add(form)
            for at in list(_NUMBER.finditer(line))[:6]:
                hostile = line[: at.start()] + LONG + line[at.end() :]
                verdict = verdict_of([*lines[max(0, index - 12) : index], hostile, *lines[index + 1 : index + 6]])
                assert not failed(verdict), f"{name}: {line}"


def failed(verdict: Verdict) -> list[str]:
    return [note for note in verdict.notes if " failed: " in note]


READERS: tuple[Callable[[str], object], ...] = (
    ras_text.read,
    parse,
    observed,
    lambda text: stack_text.dumps(text, None),
    lambda text: verdict_of(text.split("\n")),
)
LINES = (
    'Traceback (most recent call last):\n  File "a.py", line {}, in f\nValueError: x',
    '  File "a.py", line {}\n    x =\nSyntaxError: invalid syntax',
    "╭──── Traceback (most recent call last) ────╮\n│ /a.py:{} in f │\n╰──────────╯\nValueError: x",
    "SignalException: Process 1 got signal: {}",
    "Received {} death signal, shutting down workers",
    "failed (exitcode: {0}) local_rank: {0} (pid: {0}) of binary: python",
    "Root Cause (first observed failure):\n[0]:\n  rank : {0} (local_rank: {0})\n  exitcode : {0} (pid: {0})",
    "[rank{}]: ValueError: x",
    "[pod/{}] ValueError: x",
    "trainer-{} | ValueError: x",
    "srun: error: n: tasks {}: Exited with exit code 1",
    "srun: error: n: task 1: Exited with exit code {}",
    "-- Process {} terminated with the following error:\nTraceback (most recent call last):",
    "#1-0 (ab) MISMATCH\n  Rank {0} has launched up to operation {0}",
    'Thread 0x{} (most recent call first):\n  File "a.py", line {} in f',
)


@pytest.mark.parametrize("number", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("line", LINES)
def test_readers(line: str, number: str) -> None:
    for read in READERS:
        read("\n".join([line.replace("{}", number).replace("{0}", number)] * 3))
