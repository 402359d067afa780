"""`ddp_run.launch`: jobs from a Python program, which keeps its streams, its signals and its children."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import ddp_run
from tests.waiting import limit, wait_until

from .conftest import DDP_RUN, Launcher, by_rank, carriers, cases

STAYS = "import time\nprint('ready', flush=True)\ntime.sleep(300)\n"
CALLER = """
import sys, ddp_run
try:
    ddp_run.launch(sys.argv[1], nproc_per_node=2, shutdown_timeout=2)
except BaseException as error:
    print("raised", type(error).__name__, flush=True)
    raise
"""
ON_TERM = {
    "SystemExit": "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n",
    # an OSError, as many handlers of alarms raise
    "TimeoutError": "import signal\ndef late(*_): raise TimeoutError\nsignal.signal(signal.SIGTERM, late)\n",
}


def test_a_job_from_a_thread_with_other_streams(ddp: Launcher) -> None:
    """As in a notebook, where sys.stdout has no descriptor, and in submitit's workers."""
    script = ddp.script("import os, sys\nprint(sys.argv[1:])\nprint(os.environ['MARK'], file=sys.stderr)\n")
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), ThreadPoolExecutor(1) as threads:
        job = threads.submit(
            ddp_run.launch,
            script,
            ["--steps", 2],
            nproc_per_node=2,
            cwd=ddp.cwd,
            env=ddp.environ({"MARK": "marked"}),
        )
        result = job.result(limit(240))
    assert (result.ok, result.exit_code, result.outcome, result.attempts) == (True, 0, "succeeded", 1), err.getvalue()
    assert result.folder.parent == ddp.cwd / "ddp-run-logs"
    assert json.loads((result.folder / "verdict.json").read_text())["outcome"] == "succeeded"
    assert by_rank(out.getvalue()) == {rank: ["['--steps', '2']"] for rank in (0, 1)}
    assert by_rank(err.getvalue()) == {rank: ["marked"] for rank in (0, 1)}
    result.raise_for_failure()
    assert carriers(result.folder.name) == []


@pytest.mark.slow_system
def test_the_example_of_the_reference_runs(ddp: Launcher) -> None:
    reference = Path(__file__).resolve().parents[2] / "docs" / "reference.md"
    examples = re.findall(r"^```python\n(.*?)^```$", reference.read_text(), re.MULTILINE | re.DOTALL)
    (example,) = (each for each in examples if "ddp_run.launch" in each)
    ddp.script("import sys\nassert sys.argv[1:] == ['--epochs', '3']\n", "train.py")
    ended = subprocess.run(
        [sys.executable, "-c", example], cwd=ddp.cwd, env=ddp.environ({}), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("succeeded 0 ")


def test_a_failing_job(ddp: Launcher) -> None:
    script = ddp.script("import os\nif os.environ['RANK'] == '1': raise ValueError('bad sample')\n")
    result = ddp_run.launch(script, nproc_per_node=2, log_dir=ddp.cwd / "logs", env=ddp.environ({}))
    assert (result.ok, result.exit_code, result.outcome) == (False, 1, "failed")
    assert result.verdict is not None and result.verdict.first_failure is not None
    assert (result.verdict.code, result.verdict.first_failure.rank) == ("DDP600", 1)
    with pytest.raises(ddp_run.LaunchFailed, match=r"rank 1 raised ValueError .*bad sample \[DDP600\]") as caught:
        result.raise_for_failure()
    # Executors hand results and exceptions over to other processes.
    assert pickle.loads(pickle.dumps(result)) == result
    assert pickle.loads(pickle.dumps(caught.value)).result == result


@pytest.mark.parametrize("option", [{"nproc_per_node": 0}, {"nprocs": 2}, {"log_dir": "train.py"}])
def test_what_the_command_refuses_is_refused_in_its_words(ddp: Launcher, option: dict[str, object]) -> None:
    ddp.script("open('started', 'w')", "train.py")
    ((name, value),) = option.items()
    line = [f"--{name.replace('_', '-')}={value}", "train.py"]
    typed = subprocess.run(
        [DDP_RUN, *line], cwd=ddp.cwd, env=ddp.environ({}), capture_output=True, text=True, timeout=limit(120)
    )
    before = sorted(ddp.cwd.iterdir())
    with pytest.raises(ddp_run.LaunchRefused) as refused:
        ddp_run.launch("train.py", cwd=ddp.cwd, env=ddp.environ({}), **option)  # type: ignore[arg-type]
    assert typed.returncode == 2
    assert str(refused.value) == typed.stderr
    assert sorted(ddp.cwd.iterdir()) == before


def test_a_folder_that_is_not_there(ddp: Launcher) -> None:
    with pytest.raises(ddp_run.LaunchRefused, match=r"cannot start: .*no-such-folder"):
        ddp_run.launch("train.py", cwd=ddp.cwd / "no-such-folder")


def test_files_of_the_working_directory_are_no_modules_of_ddp_run(ddp: Launcher) -> None:
    for name in ("json.py", "click.py", "signal.py"):
        ddp.script("raise SystemExit('the wrong module')", name)
    with pytest.raises(ddp_run.LaunchRefused, match="no-such-script"):
        ddp_run.launch("no-such-script.py", cwd=ddp.cwd, env=ddp.environ({}))


@pytest.mark.parametrize("how", cases(("SIGKILL", "SIGINT", "twice", *ON_TERM), ("SIGKILL", "SIGINT")))
def test_a_job_ends_with_the_program_that_waits_for_it(ddp: Launcher, how: str) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" if how == "twice" else ""
    caller = ddp.script(ON_TERM.get(how, "") + CALLER, "caller.py")
    words = [sys.executable, str(caller), str(ddp.script(deaf + STAYS))]
    console = ddp.cwd / "console"
    with console.open("wb") as to:
        program = subprocess.Popen(words, cwd=ddp.cwd, env=ddp.environ({}), stdout=to, stderr=to, process_group=0)
    try:
        folder = wait_until(lambda: next(iter((ddp.cwd / "ddp-run-logs").glob("2*")), None), "the run's folder")
        wait_until(lambda: len(list(folder.glob("*/*/stdout.log"))) == 2 and _all_ready(folder), console.read_text)
        # to its group, as a terminal and a notebook send it
        first = signal.SIGTERM if how in ON_TERM else signal.SIGKILL if how == "SIGKILL" else signal.SIGINT
        os.killpg(program.pid, first)
        if how == "twice":
            wait_until(lambda: _signals(folder) == 1, "ddp-run's first signal")
            os.killpg(program.pid, signal.SIGINT)
        code = program.wait(limit(60))
        left = carriers(folder.name)
    finally:
        program.kill()
        program.wait()
    wait_until(lambda: not carriers(folder.name), "the job's end", 60)
    if how == "SIGKILL":
        return
    assert left == [], "the program went on before its job had ended"
    codes = {"SystemExit": (5, 1), "TimeoutError": (1, 1), "twice": (-2, 2), "SIGINT": (-2, 1)}
    assert (code, _signals(folder)) == codes[how], console.read_text()
    assert f"raised {how if how in ON_TERM else 'KeyboardInterrupt'}\n" in console.read_text()
    assert json.loads((folder / "verdict.json").read_text())["outcome"] == "interrupted"


@pytest.mark.slow_system
def test_a_launcher_that_is_killed(ddp: Launcher) -> None:
    """There is no verdict then: nothing is said of the job but where its files are."""
    script = ddp.script(STAYS)
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(ddp_run.launch, script, nproc_per_node=1, cwd=ddp.cwd, env=ddp.environ({}))
        folder = wait_until(lambda: next(iter((ddp.cwd / "ddp-run-logs").glob("2*")), None), "the run's folder")
        wait_until(lambda: list(folder.glob("*/*/stdout.log")) and _all_ready(folder), "the rank")
        started = next(line for line in (folder / "events.jsonl").open() if '"AgentStarted"' in line)
        status = Path(f"/proc/{json.loads(started)['pid']}/status").read_text()
        os.kill(int(status.partition("PPid:\t")[2].partition("\n")[0]), signal.SIGKILL)
        result = job.result(limit(60))
    assert (result.ok, result.exit_code, result.verdict, result.outcome) == (False, 137, None, None)
    assert result.folder == folder
    with pytest.raises(ddp_run.LaunchFailed, match=r"did not succeed \(exit code 137\)"):
        result.raise_for_failure()
    wait_until(lambda: not carriers(folder.name), "the job's end", 60)


def _all_ready(folder: Path) -> bool:
    return all("ready" in path.read_text() for path in folder.glob("*/*/stdout.log"))


def _signals(folder: Path) -> int:
    """How often ddp-run was told to stop."""
    return (folder / "events.jsonl").read_text().count('"SignalReceived"')
