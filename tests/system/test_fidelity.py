"""A program sees the same under plain Python, under torchrun and as a rank of ddp-run. Differences are listed here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.agent_job import PROGRAMS, PYTHON, TORCHRUN, Job, ddp_run, torchrun, without_addresses
from tests.waiting import limit

from .conftest import cases, disposition

# One job differs from the next in these; TORCHELASTIC_ERROR_FILE names a file in another folder.
OF_EACH_JOB = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
# What ddp-run adds: its run's id, and NCCL's warnings to a file of the rank (`--nccl-debug off` leaves those out).
ADDED: dict[str, Callable[[str], bool]] = {
    "DDP_RUN_ID": bool,
    "NCCL_DEBUG": "WARN".__eq__,
    "NCCL_DEBUG_FILE": lambda value: value.endswith("/nccl.log"),
}
# Parts of Python that the bootstrap loads before the program; none has effects of its own.
LOADED_EARLIER = {"_json", "_socket", "_ctypes", "faulthandler", "mmap"}
FAILS = str(PROGRAMS / "fails_in_gloo.py")
STARTS = [pytest.param([], id="cold"), pytest.param(["--warm"], id="warm", marks=pytest.mark.slow_system)]
OURS_FROM = 1000
"""Descriptors for stacks and the board."""
# What torchrun changes for any program: how it is started and from where it gets its streams.
CHANGED_BY_TORCHRUN = {"environment", "child python"}


def _dumped(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    assert found, f"no rank wrote to {folder}"
    return found


def _lay_out(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    for name in ("prog.py", "package/__main__.py", "package/part.py"):
        shutil.copy(PROGRAMS / "properties.py", folder / name)
    (folder / "dump").mkdir()


def assert_as_asked(job: Job, start: list[str], *, possible: bool = True) -> None:
    """With `--warm` ranks are forks, unless that isn't possible; the journal then says so."""
    said = [event["text"] for event in job.named("Noted") if "warm" in event["text"]]
    assert len(said) == (1 if start and not possible else 0), said


def _emptied(folder: Path) -> None:
    """For the next dump."""
    for dumped in folder.glob("*.json"):
        dumped.unlink()


FORMS: dict[str, tuple[list[str], list[str]]] = {
    # options of torchrun, program
    "script": ([], ["./prog.py", "dump", "--lr", "1", "-m"]),
    "module": (["-m"], ["package.part", "dump", "x y"]),
    "package": (["-m"], ["package", "dump"]),
    "run-path": (["--run-path"], ["prog.py", "dump", "--help"]),
}


@pytest.mark.parametrize("form", cases(FORMS, ("script",)))
@pytest.mark.parametrize("start", STARTS)
def test_a_rank_sees_what_it_sees_under_torchrun(tmp_path: Path, form: str, start: list[str]) -> None:
    options, program = FORMS[form]
    _lay_out(tmp_path)
    dump = tmp_path / "dump"
    theirs = torchrun(tmp_path, tmp_path / "theirs", options, program)
    assert theirs.code == 0, theirs.agent_log
    (expected,) = _dumped(dump)
    _emptied(dump)
    ours = ddp_run(tmp_path, tmp_path / "ours", [*start, *options], program)
    assert ours.code == 0, ours.agent_log
    assert_as_asked(ours, start, possible=form != "run-path")
    (seen,) = _dumped(dump)

    assert len(expected) >= 20
    _assert_only_known_differences(form, seen, expected)
    if form != "run-path":
        _emptied(dump)
        assert _but_for_torchrun(seen) == _but_for_torchrun(_of_plain_python(tmp_path, dump, [*options, *program]))
    rank = ours.folder / "attempt_0" / "rank_0"
    assert (rank / "stdout.log").read_text() == "printed\n"
    assert "complained\n" in (rank / "stderr.log").read_text()
    assert [event["rank"] for event in ours.named("RankStarted") if event["watched"]] == [0]


@pytest.mark.slow_system
@pytest.mark.parametrize("start", STARTS)
def test_dataloader_workers_see_what_they_see_under_torchrun(tmp_path: Path, start: list[str]) -> None:
    """In the gate, workers of Python's own pools, and DataLoader workers that are forked: test_system_evidence.py."""
    _lay_out(tmp_path)
    dump, program = tmp_path / "dump", FORMS["script"][1]
    (dump / "loaders").touch()
    assert torchrun(tmp_path, tmp_path / "theirs", [], program).code == 0
    (expected,) = _dumped(dump)
    _emptied(dump)
    ours = ddp_run(tmp_path, tmp_path / "ours", start, program)
    assert ours.code == 0
    assert_as_asked(ours, start)
    (seen,) = _dumped(dump)
    _emptied(dump)
    assert expected["loaders"]
    assert seen["loaders"] == expected["loaders"] == _of_plain_python(tmp_path, dump, program)["loaders"]


def _assert_only_known_differences(form: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    added = set(ours.pop("modules")) - set(theirs.pop("modules"))
    if form != "run-path":
        added = {name for name in added if name.partition(".")[0] not in (*sys.stdlib_module_names, "__mp_main__")}
    assert added <= LOADED_EARLIER
    ours["descriptors"] = [each for each in ours["descriptors"] if each < OURS_FROM]
    for name, value in ADDED.items():
        assert value(ours["environment"].pop(name))
        ours["child python"] = ours["child python"].replace(f"{name!r}, ", "")
    if form == "run-path":
        # The folder of the started command: torchrun's own for `torchrun`, the working directory for `python -m`.
        assert theirs["path"].pop(0) == str(TORCHRUN.parent)
        ours["path"].pop(0)
        del ours["children"], theirs["children"]
    for seen in (ours, theirs):
        for name in OF_EACH_JOB:
            assert seen["environment"].pop(name)
    assert _signals_but_fatal(ours) == _signals_but_fatal(theirs)
    assert ours == theirs


@dataclass(frozen=True)
class Failed:
    """A job that fails under torchrun, and under ddp-run, started where some signals are ignored."""

    folder: Path
    theirs: Job
    ours: Job


@pytest.fixture(scope="module", params=STARTS)
def failed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Failed:
    folder, words = tmp_path_factory.mktemp("failed"), ["--nproc-per-node=2"]
    with ExitStack() as stack:
        for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1):
            stack.enter_context(disposition(signum, signal.SIG_IGN))
        theirs = torchrun(folder, folder / "theirs", words, [FAILS, "signals of theirs"])
        ours = ddp_run(folder, folder / "ours", [*request.param, *words], [FAILS, "signals of ours"])
    assert_as_asked(ours, request.param)
    return Failed(folder, theirs, ours)


def test_signals_that_were_ignored_are_what_they_are_under_torchrun(failed: Failed) -> None:
    """Whoever starts the job may ignore some: a shell script those of what runs in its background, nohup SIGHUP."""
    theirs, ours = (_masks((failed.folder / f"signals of {whom}").read_text()) for whom in ("theirs", "ours"))
    added = 1 << signal.SIGRTMIN + 5 - 1
    assert ours["SigIgn"] & ~added == theirs["SigIgn"]
    assert ours["SigBlk"] == theirs["SigBlk"]
    assert theirs["SigIgn"] & 1 << signal.SIGUSR1 - 1, "torchrun's agent handles the others"


def _masks(status: str) -> dict[str, int]:
    return {name: int(mask, 16) for name, mask in re.findall(r"^(Sig(?:Ign|Blk)):\s*(\w+)$", status, re.MULTILINE)}


def _signals_but_fatal(seen: dict[str, Any]) -> dict[str, int]:
    # faulthandler catches these, to write stacks before they take effect; glibc takes 33 with a process' first thread.
    ours = sum(1 << number - 1 for number in (4, 6, 7, 8, 11, 33, signal.SIGRTMIN + 5))
    return {name: int(mask, 16) & ~ours for name, mask in seen.pop("signals").items()}


def _of_plain_python(folder: Path, dump: Path, words: list[str]) -> dict[str, Any]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    environ = {name: value for name, value in environ.items() if not name.startswith("PYTEST_")}
    with (folder / "plain.out").open("w") as out, (folder / "plain.err").open("w") as err:
        subprocess.run(
            [PYTHON, "-u", *words],
            cwd=folder,
            env=environ,
            stdout=out,
            stderr=err,
            start_new_session=True,
            check=True,
            timeout=limit(150),
        )
    (plain,) = _dumped(dump)
    del plain["modules"], plain["signals"]
    return plain


def _but_for_torchrun(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in seen.items() if name not in CHANGED_BY_TORCHRUN}


def test_a_failure_reads_as_under_torchrun_and_reaches_the_agent(failed: Failed) -> None:
    theirs, ours = failed.theirs, failed.ours
    assert (theirs.code, ours.code) == (1, 1)
    (their_log,) = (failed.folder / "theirs").glob("*/attempt_0/0/stderr.log")
    our_log = ours.folder / "attempt_0/rank_0/stderr.log"
    assert "[rank0]: ValueError: bad batch" in our_log.read_text()
    assert _traceback(our_log) == _traceback(their_log)

    told = next(event for event in ours.named("RankFailed") if event["rank"] == 0)
    assert (told["rank"], told["code"]) == (0, 1)
    assert told["exception"] | {"traceback": ""} == {
        "type": "ValueError",
        "message": "bad batch",
        "file": FAILS,
        "line": 15,
        "function": "<module>",
        "traceback": "",
        "unused": None,
    }
    # torchrun shows the traceback only of programs with @record.
    assert "To enable traceback see" in theirs.agent_log
    assert "To enable traceback see" not in ours.agent_log
    assert "ValueError: bad batch" in ours.agent_log.partition("Root Cause")[2]


def _traceback(log: Path) -> str:
    lines = [line for line in log.read_text().splitlines() if line.startswith("[rank0]:")]
    warning = re.compile(r"Warning|\bW\d{4} ")
    return without_addresses("\n".join(line for line in lines if not warning.search(line)))
