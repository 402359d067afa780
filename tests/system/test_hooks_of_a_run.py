"""--on-success, --on-failure and --on-end in whole runs, and --metrics; what may go wrong with hooks: tests/process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .conftest import Launcher

PROGRAM = "import sys\nsys.exit(int(sys.argv[1]))"
HOOKS = (
    *("--on-success", "echo success $DDP_RUN_OUTCOME"),
    *("--on-failure", 'test -s "$DDP_RUN_VERDICT"; echo failure $DDP_RUN_CAUSE rank $DDP_RUN_RANK verdict $?; exit 9'),
    *(
        "--on-end",
        # a keeper that was told to end may take a moment for that
        "for try in $(seq 50); do"
        " for pid in $(cat /proc/$PPID/task/*/children); do tr '\\0' ' ' < /proc/$pid/cmdline; done > below"
        "; grep -q 'keeper[.]py' below || break; sleep 0.1; done"
        "; sleep 300 & echo $! > background; echo end $DDP_RUN_EXIT_CODE",
    ),
)


@pytest.mark.parametrize("code", [4, pytest.param(0, marks=pytest.mark.slow_system)])
def test_hooks_run_before_the_last_line_and_change_nothing(ddp: Launcher, code: int) -> None:
    metrics = ddp.cwd / "hooks.prom"
    words = ("--nproc-per-node", 1, "--metrics", metrics, *HOOKS, ddp.script(PROGRAM), code)
    outcome = ddp(*words, env={"DDP_RUN_VERDICT_LINE": "1"})
    assert outcome.code == code
    assert outcome.last_line["exit"] == str(code)
    told = [line for line in outcome.stderr.splitlines() if line.split()[0] in ("success", "failure", "end")]
    first = "success succeeded" if code == 0 else "failure python-exception rank 0 verdict 0"
    assert told == [first, f"end {code}"]
    assert outcome.stdout == ""
    background = int((ddp.cwd / "run0/background").read_text())
    assert Path(f"/proc/{background}/cmdline").read_bytes().startswith(b"sleep"), "what a hook leaves lives on"
    os.kill(background, signal.SIGKILL)
    assert "keeper.py" not in (ddp.cwd / "run0/below").read_text()
    text, result = metrics.read_text(), "succeeded" if code == 0 else "failed"
    assert '\nddp_run_up{job_name="hooks"} 0\n' in text
    assert f'\nddp_run_exit_code{{job_name="hooks"}} {code}\n' in text
    assert f'\nddp_run_result_info{{job_name="hooks",outcome="{result}",' in text
    assert [path.name for path in ddp.cwd.iterdir() if "prom" in path.name] == ["hooks.prom"]
