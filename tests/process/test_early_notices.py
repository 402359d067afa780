"""USR1 and USR2 that come while ddp-run waits for the master's name: they are for ranks, and there are none yet."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from tests.ports import unused_port
from tests.system.conftest import DDP_RUN, Launcher, Running, ddp, disposition
from tests.waiting import limit, wait_until

__all__ = ["ddp"]

NOTICES = (signal.SIGUSR1, signal.SIGUSR2)


def waits_for_name(running: Running) -> int:
    """How often it has said so."""
    return running.console().count("waiting for DNS: late-master.invalid")


def waited_on(running: Running) -> None:
    """It has asked for the name again."""
    before = waits_for_name(running)
    wait_until(lambda: waits_for_name(running) > before, lambda: f"another look-up: {running.console()}")


def started(ddp: Launcher, within: list[str] | None = None) -> Running:
    words = ["--nnodes", 2, "--node-rank", 0, "--master-addr", "late-master.invalid", "--master-port", unused_port()]
    running = ddp.start(*words, ddp.script("raise SystemExit(3)"), within=within or ())
    waited_on(running)
    return running


@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN], ids=["default", "ignored"])
def test_they_end_nothing_while_a_name_is_waited_for(ddp: Launcher, inherited: signal.Handlers) -> None:
    with disposition(signal.SIGUSR1, inherited), disposition(signal.SIGUSR2, inherited):
        running = started(ddp)
    for signum in NOTICES:
        running.signal(signum)
    waited_on(running)
    running.signal(signal.SIGTERM)
    assert running.process.wait(limit(60)) == -signal.SIGTERM
    assert running.folder is None


def own_address() -> str | None:
    """One that is not loopback; null where this host has none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def ignored_by(pid: int) -> set[signal.Signals]:
    mask = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    return {signum for signum in NOTICES if int(mask.split()[1], 16) >> (signum - 1) & 1}


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a private /etc/hosts needs root")
@pytest.mark.skipif(own_address() is None, reason="this host has no address but loopback")
def test_they_are_told_of_once_the_job_starts_and_nothing_inherits_it(ddp: Launcher, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    bind = 'mount --bind "$0" /etc/hosts; exec "$@"'
    running = started(ddp, ["unshare", "--mount", "sh", "-euc", bind, str(hosts)])
    running.signal(signal.SIGUSR1)
    waited_on(running)
    hosts.write_text(f"127.0.0.1 localhost\n{own_address()} late-master.invalid\n")
    (agent,) = running.wait_for("AgentStarted")
    said = "warning: SIGUSR1 arrived before any rank existed, so no rank got it"
    wait_until(lambda: said in running.console(), lambda: f"{said}: {running.console()}")
    assert ignored_by(agent["pid"]) == set()
    running.signal(signal.SIGUSR2)
    said = "SIGUSR2 not forwarded: no rank is running"
    wait_until(lambda: said in str(running.events("Noted")), lambda: f"{said}: {running.events('Noted')}")
    running.signal(signal.SIGTERM)
    assert running.wait().code == 143
    running.assert_nothing_left()


@pytest.mark.slow_system
def test_a_mistyped_name_on_a_terminal_is_waited_for_no_longer_than_somebody_watches(tmp_path: Path) -> None:
    leader, console = os.openpty()
    words: list[str | Path] = [
        DDP_RUN,
        "--nnodes=2",
        "--node-rank=1",
        "--master-addr=localhots",
        "--master-port=29500",
        "train.py",
    ]
    (tmp_path / "train.py").touch()
    with subprocess.Popen(words, cwd=tmp_path, stdin=console, stdout=console, stderr=console) as process:
        os.close(console)
        shown = b""
        with suppress(OSError):  # EIO: the other side is closed
            while read := os.read(leader, 4096):
                shown += read
        code = process.wait(limit(60))
    os.close(leader)
    text = shown.decode()
    if "temporary failure" in text.lower():
        pytest.skip("there is no name server, so nothing says that the name isn't there")
    assert code == 2
    assert " s of 10 s)" in text
    assert "localhots has no address after 1" in text
    assert "--master-addr=localhost   # did you mean this host?" in text
