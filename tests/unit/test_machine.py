"""The state machine of an attempt, fed with plain values: every event in every state, and the sequences that matter."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from ddp_run.plan.launch_plan import AgentNeeded
from ddp_run.record.events import (
    AgentExited,
    AgentReported,
    AgentStarted,
    AllRanksEnded,
    Event,
    HangTimedOut,
    LocalRank,
    MonotonicNs,
    PeerFailed,
    Rank,
    RankExited,
    RankFailed,
    RankStarted,
    SignalReceived,
    Target,
    Timer,
    TimerFired,
    TimerKind,
)
from ddp_run.supervise.actions import (
    Action,
    AwaitReport,
    FinishAttempt,
    SendSignal,
    SetTimer,
    TellFailed,
    TellRanksEnded,
    TellUnfinished,
)
from ddp_run.supervise.machine import AttemptMachine

AT = MonotonicNs(0)
GRACE = 7.0


def started(rank: int, restart: int = 0) -> RankStarted:
    return RankStarted(AT, Rank(rank), LocalRank(rank), restart, 100 + rank, 2, 2, f"attempt_0/rank_{rank}")


def exited(rank: int, code: int | None, restart: int = 0) -> RankExited:
    return RankExited(AT, Rank(rank), restart, code)


def failed(rank: int, code: int = 1) -> RankFailed:
    return RankFailed(AT, Rank(rank), 0, code, None)


def received(signum: int) -> SignalReceived:
    return SignalReceived(AT, signum)


def timer(name: str) -> Timer:
    """`teardown 1 0`: of rank 1 in the ranks' first start; `survivors 0`: of all ranks in it."""
    kind, *numbers = name.split()
    rank = Rank(int(numbers[0])) if len(numbers) == 2 else None
    return Timer(TimerKind(kind), rank, int(numbers[-1]) if numbers else None)


def fired(name: str) -> TimerFired:
    return TimerFired(AT, timer(name))


def running(restarts: int = 0, needed: AgentNeeded = AgentNeeded.FOR_ITS_RANKS) -> AttemptMachine:
    run = AttemptMachine(GRACE, restarts, agent_needed=needed)
    for event in (AgentStarted(AT, 99), started(0), started(1)):
        assert run.on(event) == []
    return run


def feed(run: AttemptMachine, *events: Event) -> list[Action]:
    return [action for event in events for action in run.on(event)]


def signals(actions: list[Action]) -> list[tuple[Target, int]]:
    return [(action.target, action.signum) for action in actions if isinstance(action, SendSignal)]


KILL_ALL: list[tuple[Target, int]] = [(Target.JOB, signal.SIGKILL)]


def test_a_failure_starts_the_grace_and_nothing_is_signalled_before_it_ends() -> None:
    run = running()
    assert feed(run, exited(1, 3)) == [SetTimer(timer("unfinished"), 2.0), SetTimer(timer("grace"), GRACE)]
    assert signals(feed(run, fired("grace"))) == KILL_ALL


def test_after_the_last_rank_the_agent_has_a_deadline_of_its_own_within_the_grace() -> None:
    assert SetTimer(timer("agent"), 5.0) in feed(running(), exited(0, 1), exited(1, -15))
    run = AttemptMachine(0.5)
    feed(run, AgentStarted(AT, 99), started(0), exited(0, 1))
    assert signals(feed(run, fired("agent"))) == KILL_ALL


def test_a_failing_rank_that_is_the_last_one_alive_still_bounds_the_agent() -> None:
    run = running()
    actions = feed(run, exited(0, 0), exited(1, 9))
    assert SetTimer(timer("grace"), GRACE) in actions
    assert SetTimer(timer("agent"), 5.0) in actions


END_AGENT: list[tuple[Target, int]] = [(Target.AGENT, signal.SIGKILL)]


def test_the_agent_need_not_be_waited_for_once_all_ranks_have_ended_well() -> None:
    run = running()
    assert feed(run, exited(0, 0)) == []
    assert signals(feed(run, exited(1, 0))) == END_AGENT


def test_a_rank_that_has_not_said_hello_yet_is_waited_for() -> None:
    run = AttemptMachine(GRACE, agent_needed=AgentNeeded.FOR_ITS_RANKS)
    assert feed(run, AgentStarted(AT, 99), started(0), exited(0, 0)) == []
    assert signals(feed(run, started(1), exited(1, 0))) == END_AGENT


def test_on_several_nodes_the_agent_may_wait_for_the_others() -> None:
    assert feed(running(needed=AgentNeeded.TO_ITS_END), exited(0, 0), exited(1, 0)) == []


@pytest.mark.parametrize("needed", [AgentNeeded.FOR_ALL_RANKS, AgentNeeded.FOR_OTHER_AGENTS])
def test_the_agents_of_several_nodes_end_when_the_ranks_of_all_nodes_have_ended(needed: AgentNeeded) -> None:
    run = running(needed=needed)
    assert feed(run, exited(0, 0)) == []
    assert feed(run, exited(1, 0)) == [TellRanksEnded()]
    assert signals(feed(run, AllRanksEnded(AT))) == END_AGENT


def test_other_nodes_are_not_told_that_ranks_ended_well_when_one_failed() -> None:
    assert TellRanksEnded() not in feed(running(needed=AgentNeeded.FOR_ALL_RANKS), exited(0, 0), exited(1, 3))


def test_an_exit_code_that_was_not_read_leaves_it_to_the_agent() -> None:
    assert feed(running(), exited(0, 0), exited(1, None)) == []


def test_after_a_failure_the_agent_is_ended_once_it_has_reported() -> None:
    run = running()
    assert AwaitReport() in feed(run, exited(0, 1), exited(1, -15))
    assert signals(feed(run, AgentReported(AT))) == END_AGENT
    feed(run, AgentExited(AT, -9))
    assert feed(run, AgentReported(AT)) == []


def test_after_a_stop_signal_the_agent_ends_with_its_ranks() -> None:
    run = running()
    feed(run, received(signal.SIGTERM), exited(0, 0))
    assert signals(feed(run, exited(1, 0))) == END_AGENT


def test_an_unread_exit_code_ends_nothing() -> None:
    run = running()
    assert feed(run, exited(0, None)) == []
    assert feed(run, fired("grace"), fired("agent")) == []


def test_an_unread_exit_code_after_a_reported_failure_is_a_failure() -> None:
    run = running()
    assert SetTimer(timer("grace"), GRACE) in feed(run, failed(0), exited(0, None))


def test_a_rank_stuck_in_its_own_teardown_is_ended_after_the_grace() -> None:
    run = running()
    assert SetTimer(timer("teardown 1 0"), GRACE) in feed(run, failed(1))
    [order] = feed(run, fired("teardown 1 0"))
    assert isinstance(order, SendSignal)
    assert (order.target, order.signum, order.ranks) == (Target.RANKS, signal.SIGKILL, (Rank(1),))


def test_a_rank_stuck_in_its_own_teardown_is_told_of_before() -> None:
    run = running()
    assert SetTimer(timer("unfinished 1 0"), 2.0) in feed(run, failed(1))
    assert feed(run, fired("unfinished 1 0")) == [TellUnfinished(failed(1), (Rank(1),), GRACE - 2.0)]
    feed(run, exited(1, 1))
    assert feed(run, fired("unfinished 1 0")) == []


def test_a_rank_that_failed_and_exited_with_0_is_told_of_and_ends_nobody() -> None:
    """So it is under torchrun; nobody knows yet whether the others need it."""
    run = running()
    feed(run, failed(1))
    assert feed(run, exited(1, 0)) == [TellFailed(failed(1))]
    assert signals(feed(run, fired("grace"), fired("teardown 1 0"))) == []
    assert signals(feed(run, exited(0, 0))) == END_AGENT


@pytest.mark.parametrize(
    ("event", "why", "ranks"),
    [
        (received(signal.SIGINT), "stopping", (Rank(0), Rank(1))),
        (exited(1, 3), "rank 1 ended with exit code 3", (Rank(0),)),
        (HangTimedOut(AT, 60), "no progress for 60 s (--hang-timeout)", (Rank(0), Rank(1))),
        (PeerFailed(AT, 1, "n1", "rank 9 failed"), "node 1 (n1): rank 9 failed", (Rank(0), Rank(1))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_who_was_to_end_and_has_not_is_told_after_2_s_and_then_every_10(
    event: Event, why: str, ranks: tuple[Rank, ...]
) -> None:
    run = running()
    run.grace_s = 25.0
    assert SetTimer(timer("unfinished"), 2.0) in feed(run, event)
    grace, stop = run.grace_s, run.stop_signal
    again = [SetTimer(timer("unfinished"), 10.0)]
    assert feed(run, fired("unfinished")) == [TellUnfinished(why, ranks, grace - 2, stop), *again[: int(grace > 12)]]
    if grace > 12:
        feed(run, exited(1, -15))
        assert feed(run, fired("unfinished")) == [TellUnfinished(why, (Rank(0),), 13.0, stop), *again]
    feed(run, exited(0, -15), exited(1, -15))
    assert feed(run, fired("unfinished")) == []


def test_nobody_is_told_of_who_is_killed_already_or_soon() -> None:
    run = running()
    run.grace_s = 2.0
    assert not any(isinstance(each, SetTimer) and each.timer == timer("unfinished") for each in feed(run, exited(1, 3)))
    feed(run, received(signal.SIGINT))
    assert feed(run, fired("unfinished")) == []


def test_a_rank_that_ended_in_time_is_not_signalled_again() -> None:
    run = running()
    feed(run, failed(1), exited(1, 1))
    assert feed(run, fired("teardown 1 0")) == []


def test_what_is_said_of_a_rank_that_is_not_of_this_start_sets_no_deadline() -> None:
    assert feed(running(), failed(5)) == []
    later = running(restarts=1)
    feed(later, exited(0, 1), started(0, restart=1))
    assert feed(later, failed(0)) == []


@pytest.mark.parametrize("known", [[], [started(0), exited(0, 0)]], ids=["no rank", "one that has ended"])
def test_a_rank_that_says_hello_after_the_stop_signal_has_the_rest_of_the_grace(known: list[Event]) -> None:
    run = AttemptMachine(GRACE)
    assert SetTimer(timer("agent"), 5.0) in feed(run, AgentStarted(AT, 99), *known, received(signal.SIGTERM))
    assert feed(run, started(1), fired("agent")) == []
    assert SetTimer(timer("agent"), 5.0) in feed(run, exited(1, -15))
    assert signals(feed(run, fired("agent"))) == KILL_ALL


def test_a_rank_that_says_hello_when_the_grace_is_over_has_no_other() -> None:
    run = AttemptMachine(GRACE)
    feed(run, AgentStarted(AT, 99), started(0), exited(0, 3), fired("grace"), started(1))
    assert signals(feed(run, fired("agent"))) == KILL_ALL


def test_while_the_agent_may_restart_only_survivors_are_bounded() -> None:
    run = running(restarts=1)
    assert feed(run, exited(1, 1)) == [SetTimer(timer("unfinished 0"), 2.0), SetTimer(timer("survivors 0"), GRACE)]
    [told] = feed(run, fired("unfinished 0"))
    assert isinstance(told, TellUnfinished)
    assert (told.why, told.ranks) == ("rank 1 ended with exit code 1", (Rank(0),))
    [order] = feed(run, fired("survivors 0"))
    assert isinstance(order, SendSignal)
    assert (order.target, order.signum, order.ranks) == (Target.RANKS, signal.SIGKILL, (Rank(0),))
    feed(run, started(0, restart=1), started(1, restart=1))
    assert feed(run, exited(1, 1)) == [], "a death of the last restart is news of the past"
    assert SetTimer(timer("grace"), GRACE) in feed(run, exited(1, 1, restart=1))


def test_agents_of_several_nodes_may_restart_ranks_at_any_time() -> None:
    run = running(needed=AgentNeeded.TO_ITS_END)
    run.restarts = None
    assert SetTimer(timer("survivors 0"), GRACE) in feed(run, exited(0, -15))
    feed(run, exited(1, -15), started(0, restart=1), started(1, restart=1))
    assert signals(feed(run, fired("survivors 0"), fired("grace"))) == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_the_first_stop_signal_goes_to_the_agent_and_the_second_kills(signum: int) -> None:
    run = running()
    actions = feed(run, received(signum))
    assert signals(actions) == [(Target.AGENT, signum)]
    assert SetTimer(timer("grace"), GRACE) in actions
    assert signals(feed(run, received(signum))) == KILL_ALL
    assert run.stop_signal == signum


def test_a_stop_signal_while_the_job_is_ending_kills() -> None:
    assert signals(feed(running(), exited(0, 1), received(signal.SIGINT))) == [*KILL_ALL]


def test_a_stop_signal_that_the_agent_does_not_take_goes_to_the_ranks() -> None:
    run = AttemptMachine(GRACE, agent_signals=frozenset({signal.SIGTERM}))
    feed(run, AgentStarted(AT, 99), started(0))
    assert signals(feed(run, received(signal.SIGINT))) == [(Target.RANKS, signal.SIGINT)]


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2])
def test_notices_are_forwarded_to_ranks_that_handle_them_and_end_nothing(signum: int) -> None:
    run = running()
    assert feed(run, received(signum)) == [SendSignal(Target.RANKS, signum, "forwarded", only_if_handled=True)]
    assert feed(run, exited(0, 0)) == []


def test_a_notice_that_the_agent_was_told_to_handle_goes_to_the_agent() -> None:
    run = AttemptMachine(GRACE, agent_signals=frozenset({signal.SIGUSR1}))
    assert signals(feed(run, AgentStarted(AT, 99), received(signal.SIGUSR1))) == [(Target.AGENT, signal.SIGUSR1)]


def test_what_even_sigkill_does_not_end_is_not_waited_for() -> None:
    run = running()
    actions = feed(run, exited(0, 1), fired("grace"))
    assert [action.timer for action in actions if isinstance(action, SetTimer)][-1] == timer("give-up")
    assert feed(run, fired("give-up")) == [FinishAttempt()]


def _to_running(run: AttemptMachine) -> None:
    feed(run, AgentStarted(AT, 99), started(0), started(1))


def _to_failing(run: AttemptMachine) -> None:
    _to_running(run)
    feed(run, exited(1, 3))


def _to_stopping(run: AttemptMachine) -> None:
    _to_running(run)
    feed(run, received(signal.SIGTERM))


def _to_killing(run: AttemptMachine) -> None:
    _to_stopping(run)
    feed(run, received(signal.SIGTERM))


def _to_done(run: AttemptMachine) -> None:
    _to_killing(run)
    feed(run, AgentExited(AT, -9))


STATES: dict[str, Callable[[AttemptMachine], None]] = {
    "running": _to_running,
    "failing": _to_failing,
    "stopping": _to_stopping,
    "killing": _to_killing,
    "done": _to_done,
}
FORWARD: list[tuple[Target, int]] = [(Target.AGENT, signal.SIGTERM)]
NOTICE: list[tuple[Target, int]] = [(Target.RANKS, signal.SIGUSR1)]
# Rows: event; columns: what is signalled in each state of STATES.
TABLE: list[tuple[Event, list[list[tuple[Target, int]]]]] = [
    (received(signal.SIGTERM), [FORWARD, KILL_ALL, KILL_ALL, [], []]),
    (received(signal.SIGUSR1), [NOTICE, NOTICE, NOTICE, NOTICE, NOTICE]),
    (received(signal.SIGWINCH), [[], [], [], [], []]),
    (fired("grace"), [[], KILL_ALL, KILL_ALL, [], []]),
    (fired("agent"), [[], [], [], [], []]),
    (exited(0, 0), [[], [], [], [], []]),
    (exited(0, -9), [[], [], [], [], []]),
    (exited(5, 1), [[], [], [], [], []]),
    (failed(0), [[], [], [], [], []]),
    (AgentExited(AT, 1), [[], [], [], [], []]),
]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event,cells", TABLE, ids=[str(row[0]) for row in TABLE])
def test_every_event_in_every_state(state: str, event: Event, cells: list[list[tuple[Target, int]]]) -> None:
    run = AttemptMachine(GRACE)
    STATES[state](run)
    assert signals(run.on(event)) == cells[list(STATES).index(state)]


@pytest.mark.parametrize("state", ["running", "failing", "stopping", "killing"])
def test_the_agents_end_finishes_the_attempt_once(state: str) -> None:
    run = AttemptMachine(GRACE)
    STATES[state](run)
    assert run.on(AgentExited(AT, 1)) == [FinishAttempt()]
    assert run.on(AgentExited(AT, 1)) == []


def peer_failed() -> PeerFailed:
    return PeerFailed(AT, 1, "b", "rank 3 raised ValueError")


def test_when_another_node_fails_the_ranks_are_asked_to_end_and_have_the_grace() -> None:
    run = running(needed=AgentNeeded.TO_ITS_END)
    actions = feed(run, peer_failed())
    assert signals(actions) == [(Target.RANKS, signal.SIGTERM)]
    assert SetTimer(timer("grace"), GRACE) in actions
    assert feed(run, peer_failed()) == []
    assert SetTimer(timer("agent"), 5.0) in feed(run, exited(0, -15), exited(1, -15))
    stubborn = running(needed=AgentNeeded.TO_ITS_END)
    feed(stubborn, peer_failed())
    assert signals(feed(stubborn, fired("grace"))) == KILL_ALL


def test_a_stop_that_all_nodes_get_leaves_the_grace_to_those_that_hear_of_it_from_another_first() -> None:
    run = running(needed=AgentNeeded.TO_ITS_END)
    feed(run, peer_failed())
    assert feed(run, SignalReceived(AT, signal.SIGTERM)) == []
    assert signals(feed(run, SignalReceived(AT, signal.SIGTERM))) == KILL_ALL
    itself = running(needed=AgentNeeded.TO_ITS_END)
    feed(itself, exited(1, 3))
    assert signals(feed(itself, SignalReceived(AT, signal.SIGTERM))) == KILL_ALL


def test_after_another_nodes_failure_an_agent_without_the_store_ends_with_its_ranks() -> None:
    run = running(needed=AgentNeeded.FOR_OTHER_AGENTS)
    feed(run, peer_failed())
    assert signals(feed(run, exited(0, 0))) == []
    assert signals(feed(run, exited(1, 0))) == END_AGENT


def test_the_agent_with_the_store_stays_until_the_ranks_of_all_nodes_have_ended() -> None:
    run = running(needed=AgentNeeded.FOR_ALL_RANKS)
    assert feed(run, peer_failed(), exited(0, 0), exited(1, 0))[3:] == []
    assert signals(feed(run, AllRanksEnded(AT, well=False))) == END_AGENT
    silent = running(needed=AgentNeeded.FOR_ALL_RANKS)
    feed(silent, peer_failed(), exited(0, 0), exited(1, 0))
    assert feed(silent, fired("grace")) == [SetTimer(timer("agent"), 0.3)]
    assert signals(feed(silent, fired("agent"))) == KILL_ALL


def test_ranks_of_the_agent_with_the_store_may_be_the_last_to_end() -> None:
    run = running(needed=AgentNeeded.FOR_ALL_RANKS)
    feed(run, peer_failed(), exited(0, 0))
    assert feed(run, AllRanksEnded(AT, well=False)) == []
    assert signals(feed(run, exited(1, 0))) == END_AGENT


def test_an_agent_that_has_more_to_do_is_not_ended_with_the_ranks_of_all_nodes() -> None:
    run = running(needed=AgentNeeded.TO_ITS_END)
    assert signals(feed(run, peer_failed(), exited(0, 0), exited(1, 0), AllRanksEnded(AT, well=False))[1:]) == []


def test_before_the_ranks_start_another_nodes_failure_ends_the_agent() -> None:
    run = AttemptMachine(GRACE)
    assert signals(feed(run, AgentStarted(AT, 99), peer_failed())) == KILL_ALL


def test_a_node_that_fails_itself_is_not_asked_to_end() -> None:
    run = running(needed=AgentNeeded.TO_ITS_END)
    feed(run, exited(1, 3))
    assert feed(run, peer_failed()) == []


def restarted_once() -> AttemptMachine:
    return running(restarts=1)


@pytest.mark.parametrize(
    ("run", "events", "reason"),
    [
        (running, [received(signal.SIGTERM)], "forwarded"),
        (running, [received(signal.SIGTERM), received(signal.SIGTERM)], "second stop signal"),
        (running, [exited(0, 1), received(signal.SIGTERM)], "stop signal while the job was shutting down"),
        (running, [peer_failed()], "node 1 (b): rank 3 raised ValueError"),
        (running, [exited(1, 3), fired("grace")], "still running 7 s after the stop request"),
        (running, [exited(1, 3), exited(0, 3), fired("agent")], "no rank is running, but the agent has not exited"),
        (running, [failed(1), fired("teardown 1 0")], "its program failed 7 s ago but the process has not exited"),
        (
            restarted_once,
            [exited(1, 3), fired("survivors 0")],
            "still running 7 s after another rank failed; the agent will restart it",
        ),
    ],
)
def test_every_signal_says_why(run: Callable[[], AttemptMachine], events: list[Event], reason: str) -> None:
    sent = [action for action in feed(run(), *events) if isinstance(action, SendSignal)]
    assert sent[-1].reason == reason


def test_a_signal_that_the_agent_does_not_take_and_a_node_without_ranks_say_why_too() -> None:
    run = AttemptMachine(GRACE, agent_signals=frozenset({signal.SIGTERM}))
    feed(run, AgentStarted(AT, 99), started(0))
    assert feed(run, received(signal.SIGINT))[0] == SendSignal(Target.RANKS, signal.SIGINT, "forwarded")
    run = AttemptMachine(GRACE)
    assert feed(run, AgentStarted(AT, 99), peer_failed())[0] == SendSignal(
        Target.JOB, signal.SIGKILL, "node 1 (b): rank 3 raised ValueError"
    )


def test_ctrl_z_changes_nothing_in_any_state() -> None:
    """`Run` stops the job whatever its state (tests/process/test_run.py)."""
    for arrive in STATES.values():
        run = AttemptMachine(GRACE)
        arrive(run)
        assert run.on(received(signal.SIGTSTP)) == []


def test_a_rank_that_ends_well_after_another_failed_does_not_end_the_agent_that_will_restart_them() -> None:
    run = running(restarts=1)
    assert signals(feed(run, exited(1, 3), exited(0, 0))) == []
    assert run.is_running


@pytest.mark.parametrize(("grace", "within"), [(0.5, 0.8), (60.0, 5.0)])
def test_the_agent_of_a_failed_job_has_a_little_longer_than_the_grace_but_not_long(grace: float, within: float) -> None:
    run = AttemptMachine(grace)
    assert SetTimer(timer("agent"), within) in feed(run, AgentStarted(AT, 99), started(0), exited(0, 1))


@pytest.mark.parametrize("needed", AgentNeeded)
def test_a_report_is_awaited_only_of_an_agent_that_is_then_ended(needed: AgentNeeded) -> None:
    awaited = AwaitReport() in feed(running(needed=needed), exited(0, 1), exited(1, -15))
    assert awaited == (needed in (AgentNeeded.FOR_ITS_RANKS, AgentNeeded.FOR_OTHER_AGENTS))


def test_unfinished_ranks_are_told_of_if_any_time_is_left_after_that() -> None:
    for grace, told in ((2.0, False), (2.5, True)):
        run = AttemptMachine(grace)
        actions = feed(run, AgentStarted(AT, 99), started(0), started(1), exited(1, 3))
        assert (SetTimer(timer("unfinished"), 2.0) in actions) == told


def test_after_a_kill_the_attempt_ends_within_the_second_that_is_left() -> None:
    actions = feed(running(), exited(1, 3), fired("grace"))
    assert SetTimer(timer("give-up"), 0.3) in actions
