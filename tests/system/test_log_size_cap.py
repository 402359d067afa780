"""`--log-size-cap` of whole jobs: what stays, what is told, and that nothing else changes."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddp_run.commands.explain import answer as explain

from .conftest import Launcher, assert_first_failure

pytestmark = pytest.mark.slow_system

CAP = 8 << 20
LOUD = """
import os, sys, time
rank = int(os.environ["RANK"])
print("begins", flush=True)
for number in range(400_000):
    sys.stdout.write(f"step {number} " + "x" * 80 + "\\n")
    if not rank:
        sys.stderr.write(f"warning {number} " + "y" * 80 + "\\n")
sys.stdout.flush()
if os.environ.get("WAITS"):
    time.sleep(300)
if not rank:
    open("done", "w").close()
    time.sleep(300 if os.environ["WORLD_SIZE"] == "2" else 0)
while not os.path.exists("done"):
    time.sleep(0.05)
os.remove("done")
if rank:
    raise ValueError("bad sample")
"""
FAILS_AT = LOUD.splitlines().index('    raise ValueError("bad sample")') + 1


def cut(events: list[dict[str, Any]]) -> set[tuple[int, str]]:
    return {(event["rank"], event["stream"]) for event in events}


def test_the_end_of_a_loud_job_is_judged(ddp: Launcher) -> None:
    program = ddp.script(LOUD)
    words = ("--nproc-per-node=2", "--log-size-cap=8M", "--max-retries=1", "--retry=always", "--on-end=true")
    outcome = ddp(*words, program)
    assert_first_failure(outcome, 1, 1)
    raised = outcome.verdict["first_failure"]["exception"]
    assert (raised["file"], raised["line"]) == (str(program), FAILS_AT)
    assert cut(outcome.named("LogCut")) == {(0, "stdout"), (0, "stderr"), (1, "stdout")}
    assert outcome.folder is not None
    (evidence,) = [each for each in outcome.verdict["evidence"] if each["source"].endswith("rank_1/stderr.log")]
    said = (outcome.folder / evidence["source"]).read_text().splitlines()
    assert said[evidence["line"] - 1] == evidence["text"] == "ValueError: bad sample"
    for attempt in range(2):
        for rank in range(2):
            log = outcome.folder / f"attempt_{attempt}/rank_{rank}/stdout.log"
            text = log.read_text()
            lines = text.splitlines()
            assert CAP // 2 < log.stat().st_blocks * 512 <= CAP
            assert (lines[0], lines[-1]) == ("begins", f"step 399999 {'x' * 80}")
            assert text.count("[ddp-run dropped ") == 1
            assert "\0" not in text
    assert not list(outcome.folder.rglob(".*"))


def test_the_console_has_the_end_and_no_zeros(ddp: Launcher) -> None:
    outcome = ddp("--nproc-per-node=1", "--log-size-cap=8M", "--console=raw", ddp.script(LOUD))
    assert outcome.code == 0
    shown = outcome.stdout.splitlines()
    assert (shown[0], shown[-1]) == ("begins", f"step 399999 {'x' * 80}")
    assert "\0" not in outcome.stdout


def test_a_killed_ddp_run_leaves_logs_that_can_be_read(ddp: Launcher) -> None:
    running = ddp.start(
        "--nproc-per-node=2", "--log-size-cap=8M", "--console=none", ddp.script(LOUD), env={"WAITS": "1"}
    )
    running.wait_for("LogCut", 3)
    running.signal(signal.SIGKILL)
    running.process.wait()
    running.assert_nothing_left()
    assert running.folder is not None
    assert b"\0" in (running.folder / "attempt_0/rank_0/stdout.log").read_bytes()
    answer = explain.explain([str(running.folder)], rank_from_filename=False)
    assert json.loads(json.dumps(answer.document))["outcome"]


def test_a_file_system_that_cannot_drop_anything(ddp: Launcher) -> None:
    logs = ddp.cwd / "ram"
    logs.mkdir()
    if subprocess.run(["mount", "-t", "ramfs", "none", str(logs)], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        words = ("--nproc-per-node=2", "--log-size-cap=8M", "--console=none", f"--log-dir={logs}")
        running = ddp.start(*words, ddp.script(LOUD))
        outcome = running.wait()
        (folder,) = Path(logs).glob("2*")
        assert outcome.code == 1
        assert outcome.stderr.count("logs are not held within --log-size-cap") == 1
        assert "Operation not supported" in outcome.stderr
        for rank in range(2):
            text = (folder / f"attempt_0/rank_{rank}/stdout.log").read_text()
            assert text.splitlines() == ["begins", *(f"step {number} {'x' * 80}" for number in range(400_000))]
    finally:
        subprocess.run(["umount", str(logs)])
