"""Node 0 makes room for many nodes, and what it starts does not notice."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.waiting import limit

SHOWS = """
import resource, subprocess, sys
from ddp_run.supervise import open_files

def soft():
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
found = []
for sockets in (10, 500, 900, 5000):
    open_files.make_room(sockets)
    found.append(soft())
print(*found, flush=True)
subprocess.run(["sh", "-c", "ulimit -n"], preexec_fn=open_files.give_back)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "shown", "of_children"),
    [
        (300, 2000, "300 756 1156 2000", "300"),
        (1024, 1024, "1024 1024 1024 1024", "1024"),
        (2000, 9999, "2000 2000 2000 5256", "2000"),
    ],
)
def test_as_much_as_the_hard_limit_allows(soft: int, hard: int, shown: str, of_children: str) -> None:
    words = [sys.executable, "-c", SHOWS, str(soft), str(hard)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=limit(60), check=True)
    assert done.stdout.splitlines() == [shown, of_children]
