"""What a node shows the others of a stall: short enough to be sent, and nothing that matters is left out.

That the pictures of all nodes lead to what one look at all ranks does: `of_a_node_each` in test_progress.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from ddp_run.observe.close_look import CloseLook, ProcessState
from ddp_run.observe.collectives import Collective
from ddp_run.observe.picture import Gone, Picture, explain_all
from ddp_run.observe.stack_text import Frame, Stack
from ddp_run.record.events import MonotonicNs, Rank
from ddp_run.values import typed_fields

LIB = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
MINE = Frame("/home/user/train.py", 88, "step")
WAITS = Stack((Frame(LIB, 3000, "all_reduce"), MINE))
S = 1_000_000_000


def waits(rank: int) -> CloseLook:
    entered = Collective("gloo:0", 7, "gloo:all_reduce", ((20,),), ("Float",), pending=True)
    return CloseLook(Rank(rank), ProcessState.SLEEPING, WAITS, WAITS, last={"gloo:0": entered}, current=entered)


def test_a_deep_stack_and_a_long_history_are_cut_to_what_matters() -> None:
    deep = Stack((*WAITS.frames, *[MINE] * 5000), tuple((MINE,) * 1000 for _ in range(200)))
    entered = {each.key: each for each in (Collective("gloo:0", n, "gloo:all_reduce") for n in range(2000))}
    look = replace(waits(0), first=deep, second=deep, history=entered)
    shown = Picture((look,) * 8).for_others()
    assert len(json.dumps(asdict(shown))) < 500_000
    (first, *_) = shown.looks
    assert (first.doing, first.place, first.works) == (look.doing, look.place, look.works)
    assert max(each.number for each in first.history.values()) == 1999


def test_a_rank_that_moved_still_has() -> None:
    moved = replace(waits(0), first=Stack((MINE,)))
    (shown,) = Picture((moved,)).for_others().looks
    assert shown.works
    assert not Picture((waits(0),)).for_others().looks[0].works


def test_the_time_without_progress_is_the_shortest_of_all_nodes() -> None:
    nodes = [(Picture((waits(0),), quiet_s=40.0), 2.0), (Picture((waits(1),), quiet_s=20.0), 5.0)]
    stall = explain_all(nodes, MonotonicNs(1000 * S))
    assert stall is not None
    assert stall.said.startswith("all ranks wait in all_reduce at train.py:88 in step and none is missing")
    assert stall.said.endswith(", 25 s")


def test_a_node_whose_ranks_have_ended_shows_when() -> None:
    gone = Picture(left=(Gone(Rank(1), 9.0),), quiet_s=9.0)
    stall = explain_all([(Picture((waits(0),), quiet_s=20.0, world_size=2), 0.0), (gone, 3.0)], MonotonicNs(1000 * S))
    assert stall is not None
    assert (stall.cause, stall.culprits) == ("peer-died", (1,))
    assert stall.said == "rank 1 exited with code 0 (12 s ago); rank 0 waits for it in all_reduce, 12 s"


@pytest.mark.parametrize(
    "given",
    [
        {"looks": {}},
        {"looks": [{}]},
        {"looks": [], "quiet_s": "long"},
        {"looks": [], "left": [{"rank": "x", "for_s": 1}]},
    ],
)
def test_what_is_no_picture_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        typed_fields.read(Picture, given)
