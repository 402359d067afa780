"""`ddp-run completion` in the shells themselves: what is offered for a line that is being typed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import limit

from ddp_run import commands
from ddp_run.commands.completion import offered
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.settings.table import all_rows

RUNS = ("20261122-091500-1c2d", "20261121-081500-a1b2")
DDP_RUN = Path(sys.executable).with_name("ddp-run")
PATH = f"{DDP_RUN.parent}:{os.environ['PATH']}"

needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
needs_fish = pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each shell's script."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        done = subprocess.run(
            [str(DDP_RUN), "completion", shell], capture_output=True, text=True, timeout=limit(60), check=True
        )
        (folder / shell).write_text(done.stdout)
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A working directory with something to complete."""
    for name in ("train.py", "other.txt", "p.toml", "two words.py"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    for run in RUNS:
        (tmp_path / "ddp-run-logs" / run).mkdir(parents=True)
    return tmp_path


# ----------------------------------------------------------------------------------------------- bash


def in_bash(scripts: Path, here: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words, parted as readline parts them; in this order."""
    program = f"""
        source '{scripts}/bash'
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _ddp_run
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", str(DDP_RUN), *words],
        cwd=here, capture_output=True, text=True, timeout=limit(30), check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


def test_bash_knows_the_function(scripts: Path, here: Path) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", f"source '{scripts}/bash'; complete -p ddp-run"],
        cwd=here, capture_output=True, text=True, timeout=limit(30),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "complete -F _ddp_run ddp-run\n")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--cons"], ["--console"]),
        (["--console", "=", "r"], ["rank0", "raw"]),
        (["--config", ""], ["ddp-run-logs", "p.toml", "sub"]),
        (["tw"], ["two words.py"]),
        (["logs", "2"], [*RUNS]),
        (["train.py", "--cons"], []),
    ],
    ids=lambda value: " ".join(value),
)
def test_bash_offers(scripts: Path, here: Path, words: list[str], shown: list[str]) -> None:
    assert in_bash(scripts, here, *words) == shown


# ----------------------------------------------------------------------------------------- in any shell


SCRIPTS = {"train.py", "two words.py", "sub", "ddp-run-logs"}
PRESETS = {"p.toml", "sub", "ddp-run-logs"}
EVERYTHING = {"train.py", "two words.py", "sub", "ddp-run-logs", "other.txt", "p.toml"}


@pytest.mark.parametrize(
    ("words", "fitting"),
    [
        ([""], SCRIPTS | {*commands.names()}),
        (["--cons"], {"--console"}),
        (["--nproc_per"], {"--nproc_per_node"}),
        (["--console", ""], {"all", "rank0", "failed", "none", "raw"}),
        (["--console", "=", "r"], {"rank0", "raw"}),
        (["--console", "="], {"all", "rank0", "failed", "none", "raw"}),
        (["--console=r"], {"--console=rank0", "--console=raw"}),
        (["--nccl_debug", "i"], {"info"}),
        (["--config", ""], PRESETS),
        (["--config", "=", ""], PRESETS),
        (["--log-dir", "s"], {"sub"}),
        (["--nnodes", ""], set()),
        (["--nproc-per-node", "2", ""], SCRIPTS),
        (["--nproc-per-node", "=", "2", "t"], {"train.py", "two words.py"}),
        (["--standalone", "t"], {"train.py", "two words.py"}),
        (["-m", "t"], {"train.py", "two words.py"}),
        (["train.py", ""], EVERYTHING),
        (["train.py", "runs", "o"], {"other.txt"}),
        (["train.py", "--cons"], set()),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["logs", "--st"], {"--stdout", "--stderr"}),
        (["logs", "2"], {*RUNS}),
        (["stop", ""], {*RUNS, "sub", "ddp-run-logs"}),
        (["logs", "--rank", ""], set()),
        (["clean", "--older", "3d", "--k"], {"--keep"}),
        (["clean", "--log-dir", "s"], {"sub"}),
        (["explain", "o"], {"other.txt"}),
        (["explain", "2"], {*RUNS}),
        (["report", "2"], {*RUNS}),
        (["bundle", ""], {*RUNS, *EVERYTHING}),
        (["bundle", "--output", "o"], {"other.txt"}),
        (["hosts", "s"], {"sub"}),
        (["rules", "cuda-o"], {"cuda-oom"}),
        (["doctor", "--nnod"], {"--nnodes"}),
        (["doctor", "--rdzv-backend", ""], {"c10d", "static"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_fits(here: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], fitting: set[str]) -> None:
    monkeypatch.chdir(here)
    shown = [word.removesuffix("/") for word, _meaning in offered(words)]
    assert set(shown) == fitting
    assert not {*RUNS} <= fitting or tuple(shown[:2]) == RUNS, "the newest first"


def test_every_option_is_offered() -> None:
    launch = {flag for row in all_rows(torch_rows()) for flag in row.flags if "_" not in flag}
    assert launch <= {word for word, _meaning in offered(["-"])}
    for name, command in commands.all_commands().items():
        flags = {flag for each in command.params for flag in each.opts if flag.startswith("-")} | {"-h", "--help"}
        also = {*launch, "-V", "--version"} if name == "doctor" else set()
        assert flags <= {word for word, _meaning in offered([name, "-"])} <= flags | also, name


# ----------------------------------------------------------------------------------------------- fish


@needs_fish
@pytest.mark.parametrize(
    ("line", "fitting", "others"),
    [
        ("", {"train.py", *commands.names()}, set()),
        ("--cons", {"--console"}, set()),
        ("--console ", {"all", "rank0", "failed", "none", "raw"}, {"train.py"}),
        ("--console=r", {"--console=rank0", "--console=raw"}, set()),
        ("--config ", {"p.toml"}, set()),
        ("--nnodes ", set(), {"train.py", "runs"}),
        ("--nproc_per_node 2 ", {"train.py"}, {"runs"}),
        ("train.py o", {"other.txt"}, set()),
        ("train.py --cons", set(), {"--console"}),
        ("completion ", {"bash", "zsh", "fish"}, {"train.py"}),
        ("logs --st", {"--stdout", "--stderr"}, {"--standalone"}),
        ("logs ", {*RUNS}, {"train.py"}),
        ("explain ", {*RUNS, "train.py"}, set()),
        ("bundle --output o", {"other.txt"}, {"p.toml"}),
        ("rules cuda-o", {"cuda-oom"}, {"train.py"}),
        ("doctor --nnod", {"--nnodes"}, set()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fish_offers(scripts: Path, here: Path, line: str, fitting: set[str], others: set[str]) -> None:
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source '{scripts}/fish'; complete -C 'ddp-run {line}'"],
        cwd=here, env={**os.environ, "HOME": str(here), "PATH": PATH},
        capture_output=True, text=True, timeout=limit(60),
    )  # fmt: skip
    found = {each.partition("\t")[0] for each in done.stdout.splitlines()}
    assert (done.returncode, done.stderr) == (0, "")
    assert fitting <= {each.removesuffix("/") for each in found}, found
    assert not found & others


# ------------------------------------------------------------------------------------------------ zsh


PROMPT = "what now> "


class Zsh:
    """An interactive zsh on a terminal of its own."""

    def __init__(self, script: Path, here: Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(here)
            os.environ.update(TERM="dumb", PATH=PATH, HOME=str(here), PS1=PROMPT, ZDOTDIR=str(here))
            os.execvp("zsh", ["zsh", "-f", "-i"])
        self.run("unsetopt zle_bracketed_paste prompt_cr prompt_sp; autoload -Uz compinit; compinit -u -D")
        self.run(f"LISTMAX=999; source '{script}'")

    def run(self, line: str) -> str:
        """Run a line; what is written until it is done."""
        return self.type(f"{line}; print -r rea''dy\n")

    def offered(self, line: str) -> str:
        """What the terminal shows after a line and the key that lists what fits."""
        return self.type(f"{line}\x04\x15print -r rea''dy\n")

    def type(self, text: str) -> str:
        """Until the next prompt: what comes before it, the terminal itself would take for its own keys."""
        os.write(self.fd, text.encode())
        shown, deadline = "", time.monotonic() + limit(60)
        while PROMPT not in shown.partition("ready\r\n")[2]:
            assert select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))[0], shown
            shown += os.read(self.fd, 65536).decode("utf-8", "replace")
        return shown

    def close(self) -> None:
        os.close(self.fd)
        os.waitpid(self.pid, 0)


@pytest.fixture
def zsh(scripts: Path, here: Path) -> Iterator[Zsh]:
    shell = Zsh(scripts / "zsh", here)
    yield shell
    shell.close()


@needs_zsh
def test_zsh_offers(zsh: Zsh) -> None:
    for line, fitting, others in (
        ("ddp-run ", ("runs", "train.py", "List the runs"), ()),
        ("ddp-run --con", ("--console", "--config", "--control-port"), ("--tee",)),
        ("ddp-run --console ", ("rank0", "failed", "raw"), ("train.py",)),
        ("ddp-run --console=r", ("rank0", "raw"), ("failed",)),
        ("ddp-run --config ", ("p.toml",), ("train.py",)),
        ("ddp-run --nproc_per_node 2 ", ("train.py",), ("other.txt",)),
        ("ddp-run train.py ", ("other.txt", "train.py"), ("List the runs",)),
        ("ddp-run logs --std", ("--stdout", "--stderr"), ("--standalone",)),
        ("ddp-run logs ", RUNS, ("train.py",)),
        ("ddp-run bundle ", (*RUNS, "other.txt"), ()),
        ("ddp-run completion ", ("bash", "zsh", "fish"), ("train.py",)),
        ("ddp-run bundle --output ", ("other.txt",), ("List the runs",)),
        ("ddp-run rules cuda-", ("cuda-oom",), ("train.py",)),
        ("ddp-run doctor --nno", ("--nnodes",), ("--tee",)),
    ):
        shown = zsh.offered(line)
        for word in fitting:
            assert word in shown.partition(line)[2], (line, shown)
        for word in others:
            assert word not in shown.partition(line)[2], (line, shown)
