"""Every command line that a document, a script's comment, a help text or advice shows is one that its program takes.

Nothing is started but shell scripts, with stand-ins for what they call. Misspelt options, wrong values, causes and
scripts that are not there fail here.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.shown_commands import ROOT, Shown, all_shown, in_messages, lines_of_blocks, ours, program_of, spans, texts_of
from tests.waiting import limit

from ddp_run import commands
from ddp_run.judge import catalogue
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.settings.parse import parse
from ddp_run.settings.table import Row
from ddp_run.values.problem import Refused

SHOWN = tuple(dict.fromkeys(all_shown()))
OF_PYTEST = {"-k", "-m"}
START_DDP_RUN = {
    *("test_single_node.sh", "test_distributed_setup.sh", "train_example.sh", "two-machines.sh", "slurm.sbatch"),
}
"""Scripts that hand their words on to ddp-run, and do nothing else that would matter here."""
# In place of what scripts start; ddp-run writes its words down, each with \0 behind it, and \1 behind the last.
STAND_INS = {
    "ddp-run": """#!/bin/bash\nprintf '%s\\0' "$@" >>"$SAID"\nprintf '\\1' >>"$SAID"\n""",
    "srun": """#!/bin/bash\nexec "$@"\n""",
    "hostname": "#!/bin/bash\necho 10.0.0.7 fe80::1\n",
}


# ------------------------------------------------------------------------------ what its program takes


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return torch_rows()


def check(shown: Shown, rows: tuple[Row, ...], folder: Path) -> None:
    """Raises what the program's own parser raises, or AssertionError."""
    program = program_of(shown.words[0])
    if program is None:
        check_ddp_run(shown.words[1:], rows)
        return
    assert program.exists(), "no such file"
    words = list(shown.words[1:])
    if program.name == "vast_launch.py" and words:
        _vast_launch_parser().parse_args(words)
    elif program.parent == ROOT / "scripts" and program.name in ("test", "run_tests"):
        known = _texts_in(ROOT / "scripts" / "run_tests") | OF_PYTEST
        assert {word for word in words if word.startswith("-")} <= known
    elif program.name in START_DDP_RUN and (words or os.access(program, os.X_OK)):  # else a file is named
        for taken in _by_shell(program, shown, folder):
            check_ddp_run(taken, rows)
    elif words and program.suffix == ".py":
        known = _texts_in(program)
        assert {word for word in _before_a_script(words) if not word[0].isdigit()} <= known


def check_ddp_run(words: tuple[str, ...], rows: tuple[Row, ...]) -> None:
    if not words or words[0] in ("-h", "--help", "--version"):
        return
    if words[0] in commands.names():
        if len(words) == 1 or "--help" in words:  # its name; its help
            return
        context = commands.all_commands()[words[0]].make_context(words[0], list(words[1:]))
        if words[0] == "rules":
            causes = {name for each in catalogue.catalogue() for name in (each.rule.name, each.rule.code)}
            assert set(context.params["words"]) <= causes
        if words[0] != "doctor":
            return
        words = (*context.params["words"], "train.py")  # the doctor takes the options of a launch besides its own
    options = parse(words, {}, torch_rows=rows, read_file=lambda path: (ROOT / path).read_text())
    assert options.module or options.script in ("train.py", "python") or (ROOT / (options.script or "")).is_file()


def _vast_launch_parser() -> argparse.ArgumentParser:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        made: argparse.ArgumentParser = importlib.import_module("vast_launch").parser()
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return made


def _texts_in(path: Path) -> set[str]:
    return set(texts_of(path.read_text(encoding="utf-8")))


def _before_a_script(words: list[str]) -> list[str]:
    """What is for the program itself where it starts another one, whose options follow."""
    return list(itertools.takewhile(lambda word: not word.endswith(".py"), words))


def _by_shell(script: Path, shown: Shown, folder: Path) -> list[tuple[str, ...]]:
    """The words of each ddp-run that the script starts, when started as shown."""
    for name, text in STAND_INS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "SAID": str(folder / "said"), "SLURM_JOB_ID": "42"}
    environ |= dict(each.split("=", 1) for each in shown.variables)
    line = ["bash", str(script), *shown.words[1:]]
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, timeout=limit(60))
    assert done.returncode == 0, done.stderr
    return [tuple(each.split("\0")[:-1]) for each in (folder / "said").read_text().split("\1")[:-1]]


# -------------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("shown", SHOWN, ids=str)
def test_programs_take_what_is_shown(shown: Shown, rows: tuple[Row, ...], tmp_path: Path) -> None:
    check(shown, rows, tmp_path)


WRONG = (
    "ddp-run --nproc-per-nodes 2 train.py",
    "ddp-run --nproc-per-node two train.py",
    "ddp-run --standalone --hang-timeout train.py",
    "ddp-run --config configs/nothing.toml train.py",
    "srun --ntasks-per-node=1 ddp-run doctor --quik",
    "ddp-run logs -f --ranks 3",
    "ddp-run rules cuda-omm",
    "ddp-run completion tcsh",
    "scripts/nothing",
    "scripts/test --al",
    "scripts/test_single_node.sh --consoles rank0",
    "scripts/vast_launch.py launch --config c.toml --num-gpus 2 --dry-runs",
    "python -m tests.bench.bench_launch helo",
    "python -m tests.faults.runs",
)


@pytest.mark.parametrize("line", WRONG)
def test_what_no_program_takes_is_found(line: str, rows: tuple[Row, ...], tmp_path: Path) -> None:
    (shown,) = ours(line, "a document")
    with pytest.raises((Refused, click.UsageError, AssertionError, SystemExit)):
        check(shown, rows, tmp_path)


def test_commands_are_found() -> None:
    text = (
        "`ddp-run` is a name, `ddp-run-logs` another; `srun -n 2 ddp-run a.py`, `A=1 scripts/try`.\n"
        "```sh\nB=1 ddp-run -m x   # no\nulimit -n 5 && ddp-run \\\n    y.py 2> e | grep ddp-run\n"
        'eval "$(ddp-run z.py)"\n```\n'
        "```console\n$ ddp-run --help\nddp-run: printed\n```\n"
    )
    found = {shown.words for line in (*lines_of_blocks(text), *spans(text)) for shown in ours(line, "")}
    expected = {("a.py",), ("-m", "x"), ("y.py",), ("z.py",), ("--help",)}
    assert found == {("ddp-run", *words) for words in expected} | {("scripts/try",)}
    source = 'f"see `ddp-run rules {cause}`; ddp-run was stopped"; """\n    ddp-run logs -f   # no"""'
    assert set(in_messages(source)) == {"ddp-run rules {}", "ddp-run logs -f"}


def test_every_kind_of_place_shows_some() -> None:
    def count(place: str) -> int:
        return sum(shown.where.startswith(place) for shown in SHOWN)

    assert count("README.md") > 25
    assert count("docs/reference.md") > 10
    assert count("docs/guide.md") + count("docs/running.md") > 40
    assert min(count("docs/causes/"), count("docs/doctor.md"), count("scripts/"), count("supervisor/")) > 4


def test_scripts_that_are_typed_can_be_run() -> None:
    for shown in SHOWN:
        if (program := program_of(shown.words[0])) and program.parent == ROOT / "scripts" and program.is_file():
            assert os.access(program, os.X_OK) or program.suffix == ".sbatch", shown
