"""The one place where ddp-run waits, in a process of its own: Ctrl-Z, which is the same with and without an attempt."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import limit, wait_until

from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.process_look import state
from ddp_run.record import journal
from ddp_run.record.events import SignalReceived, SignalSent, Target

PROGRAM = """
import subprocess
import sys
from pathlib import Path
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.run import HANDLED_SIGNALS
from tests.begun_run import begun_run

folder, attempt_runs = Path(sys.argv[1]), sys.argv[2] == "True"
with Loop(HANDLED_SIGNALS) as loop, begun_run(folder, loop) as run, subprocess.Popen(["sleep", "600"]) as child:
    heard = []
    if attempt_runs:
        run.on_signal = heard.append
    print(child.pid, flush=True)
    while not run.serve(None):
        pass
    child.kill()
    print(heard)
"""


@pytest.mark.parametrize("attempt_runs", [True, False])
def test_ctrl_z_stops_ddp_run_and_the_attempt_that_runs(tmp_path: Path, attempt_runs: bool) -> None:
    words = [sys.executable, "-c", PROGRAM, str(tmp_path), str(attempt_runs)]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=root) as run:
        assert run.stdout is not None
        try:
            child = int(run.stdout.readline())
            run.send_signal(signal.SIGTSTP)
            wait_until(lambda: state(run.pid) is ProcessState.STOPPED, "ddp-run to stop")
            if attempt_runs:  # it shows that only when it would have run again
                wait_until(lambda: state(child) is ProcessState.STOPPED, "the job to stop")
            else:
                assert state(child) is not ProcessState.STOPPED
            run.send_signal(signal.SIGCONT)
            wait_until(lambda: state(child) is not ProcessState.STOPPED, "the job to go on")
            run.send_signal(signal.SIGTERM)
            said, _ = run.communicate(timeout=limit(20))
        finally:
            run.kill()
    assert said == ("[15]\n" if attempt_runs else "[]\n")
    (folder,) = (each for each in tmp_path.iterdir() if not each.is_symlink())
    events = journal.load(folder / "events.jsonl").events
    received = [event.signum for event in events if isinstance(event, SignalReceived)]
    assert received == ([signal.SIGTSTP] if attempt_runs else [signal.SIGTSTP, signal.SIGTERM])
    sent = [(event.target, event.signum, event.pids) for event in events if isinstance(event, SignalSent)]
    pids = (child,) if attempt_runs else ()
    assert sent == [(Target.JOB, signal.SIGSTOP, pids), (Target.JOB, signal.SIGCONT, pids)]
