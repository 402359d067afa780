"""The user's commands at the end of a run: real shells, real signals, a real loop. In a job: `test_hooks_of_a_run`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.waiting import limit, wait_until

from ddp_run.supervise.loop import Loop, reap
from ddp_run.supervise.run_end import EndHooks, Hook


@dataclass
class Bench:
    """What a run is for its hooks."""

    loop: Loop
    warned: list[str] = field(default_factory=list)
    stops: int = 0
    hooks: EndHooks = field(init=False)

    def __post_init__(self) -> None:
        self.hooks = EndHooks(dict(os.environ), self.serve, lambda: self.stops, self.warned.append)

    def serve(self, at_most_s: float) -> None:
        for woken in self.loop.wait(at_most_s):
            if woken == signal.SIGCHLD:
                for pid, code in reap():
                    self.hooks.reaped(pid, code)
            elif woken == signal.SIGTERM:
                self.stops += 1

    def run(self, **commands: str) -> list[str]:
        self.hooks.run(tuple(Hook(f"--{name.replace('_', '-')}", each) for name, each in commands.items()))
        return self.warned


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Loop([signal.SIGCHLD, signal.SIGTERM]) as loop:
        yield Bench(loop)


def when(condition: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Somebody outside, who does that once this is so."""

    def wait() -> None:
        wait_until(condition, "what the hook does", 30)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_one_after_another_and_a_bad_end_is_told(bench: Bench, tmp_path: Path) -> None:
    log = tmp_path / "log"
    warned = bench.run(on_failure=f"sleep 0.1; echo first >> {log}; exit 3", on_end=f"echo second >> {log}")
    assert log.read_text() == "first\nsecond\n"
    assert warned == ["--on-failure exited with 3; the exit code of the run is unchanged"]


def test_what_it_prints_goes_to_stderr(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench.run(on_end="echo out; echo err >&2") == []
    assert capfd.readouterr() == ("", "out\nerr\n")


def test_a_stop_ends_the_hook_with_all_it_started_and_the_next_is_not_run(bench: Bench, tmp_path: Path) -> None:
    started, second = tmp_path / "started", tmp_path / "second"
    thread = when(started.exists, stop)
    warned = bench.run(on_failure=f"touch {started}; sleep 600; true", on_end=f"touch {second}")
    thread.join(limit(30))
    assert warned == [
        "--on-failure was ended by signal 15; the exit code of the run is unchanged",
        "--on-end not run: told to stop",
    ]
    assert not second.exists()


def test_a_second_stop_kills_what_ignores_the_first(bench: Bench, tmp_path: Path) -> None:
    started, told = tmp_path / "started", tmp_path / "told"

    def twice() -> None:
        stop()
        wait_until(told.exists, "the trap", 30)
        stop()

    thread = when(started.exists, twice)
    warned = bench.run(on_end=f"trap 'touch {told}' TERM; touch {started}; while :; do sleep 0.05; done")
    thread.join(limit(30))
    assert warned == ["--on-end was ended by signal 9; the exit code of the run is unchanged"]


def test_a_command_that_cannot_be_started_is_told(bench: Bench) -> None:
    assert bench.run(on_end="true\0") == ["--on-end not run: embedded null byte"]


def test_what_a_hook_would_run_again_is_told(bench: Bench, tmp_path: Path) -> None:
    bench.hooks.run((Hook("--on-end (pyproject.toml:2)", f"touch {tmp_path}/again", again=True),))
    assert bench.warned == ["--on-end (pyproject.toml:2) not run: this launch is part of such a command"]
    assert list(tmp_path.iterdir()) == []


def test_the_environment_is_what_was_given(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    environ: Mapping[str, str] = {"PATH": os.environ["PATH"], "DDP_RUN_OUTCOME": "failed"}
    with Loop([signal.SIGCHLD]) as loop:
        bench = Bench(loop)
        bench.hooks = EndHooks(environ, bench.serve, lambda: 0, bench.warned.append)
        assert bench.run(on_end=f'printf %s "$DDP_RUN_OUTCOME" > {shown}') == []
    assert shown.read_text() == "failed"
