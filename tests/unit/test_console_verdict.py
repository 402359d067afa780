from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from ddp_run.evidence.model import Quote
from ddp_run.judge.verdict import Collateral, FirstFailure, Verdict
from ddp_run.record.events import ExceptionInfo, LocalRank, Rank
from ddp_run.tell.quotation import source_line
from ddp_run.tell.verdict_file import verdict_line
from ddp_run.tell.verdict_text import retry_line, verdict_block

FOLDER = Path("/data/ddp-run-logs/20261121-081500-a1b2")
LOG = "attempt_1/rank_3/stderr.log"
RAISED = ExceptionInfo("ValueError", "bad sample", "/home/me/train.py", 88, "train_step")
FIRST = FirstFailure(
    rank=Rank(3),
    local_rank=LocalRank(3),
    node_rank=0,
    host="node-a",
    pid=4242,
    exit_code=7,
    signal=None,
    at=None,
    exception=RAISED,
    log=LOG,
)
FAILED = Verdict(
    outcome="failed",
    exit_code=7,
    cause="python-exception",
    code="DDP600",
    title="rank 3 raised ValueError: bad sample",
    confidence="certain",
    phase="training",
    step=1412,
    first_failure=FIRST,
    evidence=(Quote(LOG, 17, "    raise ValueError(sample)"), Quote(LOG, 18, "ValueError: bad sample")),
    collateral=tuple(Collateral(Rank(rank), 1, None, "lost its peer, rank 3") for rank in (0, 1, 2)),
    advice=("look at the sample that rank 3 had\nor skip it", "ddp-run explain"),
)


def source(file: str, line: int) -> str | None:
    return "\t\traise ValueError(sample)\n" if (file, line) == ("/home/me/train.py", 88) else None


def block(
    verdict: Verdict, *, colour: bool = False, decision: str | None = None, width: int = 100, wrap: int | None = None
) -> str:
    return verdict_block(
        verdict,
        folder=FOLDER,
        attempts=2,
        decision=decision,
        colour=colour,
        width=width,
        wrap=wrap,
        read_line=source,
    )


def golden(text: str) -> str:
    return dedent(text).strip("\n")


FAILED_TEXT = golden(
    """
    error[DDP600]: rank 3 raised ValueError: bad sample
      --> /home/me/train.py:88 in train_step   rank 3 on node-a, pid 4242, exit code 7, attempt 2, after step 1412, during training
       |
    88 |         raise ValueError(sample)
       |         ^
      --> /data/ddp-run-logs/20261121-081500-a1b2/attempt_1/rank_3/stderr.log:17
       |     raise ValueError(sample)
       | ValueError: bad sample
       = note: ranks 0-2 exited with code 1 (lost their peer, rank 3); they are not the cause
       = note: not retried: same code, same data
    help: look at the sample that rank 3 had
          or skip it
    help: ddp-run explain
    help: ddp-run rules python-exception   # more on this cause
    """  # noqa: E501
)


def test_failure() -> None:
    decision = "not retried: same code, same data"
    assert block(FAILED, decision=decision) == FAILED_TEXT


def test_colour_changes_no_text() -> None:
    decision = "not retried: same code, same data"
    coloured = block(FAILED, decision=decision, colour=True)
    assert coloured != FAILED_TEXT
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == FAILED_TEXT


LONG = replace(
    FAILED,
    title="rank 3 raised ValueError in /home/me/train.py:88: a sample that nobody expected, and what it holds",
    evidence=(
        Quote(LOG, 17, "    raise ValueError(sample, of_the_loader, that_nobody, has_looked, at_before, today)"),
        Quote(LOG, 18, "ValueError: a sample that nobody expected, and what it holds, which is a long list of tensors"),
    ),
    advice=(
        "look at the sample that rank 3 had: its tensors are of another shape, which nobody has said before",
        "find /data/train -name '*.pt, *.bin' -newer /data/train/index.json -size +1G   # which files, and since when",
        "ddp-run explain",
    ),
)
WRAPPED = golden(
    """
    error[DDP600]: rank 3 raised ValueError in /home/me/train.py:88: a
          sample that nobody expected, and what it holds
      --> /home/me/train.py:88 in train_step   rank 3 on node-a,
          pid 4242, exit code 7, attempt 2, after step 1412,
          during training
       |
    88 |         raise ValueError(sample)
       |         ^
      --> /data/ddp-run-logs/20261121-081500-a1b2/attempt_1/rank_3/stderr.log:17
       |     raise ValueError(sample, of_the_loader, that_nobody, has_looked, at_before, today)
       | ValueError: a sample that nobody expected, and what it holds,
       |     which is a long list of tensors
       = note: ranks 0-2 exited with code 1 (lost their peer, rank 3);
               they are not the cause
       = note: not retried: same code, same data
    help: look at the sample that rank 3 had:
          its tensors are of another shape, which nobody has said before
    help: find /data/train -name '*.pt, *.bin' -newer /data/train/index.json -size +1G
          # which files, and since when
    help: ddp-run explain
    help: ddp-run rules python-exception   # more on this cause
    """
)


def test_on_a_terminal_lines_are_broken_between_words_and_what_is_pasted_is_not() -> None:
    decision = "not retried: same code, same data"
    assert block(LONG, decision=decision, wrap=68) == WRAPPED
    coloured = block(LONG, decision=decision, wrap=68, colour=True)
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == WRAPPED
    assert block(LONG, decision=decision, wrap=1000) == block(LONG, decision=decision)
    for wrap in range(40, 140):
        assert said(block(LONG, decision=decision, wrap=wrap)) == said(block(LONG, decision=decision))


def said(text: str) -> list[str]:
    """Its words in order, without what only stands before those of a broken line."""
    return [word for word in text.split() if word not in ("|", "#")]


def test_on_a_terminal_a_line_of_source_is_cut_to_its_row_and_its_mark_stays_below() -> None:
    def wide(_file: str, _line: int) -> str:
        return "    value = " + "x" * 200

    text = verdict_block(FAILED, folder=FOLDER, attempts=1, wrap=60, read_line=wide).splitlines()
    mark = next(number for number, line in enumerate(text) if line.endswith(" ^"))
    assert text[mark - 1].index("value") == text[mark].index("^")
    assert len(text[mark - 1]) == 60
    assert text[mark - 1].endswith("x… (212 characters)")


def test_a_signal_without_python_code() -> None:
    first = replace(FIRST, exception=None, exit_code=-9, signal="SIGKILL", pid=None)
    others = (
        Collateral(Rank(0), 1, None, "lost its peer, rank 3"),
        Collateral(Rank(1), -15, "SIGTERM", "was stopped"),
        Collateral(Rank(2), -15, "SIGTERM", "was stopped"),
    )
    verdict = Verdict(
        outcome="failed",
        exit_code=137,
        cause="host-oom",
        code="DDP401",
        title="rank 3 was killed by SIGKILL",
        confidence="likely",
        first_failure=first,
        collateral=others,
        notes=("the kernel counted 1 out-of-memory kill on this host",),
    )
    assert block(verdict) == golden(
        """
        error[DDP401]: rank 3 was killed by SIGKILL (likely)
          --> rank 3 on node-a, killed by SIGKILL, attempt 2
           = note: ranks 0-2 exited (rank 0 lost its peer, rank 3; ranks 1-2 was stopped); they are not the cause
           = note: the kernel counted 1 out-of-memory kill on this host
        help: ddp-run rules host-oom   # more on this cause
        """
    )


def test_interrupted_and_succeeded_have_their_own_words() -> None:
    stopped = Verdict("interrupted", 143, phase="training", step=1840)
    assert block(stopped) == "interrupted: the job was stopped from outside during training, after step 1840"
    assert block(Verdict("interrupted", 130, "user-interrupt", "DDP901")) == (
        "interrupted[DDP901]: the job was stopped from outside"
    )
    assert block(Verdict("succeeded", 0)) == "ok: all ranks exited with code 0, in attempt 2"
    assert verdict_block(Verdict("succeeded", 0), folder=FOLDER, attempts=1) == ""


def test_quoted_text_cannot_touch_the_terminal_and_long_lines_say_how_long() -> None:
    evil = "\x1b[2J\x1b]0;title\x07\r\x9b31m" + "x" * 5000
    verdict = replace(FAILED, title=evil, evidence=(Quote(LOG, None, evil),), advice=(evil,), notes=(evil,))
    text = block(verdict, decision=evil)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    quoted = next(line for line in text.splitlines() if line.startswith("   |  \\x9b31m"))
    assert quoted.endswith("… (5008 characters)")
    assert len(quoted) < 500


def test_a_thousand_followers_are_one_note() -> None:
    others = tuple(Collateral(Rank(r), 1, None, f"reason {r % 7}") for r in range(1000) if r != 3)
    text = block(replace(FAILED, collateral=others))
    notes = [line for line in text.splitlines() if "= note:" in line]
    assert len(notes) == 1
    assert "ranks 0-2,4-999 exited with code 1 (" in notes[0]
    assert notes[0].count("reason") == 3


def test_source_line_reads_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(b"one\nt\xffwo\n")
    assert source_line(str(file), 2) == "t\ufffdwo\n"
    assert source_line(str(file), 3) is None
    assert source_line(str(file), 0) is None
    assert source_line(str(tmp_path), 1) is None
    assert source_line("<string>", 1) is None
    assert source_line("a\0b", 1) is None


def test_verdict_line() -> None:
    assert verdict_line(FAILED, attempts=2, folder=FOLDER) == (
        "ddp-run: verdict outcome=failed cause=python-exception code=DDP600 rank=3 node=node-a exit=7 "
        f"attempts=2 folder={FOLDER}"
    )
    assert verdict_line(Verdict("refused", 2), attempts=0, folder=None) == (
        "ddp-run: verdict outcome=refused cause=- code=- rank=- node=- exit=2 attempts=0 folder=-"
    )


@pytest.mark.parametrize(
    ("folder", "value"),
    [
        ("/a b/c", "/a%20b/c"),
        ("/50%", "/50%25"),
        ("/new\nline", "/new%0Aline"),
        ("/grün/日", "/grün/日"),
        ("/\udcff\u3000\u2028", "/%FF%E3%80%80%E2%80%A8"),
    ],
)
def test_values_of_the_last_line_hold_no_blank_and_can_be_decoded(folder: str, value: str) -> None:
    line = verdict_line(FAILED, attempts=1, folder=Path(folder))
    assert line.split()[-1] == f"folder={value}"
    line.encode()


def test_retry_line() -> None:
    text = retry_line(FAILED, delay_s=2.0, attempt=2, attempts=4, reason="the port was taken")
    assert text == golden(
        """
        warning[DDP600]: rank 3 raised ValueError: bad sample
        ddp-run: retrying in 2 s (attempt 2 of 4): the port was taken
        """
    )
