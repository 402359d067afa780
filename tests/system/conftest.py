"""Runs `ddp-run` as users do and checks after every run what must hold after any: nothing left, a replay agrees."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from ddp_run.commands.explain import answer as explain
from tests.waiting import limit, wait_until

TRAIN = Path(__file__).parents[1] / "faults" / "train.py"
DDP_RUN = Path(sys.executable).with_name("ddp-run")
DEADLINE_S = limit(240)


LOOKED_AT = """
import json, os, time
def looked_at(rank, least):
    # whether ddp-run has seen the rank hold more bytes of memory: its journal says so
    for line in open(f"ddp-run-logs/{os.environ['DDP_RUN_ID']}/events.jsonl"):
        if '"MemorySampled"' in line and line.endswith("}\\n"):
            event = json.loads(line)
            if rank in event["ranks"] and event["own"][event["ranks"].index(rank)] > least:
                return True
    return False
"""
"""For programs of ranks that are to go on only when ddp-run has looked."""


def cases(kinds: Iterable[str], by_default: Container[str]) -> list[ParameterSet]:
    """Parameters of a test; those that are not run by default need `-m slow_system`."""
    slow = pytest.mark.slow_system
    return [pytest.param(kind, marks=() if kind in by_default else slow, id=kind) for kind in kinds]


def carriers(run_id: str) -> list[str]:
    """Processes of a run: those whose environment carries its id."""
    mark = f"DDP_RUN_ID={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit():
                continue
            # a main thread that has exited shows neither
            thread = max((entry / "task").iterdir()) if b") Z " in (entry / "stat").read_bytes() else entry
            if mark in (thread / "environ").read_bytes().split(b"\0"):
                found.append(f"{entry.name} {(thread / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        except OSError:
            continue
    return found


@contextmanager
def disposition(signum: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    """What is started within inherits this effect of the signal."""
    before = signal.signal(signum, handler)
    try:
        yield
    finally:
        signal.signal(signum, before)


def by_rank(console: str) -> dict[int, list[str]]:
    """The lines of each rank. Whether equal lines are shown as one (`[rank0-1]: x`) depends on when they come."""
    found: dict[int, list[str]] = {}
    for line in console.splitlines():
        shown = re.fullmatch(r"\[rank([\d,-]+)\]: (.*)", line)
        assert shown is not None, f"no line of a rank: {line!r}"
        for part in shown[1].split(","):
            first, _, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                found.setdefault(rank, []).append(shown[2])
    return found


@dataclass
class Outcome:
    """How a run ended."""

    code: int
    stdout: str
    stderr: str
    folder: Path | None

    @property
    def verdict(self) -> dict[str, Any]:
        assert self.folder is not None, self.stderr
        return dict(json.loads((self.folder / "verdict.json").read_text()))

    @property
    def events(self) -> list[dict[str, Any]]:
        assert self.folder is not None, self.stderr
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]

    def named(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def last_line(self) -> dict[str, str]:
        line = self.stderr.rstrip("\n").rsplit("\n", 1)[-1]
        assert line.startswith("ddp-run: verdict "), self.stderr
        return dict(word.split("=", 1) for word in line.split()[2:])


class Running:
    """A started `ddp-run`."""

    def __init__(self, words: Sequence[str], cwd: Path, environ: dict[str, str], within: Sequence[str] = ()) -> None:
        self.cwd = cwd
        self._stdout, self._stderr = cwd / "console.out", cwd / "console.err"
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [*within, str(DDP_RUN), *words], cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def folder(self) -> Path | None:
        latest = self.cwd / "ddp-run-logs" / "latest"
        return latest.resolve() if latest.exists() else None

    def events(self, kind: str) -> list[dict[str, Any]]:
        if self.folder is None or not (self.folder / "events.jsonl").exists():
            return []
        whole, _, _being_written = (self.folder / "events.jsonl").read_text().rpartition("\n")
        return [event for event in map(json.loads, whole.splitlines()) if event["event"] == kind]

    def wait_for(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            events = self.events(kind)
            return events if len(events) >= count else []

        return wait_until(found, lambda: f"{count} {kind}: {self.console()}")

    def pids(self, ranks: int) -> list[int]:
        """Of so many ranks, by rank, once all have started; a rank may be told of twice, with its hello and before."""

        def found() -> dict[int, int]:
            return {event["rank"]: event["pid"] for event in self.events("RankStarted")}

        wait_until(lambda: len(found()) == ranks, lambda: f"{ranks} ranks: {self.console()}")
        return [pid for _rank, pid in sorted(found().items())]

    def wait_for_text(self, text: str, count: int = 1) -> None:
        def seen() -> bool:
            files = list(self.folder.glob("attempt_*/**/std*.log")) if self.folder else []
            return sum(file.read_bytes().count(text.encode()) for file in files if file.exists()) >= count

        wait_until(seen, lambda: f"{text!r} of the ranks; console: {self.console()}")

    def console(self) -> str:
        return self._stdout.read_text(errors="replace") + self._stderr.read_text(errors="replace")

    def signal(self, signum: int) -> None:
        os.kill(self.process.pid, signum)

    def wait(self, within_s: float = DEADLINE_S) -> Outcome:
        code = self.process.wait(within_s)
        stdout, stderr = self._stdout.read_text(errors="replace"), self._stderr.read_text(errors="replace")
        return Outcome(code, stdout, stderr, self.folder)

    def assert_nothing_left(self) -> None:
        if self.folder is not None:
            run_id = self.folder.name
            wait_until(lambda: not carriers(run_id), lambda: f"the end of {carriers(run_id)}", 60)


class Launcher:
    """`ddp(...)`: run to the end; `ddp.start(...)`: run in the background."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.started: list[Running] = []

    def environ(self, extra: dict[str, str]) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not re.match(
                r"(DDP_|PET_|NCCL_|TORCH|MASTER_|RANK$|WORLD_SIZE$|LOCAL_|MAX_RETRIES|NNODES|NODE_RANK)", name
            )
        }
        warm = {"DDP_RUN_WARM": "1"} if os.environ.get("DDP_RUN_TEST_WARM") else {}
        return kept | {"OMP_NUM_THREADS": "1"} | warm | extra

    def start(
        self, *words: object, env: dict[str, str] | None = None, cwd: str | None = None, within: Sequence[str] = ()
    ) -> Running:
        """`within`: words that become ddp-run, in the same process."""
        folder = self.cwd / (cwd or f"run{len(self.started)}")
        folder.mkdir(exist_ok=True)
        entered = [*within, "env", f"--chdir={folder}"] if within else ()
        running = Running([str(word) for word in words], folder, self.environ(env or {}), entered)
        self.started.append(running)
        return running

    def __call__(
        self, *words: object, env: dict[str, str] | None = None, cwd: str | None = None, within: Sequence[str] = ()
    ) -> Outcome:
        running = self.start(*words, env=env, cwd=cwd, within=within)
        outcome = running.wait()
        running.assert_nothing_left()
        if outcome.folder is not None and (outcome.folder / "verdict.json").exists():
            assert_replay_agrees(outcome)
        return outcome

    def script(self, text: str, name: str = "program.py") -> Path:
        """A program for ranks; it needs no torch and so starts fast."""
        path = self.cwd / name
        path.write_text(text)
        return path


def assert_first_failure(outcome: Outcome, code: int, rank: int) -> None:
    """It counts everywhere: for whoever started the job, in the verdict, and in the line for scripts."""
    assert (outcome.code, outcome.verdict["exit_code"], outcome.last_line["exit"]) == (code, code, str(code))
    assert (outcome.verdict["first_failure"]["rank"], outcome.last_line["rank"]) == (rank, str(rank))


def assert_replay_agrees(outcome: Outcome) -> None:
    """`ddp-run explain FOLDER` must reach the verdict that was reached live; the command itself: test_explain.py."""
    answer = explain.explain([str(outcome.folder)], rank_from_filename=False)
    assert json.loads(json.dumps(answer.document)) == outcome.verdict


_launchers: dict[str, Launcher] = {}
"""By their fixtures, for the report of a failure: a fixture that fails is none of its test's arguments."""


@contextmanager
def _launcher(fixture: str, cwd: Path) -> Iterator[Launcher]:
    launcher = _launchers[fixture] = Launcher(cwd)
    yield launcher
    del _launchers[fixture]
    for running in launcher.started:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGKILL)
            running.process.wait(limit(60))
        if running.folder is not None:
            for carrier in carriers(running.folder.name):
                with suppress(ProcessLookupError):
                    os.kill(int(carrier.split()[0]), signal.SIGKILL)


@pytest.fixture
def ddp(tmp_path: Path) -> Iterator[Launcher]:
    with _launcher("ddp", tmp_path) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def shared_ddp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """For a job that several tests of a file read: a fixture of the file's runs it, once (docs/testing.md)."""
    with _launcher("shared_ddp", tmp_path_factory.mktemp("shared")) as launcher:
        yield launcher


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.when in ("setup", "call") and report.failed:
        asked = getattr(item, "fixturenames", ())
        used = [launcher for name, launcher in _launchers.items() if name in asked]
        for running in (each for launcher in used for each in launcher.started):
            report.sections.append((f"console of {running.cwd}", running.console()[-6000:]))
            for path in sorted((running.folder or running.cwd).rglob("*.log")):
                report.sections.append((str(path), path.read_text(errors="replace")[-2000:]))
            journal = (running.folder or running.cwd) / "events.jsonl"
            if journal.exists():
                report.sections.append((str(journal), journal.read_text()[-6000:]))
