"""The same words through torchrun's real parser and through ours: same answer, same values."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.loaded_process import LoadedProcess
from tests.unchanged import slow_if_unchanged

from ddp_run.settings.grammar import HelpWanted, Words
from ddp_run.settings.options import Setting, Source
from ddp_run.settings.parse import Reading
from ddp_run.settings.table import OWN_ROWS, Row, all_rows, read_torch_table
from ddp_run.values.problem import Refused

_REAL_PARSER = """
import contextlib, io, json, os, sys
from torch.distributed.run import get_args_parser
answers = []
plain = get_args_parser()  # reads its variables here
for argv, variables in json.load(sys.stdin):
    os.environ.update(variables)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            answers.append(["accepted", vars((get_args_parser() if variables else plain).parse_args(argv))])
    except SystemExit as end:
        answers.append(["rejected" if end.code else "help", None])
    except Exception:
        answers.append(["rejected", None])
    for name in variables:
        del os.environ[name]
json.dump(answers, sys.stdout)
"""

BY_HAND: list[tuple[list[str], dict[str, str]]] = [
    (["--redirect=3", "train.py"], {}),
    (["--max-re", "2", "train.py"], {}),
    (["--max-r=2", "train.py"], {}),
    (["--max", "2", "train.py"], {}),
    (["--nproc", "2", "train.py"], {}),
    (["--nproc-per=2", "train.py"], {}),
    (["--nproc_p", "2", "train.py"], {}),
    (["-r3", "-t", "3", "train.py"], {}),
    (["-r=3", "train.py"], {}),
    (["-mr3", "module"], {}),
    (["-mt", "0:1,1:2", "module", "-m", "x"], {}),
    (["-mm", "module"], {}),
    (["-m=1", "module"], {}),
    (["-m", "package.module", "--help"], {}),
    (["--no-python", "bash", "-c", "exit 3"], {}),
    (["--no", "x"], {}),
    (["--n", "x"], {}),
    (["train.py", "--n"], {}),
    (["train.py", "--con", "x"], {}),
    (["train.py", "--conf=x"], {}),
    (["train.py", "--log"], {}),
    (["train.py", "--max-restarts", "bad"], {}),
    (["train.py", "--", "x"], {}),
    (["--", "train.py", "x"], {}),
    (["--", "--standalone", "x"], {}),
    (["--standalone", "--", "train.py", "--", "-h"], {}),
    (["train.py", "-h"], {}),
    (["-h"], {}),
    (["--he"], {}),
    (["--standalone", "--help", "train.py"], {}),
    ([], {}),
    (["--standalone"], {}),
    (["--standalone=1", "train.py"], {}),
    (["--nnodes"], {}),
    (["--nnodes", "--standalone", "train.py"], {}),
    (["--max-restarts", "-1", "train.py"], {}),
    (["--max-restarts=", "train.py"], {}),
    (["--max-restarts", " 3 ", "train.py"], {}),
    (["--max-restarts", "3.0", "train.py"], {}),
    (["--monitor-interval", "1e-2", "train.py"], {}),
    (["--start-method", "thread", "train.py"], {}),
    (["--start-m", "fork", "train.py"], {}),
    (["--rdzv-endpoint", "", "train.py"], {}),
    (["--rdzv-id=a=b", "train.py"], {}),
    (["--rdzv-conf", "-x", "train.py"], {}),
    (["--rdzv-conf", "- x", "train.py"], {}),
    (["--nnodes=1", "--nnodes=2", "train.py"], {}),
    (["-", "x"], {}),
    (["", "x"], {}),
    (["--unknown", "train.py"], {}),
    (["--unknown=3", "train.py"], {}),
    (["-x", "train.py"], {}),
    (["-5", "x"], {}),
    (["--duplicate-stdout-filters", "a,b", "train.py"], {}),
    (["--master-port", "29500", "train.py", "--master-port", "x"], {}),
    (["train.py"], {"PET_NNODES": "2"}),
    (["--nnodes=3", "train.py"], {"PET_NNODES": "2"}),
    (["train.py"], {"PET_MAX_RESTARTS": "bad"}),
    (["train.py"], {"PET_MAX_RESTARTS": ""}),
    (["--max-restarts=1", "train.py"], {"PET_MAX_RESTARTS": "bad"}),
    (["train.py"], {"PET_STANDALONE": "1"}),
    (["train.py"], {"PET_STANDALONE": "0"}),
    (["train.py"], {"PET_STANDALONE": "true"}),
    (["train.py"], {"PET_STANDALONE": ""}),
    (["--standalone", "train.py"], {"PET_STANDALONE": "yes"}),
    (["train.py"], {"PET_START_METHOD": "nonsense"}),
    (["train.py"], {"PET_LOGS_SPECS": "not-read"}),
    (["module"], {"PET_MODULE": "2"}),
]
VALUES = {
    "int": ["0", "3", "-1", "x", "2.5", ""],
    "float": ["0.1", "5", "x"],
    "str": ["0", "2", "a:1", "x=y", "-q", "a b", ""],
}
SCRIPTS = ["train.py", "-x", "", "my script.py", "--", "pkg.mod"]
REST = [
    "--nproc-per-node=2",
    "-m",
    "--help",
    "--",
    "x",
    "-1",
    "--lr=0.1",
    "--standalone",
    "-r",
    "--no",
    "--max-retries",
]


@dataclass(frozen=True)
class Line:
    argv: list[str]
    variables: dict[str, str]


def _generated(rows: tuple[Row, ...], count: int) -> list[Line]:
    dice = random.Random(20261)
    return [_line(dice, rows) for _ in range(count)]


def _line(dice: random.Random, rows: tuple[Row, ...]) -> Line:
    argv: list[str] = []
    for row in dice.choices(rows, k=dice.randrange(4)):
        argv += _option(dice, row)
    if dice.random() < 0.93:
        argv.append(dice.choices(SCRIPTS, weights=[20, 1, 1, 2, 1, 3])[0])
        argv += dice.choices(REST, k=dice.randrange(4))
    variables = {}
    if dice.random() < 0.3:
        row = dice.choice([row for row in rows if row.pet])
        variables[row.pet or ""] = (
            dice.choice(VALUES.get(row.type, VALUES["str"])) if row.takes_value else dice.choice("0012x")
        )
    return Line(argv, variables)


def _option(dice: random.Random, row: Row) -> list[str]:
    flag = dice.choice(row.flags)
    if flag.startswith("--") and dice.random() < 0.35:
        flag = flag[: dice.randrange(3, len(flag) + 1)]
    if not row.takes_value:
        return [flag] if dice.random() < 0.95 else [f"{flag}=1"]
    # Its choices are computed in torch's source; the agent itself checks them.
    values = (
        ["node", "socket"] if row.dest == "numa_binding" else list(row.choices or VALUES.get(row.type, VALUES["str"]))
    )
    weights = [8, 8] + [1] * (len(values) - 2) if len(values) > 2 else None
    value = dice.choices(values, weights=weights)[0]
    form = dice.random()
    if form < 0.45:
        return [f"{flag}={value}"]
    if form < 0.9:
        return [flag, value]
    return [f"{flag}{value}"] if form < 0.95 else [flag]


@functools.cache
def _torch_rows() -> tuple[Row, ...]:
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    return read_torch_table((Path(spec.origin).parent / "distributed" / "run.py").read_text())


def _ask_torch(torch_process: LoadedProcess, lines: list[Line]) -> list[tuple[str, dict[str, Any] | None]]:
    question = json.dumps([(line.argv, line.variables) for line in lines])
    answer = torch_process.run(_REAL_PARSER, given=question)
    assert answer.returncode == 0, answer.stderr
    return [(kind, values) for kind, values in json.loads(answer.stdout)]


def _settle(
    argv: Sequence[str], environ: Mapping[str, str], rows: tuple[Row, ...]
) -> tuple[Words, Mapping[str, Setting]]:
    """Read what torchrun itself reads, words and `PET_` variables, and nothing else. Raises as `parse` does."""
    reading = Reading(all_rows(rows), argv, environ)
    reading.command_line()
    reading.pet_variables()
    if reading.problems:
        raise Refused(tuple(reading.problems), tuple(argv))
    return reading.words, reading.with_defaults()


def _ask_ours(line: Line, rows: tuple[Row, ...]) -> tuple[str, dict[str, Any] | None]:
    try:
        words, settings = _settle(line.argv, line.variables, rows)
    except HelpWanted:
        return "help", None
    except Refused:
        return "rejected", None
    values = {row.dest: settings[row.dest].value for row in rows}
    values |= {"training_script": words.script, "training_script_args": list(words.script_args)}
    return "accepted", {name: _as_torch(name, value) for name, value in values.items()}


def _as_torch(name: str, value: object) -> object:
    return value.split(",") if name.startswith("duplicate_") and isinstance(value, str) else value


slow = slow_if_unchanged(__file__)


@slow
def test_every_command_line_means_what_it_means_to_torchrun(torch_process: LoadedProcess) -> None:
    rows = _torch_rows()
    lines = [Line(*each) for each in BY_HAND] + _generated(rows, 900)
    answers = _ask_torch(torch_process, lines)
    seen: Counter[str] = Counter()
    wrong = []
    for line, theirs in zip(lines, answers, strict=True):
        ours = _ask_ours(line, rows)
        seen[theirs[0]] += 1
        if (
            ours != theirs
            and not (theirs[0] == "rejected" and ours[0] == "help")
            and not _own_option(line, theirs, ours)
        ):
            wrong.append((line, theirs, ours))
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(_difference(*each) for each in wrong[:5])
    assert seen["accepted"] > 300, seen
    assert seen["rejected"] > 150, seen
    assert seen["help"] >= 3, seen


def _own_option(line: Line, theirs: tuple[str, Any], ours: tuple[str, Any]) -> bool:
    """Whether an option of ours lacks its value, as the script's name went to the option before it."""
    return (theirs[0], ours[0]) == ("help", "rejected") and "--max-retries" in line.argv


def _difference(line: Line, theirs: tuple[str, Any], ours: tuple[str, Any]) -> str:
    left, right = theirs[1] or {}, ours[1] or {}
    values = {name: (left.get(name), right.get(name)) for name in left | right if left.get(name) != right.get(name)}
    return f"{line}: {theirs[0]} by torchrun, {ours[0]} here; {values}"


@slow
def test_words_are_found_where_they_stand() -> None:
    """Every value's word holds the value, and the script's word is the script."""
    rows = _torch_rows()
    found = 0
    for line in _generated(rows, 900):
        try:
            words, settings = _settle(line.argv, {}, rows)
        except (HelpWanted, Refused):
            continue
        assert line.argv[words.script_word or 0] == words.script
        for row in rows:
            setting = settings[row.dest]
            if setting.source is Source.OPTION:
                found += 1
                assert setting.word is not None
                assert line.argv[setting.word].endswith(_written(row, setting)), (line, row.dest, setting)
    assert found > 300


def _written(row: Row, setting: Setting) -> str:
    return setting.text or "" if row.takes_value else ""


@pytest.mark.parametrize("row", OWN_ROWS, ids=lambda row: row.dest)
def test_own_options_leave_torch_its_abbreviations(row: Row) -> None:
    rows = _torch_rows()
    flags = [flag for each in rows for flag in each.flags]
    for length in range(3, len(row.flags[0])):
        prefix = row.flags[0][:length]
        matching = [flag for flag in flags if flag.startswith(prefix)]
        if len(matching) == 1:
            theirs = next(each for each in rows if matching[0] in each.flags)
            words, _ = _settle([prefix, "1", "x.py"] if theirs.takes_value else [prefix, "x.py"], {}, rows)
            assert [each.row for each in words.given] == [theirs], prefix


@slow
def test_the_table_is_that_of_the_real_parser() -> None:
    """Asked of the parser itself and read from its source: the same rows."""
    from ddp_run.plan.installed_torch import ask_torch_parser

    read = {row.dest: row for row in _torch_rows()}
    asked = {row.dest: row for row in ask_torch_parser()}
    assert list(read) == list(asked)
    for dest, row in read.items():
        other = asked[dest]
        assert (row.flags, row.takes_value, row.type, row.default, row.pet, row.help) == (
            other.flags,
            other.takes_value,
            other.type,
            other.default,
            other.pet,
            other.help,
        )
        if row.choices is not None:
            assert row.choices == other.choices
