"""How ranks ended, in the words of launchers."""

from __future__ import annotations

import signal

import pytest

from ddp_run.evidence.pasted.launcher_text import ends

SEGV, KILL, TERM = -signal.SIGSEGV, -signal.SIGKILL, -signal.SIGTERM


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("srun: error: node-a: task 3: Killed", [(3, KILL, "node-a")]),
        ("srun: error: node-a: tasks 0-1,5: Exited with exit code 1", [(n, 1, "node-a") for n in (0, 1, 5)]),
        ("srun: error: node-a: task 3: Exited with exit code 247", [(3, KILL, "node-a")]),
        ("srun: error: node-a: task 3: Exited with exit code 241", [(3, TERM, "node-a")]),
        ("srun: error: node-a: task 3: Exited with exit code 139", [(3, SEGV, "node-a")]),
        ("srun: error: node-a: task 3: Exited with exit code 255", [(3, 255, "node-a")]),
        ("srun: error: node-a: task 3: Out Of Memory", [(3, KILL, "node-a")]),
        (
            "mpirun noticed that process rank 2 with PID 4711 on node node-b exited on signal 11 (Segmentation fault).",
            [(2, SEGV, "node-b")],
        ),
        ("  Process name: [[12345,1],2]\n  Exit code:    3", [(2, 3, None)]),
        ("  Process name: [prterun-node-a-4711@1,0]\n  Exit code:    1", [(0, 1, None)]),
        ("ProcessExitedException: process 1 terminated with signal SIGKILL", [(1, KILL, None)]),
        ("ProcessExitedException: process 1 terminated with exit code 3", [(1, 3, None)]),
        ("ERROR:composer.cli.launcher:Rank 3 crashed with exit code -9.", [(3, KILL, None)]),
        ("['/usr/bin/python', '-u', 'train.py', '--local_rank=1'] exits with return code = -11", [(None, SEGV, None)]),
        ("run.sh: line 3: 4711 Killed                  python train.py", [(None, KILL, None)]),
        ("Segmentation fault (core dumped)", [(None, SEGV, None)]),
    ],
)
def test_an_end(text: str, expected: list[tuple[int | None, int, str | None]]) -> None:
    assert [(each.rank, each.code, each.host) for each in ends(["step 1", *text.split("\n"), "bye"])] == expected


@pytest.mark.parametrize(
    "text",
    [
        "srun: error: node-a: task 3: Exited with exit code 0",
        "  Process name: [[12345,1],2]\n  Exit code:    0",
        "exits with return code = 0",
        "the worker was Killed by its supervisor and started again",
        "Terminated early: the loss did not fall for 5 epochs",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "INFO: process 3 finished",
    ],
)
def test_no_end(text: str) -> None:
    assert ends(text.split("\n")) == ()


def test_the_line_is_named() -> None:
    assert [each.index for each in ends(["a", "b", "srun: error: node-a: task 3: Killed"])] == [2]
