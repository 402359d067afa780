"""The kernel's log, core dumps and free space: from the machine to evidence and back out of a journal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Set
from pathlib import Path

import pytest
from tests.begun_run import begun_run
from tests.waiting import wait_until

from ddp_run.evidence.model import Death, Evidence, LogText
from ddp_run.evidence.resources import MemoryTrend, MemoryUse
from ddp_run.judge.advice import by_core
from ddp_run.observe import core_dump, kernel_log
from ddp_run.observe.file_systems import answers, ask_for_space
from ddp_run.observe.kernel_log import KernelLog, text_of
from ddp_run.record import journal
from ddp_run.record.events import (
    CoreDumped,
    Event,
    KernelLogged,
    LocalRank,
    MemorySampled,
    MonotonicNs,
    Rank,
    RankStarted,
    SpaceCounted,
)
from ddp_run.supervise.attempt_watch import AttemptWatch
from ddp_run.supervise.children import end_leftovers
from ddp_run.supervise.loop import Loop, reap
from ddp_run.supervise.ranks import Ranks
from ddp_run.values.helper_process import HelperProcess
from ddp_run.values.process_table import below
from ddp_run.values.words import size_in_words

AT = MonotonicNs(7)
GIB = 1 << 30


# ------------------------------------------------------------------------------------- the kernel's log


def test_a_record_of_the_kernels_log() -> None:
    record = b"6,339,5140900,-;Killed process 12 (python)\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n"
    assert text_of(record) == "[    5.140900] Killed process 12 (python)"
    assert text_of(b"4,1,11203022969,-,caller=T1;a\\x1b\x07b\xff") == "[11203.022969] a\\x1b b\ufffd"
    assert text_of(b" SUBSYSTEM=acpi") is None
    assert text_of(b"") is None


@pytest.mark.parametrize(
    "line",
    [
        "Memory cgroup out of memory: Killed process 19405 (python) total-vm:553784kB, anon-rss:539520kB",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,task=python,pid=19405,uid=0",
        "python[731]: segfault at 0 ip 00007f0c2a sp 00007ffd error 4 in libtorch_cpu.so[7f0c29000000+9000]",
        "traps: python[731] general protection fault ip:55d0 sp:7ffc error:0 in python3.11",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
        "mce: [Hardware Error]: Machine check events logged",
        "blk_update_request: I/O error, dev nvme0n1, sector 4096",
        "nfs: server filer not responding, still trying",
        "INFO: task python:811 blocked for more than 120 seconds.",
    ],
)
def test_lines_that_can_concern_a_death(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert kept(monkeypatch, tmp_path, [line]) == [f"[    1.000000] {line}"]


@pytest.mark.parametrize(
    "line",
    [
        "docker0: port 1(veth0) entered blocking state",
        "usb 1-1: new high-speed USB device number 2 using xhci_hcd",
        "perf: interrupt took too long (2500 > 2495), lowering kernel.perf_event_max_sample_rate to 80000",
        "[  12]     0    12   138446   135000   1112 0 python",
    ],
)
def test_lines_that_cannot(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert kept(monkeypatch, tmp_path, [line]) == []


def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: list[str]) -> list[str]:
    """What is kept of lines logged after the opening; a plain file stands for the device, a line for each read."""
    path = tmp_path / "kmsg"
    path.write_text("3,1,500000,-;Killed process 1 (before)\n")
    monkeypatch.setattr(kernel_log, "_KMSG", str(path))
    log = KernelLog.open()
    records = [f"3,{number},1000000,-;{line}\n" for number, line in enumerate(lines, 2)]
    width = max(map(len, records), default=0)
    monkeypatch.setattr(kernel_log, "_RECORD_BYTES", width)
    with path.open("a") as file:
        file.writelines(record[:-1].ljust(width - 1) + "\n" for record in records)
    logged = log.read(AT)
    log.close()
    return [] if logged is None else [line.rstrip() for line in logged.lines]


def test_the_log_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = [f"Killed process {number} (python)" for number in range(1000)]
    found = kept(monkeypatch, tmp_path, lines)
    assert len(found) == 200
    assert found[0].endswith(lines[0])
    assert found[-1].endswith(lines[-1])


def test_a_log_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_log, "_KMSG", str(tmp_path / "none"))
    log = KernelLog.open()
    assert log.read(AT) is None
    log.close()


def test_a_kill_is_found_by_pid_where_pids_are_ours() -> None:
    lines = ("[1.0] Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB",)
    ours = Evidence(kernel=LogText("kernel", lines, None), kernel_pids=True)
    quote = ours.killed_for_memory(4242)
    assert quote is not None
    assert (quote.source, quote.line, quote.text) == ("kernel", None, lines[0])
    assert ours.killed_for_memory(424) is None
    assert ours.killed_for_memory(None) is None
    assert Evidence(kernel=LogText("kernel", lines, None)).killed_for_memory(4242) is None


# --------------------------------------------------------------------------------------------- space


def asked(question: HelperProcess, enough: int | None = None) -> list[SpaceCounted]:
    """All answers, or the first few."""
    found: list[SpaceCounted] = []

    def come() -> bool:
        more, over = answers(question, SpaceCounted, AT)
        found.extend(more)
        return over or len(found) == enough

    wait_until(come, "the answers")
    return found


def test_space_of_paths_some_of_which_are_not_there(tmp_path: Path) -> None:
    question = ask_for_space([str(tmp_path), str(tmp_path / "none"), "/proc"])
    found = asked(question)
    question.end()
    os.waitpid(question.pid, 0)
    assert [each.path for each in found] == [str(tmp_path), "/proc"]
    assert found[0].total == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert 0 < found[0].free <= found[0].total


def test_a_path_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: time.sleep(600) if "dead" in path else real(path))
    question = ask_for_space([str(tmp_path), "/dead"])
    assert [each.path for each in asked(question, enough=1)] == [str(tmp_path)]
    assert answers(question, SpaceCounted, AT) == ([], False)
    question.end()
    assert os.waitstatus_to_exitcode(os.waitpid(question.pid, 0)[1]) == -signal.SIGKILL


def test_what_does_not_end_is_looked_for_less_and_less_often() -> None:
    """Each look reads all of /proc, while ranks' last lines wait to be shown."""
    looks: list[int] = []
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    with (
        Loop([signal.SIGCHLD]) as loop,
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as deaf,
    ):
        assert deaf.stdout is not None
        deaf.stdout.readline()
        others = {pid for pid in below(os.getpid()) or {} if pid != deaf.pid}
        events: list[Event] = []

        def serve(at_most_s: float) -> bool:
            looks.append(1)
            loop.wait(at_most_s)
            return False

        def left(but: Set[int] = frozenset()) -> dict[int, int]:
            return below(os.getpid(), others | but) or {}

        end_leftovers(left, serve, events.append, grace_s=1.0, killed=set())
    assert deaf.returncode == -signal.SIGKILL
    assert len(looks) < 15


def test_whoever_reaped_it_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ask_for_space([str(tmp_path)])
    asked(question)
    wait_until(lambda: question.pid in dict(reap()), "its end")
    question.reaped = True
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _signum: killed.append(pid))
    question.end()
    assert killed == []


def test_what_asks_nvml_is_ddp_runs_own_until_it_is_reaped(tmp_path: Path) -> None:
    """A driver that hangs keeps it from ending; taken for a leftover of the job, it cost 5.5 s and was called one."""
    said = list[Event]()
    with Loop([]) as loop, begun_run(tmp_path, loop) as run:
        ranks = Ranks(0, loop, lambda: None, lambda _: None)
        watch = AttemptWatch(run, said.append, ranks, tmp_path, {"CUDA_VISIBLE_DEVICES": "0"}, lambda: True)
        watch.rank_starts(start(os.getpid()))
        (pid,) = run.helpers.pids
        watch._stop_looking_at_gpus("no answer")
        assert run.helpers.pids == {pid}
        wait_until(lambda: pid in dict(reap()), "its end")
        assert run.helpers.reaped(pid)
        assert not run.helpers.pids
        watch.rest()
        watch.close()


@pytest.mark.parametrize(
    ("found", "full"),
    [
        (SpaceCounted(AT, "/dev/shm", 0, 64 << 20, 0, 0), True),
        (SpaceCounted(AT, "/dev/shm", 2 << 20, 64 << 20, 0, 0), True),
        (SpaceCounted(AT, "/dev/shm", 32 << 20, 64 << 20, 0, 0), False),
        (SpaceCounted(AT, "/data", 70 * GIB, 8000 * GIB, 0, 0), False),
        (SpaceCounted(AT, "/data", 32 << 20, 8000 * GIB, 0, 0), True),
        (SpaceCounted(AT, "/data", 70 * GIB, 8000 * GIB, 0, 1000), True),
        (SpaceCounted(AT, "/btrfs", 70 * GIB, 100 * GIB, 0, 0), False),
        (SpaceCounted(AT, "/proc", 0, 0, 0, 0), False),
    ],
)
def test_nearly_full(found: SpaceCounted, full: bool) -> None:
    assert found.nearly_full is full


# ------------------------------------------------------------------------------------------ core dumps


def start(pid: int) -> RankStarted:
    return RankStarted(AT, Rank(3), LocalRank(3), 1, pid, 4, 4, "attempt_0/rank_3")


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "name"),
    [
        ("core", "0", "core"),
        ("core", "1", "core.77"),
        ("core.%e.%p.%t", "0", "core.python.77.1700000000"),
        ("core-%e-%%-%P", "1", "core-python-%-1077"),
        ("{here}/cores/core.%p", "1", "cores/core.77"),
    ],
)
def test_where_the_core_is(
    pattern: str, uses_pid: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(core_dump, "_PATTERN", tmp_path / "core_pattern")
    monkeypatch.setattr(core_dump, "_USES_PID", tmp_path / "core_uses_pid")
    (tmp_path / "core_pattern").write_text(pattern.format(here=tmp_path) + "\n")
    (tmp_path / "core_uses_pid").write_text(uses_pid + "\n")
    assert core_dump.find(AT, start(77)).path is None
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\x7fELF")
    (tmp_path / "core.python.9.1700000000").write_bytes(b"another's")
    assert core_dump.find(AT, start(77)).path == str(path)
    os.utime(path, (1, 1))
    assert core_dump.find(AT, start(77)).path is None


def test_a_program_gets_the_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = "|/usr/lib/systemd/systemd-coredump %P %u %g"
    (tmp_path / "core_pattern").write_text(handler)
    monkeypatch.setattr(core_dump, "_PATTERN", tmp_path / "core_pattern")
    assert core_dump.find(AT, start(77)) == CoreDumped(AT, Rank(3), 1, handler, None)


def test_what_to_do_with_a_core() -> None:
    assert by_core(Death(Rank(0), pid=5)) == ()
    assert "'/tmp/my core'" in by_core(Death(Rank(0), pid=5, core="/tmp/my core"))[0]
    assert by_core(Death(Rank(0), pid=5, core="|/usr/lib/systemd/systemd-coredump %P")) == ("coredumpctl info 5",)
    assert "/usr/share/apport/apport " in by_core(Death(Rank(0), pid=5, core="|/usr/share/apport/apport -p%p"))[0]


# ---------------------------------------------------------------------------------------- memory trend


def test_memory_in_words() -> None:
    ended = MonotonicNs(100_000_000_000)
    first, last = MemoryUse(AT, 2 * GIB, 0), MemoryUse(MonotonicNs(96_000_000_000), 60 * GIB, GIB // 2, GIB)
    trend = MemoryTrend(first, last, 62 * GIB, ended)
    words = "resident memory 2.0 GiB, then 60.0 GiB 4.0 s before its end, of 62.0 GiB here; its child processes 512 MiB"
    assert trend.words == words
    assert trend.nearly_all
    roomy = MemoryTrend(first, MemoryUse(AT, 2 * GIB, 0, 50 * GIB), 62 * GIB, ended)
    assert not roomy.nearly_all
    in_cgroup = MemoryTrend(first, MemoryUse(AT, 2 * GIB, 0, 1), 62 * GIB, ended, cgroup=True)
    assert not in_cgroup.nearly_all


def test_sizes() -> None:
    assert [size_in_words(n) for n in (0, 1023, 1 << 20, 3 << 29, 800 << 30)] == [
        "0 B",
        "1023 B",
        "1.0 MiB",
        "1.5 GiB",
        "800 GiB",
    ]


# ----------------------------------------------------------------------------------------- the journal


def test_events_there_and_back() -> None:
    events: list[Event] = [
        MemorySampled(AT, (Rank(0), Rank(1)), (1, 2), (0, 3), 4, 5, None, None, 6, 7),
        SpaceCounted(AT, "/dev/shm", 1, 2, 3, 4),
        KernelLogged(AT, ("[1.0] a", "[2.0] b"), 0, True),
        CoreDumped(AT, Rank(1), 0, "|/x %p", None),
    ]
    assert [journal.decode(journal.encode(event, "2026")) for event in events] == events
