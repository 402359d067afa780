"""The last resort, with real processes: what ends them where hardly anything works any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.headless import HEADLESS
from tests.waiting import limit, wait_until

from ddp_run.values import process_table

TREE = """
import os, resource, signal, subprocess, sys, time
from pathlib import Path
from ddp_run.supervise import children, ranks
from ddp_run.values import process_table
from ddp_run.values.helper_process import HelperProcesses

def alive():
    return [pid for pid in pids if process_table.is_alive(pid)]

daemon = "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); time.sleep(300)"
brought_along = children.BroughtAlong()
children.become_subreaper()
one = subprocess.Popen(["sleep", "300"])
other = subprocess.Popen([sys.executable, "-c", daemon], stdout=subprocess.PIPE, env={})
pids = [one.pid, int(other.stdout.readline())]
other.wait()
headless = subprocess.Popen([sys.executable, "-c", HEADLESS], stdout=subprocess.PIPE, env={})
pids += map(int, headless.stdout.readline().split())
while b") Z " not in Path(f"/proc/{headless.pid}/stat").read_bytes(): time.sleep(0.01)
assert alive() == pids
""".replace("HEADLESS", repr(HEADLESS))
"""A child, a daemon that no environment and no session tells of, a process without its main thread, and its child."""


def run(program: str, *within: str) -> str:
    done = subprocess.run(
        [*within, sys.executable, "-c", TREE + textwrap.dedent(program)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit(60),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_last_resort_needs_no_free_descriptor() -> None:
    program = """
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        taken = [os.dup(2) for _ in range(highest)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, before[1]))
        try:
            while True: taken.append(os.dup(2))
        except OSError:
            pass
        nothing_left = children.kill_everything_below(brought_along)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        print(nothing_left, alive())
    """
    assert run(program) == "True []\n"


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0,
    reason="may not take /proc away",
)
def test_without_proc_the_last_resort_says_that_it_does_not_know() -> None:
    program = """
        subprocess.run(["mount", "-t", "tmpfs", "none", "/proc"], check=True)
        nothing_left = children.kill_everything_below(brought_along)
        print(nothing_left, process_table.below(os.getpid()), ranks.find_ranks(one.pid), alive() == pids)
        for pid in pids: os.kill(pid, signal.SIGKILL)
    """
    assert run(program, "unshare", "--mount") == "False None [] True\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_an_exit_code_that_may_not_be_read_is_not_taken_for_0() -> None:
    """/proc shows 0 to whoever may not trace the process (proc(5), exit_code)."""
    program = """
        for pid in pids: os.kill(pid, signal.SIGKILL)
        def ended(code):
            pid = os.fork() or os._exit(code)
            while process_table.is_alive(pid): time.sleep(0.01)
            return pid, os.pidfd_open(pid)
        failed, well = ended(3), ended(0)
        print(ranks.read_exit_status(*failed), ranks.read_exit_status(*well))
        os.setresuid(65534, 65534, 65534)
        print(ranks.read_exit_status(*failed), ranks.read_exit_status(*well), process_table.is_alive(failed[0]))
    """
    assert run(program) == "768 0\nNone None False\n"


def test_numbers_that_are_no_process_of_the_job_get_no_signal() -> None:
    numbers = [0, -1, -os.getpid(), os.getpid(), 1 << 31, 1 << 80]
    assert process_table.send(dict.fromkeys(numbers, 0), 0) == ()


KEEPER = """
for pid in pids: os.kill(pid, signal.SIGKILL)
while alive(): time.sleep(0.01)
quiet = subprocess.DEVNULL
helpers = HelperProcesses()
keeper = children.Keeper("{run}", [Path("{folder}")], helpers, brought_along)
keeper.start()
carrier = subprocess.Popen(["sleep", "300"], env={{"DDP_RUN_ID": "{run}"}}, stdout=quiet, stderr=quiet)
print(carrier.pid)
"""


@pytest.mark.parametrize("how", ["dismissed too early", "replaced"])
def test_the_keeper_ends_what_is_left(tmp_path: Path, how: str) -> None:
    program = {
        "dismissed too early": """
            first = keeper.pid
            keeper.dismiss()
            print(subprocess.Popen(["sleep", "300"], stdout=quiet, stderr=quiet).pid, flush=True)
            while process_table.is_alive(first): time.sleep(0.01)
        """,
        "replaced": """
            first = keeper.pid
            os.kill(first, signal.SIGKILL)
            assert os.waitpid(first, 0)[0] == first
            assert helpers.reaped(first) and keeper.pid not in (None, first)
        """,
    }[how]
    folder = tmp_path / "socket"
    folder.mkdir()
    told = KEEPER.format(run=tmp_path.name, folder=folder) + textwrap.dedent(program)
    carrier, *later = map(int, run(told).split())
    wait_until(lambda: not process_table.is_alive(carrier), "the carrier's end")
    wait_until(lambda: not folder.exists(), "the folder's end")
    for pid in later:  # started when the job was over
        assert process_table.is_alive(pid)
        os.kill(pid, signal.SIGKILL)


def test_the_keeper_is_dismissed_where_nothing_is_left(tmp_path: Path) -> None:
    program = """
        carrier.kill()
        while process_table.is_alive(carrier.pid): time.sleep(0.01)
        pid = keeper.pid
        keeper.dismiss()
        assert not process_table.is_alive(pid)
    """
    run(KEEPER.format(run=tmp_path.name, folder=tmp_path) + textwrap.dedent(program))
    assert tmp_path.exists()


HIDDEN = """
import os, subprocess, sys, time
from pathlib import Path
from ddp_run.supervise import children
from ddp_run.observe.process_look import process
from ddp_run.values.helper_process import HelperProcesses

def started(words):
    return subprocess.Popen(words, stdout=subprocess.PIPE, env={})

children.become_subreaper()
keeper = children.Keeper(sys.argv[1], [Path(sys.argv[2])], HelperProcesses(), children.BroughtAlong())
keeper.start()
daemon = "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); time.sleep(300)"
child = "import subprocess, time; p = subprocess.Popen(['sleep', '300'], env={})\\n"
child += "print(p.pid, flush=True); time.sleep(300)"
pids = [int(started([sys.executable, "-c", program]).stdout.readline()) for program in (daemon, child)]
pids += map(int, started([sys.executable, "-c", HEADLESS]).stdout.readline().split())
print(*pids, flush=True)
before = process(keeper.pid).switches
while process(keeper.pid).switches < before + 3: time.sleep(0.05)
os.kill(os.getpid(), 9)
""".replace("HEADLESS", repr(HEADLESS))


def test_the_keeper_finds_what_hides_from_it(tmp_path: Path) -> None:
    """A daemon (two forks, a session of its own), a child's child, what has no main thread: without environments."""
    words = [sys.executable, "-c", HIDDEN, tmp_path.name, str(tmp_path / "none")]
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=limit(60))
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 4
    try:
        wait_until(lambda: not any(map(process_table.is_alive, pids)), "their end", 20)
    finally:
        for pid in filter(process_table.is_alive, pids):
            os.kill(pid, signal.SIGKILL)
