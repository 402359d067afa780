"""Wrong words of a command are told as those of a launch: the word, what is wrong with it, what is allowed."""

from __future__ import annotations

import pytest

from ddp_run import commands


@pytest.mark.parametrize(
    ("words", "title", "word"),
    [
        ("runs --jsn", "unknown option --jsn", 2),
        ("logs -fx", "unknown option -x", 2),
        ("runs -n", "-n needs a value", 2),
        ("runs -n 0", "-n: must be a whole number of at least 1", 3),
        ("runs -n0", "-n: must be a whole number of at least 1", 2),
        ("hosts --days 1 --days=x", "--days: must be a whole number from 1 to 3650", 4),
        ("logs --rank 3-1", "--rank: '3-1' is not a rank or a range of ranks (examples: 3, 5-7)", 3),
        ("logs --rank", "--rank needs a value", 2),
        ("logs --stdout=1", "--stdout takes no value", 2),
        ("logs a b", "b: more words than expected", 3),
        ("completion tcsh", "SHELL: 'tcsh' is not one of bash, zsh, fish", 2),
        ("completion", "SHELL is missing", 2),
        ("doctor --json --nproc-per-node x --quick", "--nproc-per-node: 'x' is not a whole number or one of ", 4),
        ("doctor --data-path x x", "the doctor takes no script", 4),
        ("doctor --quick --nnodes", "--nnodes needs a value", 3),
        ("doctor --data-path", "--data-path needs a value", 2),
        ("doctor --data-path=", "--data-path: the path is empty", 2),
        ("doctor --quik", "unknown option --quik", 2),
    ],
)
def test_the_word(words: str, title: str, word: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = commands.run(words.split()), capsys.readouterr()
    first, place, _bar, line, marks = told.err.splitlines()[:5]
    assert (code, told.out) == (2, "")
    assert first.startswith(f"error[DDP101]: {title}")
    assert (place, line) == (f"  --> command line, word {word}", f"   | ddp-run {words}")
    start = marks.index("^")
    shown = words.split()[word - 1] if word <= len(words.split()) else ""
    assert line[start : start + marks.count("^")].strip() == shown


@pytest.mark.parametrize(
    ("words", "help"),
    [
        ("runs --jsn", "did you mean --json?"),
        ("doctor --quik", "did you mean --quick?"),
        ("doctor --nodes=2", "did you mean --nnodes=2?"),
        ("doctor --foo", "ddp-run doctor --help"),
        ("runs --foo", "ddp-run runs --help"),
        ("logs a b", "ddp-run logs [OPTIONS] [RUN]"),
        ("doctor --nproc=2", "--nproc-per-node=2"),
    ],
)
def test_what_is_allowed(words: str, help: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(words.split()) == 2
    assert f"help: {help}\n" in capsys.readouterr().err


def test_what_is_no_word_s_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["clean"]) == 2
    assert capsys.readouterr().err == (
        "error[DDP101]: say which runs: --keep N, --older AGE, or both\nhelp: ddp-run clean --help\n"
    )
