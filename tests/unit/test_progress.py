"""Who waits for whom, by values: what a closer look says, when it is taken, and what it must not claim."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import permutations

import pytest

from ddp_run.observe.close_look import INPUT, CloseLook, GpuUse, LockFile, ProcessState
from ddp_run.observe.collectives import Collective
from ddp_run.observe.picture import Gone, Picture, explain_all
from ddp_run.observe.progress import Stall, come_apart, explain
from ddp_run.observe.ras_text import Missing
from ddp_run.observe.stack_text import Frame, Stack
from ddp_run.record.events import MonotonicNs, Rank, StallSeen
from ddp_run.values import typed_fields

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


def judged(
    *looks: CloseLook,
    left: tuple[int, ...] = (),
    seconds: float = 18,
    world_size: int = 0,
    ras: Missing | None = None,
    joined: bool = True,
) -> Stall | None:
    """The same in whatever order the ranks come."""
    ranks = {Rank(rank): 8.0 for rank in left}
    orders = list(permutations(looks))[:24]
    found = [
        explain(
            order, ranks, MonotonicNs(0), MonotonicNs(round(seconds * S)), world_size=world_size, ras=ras, joined=joined
        )
        for order in orders
    ]
    found.append(of_a_node_each(looks, left, seconds, world_size, ras, joined))
    summaries = {each and (each.cause, each.hung, each.culprits, each.said) for each in found}
    assert len(summaries) == 1, summaries
    return found[0]


def of_a_node_each(
    looks: Sequence[CloseLook],
    left: tuple[int, ...],
    seconds: float,
    world_size: int,
    ras: Missing | None,
    joined: bool,
) -> Stall | None:
    """The same if each rank has a node of its own, which shows it to the others."""
    shown = [Picture((each,), (), seconds, joined, world_size, ras) for each in looks]
    shown += [Picture(left=(Gone(Rank(rank), 5.0),), quiet_s=seconds) for rank in left]
    sent = [json.dumps(asdict(each.for_others())) for each in shown]
    heard = [typed_fields.read(Picture, json.loads(text)) for text in sent]
    aged = [(replace(each, quiet_s=each.quiet_s - 3.0), 3.0) for each in heard]
    return explain_all(aged, MonotonicNs(1000 * S))


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
        "rank 1 waits for a lock or a thread at train.py:88 in step; ranks 0,2 wait for it in backward, 18 s"
    )
    assert stall.quotes == (
        "rank 1: waits for a lock or a thread at train.py:88 in step",
        f'  File "{LIB}/threading.py", line 324 in wait',
        '  File "/home/user/train.py", line 88 in step',
        "ranks 0,2: wait in backward at train.py:88 in step",
        "CPU: ranks 0-2 0 %",
    )


@pytest.mark.parametrize(
    ("elsewhere", "said"),
    [
        (
            look(1, cpu_s=2.0),
            "waiting: rank 1 is running at train.py:88 in step; ranks 0,2 wait for it in backward, 18 s",
        ),
        (look(1, QUEUE, on_lock=True), "no progress: rank 1 waits for a lock or a thread at train.py:88 in step; "),
        (look(1, waits_on=INPUT), "waiting: rank 1 waits for input at train.py:88 in step; "),
        (look(1, no_stack=True, waits_on=INPUT), "waiting: rank 1 waits for input; "),
        (look(1, no_stack=True, waits_on="read of /x"), "waiting: rank 1 is blocked: read of /x; "),
        (look(1, no_stack=True, asleep=True), "waiting: rank 1 sleeps; "),
        (look(1, no_stack=True), "waiting: rank 1 shows no stack; "),
    ],
)
def test_what_is_said_of_a_rank_that_the_others_wait_for(elsewhere: CloseLook, said: str) -> None:
    stall = judged(elsewhere, *WAIT)
    assert stall is not None
    seen = StallSeen(MonotonicNs(1), stall.cause, stall.hung, stall.said, (), (), MonotonicNs(0), ())
    assert seen.told.startswith(said)


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
        look(1, QUEUE, on_lock=True, helpers=1),
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
    assert stall.said == "rank 1 is running at train.py:88 in step; ranks 0,2 wait for it in backward, 600 s"
    assert not stall.hung


def test_a_rank_that_wants_to_run_on_a_crowded_machine_works() -> None:
    stall = judged(look(1, state=ProcessState.RUNNING, still_s=300.0), *WAIT, seconds=600)
    assert stall is not None
    assert "rank 1 is running at" in stall.said
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


def test_of_several_ranks_elsewhere_who_is_waited_for_is_not_said_where_it_is_only_some_of_them() -> None:
    handle = look(0, on_lock=True, collectives=6)
    missing = look(1, QUEUE, on_lock=True, collectives=5)
    assert said(handle, missing, look(2, ALL_REDUCE, collectives=6)).endswith("; rank 2 waits in all_reduce, 18 s")


def test_ranks_that_wait_to_join_are_said_to() -> None:
    joins = [look(rank, JOIN) for rank in (0, 2)]
    assert said(look(1, QUEUE, on_lock=True), *joins).endswith("; ranks 0,2 wait for it to join a process group, 18 s")


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
    stopped = look(1, no_stack=True, state=ProcessState.STOPPED)
    assert not told(stopped, look(0, cpu_s=2.0))[1]
    assert said(stopped, look(0, cpu_s=2.0)) == "rank 1 is stopped (SIGSTOP), 18 s"


def test_a_rank_that_left_while_all_others_wait() -> None:
    assert told(*WAIT, left=(1,)) == ("peer-died", True, (1,))


def test_a_rank_that_left_is_not_blamed_while_another_one_works() -> None:
    cause, hung, culprits = told(look(0, cpu_s=2.0), look(2, BARRIER), left=(1,))
    assert (cause, hung, culprits) == ("hang", False, (0,))


STOPPED: dict[str, object] = {"no_stack": True, "state": ProcessState.STOPPED}
TRACED: dict[str, object] = {"no_stack": True, "state": ProcessState.TRACED}


@pytest.mark.parametrize(
    ("held", "said", "hung", "patient"),
    [
        ([STOPPED], "rank 1 is stopped (SIGSTOP); ranks 0,2 wait for it in backward, 18 s", True, False),
        ([STOPPED, TRACED], "ranks 1,3 are stopped (SIGSTOP); ranks 0,2 wait for them in backward, 18 s", True, False),
        (
            [TRACED],
            "rank 1 is held by a tracer (a debugger, strace); ranks 0,2 wait for it in backward, 18 s",
            False,
            True,
        ),
    ],
)
def test_what_holds_a_rank_is_said(held: list[dict[str, object]], said: str, hung: bool, patient: bool) -> None:
    stall = judged(*(look(2 * number + 1, **more) for number, more in enumerate(held)), *WAIT)
    assert stall is not None
    assert (stall.said, stall.hung, stall.patient) == (said, hung, patient)


def test_a_rank_that_is_held_while_another_one_works_is_not_certain_to_be_the_end() -> None:
    sleeps = look(0, asleep=True)
    stall = judged(look(1, **STOPPED), sleeps, look(2, ENGINE, **entered(16)))
    assert stall is not None
    assert (stall.hung, stall.certain) == (True, False)
    assert stall.said == "rank 1 is stopped (SIGSTOP); rank 2 waits for it in backward, 18 s"


def test_a_job_that_is_held_as_a_whole_says_how() -> None:
    for more, how in ((STOPPED, "stopped (SIGSTOP)"), (TRACED, "held by a tracer (a debugger, strace)")):
        stall = judged(*(look(rank, **more) for rank in range(2)))
        assert stall is not None
        assert (stall.said, stall.patient) == (f"all ranks are {how}, 18 s", True)


def test_ranks_that_left_are_said_with_who_waits_for_them() -> None:
    for left, said in (
        ((1,), "rank 1 exited with code 0 (8 s ago); ranks 0,2 wait for it in backward, 18 s"),
        ((1, 3), "ranks 1,3 exited with code 0 (the last 8 s ago); ranks 0,2 wait for them in backward, 18 s"),
    ):
        stall = judged(*WAIT, left=left)
        assert stall is not None
        assert (stall.said, stall.culprits) == (said, left)
    stall = judged(look(1, QUEUE, on_lock=True), *WAIT, left=(3,))
    assert stall is not None
    assert stall.said == (
        "rank 1 waits for a lock or a thread at train.py:88 in step; ranks 0,2 wait for it in backward; "
        "rank 3 exited with code 0 (8 s ago), 18 s"
    )


def test_whom_all_ranks_wait_for_counts_those_that_left() -> None:
    assert told(*WAIT, left=(1,), world_size=3) == ("peer-died", True, (1,))
    assert told(*WAIT, left=(1,), world_size=4) == ("peer-died", False, (1,))


def test_seconds_count_from_the_last_progress_and_gpus_are_quoted() -> None:
    looks = [look(1, QUEUE, on_lock=True), *WAIT]
    stall = explain(looks, {}, MonotonicNs(5 * S), MonotonicNs(23 * S), gpus=[GpuUse(Rank(1), 0, 100)])
    assert stall is not None
    assert stall.said.endswith(", 18 s")
    assert stall.quotes[-1] == "GPU 0 at 100 % (rank 1)"


def test_two_minutes_are_long_enough() -> None:
    slow = [look(rank, ALL_REDUCE, **entered(16)) for rank in range(2)]
    apart = [look(rank, ALL_REDUCE, **entered(4, group=str(rank))) for rank in range(2)]
    far = [look(0, ALL_REDUCE), look(1, ALL_REDUCE)]
    ras = Missing((Rank(1),), "rank 1 launched less")
    for looks, more in ((slow, None), (apart, None), (far, ras), ([look(1, SAVE, still_s=60.0), *WAIT], None)):
        assert told(*looks, seconds=120, ras=more)[1]
        assert not told(*looks, seconds=119.9, ras=more)[1]


def test_a_dead_rank_counts_for_nothing() -> None:
    assert judged(look(1, no_stack=True, state=ProcessState.GONE)) is None


# --------------------------------------------------------------------------------------- all wait


def said(*looks: CloseLook, **more: object) -> str:
    stall = judged(*looks, **more)  # type: ignore[arg-type]
    assert stall is not None
    return stall.said


AT = "at train.py:88 in step"


def test_what_is_said_where_all_wait() -> None:
    inner = Collective("1", 3, "gloo:barrier", pending=True)
    behind = look(1, BARRIER, last={"0": completed(15), "1": inner}, current=inner)
    ahead = [look(rank, ENGINE, **entered(16)) for rank in (0, 2)]
    assert said(*ahead, behind) == f"rank 1 waits in barrier {AT}; ranks 0,2 are ahead and wait in backward, 18 s"
    assert said(*circle()) == f"the ranks wait for each other: ranks 0-1 wait in all_reduce {AT}, 18 s"
    assert said(look(0, JOIN), look(1, BARRIER), look(2, JOIN)) == (
        f"rank 1 waits in barrier {AT}; ranks 0,2 wait for other ranks to join a process group {AT}, 18 s"
    )
    none_missing = "and none is missing: a slow network or device, or a long operation, 18 s"
    together = [look(rank, ALL_REDUCE, **entered(16)) for rank in range(2)]
    assert said(*together) == f"all ranks wait in all_reduce {AT} {none_missing}"
    elsewhere = replace(together[1], first=Stack((ALL_REDUCE, replace(USER, line=9))))
    elsewhere = replace(elsewhere, second=elsewhere.first)
    assert said(together[0], elsewhere) == f"all ranks wait in all_reduce {none_missing}"
    groups = [look(rank, ALL_REDUCE, **entered(4, group=str(rank))) for rank in range(2)]
    barrier = look(2, BARRIER, **entered(7, "barrier", group="2"))
    assert said(*groups, barrier) == f"ranks 0-1 wait in all_reduce {AT}; rank 2 waits in barrier {AT}, 18 s"
    assert said(look(0, BARRIER), look(1, ALL_REDUCE), look(2, ALL_REDUCE)) == (
        f"rank 0 waits in barrier {AT}; ranks 1-2 wait in all_reduce {AT}, 18 s"
    )
    assert said(look(0, BARRIER), look(1, ALL_REDUCE), world_size=4) == (
        "ranks 0-1 (all ranks of this node) wait in all_reduce and barrier for other nodes, 18 s"
    )


def test_of_ranks_that_join_and_ranks_that_do_not_the_fewer_are_named() -> None:
    assert told(look(0, JOIN), look(1, BARRIER), look(2, BARRIER)) == ("hang", True, (0,))
    assert told(look(0, JOIN), look(1, BARRIER)) == ("hang", True, ())


def test_ranks_with_records_are_not_told_apart_by_number_alone() -> None:
    recorded = {"last": {"0": completed(3)}}
    assert told(look(0, BARRIER, **recorded), look(1, ALL_REDUCE), look(2, ALL_REDUCE)) == ("hang", True, ())


def test_how_each_of_different_collectives_is_said() -> None:
    sizes = [look(rank, ALL_REDUCE, **entered(7, "all_reduce", size)) for rank, size in enumerate((4, 9, 4))]
    assert said(*sizes) == (
        f"rank 1 entered all_reduce of [9] {AT}, ranks 0,2 entered all_reduce of [4] {AT}, "
        "as collective 7 of the process group, 18 s"
    )
    # A barrier of gloo's is recorded as an all_reduce; a coalesced operation under what it stands for.
    barrier = look(0, BARRIER, **entered(7, "all_reduce", 1))
    assert said(barrier, *sizes[1:2]).startswith(f"rank 0 entered barrier {AT}, rank 1 entered all_reduce of [9] {AT}")
    coalesced = look(0, Frame(BARRIER.file, 1, "_coalescing_manager"), **entered(7, "all_reduce", 1))
    assert said(coalesced, sizes[1]).startswith(f"rank 0 entered all_reduce of [1] {AT}, ")


def test_an_earlier_group_without_a_mismatch_hides_no_later_one() -> None:
    calm = [look(rank, ALL_REDUCE, **entered(3, group="0")) for rank in (0, 1)]
    odd = [look(rank, ALL_REDUCE, **entered(7, size=size, group="1")) for rank, size in ((2, 4), (3, 9), (4, 4))]
    assert told(*calm, *odd) == ("collective-mismatch", True, (3,))


def test_who_waits_for_what_nccl_sees_is_not_who_is_missing() -> None:
    blind = [look(rank, BARRIER) for rank in (0, 1)]
    ras = Missing((Rank(1),), "rank 1 launched 11 where others launched 12")
    assert said(*blind, ras=ras) == "rank 1 launched 11 where others launched 12; rank 0 waits for it in barrier, 18 s"


def test_the_odd_one_of_three_in_another_collective() -> None:
    stall = judged(
        look(0, BARRIER, **entered(16, "barrier")), look(1, ENGINE, **entered(16)), look(2, ENGINE, **entered(16))
    )
    assert stall is not None
    assert (stall.cause, stall.hung, stall.culprits) == ("collective-mismatch", True, (0,))
    assert "rank 0 entered barrier at train.py:88 in step" in stall.said
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


def test_without_a_recorder_a_lock_may_be_the_handle_of_a_collective() -> None:
    waits = look(2, ALL_REDUCE, collectives=6)
    handle = look(0, on_lock=True, collectives=6)
    assert told(handle, look(1, QUEUE, on_lock=True, collectives=5), waits) == ("hang", True, (1,))
    assert told(handle, look(1, ALL_REDUCE, collectives=6), waits) == ("hang", False, ())
    # Who has entered fewer is waited for.
    assert told(replace(handle, collectives=5), look(1, ALL_REDUCE, collectives=6), waits) == ("hang", True, (0,))
    assert told(replace(handle, last={"0": completed(6)}), waits) == ("hang", True, (0,))


def test_without_a_recorder_the_odd_one_of_three_is_named_and_of_two_nobody() -> None:
    assert told(look(0, BARRIER), look(1, ALL_REDUCE), look(2, ALL_REDUCE)) == ("hang", True, (0,))
    assert told(look(0, BARRIER), look(1, ALL_REDUCE)) == ("hang", True, ())


def test_the_ranks_of_another_node_may_be_what_is_waited_for() -> None:
    ranks = [look(rank, ALL_REDUCE, **entered(16)) for rank in range(2)]
    stall = judged(*ranks, seconds=300, world_size=4)
    assert stall is not None
    assert (stall.hung, stall.culprits) == (False, ())
    assert "all ranks of this node" in stall.said


def test_some_join_the_group_and_others_are_past_that() -> None:
    assert told(look(0, JOIN), look(1, BARRIER), look(2, JOIN)) == ("hang", True, (1,))


# ------------------------------------------------------------------------------------------- NCCL


def of_nccl(rank: int, number: int, last: int | None = None, operation: str = "all_reduce") -> CloseLook:
    """Waits for collective `number` and has entered those up to `last`; CUDA waits by taking all the CPU time."""
    waits = Collective("nccl:0", number, f"nccl:{operation}", ((20,),), ("Float",), pending=True, place="t.py:5 in f")
    entered = replace(waits, number=last or number)
    return look(rank, cpu_s=2.0, state=ProcessState.RUNNING, last={"nccl:0": entered}, current=waits)


def test_ranks_that_spin_for_the_gpu_wait() -> None:
    behind = look(1, QUEUE, on_lock=True, last={"nccl:0": completed(15, "nccl:0")})
    stall = judged(of_nccl(0, 16), behind, of_nccl(2, 16))
    assert stall is not None
    assert (stall.hung, stall.culprits) == (True, (1,))
    assert stall.said.endswith("; ranks 0,2 wait for it in all_reduce, 18 s")


def test_how_far_ranks_have_run_ahead_of_a_collective_says_nothing() -> None:
    ranks = [of_nccl(0, 16, 18), of_nccl(1, 16, 30), of_nccl(2, 16, 16)]
    assert told(*ranks) == ("hang", False, ())
    stall = judged(*ranks, seconds=150)
    assert stall is not None
    assert stall.hung
    assert "none is missing" in stall.said


def test_nccls_collectives_are_compared_where_they_stand() -> None:
    stall = judged(of_nccl(0, 16, 20), of_nccl(1, 16, 17, "broadcast"), of_nccl(2, 16, 20))
    assert stall is not None
    assert (stall.cause, stall.culprits) == ("collective-mismatch", (1,))
    assert "rank 1 entered broadcast of [20] at t.py:5 in f" in stall.said


def test_a_rank_that_nccl_let_past_a_collective_that_others_entered_otherwise() -> None:
    """As on an H200, NCCL 2.28.9: the barrier of rank 0 ended with the all_reduce of the others, which waited on."""
    barrier = Collective("nccl:0", 16, "nccl:all_reduce_barrier", ((1,),), ("Float",))
    past = replace(of_nccl(0, 17), history={"nccl:0 16": barrier})
    stall = judged(past, of_nccl(1, 16), of_nccl(2, 16))
    assert stall is not None
    assert (stall.cause, stall.hung, stall.culprits) == ("collective-mismatch", True, (0,))
    assert stall.said == (
        "rank 0 entered barrier, ranks 1-2 entered all_reduce of [20] at t.py:5 in f, "
        "as collective 16 of the process group, 18 s"
    )
    meanwhile = replace(past, first=Stack((ALL_REDUCE, USER)), second=Stack((ALL_REDUCE, USER)))
    assert said(meanwhile, of_nccl(1, 16), of_nccl(2, 16)) == stall.said  # where it is now is not what it entered then
    alike = replace(past, history={"nccl:0 16": replace(of_nccl(1, 16).current or barrier, pending=False)})
    assert told(alike, of_nccl(1, 16), of_nccl(2, 16))[0] == "hang"


def test_a_rank_alone_in_another_collective_of_nccls_may_only_be_slow_there() -> None:
    inner = Collective("nccl:1", 3, "nccl:all_reduce", pending=True)
    behind = look(1, last={"nccl:0": completed(15, "nccl:0"), "nccl:1": inner}, current=inner)
    assert told(of_nccl(0, 16), behind, of_nccl(2, 16)) == ("hang", False, (1,))
    assert told(of_nccl(0, 16), behind, of_nccl(2, 16), seconds=150) == ("hang", True, (1,))


FAR = Missing((Rank(3),), "rank 3 (process 977 on 10.0.0.2) launched 11 AllReduce where others launched 12")


def test_nccl_names_a_rank_of_another_node() -> None:
    ranks = [of_nccl(0, 16), of_nccl(1, 16)]
    stall = judged(*ranks, world_size=4, ras=FAR)
    assert stall is not None
    assert (stall.cause, stall.hung, stall.culprits, stall.waiting) == ("hang", False, (3,), (0, 1))
    assert stall.said == f"{FAR.said}; ranks 0-1 wait for it in all_reduce, 18 s"
    assert not told(*ranks, seconds=900, world_size=4, ras=FAR)[1]  # it may be evaluating
    assert told(*ranks, world_size=4, ras=replace(FAR, gone=True)) == ("hang", True, (3,))


def test_what_is_seen_here_comes_before_what_nccl_says() -> None:
    behind = look(1, QUEUE, on_lock=True)
    assert told(of_nccl(0, 16), behind, world_size=4, ras=FAR) == ("hang", True, (1,))
    odd = of_nccl(1, 16, operation="broadcast")
    assert told(of_nccl(0, 16), odd, of_nccl(2, 16), world_size=4, ras=FAR)[0] == "collective-mismatch"


def test_of_ranks_that_wait_here_torchs_recorder_knows_more_than_nccl() -> None:
    ranks = [of_nccl(0, 16), of_nccl(1, 16)]
    one = Missing((Rank(1),), "rank 1 launched 11 AllReduce where others launched 12")
    assert told(*ranks, ras=one) == ("hang", False, ())
    blind = [replace(each, last={}, current=None, first=each.first) for each in (look(0, BARRIER), look(1, BARRIER))]
    assert told(*blind, ras=one) == ("hang", False, (1,))
    assert told(*blind, ras=one, seconds=150) == ("hang", True, (1,))


# ------------------------------------------------------------------------- before they join a group

BATON = Frame(f"{TORCH}/utils/file_baton.py", 49, "wait")
EXISTS = Frame("<frozen genericpath>", 19, "exists")


def stands(rank: int, *frames: Frame, **more: object) -> CloseLook:
    return look(rank, *frames, **{"idle_s": 20.0} | more)


def before(*looks: CloseLook, **more: object) -> tuple[str, bool, bool] | None:
    stall = judged(*looks, joined=False, **more)  # type: ignore[arg-type]
    return None if stall is None else (stall.said, stall.hung, stall.patient)


def test_where_all_stand_before_they_join_each_is_described_with_what_it_waits_for() -> None:
    looks = [
        stands(0, BATON, lock_file=LockFile("/cache/lock", 7500.0), naps=True),
        stands(1, naps=True),
        stands(2, asleep=True),
        stands(3, Frame(f"{LIB}/subprocess.py", 1, "wait"), child="(ninja -v)"),
        stands(4, Frame("<frozen importlib._bootstrap>", 1, "_find_and_load"), waits_on="read of /nfs/x.so"),
    ]
    stall = judged(*looks, joined=False)
    assert stall is not None
    assert stall.said == (
        "rank 0 waits for the lock file /cache/lock (made 2h05m ago; no process here has it open) at train.py:88 in "
        "step; rank 1 sleeps in a loop at train.py:88 in step; rank 2 sleeps at train.py:88 in step; "
        "rank 3 waits for a child process (ninja -v) at train.py:88 in step; "
        "rank 4 is importing a module: read of /nfs/x.so at train.py:88 in step, 18 s"
    )
    assert (stall.hung, stall.patient, stall.culprits, stall.waiting) == (False, False, (), ())
    assert "if no build is running elsewhere, remove it: rm /cache/lock" in stall.quotes


@pytest.mark.parametrize(
    ("lock", "said", "removed"),
    [
        (LockFile("/a b/lock", 20.0, "rank 1"), "/a b/lock (held by rank 1)", False),
        (LockFile("/a b/lock"), "/a b/lock", False),
        (LockFile("/a b/lock", 20.0), "/a b/lock (made 20s ago; no process here has it open)", True),
    ],
)
def test_a_lock_file_is_to_be_removed_only_where_nobody_is_seen_to_have_it(
    lock: LockFile, said: str, removed: bool
) -> None:
    stall = judged(stands(0, BATON, lock_file=lock), joined=False)
    assert stall is not None
    assert f"rank 0 waits for the lock file {said} at train.py" in stall.said
    assert [quote for quote in stall.quotes if "rm " in quote] == [
        "if no build is running elsewhere, remove it: rm '/a b/lock'"
    ] * removed
    locked = stands(0, Frame(f"{LIB}/site-packages/filelock/_api.py", 1, "acquire"), lock_file=lock)
    assert not [quote for quote in (judged(locked, joined=False) or stall).quotes if "rm " in quote]


def test_a_rank_that_works_before_they_join_is_let_be() -> None:
    works, waits = look(0, cpu_s=2.0), stands(1, naps=True)
    said = "rank 1 sleeps in a loop at train.py:88 in step; rank 0 is running at train.py:88 in step, 18 s"
    assert before(works, waits) == (said, False, True)
    assert before(works, look(1, naps=True, idle_s=2.0)) is None
    said = "rank 1 sleeps in a loop at train.py:88 in step; rank 0 sleeps at train.py:88 in step, 18 s"
    assert before(look(0, asleep=True, idle_s=2.0), waits) == (said, False, True)
    assert before(works, stands(1, io_bytes=2 << 20)) is None
    assert judged(works, waits) is None  # once they have joined, nobody is known to wait for it


def test_a_rank_that_shows_nothing_of_itself_is_told_of_before_they_join() -> None:
    silent = stands(0, no_stack=True, unseen=True)
    assert before(silent) == ("rank 0 is blocked, 18 s", False, False)
    assert judged(silent) is None
    said = "rank 0 is blocked; rank 1 works, 18 s"
    assert before(silent, stands(1, no_stack=True, unseen=True, cpu_s=1.0)) == (said, False, True)
    assert before(stands(0, no_stack=True, unseen=True, child="(wget x)"), left=(1,)) == (
        "rank 0 waits for a child process (wget x); rank 1 exited with code 0 (8 s ago), 18 s",
        False,
        False,
    )


@pytest.mark.parametrize(
    ("first", "second", "moved"),
    [
        ((USER,), (EXISTS, replace(USER, line=87)), False),
        ((USER, JOIN), (replace(USER, line=87), JOIN), False),
        ((USER, JOIN), (replace(USER, function="save"), JOIN), True),
        ((USER, JOIN), (USER, replace(JOIN, line=1)), True),
    ],
)
def test_a_loop_that_sleeps_and_looks_again_does_not_move(
    first: tuple[Frame, ...], second: tuple[Frame, ...], moved: bool
) -> None:
    polls = replace(look(0), first=Stack(first), second=Stack(second))
    assert polls.works
    assert replace(polls, naps=True).works is moved
    assert replace(polls, naps=True, state=ProcessState.RUNNING).works is moved
    assert replace(polls, naps=True, cpu_s=1.0).works


# ------------------------------------------------------------------------------------ nobody waits


def test_ranks_that_work_are_no_stall() -> None:
    assert judged(look(0, cpu_s=2.0), look(1, cpu_s=2.0)) is None


def test_ranks_that_all_sleep_are_described_and_nobody_is_blamed() -> None:
    stall = judged(*(look(rank, asleep=True) for rank in range(3)))
    assert stall is not None
    assert (stall.hung, stall.culprits) == (False, ())
    assert stall.said == "ranks 0-2 sleep at train.py:88 in step, 18 s"


def test_ranks_that_stand_for_two_minutes_hang_only_if_all_are_deadlocked() -> None:
    locked = [look(rank, QUEUE, on_lock=True, still_s=60.0) for rank in range(2)]
    assert told(*locked, seconds=120) == ("hang", True, ())
    assert told(*locked, seconds=119) == ("hang", False, ())
    assert told(locked[0], look(1, SAVE, still_s=60.0), seconds=120) == ("hang", False, ())


# ----------------------------------------------------------------------- before patience has ended


def circle(*, moved: bool = False) -> list[CloseLook]:
    inner = {rank: Collective(str(rank), 4, "gloo:all_reduce", pending=True) for rank in (0, 1)}
    last = {rank: {str(rank): inner[rank], str(1 - rank): completed(3, str(1 - rank))} for rank in (0, 1)}
    found = [look(rank, ALL_REDUCE, last=last[rank], current=inner[rank]) for rank in (0, 1)]
    return [replace(each, first=Stack((USER,))) for each in found] if moved else found


def in_another_group(backend: str) -> CloseLook:
    """A rank that waits in another group's collective and has not entered what the others wait in."""
    inner = Collective("1", 3, f"{backend}:all_reduce", pending=True)
    return look(1, BARRIER, last={"0": completed(15), "1": inner}, current=inner)


@pytest.mark.parametrize(
    "looks",
    [
        [look(1, ALL_REDUCE, **entered(16, size=9)), *(look(rank, ALL_REDUCE, **entered(16)) for rank in (0, 2))],
        [look(0, BARRIER, **entered(16, "barrier")), look(1, ENGINE, **entered(16))],
        circle(),
        [look(1, no_stack=True, state=ProcessState.STOPPED), look(0, ENGINE, **entered(16))],
        [in_another_group("gloo"), look(0, ENGINE, **entered(16))],
    ],
    ids=["shape", "operation", "circle", "stopped", "behind"],
)
def test_what_waiting_longer_would_not_change_is_certain(looks: list[CloseLook]) -> None:
    stall = judged(*looks, seconds=5)
    assert stall is not None
    assert (stall.hung, stall.certain) == (True, True)
    more = judged(*looks, seconds=5, world_size=8)  # other nodes may be what is waited for
    assert more is None or not more.certain


@pytest.mark.parametrize(
    "looks",
    [
        [look(rank, ALL_REDUCE, **entered(16)) for rank in range(3)],
        [look(1, QUEUE, on_lock=True), *WAIT],
        circle(moved=True),
        [look(0, **entered(16, "broadcast")), look(1, ALL_REDUCE, **entered(16))],  # it may work while the other waits
        [look(1, SAVE), *(look(rank, ENGINE, **entered(16)) for rank in (0, 2))],
        [look(0, JOIN), look(1, BARRIER), look(2, JOIN)],
        [
            look(1, Frame(ALL_REDUCE.file, 1, "recv"), last={"0": completed(15)}, cpu_s=1.0),
            look(0, ALL_REDUCE, **entered(16)),
        ],
        [look(1, **TRACED), look(0, ENGINE, **entered(16))],
        [in_another_group("nccl"), look(0, ENGINE, **entered(16))],
    ],
    ids=["slow", "lock", "moves", "async", "save", "join", "transfer", "traced", "slow in a group of its own"],
)
def test_what_may_still_change_is_not_certain(looks: list[CloseLook]) -> None:
    stall = judged(*looks, seconds=5)
    assert stall is None or not stall.certain


def test_a_message_that_takes_long_is_no_hang() -> None:
    transfer = [
        look(1, Frame(ALL_REDUCE.file, 1, "recv"), last={"0": completed(15)}, cpu_s=1.0),
        look(0, ALL_REDUCE, **entered(16)),
    ]
    assert told(*transfer) == ("hang", False, (1,))
    assert told(*transfer, seconds=150) == ("hang", True, (1,))
    busy = replace(look(1, BARRIER, last={"0": completed(15)}), cpu_s=1.0)
    still = replace(transfer[0], cpu_s=0.0)
    for other in (busy, still):  # no message, or none that moves
        assert told(other, transfer[1]) == ("hang", True, (1,))


def test_groups_that_are_complete_only_take_long() -> None:
    first = [look(rank, ALL_REDUCE, **entered(4, group="1")) for rank in (0, 1)]
    second = [look(rank, BARRIER, **entered(7, "barrier", group="2")) for rank in (2, 3)]
    assert told(*first, *second) == ("hang", False, ())


def test_ranks_come_apart_only_where_all_wait_and_not_together() -> None:
    same = Collective("0", 16, "gloo:all_reduce", ((4,),), ("Float",), pending=True)
    assert not come_apart({Rank(0): same, Rank(1): same}, ())
    for other in (replace(same, sizes=((5,),)), replace(same, number=15), replace(same, group="1")):
        assert come_apart({Rank(0): same, Rank(1): other}, ())
    assert not come_apart({Rank(0): same, Rank(1): None}, ())
    assert come_apart({Rank(0): same, Rank(1): None}, [Rank(1)])
    assert not come_apart({Rank(0): same, Rank(1): same}, [Rank(0), Rank(1)])
    assert not come_apart({}, ())


def test_numbers_are_told_where_they_differ() -> None:
    last = Collective("0", 15, "gloo:all_reduce")
    behind = look(1, QUEUE, last={"0": last}, steps=10, cpu_s=0.8)
    ahead = [look(rank, ENGINE, **entered(16, "broadcast"), steps=11) for rank in (0, 2)]
    apart = judged(behind, *ahead)
    assert apart is not None
    assert apart.quotes[-3:] == (
        "optimizer steps so far: rank 1 10, ranks 0,2 11",
        "last collective entered: rank 1 15 (all_reduce), ranks 0,2 16 (broadcast)",
        "CPU: rank 1 50 %, ranks 0,2 0 %",
    )
    together = judged(look(1, QUEUE), *WAIT)
    assert together is not None
    assert together.quotes[-1] == "CPU: ranks 0-2 0 %"
    assert not any("so far" in quote or "entered" in quote for quote in together.quotes)


def test_many_ranks_that_all_differ_are_cut_short() -> None:
    many = [look(rank, cpu_s=0.0, asleep=True, steps=rank) for rank in range(8)]
    stall = explain(many, {}, MonotonicNs(0), MonotonicNs(20 * S))
    assert stall is not None
    assert "optimizer steps so far: rank 0 0, rank 1 1, rank 2 2, rank 3 3, rank 4 4, …" in stall.quotes


def test_native_frames_are_wanted_only_of_a_rank_that_stands_and_does_not_say_in_what() -> None:
    assert look(1).says_little
    assert look(1, no_stack=True).says_little
    assert look(1, asleep=True, silent=True).says_little  # Python's own sleep gives the interpreter's lock away
    assert not look(1, asleep=True).says_little
    assert not look(1, SAVE).says_little
    assert not look(1, ALL_REDUCE).says_little
    assert not look(1, cpu_s=1.5).says_little
    for state in (ProcessState.DISK, ProcessState.STOPPED, ProcessState.TRACED, ProcessState.RUNNING):
        assert not look(1, state=state).says_little
