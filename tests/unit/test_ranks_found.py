"""Ranks that cannot say hello are found among the agent's children."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.waiting import wait_until

from ddp_run.supervise.ranks import find_ranks

RANK = {"RANK": "3", "TORCHELASTIC_RESTART_COUNT": "0"}


def test_only_children_of_the_agent_are_ranks() -> None:
    with (
        subprocess.Popen(["sleep", "60"], env={**os.environ, **RANK}) as rank,
        subprocess.Popen(["sleep", "60"]) as helper,
    ):
        try:
            found = wait_until(lambda: find_ranks(os.getpid()), "the rank")
            assert [(pid, environ["RANK"]) for pid, environ in found] == [(rank.pid, "3")]
            assert find_ranks(rank.pid) == []
        finally:
            rank.kill()
            helper.kill()
    assert find_ranks(rank.pid) == []


def test_the_kernel_is_asked_for_the_children_alone() -> None:
    """Not /proc for each process of the host: it is done every two seconds while nodes are waited for."""
    look = "from ddp_run.supervise.ranks import find_ranks; find_ranks(os.getpid())"
    program = f"import os, sys; {look}; print('psutil' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
