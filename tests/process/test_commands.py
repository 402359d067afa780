"""Which words are commands, and what help says; through the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.loaded_process import COMMAND
from tests.waiting import limit

import ddp_run
from ddp_run import cli
from ddp_run.plan import installed_torch

DDP_RUN = Path(sys.executable).with_name("ddp-run")


def run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "DDP_", "COLUMNS"))}
    return COMMAND.run(DDP_RUN, *words, cwd=cwd, env=environ)


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_the_version(tmp_path: Path, word: str) -> None:
    done = run(tmp_path, word)
    assert (done.returncode, done.stdout) == (0, f"ddp-run {ddp_run.__version__}\n")


@pytest.mark.parametrize(
    ("words", "whole"),
    [(["-h"], False), (["help"], False), (["--help"], True), (["--standalone", "-h"], False), (["--he"], True)],
    ids=str,
)
def test_help_is_short_or_whole(tmp_path: Path, words: list[str], whole: bool) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 0
    assert "\nExamples:\n" in done.stdout
    assert ("--local-ranks-filter" in done.stdout) is whole


def test_the_command_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ddp_run", "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=limit(120)
    )
    assert (done.returncode, done.stdout) == (0, f"ddp-run {ddp_run.__version__}\n")


def test_a_command_with_a_letter_wrong(tmp_path: Path) -> None:
    done = run(tmp_path, "dcotor")
    assert done.returncode == 2
    assert done.stderr.endswith("help: ddp-run doctor   # the command\n")
    assert "the command" not in run(tmp_path, "--standalone", "dcotor").stderr


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("list -n 3", "runs -n 3"),
        ("ps", "runs"),
        ("top", "watch"),
        ("tail 20261121-081500-a1b2", "logs -f 20261121-081500-a1b2"),
        ("cancel", "stop"),
        ("run train.py --lr 1", "train.py --lr 1"),
    ],
)
def test_words_of_other_tools(tmp_path: Path, words: str, ours: str) -> None:
    """Some are programs, too: `--no-python ps` is not what is meant."""
    done = run(tmp_path, *words.split())
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"help: ddp-run {ours}")
    assert "note:" not in done.stderr


def test_what_is_not_near_is_not_offered(tmp_path: Path) -> None:
    (tmp_path / "confid.py").touch()
    (tmp_path / "train.py").touch()
    assert "help:" not in run(tmp_path, "nofile.py").stderr
    assert run(tmp_path, "trian.py", "--lr=1").stderr.endswith(
        "help: ddp-run train.py --lr=1   # did you mean train.py?\n"
    )
    for words in (("--nprocs", "2"), ("--nprocs=2",)):
        assert run(tmp_path, *words, "train.py").stderr.endswith("help: did you mean --nproc-per-node=2?\n")


def test_a_dry_run_lists_what_was_set_in_the_order_of_the_help(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = ("--max-retries=1", "--master-port=29511", "--master-addr=127.0.0.1", "--nproc-per-node=2", "train.py")
    lines = run(tmp_path, "--dry-run", *words).stdout.splitlines()
    assert [line.split() for line in lines[1:5]] == [
        ["nproc-per-node", "2", "--nproc-per-node"],
        ["master-addr", "127.0.0.1", "--master-addr"],
        ["master-port", "29511", "--master-port"],
        ["max-retries", "1", "--max-retries"],
    ]
    whole = json.loads(run(tmp_path, "--dry-run", "--log-format", "json", *words).stdout)["options"]
    defaults = [name for name, each in whole.items() if each["origin"] == "default"]
    assert whole["max_retries"] == {"value": 1, "origin": "--max-retries"}
    assert lines[5].split()[:3] == [str(len(defaults) + 1), "others", "have"]  # here, --log-format is set too
    assert not any(line.endswith(" default") for line in lines)


def test_help_of_a_command(tmp_path: Path) -> None:
    assert run(tmp_path, "help", "explain").stdout == run(tmp_path, "explain", "--help").stdout


@pytest.mark.parametrize("word", ["rules", "version", "help"])
def test_a_folder_of_that_name_hides_no_command(tmp_path: Path, word: str) -> None:
    (tmp_path / word).mkdir()
    done = run(tmp_path, word)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / word / "__main__.py").touch()
    if word == "rules":
        done = run(tmp_path, word)
        assert (done.returncode, done.stdout) == (2, "")
        assert "`rules` is a command of ddp-run and a program in this folder" in done.stderr


@pytest.mark.parametrize("word", ["help", pytest.param("version", marks=pytest.mark.slow_system)])
def test_a_script_of_that_name_is_run_as_torchrun_would(tmp_path: Path, word: str) -> None:
    (tmp_path / word).write_text("raise SystemExit(7)")
    assert run(tmp_path, "--dry-run", word).returncode == 0
    assert f"called sys.exit in {word}:1: 7" in run(tmp_path, word).stderr


def test_other_systems_are_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cli.launch(("train.py",)) == 2
    said = capsys.readouterr()
    assert said.err == "ddp-run: jobs are started on Linux only, and this is darwin: use torchrun here\n"
    with pytest.raises(ddp_run.LaunchRefused) as refused:
        ddp_run.launch("train.py")
    assert str(refused.value) == said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["-h", "--help", "help"])
def test_help_needs_no_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installed_torch, "find_torch_run", lambda: None)
    assert cli.run([word]) == 0
    said = capsys.readouterr().out
    assert "--max-retries" in said
    assert "torch is not installed for this Python: its torchrun's options are not listed" in said
