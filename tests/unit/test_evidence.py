"""What is gathered from a journal and the files of a run, by real files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddp_run.evidence import gather as evidence_module
from ddp_run.evidence.gather import gather
from ddp_run.evidence.log_tail import GrowingLog, read_tail
from ddp_run.evidence.scan import LINE_CHARS
from ddp_run.judge.diagnose import judge
from ddp_run.record.events import (
    AgentExited,
    AgentStarted,
    AttemptStarted,
    CoreDumped,
    Event,
    ExceptionInfo,
    HangTimedOut,
    KernelLogged,
    LocalRank,
    MemoryCounted,
    MemorySampled,
    MonotonicNs,
    NativeFramesSeen,
    NotEnded,
    ProgressSampled,
    Rank,
    RankExited,
    RankFailed,
    RankFinished,
    RankPhase,
    RankStarted,
    RankUnwinds,
    RunStarted,
    SignalReceived,
    SignalSent,
    SpaceCounted,
    StallSeen,
    Target,
)

SUMMARY = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
"""


def ns(value: int) -> MonotonicNs:
    return MonotonicNs(value)


def run_started() -> RunStarted:
    argv = ("ddp-run", "--nproc-per-node", "2", "train.py", "--lr", "3")
    return RunStarted(ns(0), 1, "run", "node-a", 0, 1, argv, 0, "by-cause", 30.0, 0, "0.1.0")


def hello(rank: int, restart: int = 0) -> RankStarted:
    folder = f"attempt_0/rank_{rank}" if restart == 0 else f"attempt_0/restart_{restart}/rank_{rank}"
    pid = 100 + rank + 10 * restart
    return RankStarted(ns(5), Rank(rank), LocalRank(rank), restart, pid, 2, 2, folder)


def failed(at: int, rank: int, code: int) -> RankFailed:
    return RankFailed(ns(at), Rank(rank), 0, code, None)


def exited(at: int, rank: int, code: int | None, restart: int = 0) -> RankExited:
    return RankExited(ns(at), Rank(rank), restart, code)


def start() -> list[Event]:
    return [run_started(), AttemptStarted(ns(1), 0, (), None), AgentStarted(ns(2), 50), hello(0), hello(1)]


def test_deaths_leavers_and_the_agents_term(tmp_path: Path) -> None:
    events = [*start(), exited(20, 1, 3), exited(30, 0, -15), AgentExited(ns(40), 1)]
    evidence = gather(tmp_path, events, 0)
    assert [(d.rank, d.code, d.signals_sent) for d in evidence.deaths] == [(1, 3, ()), (0, -15, (15,))]
    assert (evidence.script, evidence.world_size, evidence.started) == ("train.py", 2, 2)
    assert gather(tmp_path, [*start(), exited(20, 1, 0), exited(30, 0, 0)], 0).clean_exits[0].rank == 1


def test_a_rank_has_left_when_its_program_ends(tmp_path: Path) -> None:
    """Its connections are closed from then on; its process may take seconds more."""
    finished = RankFinished(ns(10), Rank(1), 0)
    events = [*start(), finished, failed(20, 0, 1), exited(5_000_000_000, 1, 0), exited(6_000_000_000, 0, 1)]
    assert [leaver.died_at for leaver in gather(tmp_path, events, 0).clean_exits] == [10]
    code_at_exit = [*start(), finished, exited(20, 1, 17), exited(30, 0, -15)]
    assert [death.rank for death in gather(tmp_path, code_at_exit, 0).deaths] == [1, 0]


def test_a_rank_that_failed_was_not_told_to_end_by_a_signal_that_came_later(tmp_path: Path) -> None:
    """It cleaned up on the way of sys.exit, its peer lost it and ended first, and the agent ended it."""
    (tmp_path / "attempt_0").mkdir()
    (tmp_path / "attempt_0" / "agent.log").write_text(
        f"W1 api.py:9] Sending process {hello(1).pid} closing signal SIGTERM\n"
    )
    events = [*start(), failed(10, 0, 3), failed(17, 1, 4), exited(700, 0, 3), exited(740, 1, -15)]
    deaths = gather(tmp_path, events, 0).deaths
    assert [(death.rank, death.code, death.signals_sent) for death in deaths] == [(0, 3, ()), (1, 4, ())]


IN_A_WORKER = """Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/me/data.py", line 28, in __getitem__
    raise KeyError(f"sample {index} has no label")
KeyError: 'sample 41 has no label'
"""


def test_what_a_dataloader_worker_raised_stands_where_it_was_raised(tmp_path: Path) -> None:
    raised = ExceptionInfo("KeyError", IN_A_WORKER, "/home/me/train.py", 53, "main")
    events = [*start(), RankFailed(ns(10), Rank(1), 0, 1, raised), exited(20, 1, 1)]
    exception = gather(tmp_path, events, 0).deaths[0].exception
    assert exception is not None
    assert (exception.type, exception.file, exception.line) == ("KeyError", "/home/me/data.py", 28)
    in_torch = replace(
        raised, message=IN_A_WORKER.replace("/home/me/data.py", "/venv/lib/python3.11/site-packages/torch/x.py")
    )
    events = [*start(), RankFailed(ns(10), Rank(1), 0, 1, in_torch), exited(20, 1, 1)]
    exception = gather(tmp_path, events, 0).deaths[0].exception
    assert exception is not None
    assert (exception.file, exception.line) == ("/home/me/train.py", 53)


def test_the_agents_log_says_whom_it_signalled(tmp_path: Path) -> None:
    (tmp_path / "attempt_0").mkdir()
    (tmp_path / "attempt_0" / "agent.log").write_text("W1 api.py:9] Sending process 999 closing signal SIGTERM\n")
    events = [*start(), exited(20, 1, 3), exited(30, 0, -15)]
    assert [d.signals_sent for d in gather(tmp_path, events, 0).deaths] == [(), ()]


def test_a_rank_that_had_failed_keeps_its_code_when_it_is_ended_by_our_signal(tmp_path: Path) -> None:
    sent = SignalSent(ns(40), Target.RANKS, 9, (101,), "grace is over")
    evidence = gather(tmp_path, [*start(), failed(10, 1, 7), sent, exited(50, 1, -9), exited(60, 0, -15)], 0)
    first = evidence.deaths[0]
    assert (first.rank, first.code, first.signals_sent) == (1, 7, ())


def test_a_code_that_nobody_could_read_comes_from_the_agent(tmp_path: Path) -> None:
    (tmp_path / "attempt_0").mkdir()
    (tmp_path / "attempt_0" / "agent.log").write_text(SUMMARY.format(rank=1, code=-11, pid=101))
    evidence = gather(tmp_path, [*start(), exited(10, 0, None), exited(20, 1, None), AgentExited(ns(40), 1)], 0)
    assert [(d.rank, d.code) for d in evidence.deaths] == [(1, -11)]
    assert [leaver.rank for leaver in evidence.clean_exits] == [0]


SPAWNED = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 87, in _wrap
    fn(i, *args)
  File "/home/user/train.py", line 4, in worker
    raise ValueError("bad sample")
ValueError: bad sample
"""


def test_what_a_spawned_child_raised_is_the_ranks_exception(tmp_path: Path) -> None:
    kind = "torch.multiprocessing.spawn.ProcessRaisedException"
    info = ExceptionInfo(kind, SPAWNED, "/home/user/train.py", 9, "<module>", f"Traceback …\n{kind}: {SPAWNED}")
    watched = replace(hello(1), watched=True)
    events = [*start()[:4], watched, RankFailed(ns(10), Rank(1), 0, 1, info), exited(20, 1, 1), exited(30, 0, -15)]
    death = gather(tmp_path, events, 0).deaths[0]
    assert death.exception is not None
    assert (death.exception.type, death.exception.message) == ("ValueError", "bad sample")
    assert (death.exception.file, death.exception.line, death.exception.function) == (
        "/home/user/train.py",
        4,
        "worker",
    )
    assert death.phase is None, "the child's is not known"


def phase(at: int, rank: int, name: str) -> RankPhase:
    return RankPhase(ns(at), Rank(rank), 0, name)


def test_what_is_cleaned_up_after_a_failure_is_no_phase_of_it(tmp_path: Path) -> None:
    watched = replace(hello(1), watched=True)
    events = [*start()[:4], watched, phase(10, 1, "training"), failed(20, 1, 1), phase(21, 1, "shutdown")]
    assert gather(tmp_path, [*events, exited(30, 1, 1)], 0).deaths[0].phase == "training"


def sampled(at: int, *steps: int) -> ProgressSampled:
    ranks = tuple(Rank(rank) for rank in range(len(steps)))
    return ProgressSampled(ns(at), ranks, ("training",) * len(steps), steps, steps)


def test_where_the_ranks_were_when_the_job_was_told_to_stop(tmp_path: Path) -> None:
    watched = [replace(hello(rank), watched=True) for rank in (0, 1)]
    phases: list[Event] = [phase(10, 0, "training"), phase(11, 1, "training")]
    stop: list[Event] = [sampled(30, 1841, 1840), SignalReceived(ns(31), 15)]
    ends: list[Event] = [phase(40, 0, "shutdown"), sampled(45, 1900, 1900), exited(50, 0, 0), exited(51, 1, -15)]
    events: list[Event] = [*start()[:3], *watched, *phases, *stop, *ends]
    verdict = judge(gather(tmp_path, events, 0))
    assert (verdict.outcome, verdict.phase, verdict.step) == ("interrupted", "training", 1840)
    behind = judge(gather(tmp_path, [each for each in events if each != phases[1]], 0))
    assert (behind.phase, behind.step) == ("before-init", 1840)
    unseen = judge(gather(tmp_path, [*start(), *stop[1:], *ends], 0))
    assert (unseen.outcome, unseen.phase, unseen.step) == ("interrupted", None, None)


def test_where_the_ranks_were_when_their_agent_was_killed(tmp_path: Path) -> None:
    watched = [replace(hello(rank), watched=True) for rank in (0, 1)]
    phases: list[Event] = [phase(10, 0, "training"), phase(11, 1, "training")]
    ends: list[Event] = [exited(31, 0, -9), exited(32, 1, -9), sampled(33, 8, 7), AgentExited(ns(34), -9)]
    verdict = judge(gather(tmp_path, [*start()[:3], *watched, *phases, *ends], 0))
    assert (verdict.exit_code, verdict.phase, verdict.step) == (75, "training", 7)


@pytest.mark.parametrize("hung", [False, True])
def test_where_a_rank_was_that_left_while_others_needed_it(tmp_path: Path, hung: bool) -> None:
    watched = [replace(hello(rank), watched=True) for rank in (0, 1)]
    left: list[Event] = [phase(10, 1, "training"), sampled(19, 8, 7), RankFinished(ns(20), Rank(1), 0)]
    left += [phase(21, 1, "shutdown"), exited(22, 1, 0)]
    lost = ExceptionInfo(
        "RuntimeError", "[../third_party/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:12345"
    )
    ends: list[Event] = [RankFailed(ns(23), Rank(0), 0, 1, lost), exited(24, 0, 1)]
    if hung:
        stall = StallSeen(ns(30), "hang", True, "rank 0 waits", (Rank(1),), (Rank(0),), ns(20), ())
        ends = [stall, HangTimedOut(ns(40), 20.0), exited(41, 0, -15)]
    verdict = judge(gather(tmp_path, [*start()[:3], *watched, *left, *ends], 0))
    assert (verdict.exit_code, verdict.phase, verdict.step) == (124 if hung else 1, "training", 7)
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.exit_code) == (1, 0)


def test_only_the_last_restart_counts(tmp_path: Path) -> None:
    events = [*start(), exited(20, 1, 3), exited(21, 0, -15), hello(0, 1), hello(1, 1)]
    events += [exited(50, 0, 0, 1), exited(60, 1, 4, 1)]
    assert [(d.rank, d.code, d.pid) for d in gather(tmp_path, events, 0).deaths] == [(1, 4, 111)]


def test_without_the_bootstrap_the_agents_summary_is_the_source(tmp_path: Path) -> None:
    (tmp_path / "attempt_0" / "rank_1").mkdir(parents=True)
    (tmp_path / "attempt_0" / "agent.log").write_text(SUMMARY.format(rank=1, code=1, pid=77))
    text = 'Traceback (most recent call last):\n  File "t.py", line 3, in f\n    f()\nValueError: bad\n'
    (tmp_path / "attempt_0" / "rank_1" / "stderr.log").write_text(text)
    death = gather(tmp_path, start()[:3], 0).deaths[0]
    assert (death.rank, death.pid, death.failed_at) == (1, 77, None)
    assert death.exception is not None
    assert (death.exception.type, death.exception.line) == ("ValueError", 3)


@pytest.mark.parametrize(
    ("later", "code", "first"),
    [
        pytest.param([], -15, 1, id="ended on its way out"),
        pytest.param([RankPhase(MonotonicNs(19), Rank(1), 0, "init")], -15, 0, id="it went on"),
        pytest.param([], 0, 0, id="it ended well"),
        pytest.param([failed(21, 1, 3)], 3, 1, id="it reported its failure"),
    ],
)
def test_a_rank_that_is_ended_on_its_way_out_had_failed(
    tmp_path: Path, later: list[Event], code: int, first: int
) -> None:
    unwinds = RankUnwinds(ns(18), Rank(1), 0, 1, ExceptionInfo("KeyError", "3"))
    events = [*start(), unwinds, *later, failed(20, 0, 9), exited(22, 0, 9), exited(30, 1, code)]
    events.sort(key=lambda event: event.at)
    assert gather(tmp_path, events, 0).deaths[0].rank == (0 if later and code == 3 else first)


@pytest.mark.parametrize(
    ("function", "code", "sure"), [("<module>", 1, "certain"), ("fetch", 3, "likely"), ("fetch", 1, "likely")]
)
def test_an_exception_that_a_program_caught_and_printed_need_not_have_ended_it(
    tmp_path: Path, function: str, code: int, sure: str
) -> None:
    (tmp_path / "attempt_0" / "rank_1").mkdir(parents=True)
    text = f'Traceback (most recent call last):\n  File "t.py", line 3, in {function}\n    f()\nKeyError: 3\n'
    (tmp_path / "attempt_0" / "rank_1" / "stderr.log").write_text(text)
    verdict = judge(gather(tmp_path, [*start(), failed(19, 1, code), exited(20, 1, code), exited(30, 0, -15)], 0))
    assert (verdict.cause, verdict.confidence, verdict.exit_code) == ("python-exception", sure, code)
    said = "rank 1 had caught that KeyError and printed it before it exited"
    assert (said in verdict.notes) == (sure == "likely")


def test_memory_counts_and_the_first_stop_signal(tmp_path: Path) -> None:
    counts = [MemoryCounted(ns(3), 4, None), MemoryCounted(ns(90), 6, 1)]
    events = [*start(), counts[0], SignalReceived(ns(50), 10), SignalReceived(ns(60), 15), counts[1]]
    evidence = gather(tmp_path, events, 0)
    assert (evidence.host_oom_kills, evidence.cgroup_oom_kills) == (2, None)
    assert (evidence.stop_signal, evidence.stop_at) == (15, 60)


def looked(at: int, ranks: dict[int, tuple[int, int]], shm_free: int = 900, limit: int | None = None) -> MemorySampled:
    own, children = tuple(use[0] for use in ranks.values()), tuple(use[1] for use in ranks.values())
    return MemorySampled(ns(at), tuple(map(Rank, ranks)), own, children, 70, 100, limit and 1, limit, shm_free, 1000)


def test_the_trend_of_a_ranks_memory(tmp_path: Path) -> None:
    looks = [
        looked(4, {0: (99, 99), 1: (99, 99)}),  # a rank of that number, before this one's hello
        looked(6, {0: (1, 0), 1: (2, 0)}),
        looked(10, {0: (1, 0), 1: (20, 30)}),
        looked(15, {0: (1, 0), 1: (40, 5)}),
        looked(21, {0: (1, 0)}),
    ]
    evidence = gather(tmp_path, [*start(), *looks, exited(20, 1, -9), exited(30, 0, -15)], 0)
    trend = evidence.deaths[0].memory
    assert trend is not None
    assert (trend.first.own, trend.last.own, trend.last.at) == (2, 40, 15)
    assert (trend.limit, trend.cgroup, trend.ended_at, trend.last.available) == (100, False, 20, 70)
    limited = gather(tmp_path, [*start(), looked(6, {1: (2, 0)}, limit=50), exited(20, 1, -9)], 0).deaths[0].memory
    assert limited is not None
    assert (limited.limit, limited.cgroup) == (50, True)
    assert gather(tmp_path, [*start(), exited(20, 1, -9)], 0).deaths[0].memory is None


def test_free_space_at_the_first_death_and_of_shared_memory_the_least_seen_about_then(tmp_path: Path) -> None:
    second = 1_000_000_000
    counted = [
        SpaceCounted(ns(4), "/gone", 1, 1, 1, 1),  # of the start before
        SpaceCounted(ns(60 * second), "/dev/shm", 500, 1000, 5, 9),
        SpaceCounted(ns(60 * second), "/data", 7, 70, 0, 9),
    ]
    looks = [looked(10 * second, {1: (1, 1)}, 3), looked(57 * second, {1: (1, 1)}, 40)]
    evidence = gather(tmp_path, [*start(), *looks, exited(59 * second, 1, -7), *counted], 0)
    shared, data = evidence.space_of("/dev/shm"), evidence.space_of("/data")
    assert shared is not None
    assert (shared.free, shared.total) == (40, 1000)
    assert data is not None
    assert (data.free, data.free_inodes, data.total_inodes) == (7, 0, 9)
    assert evidence.space_of("/data/run") is None
    assert evidence.space_of("/gone") is None


def test_the_kernels_log_and_core_dumps(tmp_path: Path) -> None:
    events = [
        *start(),
        exited(20, 1, -11),
        CoreDumped(ns(21), Rank(1), 0, "core", "/here/core.101"),
        exited(22, 0, -6),
        CoreDumped(ns(23), Rank(0), 0, "|/usr/lib/systemd/systemd-coredump %P", None),
        KernelLogged(ns(30), ("[1.0] python[101]: segfault at 0",), 0, True),
    ]
    evidence = gather(tmp_path, events, 0)
    assert [death.core for death in evidence.deaths] == ["/here/core.101", "|/usr/lib/systemd/systemd-coredump %P"]
    assert (evidence.kernel.source, evidence.kernel.lines) == ("kernel", ("[1.0] python[101]: segfault at 0",))
    assert evidence.kernel.quote(0).line is None
    assert evidence.kernel_pids
    no_file = CoreDumped(ns(21), Rank(1), 0, "core", None)
    assert gather(tmp_path, [*start(), exited(20, 1, -11), no_file], 0).deaths[0].core is None
    assert gather(tmp_path, [*start(), exited(20, 1, -11)], 0).kernel.lines == ()


def test_a_handled_exception_far_from_the_end_is_not_the_cause(tmp_path: Path) -> None:
    (tmp_path / "attempt_0" / "rank_1").mkdir(parents=True)
    text = 'Traceback (most recent call last):\n  File "t.py", line 3, in f\n    f()\nOSError: retried\n'
    (tmp_path / "attempt_0" / "rank_1" / "stderr.log").write_text(text + "step\n" * 50)
    assert gather(tmp_path, [*start(), exited(20, 1, 3)], 0).deaths[0].exception is None


def test_the_end_of_a_log_has_true_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1, 5001)) + b"\xff\x00 50%\r 60%\rlast")
    tail = read_tail(tmp_path, "stderr.log", limit=1000)
    assert tail.quote(0).text == f"line {tail.quote(0).line}"
    assert len(tail.lines) < 200
    assert (tail.quote(len(tail.lines) - 1).line, tail.lines[-1]) == (5001, "last")
    assert read_tail(tmp_path, "stderr.log").lines[0] == "line 1"


def test_the_logs_of_many_ranks_share_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "LOG_BYTES", 1 << 20)
    line = b"x" * 99 + b"\n"
    for rank in range(8):
        folder = tmp_path / "attempt_0" / f"rank_{rank}"
        folder.mkdir(parents=True)
        for name in ("stderr.log", "stdout.log"):
            (folder / name).write_bytes(line * 10_000)
    events = [*start()[:3], *map(hello, range(8)), *(exited(20 + rank, rank, 1) for rank in range(8))]
    held = [log for death in gather(tmp_path, events, 0).deaths for log in (death.stderr, death.stdout)]
    assert sum(len(text) for log in held for text in log.lines) <= 1 << 20
    assert {log.number(len(log.lines) - 1) for log in held} == {10_000}
    alone = gather(tmp_path, [*events[:4], exited(20, 0, 1)], 0).deaths[0]
    assert len(alone.stderr.lines) > 4 * len(held[0].lines)


def test_of_a_long_line_the_two_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("first" + "x" * (1 << 20) + "last")
    (line,) = read_tail(tmp_path, "log").lines
    assert len(line) <= LINE_CHARS + 3
    assert line.startswith("first")
    assert line.endswith("last")


def test_a_folder_and_a_file_of_other_forms_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "attempt_0" / "restart_x" / "rank_1").mkdir(parents=True)
    (tmp_path / "attempt_0" / "rank_1").mkdir()
    (tmp_path / "attempt_0" / "agent.log").write_text(SUMMARY.format(rank=1, code=1, pid=77))
    (tmp_path / "attempt_0" / "rank_1" / "error.json").write_text("[" * 200_000)
    death = gather(tmp_path, start()[:3], 0).deaths[0]
    assert (death.rank, death.exception, death.stderr.source) == (1, None, "attempt_0/rank_1/stderr.log")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert read_tail(tmp_path, "none").lines == ()
    assert gather(tmp_path / "none", [], 0).deaths == ()


def test_a_growing_log_is_read_only_when_it_has_grown(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    log = GrowingLog(tmp_path, "agent.log")
    assert log.more() is None
    path.write_text("one\n")
    found = log.more()
    assert found is not None
    assert found.lines == ("one",)
    assert log.more() is None
    with path.open("a") as file:
        file.write("two\n")
    found = log.more()
    assert found is not None
    assert found.lines == ("one", "two")


def test_a_rank_that_could_not_be_ended_is_named_with_what_it_waits_for(tmp_path: Path) -> None:
    stalled = StallSeen(ns(30), "hang", False, "rank 1 stands", (Rank(1),), (Rank(0),), ns(10), ("rank 1: stands",))
    left = NotEnded(ns(60), hello(1).pid, Rank(1), 0, "D", "write to /mnt/x (fuse at /mnt)", "echo 1 > /sys/abort")
    child = NotEnded(ns(60), 99, None, None, "R", None, None)
    native = [NativeFramesSeen(ns(at), Rank(1), (f"  f (x.so:{at})",)) for at in (5, 40)]
    events = [*start(), native[0], stalled, native[1], HangTimedOut(ns(50), 40.0), exited(55, 0, -15), left, child]
    evidence = gather(tmp_path, events, 0)
    assert [(each.rank, each.code) for each in evidence.survivors] == [(1, None)]
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.exit_code, verdict.cause) == ("hung", 124, "hang")
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.pid) == (1, hello(1).pid)
    assert [quote.text for quote in verdict.evidence] == ["rank 1: stands", "rank 1, native frames:", "  f (x.so:40)"]
    assert verdict.evidence[0].source == "attempt_0/rank_1/live_stacks.txt"
    assert f"rank 1 (process {left.pid}) cannot be killed" in verdict.notes[1]
    assert verdict.notes[1].endswith("(state D): write to /mnt/x (fuse at /mnt)")
    assert verdict.notes[2] == "process 99 was still running after SIGKILL"
    assert "echo 1 > /sys/abort   # releases them" in verdict.advice
