"""Who waits for whom, by values: what a closer look says, when it is taken, and what it must not claim."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from ddp_run.events import MonotonicNs, Rank
from ddp_run.progress import CloseLook, Collective, ProcessState, RankLook, Stall, Watch, explain
from ddp_run.stack_text import Frame, Stack

S = 1_000_000_000
LIB = "/usr/lib/python3.11"
TORCH = f"{LIB}/site-packages/torch"
USER = Frame("/home/user/train.py", 88, "step")
BARRIER = Frame(f"{TORCH}/distributed/distributed_c10d.py", 5000, "barrier")
ALL_REDUCE = Frame(f"{TORCH}/distributed/distributed_c10d.py", 3000, "all_reduce")
JOIN = Frame(f"{TORCH}/distributed/distributed_c10d.py", 1700, "init_process_group")
ENGINE = Frame(f"{TORCH}/autograd/graph.py", 979, "_engine_run_backward")
QUEUE = Frame(f"{LIB}/threading.py", 324, "wait")
SAVE = Frame(f"{TORCH}/serialization.py", 900, "save")
CONVERT = Frame(f"{TORCH}/_dynamo/convert_frame.py", 700, "_compile")
PDB = Frame(f"{LIB}/pdb.py", 300, "interaction")
FETCH = Frame(f"{LIB}/socket.py", 706, "readinto")


def look(rank: int, *frames: Frame, **more: object) -> CloseLook:
    stack = Stack((*frames, USER)) if frames or not more.pop("no_stack", False) else None
    plain = CloseLook(Rank(rank), ProcessState.SLEEPING, stack, stack)
    for name, value in more.items():
        object.__setattr__(plain, name, value)
    return plain


def entered(number: int, operation: str = "all_reduce", size: int = 20, group: str = "0") -> dict[str, object]:
    last = Collective(group, number, f"gloo:{operation}", ((size,),), ("Float",), pending=True)
    return {"last": {group: last}, "current": last}


def completed(number: int, group: str = "0") -> Collective:
    return Collective(group, number, "gloo:all_reduce", ((20,),), ("Float",))


def judged(*looks: CloseLook, left: tuple[int, ...] = (), seconds: float = 18, world_size: int = 0) -> Stall | None:
    """The same in whatever order the ranks come."""
    ranks = tuple(Rank(rank) for rank in left)
    orders = list(permutations(looks))[:24]
    found = [
        explain(order, ranks, MonotonicNs(0), MonotonicNs(round(seconds * S)), world_size=world_size)
        for order in orders
    ]
    summaries = {each and (each.cause, each.hung, each.culprits, each.said) for each in found}
    assert len(summaries) == 1, summaries
    return found[0]


def told(*looks: CloseLook, **more: object) -> tuple[str, bool, tuple[int, ...]]:
    stall = judged(*looks, **more)  # type: ignore[arg-type]
    assert stall is not None
    return stall.cause, stall.hung, stall.culprits


WAIT = [look(0, ENGINE), look(2, ENGINE)]

# ----------------------------------------------------------------------------------- one is elsewhere


def test_a_rank_in_a_lock_is_hung_and_named_with_its_place_and_stack() -> None:
    stall = judged(look(1, QUEUE, on_lock=True), *WAIT)
    assert stall is not None
    assert (stall.cause, stall.hung, stall.culprits, set(stall.waiting)) == ("hang", True, (1,), {0, 2})
    assert stall.said == (
        "rank 1 waits for a lock or a thread at train.py:88 in step; ranks 0,2 wait in backward, 18 s"
    )
    assert stall.quotes == (
        "rank 1: waits for a lock or a thread at train.py:88 in step",
        f'  File "{LIB}/threading.py", line 324 in wait',
        '  File "/home/user/train.py", line 88 in step',
        "ranks 0,2: wait in backward at train.py:88 in step",
    )


@pytest.mark.parametrize(
    "elsewhere",
    [
        look(1, cpu_s=2.0),
        look(1, SAVE),
        look(1, CONVERT),
        look(1, PDB),
        look(1, FETCH),
        look(1, asleep=True),
        look(1),
        look(1, QUEUE),
        look(1, QUEUE, on_lock=True, io_bytes=2 << 20),
        look(1, state=ProcessState.DISK, waits_on="read of /data/x"),
        look(1, QUEUE, on_lock=True, state=ProcessState.DISK),
        replace(look(1, QUEUE, on_lock=True), second=Stack((QUEUE, USER), ((FETCH, USER),))),
        replace(look(1, QUEUE, on_lock=True), first=Stack((USER,))),
    ],
    ids=lambda each: "-".join(filter(None, [each.doing and each.doing.name, each.state.name])),
)
def test_what_may_end_by_itself_is_described_with_its_rank_and_not_called_a_hang(elsewhere: CloseLook) -> None:
    assert told(elsewhere, *WAIT) == ("hang", False, (1,))


@pytest.mark.parametrize("frames", [(SAVE,), (FETCH,), ()])
def test_after_two_minutes_it_is_a_hang_only_where_nothing_has_moved_for_long(frames: tuple[Frame, ...]) -> None:
    stands = look(1, *frames, still_s=60.0)
    assert told(stands, *WAIT, seconds=150)[1]
    assert not told(stands, *WAIT, seconds=90)[1]
    assert not told(look(1, *frames, still_s=2.0), *WAIT, seconds=150)[1]


def test_the_quoted_stack_reaches_the_users_code() -> None:
    inner = [Frame(f"{TORCH}/utils/data/dataloader.py", number, "_try_get_data") for number in range(20)]
    stall = judged(look(1, *inner), *WAIT)
    assert stall is not None
    assert stall.quotes[1:5] == (inner[0].printed, inner[1].printed, "  …", USER.printed)


@pytest.mark.parametrize("frames", [(CONVERT,), (PDB,)])
def test_a_compilation_and_a_debugger_are_waited_for_without_end(frames: tuple[Frame, ...]) -> None:
    stall = judged(look(1, *frames, still_s=3000.0), *WAIT, seconds=3600)
    assert stall is not None
    assert (stall.hung, stall.patient) == (False, True)


def test_an_endless_loop_is_named_but_it_may_be_an_evaluation() -> None:
    stall = judged(look(1, cpu_s=2.0), *WAIT, seconds=600)
    assert stall is not None
    assert stall.said == "rank 1 runs at train.py:88 in step; ranks 0,2 wait in backward, 600 s"
    assert not stall.hung


def test_a_rank_that_wants_to_run_on_a_crowded_machine_works() -> None:
    stall = judged(look(1, state=ProcessState.RUNNING, still_s=300.0), *WAIT, seconds=600)
    assert stall is not None
    assert "rank 1 runs at" in stall.said
    assert not stall.hung


def test_a_rank_that_computes_in_backward_does_not_wait() -> None:
    assert told(look(1, ENGINE, cpu_s=2.0), *WAIT) == ("hang", False, (1,))


def test_ranks_in_different_places_are_each_described() -> None:
    stall = judged(look(0, ENGINE), look(1, SAVE), look(2, QUEUE, on_lock=True))
    assert stall is not None
    assert (stall.hung, stall.culprits) == (False, (1, 2))
    assert "is saving" in stall.said
    assert "waits for a lock" in stall.said


def test_a_rank_that_shows_nothing_is_not_blamed() -> None:
    assert told(look(1, no_stack=True), *WAIT) == ("hang", False, ())


# ------------------------------------------------------------------------------------ stopped and gone


def test_a_stopped_rank() -> None:
    assert told(look(1, no_stack=True, state=ProcessState.STOPPED), *WAIT) == ("hang", True, (1,))


def test_a_traced_rank_is_no_hang() -> None:
    assert told(look(1, no_stack=True, state=ProcessState.TRACED), *WAIT) == ("hang", False, (1,))


def test_a_job_that_somebody_has_stopped_is_no_hang() -> None:
    stall = judged(*(look(rank, no_stack=True, state=ProcessState.STOPPED) for rank in range(3)))
    assert stall is not None
    assert (stall.hung, stall.culprits, stall.patient) == (False, (), True)


def test_a_stopped_rank_hurts_nobody_who_works() -> None:
    assert not told(look(1, no_stack=True, state=ProcessState.STOPPED), look(0, cpu_s=2.0))[1]


def test_a_rank_that_left_while_all_others_wait() -> None:
    assert told(*WAIT, left=(1,)) == ("peer-died", True, (1,))


def test_a_rank_that_left_is_not_blamed_while_another_one_works() -> None:
    cause, hung, culprits = told(look(0, cpu_s=2.0), look(2, BARRIER), left=(1,))
    assert (cause, hung, culprits) == ("hang", False, (0,))


def test_a_dead_rank_counts_for_nothing() -> None:
    assert judged(look(1, no_stack=True, state=ProcessState.GONE)) is None


# --------------------------------------------------------------------------------------- all wait


def test_the_odd_one_of_three_in_another_collective() -> None:
    stall = judged(
        look(0, BARRIER, **entered(16, "barrier")), look(1, ENGINE, **entered(16)), look(2, ENGINE, **entered(16))
    )
    assert stall is not None
    assert (stall.cause, stall.hung, stall.culprits) == ("collective-mismatch", True, (0,))
    assert "rank 0 entered barrier of [20] at train.py:88 in step" in stall.said
    assert "as collective 16" in stall.said


def test_of_two_ranks_in_different_collectives_neither_is_the_culprit() -> None:
    one, other = look(0, BARRIER, **entered(16, "barrier")), look(1, ENGINE, **entered(16))
    assert told(one, other) == ("collective-mismatch", True, ())


def test_different_shapes_are_a_mismatch_only_where_they_must_be_alike() -> None:
    def ranks(operation: str, *sizes: int) -> list[CloseLook]:
        return [look(rank, ALL_REDUCE, **entered(7, operation, size)) for rank, size in enumerate(sizes)]

    assert told(*ranks("all_reduce", 4, 9, 4)) == ("collective-mismatch", True, (1,))
    assert told(*ranks("scatter", 4, 9, 4)) == ("hang", False, ())


def test_a_rank_that_is_behind_and_waits_elsewhere() -> None:
    inner = Collective("1", 3, "gloo:barrier", pending=True)
    behind = look(1, BARRIER, last={"0": completed(15), "1": inner}, current=inner)
    assert told(look(0, ENGINE, **entered(16)), behind, look(2, ENGINE, **entered(16))) == ("hang", True, (1,))


def test_a_circle_of_waiting_names_nobody() -> None:
    def waits(rank: int, group: str, others: str) -> CloseLook:
        inner = Collective(group, 4, "gloo:all_reduce", pending=True)
        return look(rank, ALL_REDUCE, last={group: inner, others: completed(3, others)}, current=inner)

    assert told(waits(0, "1", "2"), waits(1, "2", "1")) == ("hang", True, ())
    # The rank that waits for both is no part of it.
    last = {"0": Collective("0", 9, "gloo:all_reduce", pending=True)}
    outside = look(2, ENGINE, last=last, current=last["0"])
    circle = [waits(0, "1", "2"), waits(1, "2", "1")]
    circle = [replace(each, last={**each.last, "0": completed(8)}) for each in circle]
    assert told(*circle, outside) == ("hang", True, (0, 1))


def test_a_slow_collective_is_no_hang_for_two_minutes() -> None:
    all_there = [look(rank, ALL_REDUCE, **entered(16)) for rank in range(3)]
    assert told(*all_there) == ("hang", False, ())
    assert told(*all_there, seconds=150) == ("hang", True, ())


def test_a_collective_that_is_waited_for_in_the_users_code() -> None:
    waits = [look(rank, **entered(16), on_lock=True) for rank in (0, 2)]
    assert told(look(1, QUEUE, on_lock=True, last={"0": completed(15)}), *waits) == ("hang", True, (1,))


def test_without_a_recorder_the_odd_one_of_three_is_named_and_of_two_nobody() -> None:
    assert told(look(0, BARRIER), look(1, ALL_REDUCE), look(2, ALL_REDUCE)) == ("hang", True, (0,))
    assert told(look(0, BARRIER), look(1, ALL_REDUCE)) == ("hang", True, ())


def test_the_ranks_of_another_node_may_be_what_is_waited_for() -> None:
    ranks = [look(rank, ALL_REDUCE, **entered(16)) for rank in range(2)]
    stall = judged(*ranks, seconds=300, world_size=4)
    assert stall is not None
    assert (stall.hung, stall.culprits) == (False, ())
    assert "all of this node" in stall.said


def test_some_join_the_group_and_others_are_past_that() -> None:
    assert told(look(0, JOIN), look(1, BARRIER), look(2, JOIN)) == ("hang", True, (1,))


# ------------------------------------------------------------------------------------ nobody waits


def test_ranks_that_work_are_no_stall() -> None:
    assert judged(look(0, cpu_s=2.0), look(1, cpu_s=2.0)) is None


def test_ranks_that_all_sleep_are_described_and_nobody_is_blamed() -> None:
    stall = judged(*(look(rank, asleep=True) for rank in range(3)))
    assert stall is not None
    assert (stall.hung, stall.culprits) == (False, ())
    assert stall.said == "ranks 0-2 sleep at train.py:88 in step, 18 s"


# -------------------------------------------------------------------------------------- the watch


def ranks_at(at_s: float, phase: str = "training", steps: int = 0) -> RankLook:
    return RankLook(Rank(0), phase, round(at_s * S), steps)


def fed(watch: Watch, seconds: range, *looks: RankLook) -> list[int]:
    return [second for second in seconds if watch.look(second * S, looks)]


def test_a_look_after_fifteen_seconds_and_every_thirty_after() -> None:
    assert fed(Watch(), range(100, 200), ranks_at(100)) == [115, 145, 175]


def test_no_look_before_anybody_joins_the_group() -> None:
    assert fed(Watch(), range(100, 300), ranks_at(100, "before-init")) == []


def test_long_steps_are_learnt() -> None:
    watch = Watch()
    for step in range(1, 6):
        fed(watch, range(20 * step, 20 * step + 20), ranks_at(1, "training", step))
    assert watch.patience_s == 60.0
    assert fed(watch, range(120, 190), ranks_at(1, "training", 5)) == [160]


def test_a_machine_that_slept_has_lost_no_progress() -> None:
    watch = Watch()
    assert fed(watch, range(100, 110), ranks_at(100)) == []
    assert fed(watch, range(1000, 1020), ranks_at(100)) == [1015]


def test_a_rank_that_has_left_is_reason_to_look_sooner() -> None:
    left = RankLook(Rank(1), left=True)
    assert fed(Watch(), range(100, 110), ranks_at(100), left) == [105]


def test_ranks_that_shut_down_are_given_time() -> None:
    left = RankLook(Rank(1), left=True)
    assert fed(Watch(), range(100, 120), ranks_at(100, "shutdown"), left) == [115]


def test_progress_ends_a_stall() -> None:
    watch = Watch()
    fed(watch, range(100, 120), ranks_at(100))
    watch.look(121 * S, [ranks_at(100, steps=1)])
    assert watch.since == 121 * S
