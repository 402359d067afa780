"""Who is named, with which exit code: by values, one situation a test."""

from __future__ import annotations

import re
import signal
import sys
from dataclasses import replace
from types import FunctionType

import pytest

from ddp_run.evidence.model import AgentEnd, Death, Evidence, LogText, SummaryEntry
from ddp_run.judge import cut_log, rules
from ddp_run.judge.catalogue import Cause, catalogue, load
from ddp_run.judge.diagnose import judge
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule
from ddp_run.record.events import ExceptionInfo, LocalRank, MonotonicNs, Rank, SpaceCounted, StallSeen
from ddp_run.values import problem

PEER = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:12345"
SECOND = 1_000_000_000


def log(*lines: str) -> LogText:
    return LogText("attempt_0/rank_0/stderr.log", lines)


def death(
    rank: int,
    code: int | None,
    died: int | None = None,
    *,
    failed: int | None = None,
    raised: str | None = None,
    message: str = "",
    sent: tuple[int, ...] = (),
    stderr: LogText | None = None,
) -> Death:
    exception = ExceptionInfo(raised, message, "/home/user/train.py", 42, "main") if raised else None
    shown = stderr or (log(f"{raised}: {message}") if raised else log())
    return Death(
        rank=Rank(rank),
        local_rank=LocalRank(rank),
        pid=100 + rank,
        code=code,
        failed_at=None if failed is None else MonotonicNs(failed),
        died_at=None if died is None else MonotonicNs(died),
        exception=exception,
        signals_sent=sent,
        stderr=shown,
    )


def lost_peer(rank: int, died: int) -> Death:
    return death(rank, 1, died + 5, failed=died, raised="RuntimeError", message=PEER)


def leaver(rank: int, died: int) -> Death:
    return Death(Rank(rank), LocalRank(rank), pid=100 + rank, code=0, died_at=MonotonicNs(died))


def raised_by_agent(kind: str, message: str) -> AgentEnd:
    raised = ExceptionInfo(kind, message, "/site-packages/torch/distributed/run.py", 7, "main")
    return AgentEnd(1, log(f"{kind}: {message}"), exception=raised)


UV = "The server socket has failed to bind. port: 80, useIpv6: 0, code: -1, name: {}"
SUMMARY = SummaryEntry(Rank(0), LocalRank(0), "vm", 100, 0, None, "", root=False)


def run(*deaths: Death, clean_exits: tuple[Death, ...] = (), agent: AgentEnd | None = None, **more: object) -> Evidence:
    ended = sorted(deaths, key=lambda item: item.order)
    evidence = Evidence(
        deaths=tuple(ended),
        clean_exits=clean_exits,
        started=len(deaths) + len(clean_exits),
        agent=agent or AgentEnd(code=1 if deaths else 0),
    )
    for name, value in more.items():
        object.__setattr__(evidence, name, value)
    return evidence


def named(evidence: Evidence) -> tuple[str | None, int | None, int | None]:
    verdict = judge(evidence)
    first = verdict.first_failure
    return verdict.cause, None if first is None else first.rank, verdict.exit_code


def test_all_ended_with_0() -> None:
    verdict = judge(run(clean_exits=(leaver(0, 5), leaver(1, 6))))
    assert (verdict.outcome, verdict.exit_code, verdict.cause) == ("succeeded", 0, None)


def test_four_ranks_within_5_ms_the_earliest_is_named() -> None:
    ends = [death(0, 10, 5_000), death(1, 11, 3_000), death(2, 12, 1_000), death(3, 13, 4_000)]
    assert named(run(*ends))[1:] == (2, 12)


def test_slow_teardown_the_stamp_inside_the_rank_counts() -> None:
    culprit = death(3, 1, 1_500, failed=100, raised="KeyError", message="'channel_mean'")
    assert named(run(lost_peer(0, 300), lost_peer(1, 310), culprit)) == ("python-exception", 3, 1)


def test_a_peer_that_noticed_before_the_culprit_was_seen_is_not_named() -> None:
    evidence = run(lost_peer(0, 100), death(1, 7, 200, failed=200, raised="ValueError", message="bad"))
    verdict = judge(evidence)
    assert named(evidence) == ("python-exception", 1, 7)
    assert [(c.rank, c.reason) for c in verdict.collateral] == [(0, "lost its peer, rank 1")]
    assert verdict.title == "rank 1 raised ValueError in train.py:42: bad"


def test_a_rank_that_left_early_with_0_is_named() -> None:
    verdict = judge(run(lost_peer(0, 500), clean_exits=(leaver(1, 400),)))
    assert verdict.first_failure is not None
    assert (verdict.cause, verdict.first_failure.rank, verdict.first_failure.exit_code) == ("peer-died", 1, 0)
    assert verdict.exit_code == 1
    assert verdict.title == "rank 1 exited early (exit code 0) while rank 0 was still running"
    assert verdict.retry is not None
    assert not verdict.retry.helps


def test_a_rank_that_another_one_names_counts_with_its_own_code() -> None:
    """The reporter's code is not the culprit's; it stands in only where the culprit has none."""
    rule = Rule("named", "Named", "DDP599", Layer.CHANGEABLE, Retry(True, ""), "0.1")

    def names_rank_1(death: Death, _run: Evidence) -> Finding | None:
        return Finding(rule, "rank 0 waited for rank 1", culprit=Rank(1)) if death.rank == 0 else None

    causes = [*catalogue(), Cause(rule, match=names_rank_1)]
    reporter = death(0, 1, 100, raised="RuntimeError", message="rank 1 is missing")
    verdict = judge(run(reporter, death(1, 9, 200)), causes)
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.exit_code, verdict.exit_code) == (1, 9, 9)
    verdict = judge(run(reporter, death(1, -15, 200, sent=(15,))), causes)
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.exit_code, verdict.exit_code) == (1, None, 1)


def test_a_rank_that_ended_with_0_is_not_blamed_for_another_error() -> None:
    evidence = run(death(0, 1, 500, raised="ValueError", message="bad"), clean_exits=(leaver(1, 400),))
    assert named(evidence) == ("python-exception", 0, 1)


def test_a_rank_that_ended_with_0_is_blamed_though_its_peer_stamped_first() -> None:
    assert named(run(lost_peer(0, 500), clean_exits=(leaver(1, 500 + 20_000_000),))) == ("peer-died", 1, 1)


def test_a_rank_that_ended_with_0_later_is_not_blamed() -> None:
    assert named(run(lost_peer(0, 500), clean_exits=(leaver(1, 500 + 2_000_000_000),))) == ("peer-died", 0, 1)


def test_a_rank_that_left_without_a_word_is_the_peer_that_died() -> None:
    verdict = judge(run(lost_peer(0, 100), death(3, 77, 90)))
    assert named(run(lost_peer(0, 100), death(3, 77, 90))) == ("peer-died", 3, 77)
    assert verdict.title == "rank 3 exited early (exit code 77) while rank 0 was still running"


def test_a_rank_that_left_with_0_while_the_others_waited_for_ever() -> None:
    said = "rank 1 exited with code 0; rank 0 waits for it in barrier, 8 s"
    seen = StallSeen(MonotonicNs(9), "peer-died", True, said, (Rank(1),), (Rank(0),), MonotonicNs(1), ())
    left = Death(Rank(1), LocalRank(1), pid=101, code=0, died_at=MonotonicNs(5))
    told = replace(death(0, -15, 20, sent=(15,)), stderr=LogText("attempt_0/rank_0/stderr.log"))
    verdict = judge(
        Evidence(deaths=(told,), clean_exits=(left,), started=2, world_size=2, stall=seen, hung_s=8, folder="/r")
    )
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.exit_code, verdict.exit_code) == (1, 0, 124)
    assert verdict.advice == ("cat /r/attempt_0/rank_0/live_stacks.txt   # all threads of rank 0",)


def test_a_rank_that_failed_and_left_with_0_is_the_cause_where_the_others_needed_it() -> None:
    masked = death(1, 0, 2 * SECOND, failed=SECOND, raised="ValueError", message="bad shard")
    verdict = judge(run(masked, lost_peer(0, SECOND + 5), world_size=2))
    assert (verdict.outcome, verdict.exit_code, verdict.cause) == ("failed", 1, "python-exception")
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.exit_code) == (1, 0)
    alone = judge(run(masked, clean_exits=(leaver(0, 3 * SECOND),), agent=AgentEnd(-9), world_size=2))
    assert (alone.outcome, alone.exit_code) == ("succeeded", 0)
    assert alone.notes == ("rank 1 raised ValueError in train.py:42: bad shard; its process then exited with code 0",)
    unread = replace(masked, code=1, died_at=None)  # its own word, where the kernel's was not read
    assert judge(run(unread, clean_exits=(leaver(0, 3 * SECOND),), world_size=2)).outcome == "failed"


def test_the_agents_term_is_not_a_cause() -> None:
    evidence = run(death(0, -15, 50, sent=(15,)), death(1, 3, 100, raised="ValueError", message="late stamp"))
    assert named(evidence) == ("python-exception", 1, 3)
    assert judge(evidence).collateral[0].signal == "SIGTERM"


@pytest.mark.parametrize(
    ("code", "cause", "exit_code"),
    [
        (-9, "unknown", 137),
        (-11, "segfault", 139),
        (-6, "native-abort", 134),
        (-15, "preempted-sigterm", 143),
        (-2, "user-interrupt", 130),
        (3, "unknown", 3),
        (255, "unknown", 255),
    ],
)
def test_exit_codes_of_a_rank(code: int, cause: str, exit_code: int) -> None:
    assert named(run(death(1, code, 10), death(0, -15, 20, sent=(15,)))) == (cause, 1, exit_code)


@pytest.mark.parametrize("code", [-6, -7, -11])
def test_an_exception_is_the_cause_of_a_crash_on_the_way_out(code: int) -> None:
    evidence = run(death(1, code, 20, failed=10, raised="ValueError", message="bad"), death(0, -15, 30, sent=(15,)))
    assert named(evidence) == ("python-exception", 1, 128 - code)
    name = signal.Signals(-code).name
    assert judge(evidence).title == (
        f"rank 1 raised ValueError in train.py:42: bad; {name} then killed the process during shutdown"
    )
    handled = run(death(1, code, 20, raised="ValueError", message="bad"))
    assert named(handled)[0] == {-6: "native-abort", -7: "python-exception", -11: "segfault"}[code]


@pytest.mark.parametrize(
    ("host", "cgroup", "cause", "confidence"),
    [
        (1, 1, "host-oom", "certain"),
        (1, 0, "host-oom", "likely"),
        (0, 0, "unknown", "unknown"),
        (None, None, "unknown", "unknown"),
    ],
)
def test_a_sigkill_is_out_of_memory_only_if_the_kernel_counted_one(
    host: int | None, cgroup: int | None, cause: str, confidence: str
) -> None:
    verdict = judge(run(death(0, -9, 10), host_oom_kills=host, cgroup_oom_kills=cgroup))
    assert (verdict.cause, verdict.confidence) == (cause, confidence)
    if cause == "unknown":
        assert any("dmesg" in line for line in verdict.advice)


def test_a_sigkill_of_our_own_is_not_out_of_memory() -> None:
    evidence = run(death(0, -9, 99, sent=(15, 9)), death(1, 5, 10), host_oom_kills=1, cgroup_oom_kills=1)
    assert named(evidence) == ("unknown", 1, 5)


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (signal.SIGINT, "user-interrupt"),
        (signal.SIGTERM, "preempted-sigterm"),
        (signal.SIGHUP, "terminal-closed"),
    ],
)
def test_stopped_by_a_signal(number: int, cause: str) -> None:
    evidence = run(death(0, -number, 50, sent=(number,)), clean_exits=(leaver(1, 60),), stop_signal=number, stop_at=40)
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.exit_code, verdict.first_failure) == ("interrupted", 128 + number, None)
    assert verdict.cause == cause
    assert verdict.retry is not None
    assert not verdict.retry.helps


def test_stopped_ranks_with_one_code_of_their_own() -> None:
    ends = [death(rank, 99, 50 + rank, sent=(15,)) for rank in range(3)]
    assert judge(run(*ends, stop_signal=15, stop_at=40)).exit_code == 99
    assert judge(run(*ends, clean_exits=(leaver(3, 60),), stop_signal=15, stop_at=40)).exit_code == 143


def test_a_stopped_rank_that_lost_its_peer_before_the_signal_reached_it_has_no_code_of_its_own() -> None:
    """Another rank, on another node perhaps, was quicker to end."""
    lost = replace(lost_peer(0, 50), signals_sent=(15,))
    verdict = judge(run(lost, stop_signal=15, stop_at=40))
    assert lost.code == 1
    assert (verdict.outcome, verdict.exit_code) == ("interrupted", 143)


def test_stopped_ranks_that_end_with_0() -> None:
    evidence = run(clean_exits=(leaver(0, 50), leaver(1, 60)), stop_signal=15, stop_at=40)
    assert (judge(evidence).outcome, judge(evidence).exit_code) == ("interrupted", 143)


def test_a_stop_after_the_end_changes_nothing() -> None:
    assert judge(run(clean_exits=(leaver(0, 50),), stop_signal=15, stop_at=70)).outcome == "succeeded"


def test_a_failure_before_the_stop_is_the_verdict() -> None:
    broken = death(1, 9, 30, raised="ValueError", message="bad")
    evidence = run(broken, death(0, -15, 60, sent=(15,)), stop_signal=15, stop_at=40)
    assert (judge(evidence).outcome, *named(evidence)) == ("failed", "python-exception", 1, 9)


def test_a_signal_that_reached_the_ranks_before_ddp_run() -> None:
    ends = [death(0, -15, 30), death(1, -15, 31)]
    assert judge(run(*ends, stop_signal=15, stop_at=40)).outcome == "interrupted"


@pytest.mark.parametrize(
    ("agent", "cause", "exit_code"),
    [
        (AgentEnd(2, log("usage: torchrun", "torchrun: error: unrecognized arguments: --x")), "syntax-or-usage", 2),
        (AgentEnd(1, log("DistNetworkError: port: 29500, code: -98, name: EADDRINUSE")), "port-in-use", 75),
        (AgentEnd(1, log("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")), "rendezvous-timeout", 75),
        (
            AgentEnd(
                1,
                log(
                    "The IPv6 network addresses of (n1, 29500) cannot be retrieved (gai error: -2 - Name not known).",
                    "The client socket has timed out after 60000ms while trying to connect to (n1, 29500).",
                ),
            ),
            "rendezvous-dns",
            1,
        ),
        (AgentEnd(-9, log()), "unknown", 75),
        (raised_by_agent("OSError", "[Errno 24] Too many open files: '/r/stdout.log'"), "too-many-open-files", 1),
        (
            raised_by_agent("torch.distributed.DistNetworkError", UV.format("EMFILE, message: too many open files")),
            "too-many-open-files",
            1,
        ),
        (raised_by_agent("torch.distributed.DistStoreError", "Failed to init uv loop"), "too-many-open-files", 1),
        (
            raised_by_agent("torch.distributed.DistNetworkError", UV.format("EACCES, message: permission denied")),
            "permission-denied",
            1,
        ),
        (raised_by_agent("OSError", "[Errno 28] No space left on device: '/r/attempt_0/rank_0'"), "disk-full", 1),
        (raised_by_agent("OSError", "[Errno 30] Read-only file system: '/r/attempt_0/rank_0'"), "filesystem-error", 1),
        (raised_by_agent("PermissionError", "[Errno 13] Permission denied: '/r/attempt_0'"), "permission-denied", 1),
        (raised_by_agent("MemoryError", ""), "host-oom", 1),
        (raised_by_agent("OSError", "[Errno 12] Cannot allocate memory"), "host-oom", 1),
        (raised_by_agent("ModuleNotFoundError", "No module named 'torch'"), "import-error", 1),
        (
            raised_by_agent("ImportError", "libtorch_cpu.so: cannot open shared object file: No such file"),
            "import-error",
            1,
        ),
        (raised_by_agent("RuntimeError", "can't start new thread"), "process-limit", 1),
        (raised_by_agent("ValueError", "of a kind that no rule knows"), "unknown", 75),
        (raised_by_agent("torch.distributed.DistNetworkError", "Connection reset by peer"), "unknown", 75),
        (replace(raised_by_agent("OSError", "[Errno 24] Too many open files"), summary=(SUMMARY,)), "unknown", 75),
    ],
)
def test_no_rank_failed_by_itself(agent: AgentEnd, cause: str, exit_code: int) -> None:
    assert named(run(agent=agent)) == (cause, None, exit_code)
    assert judge(run(agent=agent)).phase == "launch"


def test_an_agent_that_could_not_say_why_it_ended() -> None:
    full = SpaceCounted(MonotonicNs(0), "/runs/r", 0, 1 << 30, 0, 0)
    silent = run(agent=AgentEnd(1), folder="/moved/r", space=(replace(full, path="/dev/shm", total=1), full))
    assert (*named(silent), judge(silent).confidence) == ("disk-full", None, 1, "likely")
    assert "could not say why: the disk of its log is full" in (judge(silent).title or "")
    assert named(replace(silent, agent=AgentEnd(1, log("a word")))) == ("unknown", None, 75)
    assert named(replace(silent, agent=AgentEnd(-9))) == ("unknown", None, 75)
    assert named(replace(silent, space=(replace(full, free=1 << 29),))) == ("unknown", None, 75)


def test_ranks_that_die_with_the_agent_are_not_causes() -> None:
    agent = AgentEnd(code=-9, at=MonotonicNs(10 * SECOND))
    ends = [death(0, -9, 10 * SECOND + 5), death(1, -9, 10 * SECOND - 5)]
    assert named(run(*ends, agent=agent)) == ("unknown", None, 75)


def test_several_nodes_where_all_lost_a_peer() -> None:
    assert named(run(lost_peer(0, 10), lost_peer(1, 20), nodes=2)) == ("peer-died", None, 75)


def test_the_agents_summary_is_checked_and_not_followed() -> None:
    wrong = SummaryEntry(Rank(0), LocalRank(0), None, None, 1, "t", "", root=True)
    verdict = judge(run(lost_peer(0, 300), death(3, 4, 100), agent=AgentEnd(1, summary=(wrong,))))
    assert verdict.first_failure is not None
    assert verdict.first_failure.rank == 3
    assert verdict.notes == ("torchrun's summary names rank 0; the kernel saw rank 3 exit first",)
    told = replace(death(3, 4, 100), failed_at=MonotonicNs(90))
    verdict = judge(run(lost_peer(0, 300), told, agent=AgentEnd(1, summary=(wrong,))))
    assert verdict.notes == ("torchrun's summary names rank 0; rank 3 reported its failure first",)


def test_without_stamps_the_order_within_a_second_is_not_certain() -> None:
    entries = tuple(
        SummaryEntry(Rank(rank), LocalRank(rank), None, None, 1, "2026-01-01_00:00:00", "", root=rank == 1)
        for rank in (1, 0)
    )
    ends = (death(1, 1, raised="ValueError"), death(0, 1, raised="OSError"))
    verdict = judge(run(*ends, agent=AgentEnd(1, summary=entries)))
    assert (verdict.first_failure and verdict.first_failure.rank, verdict.confidence) == (1, "likely")


def test_a_broken_rule_is_a_note_and_hides_no_other() -> None:
    def broken(death: Death, run: Evidence) -> Finding | None:
        raise ZeroDivisionError

    rule = Rule("broken", "Broken", "DDP999", Layer.ENDED, Retry(helps=False, reason=""), "0.1")
    evidence = run(death(0, -11, 10))
    verdict = judge(evidence, (*catalogue(), Cause(rule, broken)))
    assert verdict.cause == "segfault"
    assert verdict.notes == ("rule broken failed: ZeroDivisionError: ",)


def test_a_mistake_before_the_start_has_the_code_of_its_cause() -> None:
    known = {cause.rule.code: cause.rule.name for cause in load()[0]}
    assert problem.CODES.items() <= known.items()


def test_the_catalogue_is_sound() -> None:
    causes, notes = load()
    assert notes == ()
    names = [cause.rule.name for cause in causes]
    assert len(set(names)) == len(names) >= 13
    assert len({cause.rule.code for cause in causes}) == len(causes)
    assert {cut_log._ABORTED, cut_log._RAYS} <= set(names), "a cause that code asks for by its name was renamed"
    assert all(cause.match or cause.match_launch or cause.match_stop for cause in causes)
    for cause in causes:
        file = sys.modules[f"{rules.__name__}.{cause.rule.name.replace('-', '_')}"]
        functions = [
            each for each in vars(file).values() if isinstance(each, FunctionType) and each.__module__ == file.__name__
        ]
        public = {each.__name__ for each in functions if not each.__name__.startswith("_")}
        assert public <= set(rules.QUESTIONS), cause.rule.name  # a misspelt question would never be asked
    for cause in causes:
        assert re.fullmatch(r"DDP\d{3}", cause.rule.code), cause.rule.name
