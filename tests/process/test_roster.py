"""Hosts of nodes that are not here: the scheduler's command is asked beside the loop, and may not answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from tests.waiting import wait_until

from ddp_run.supervise.loop import Loop, reap
from ddp_run.supervise.nodes import roster
from ddp_run.supervise.nodes.place import Ears, Place
from ddp_run.supervise.nodes.roster import Roster
from ddp_run.values.helper_process import HelperProcesses


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop(()) as made:
        yield made


def serve(loop: Loop, helpers: HelperProcesses) -> None:
    """Until the command is gone."""

    def gone() -> bool:
        for woken in loop.wait(0.05):
            if not isinstance(woken, int):
                woken()
        for pid, _code in reap():
            helpers.reaped(pid)
        return not helpers.pids

    wait_until(gone, "the command's end")


def hosts(loop: Loop, helpers: HelperProcesses, command: tuple[str, ...], nodes: int) -> Roster:
    place = Place(0, nodes, "gpu00", "/runs/r", "127.0.0.1", 1, b"", 1.0, False, host_names=command)
    ears = Ears(loop, print, (), print, print, print, lambda: 0, helpers)
    return Roster(place, ears)


def asked(loop: Loop, *command: str, nodes: int = 12) -> Roster:
    helpers = HelperProcesses()
    names = hosts(loop, helpers, command, nodes)
    names.ask()
    names.ask()
    assert len(helpers.pids) == 1
    serve(loop, helpers)
    return names


def printing(count: int) -> tuple[str, ...]:
    return (sys.executable, "-SEc", f"print(*(f'gpu{{i:02}}' for i in range({count})), sep='\\n')")


def test_nodes_are_named_by_their_hosts(loop: Loop) -> None:
    names = asked(loop, *printing(12))
    assert names.never_seen()[2] == (3, "gpu03")
    assert names.named([1]) == "node 1 (gpu01)"
    assert names.named([4, 1, 5]) == "nodes 1,4-5 (gpu01, gpu04, gpu05)"
    assert names.named(range(1, 12)).endswith("gpu07, gpu08, …)")


@pytest.mark.parametrize("command", [printing(11), ("false",), ("sleep", "600")], ids=["another number", "fails", "-"])
def test_without_an_answer_they_have_numbers(
    loop: Loop, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "_ANSWER_S", 0.5)
    names = asked(loop, *command)
    assert (names.never_seen()[0], names.named([1, 2])) == ((1, ""), "nodes 1-2")


@pytest.mark.parametrize("command", [(), ("/no/such/program",)], ids=["none", "missing"])
def test_nobody_to_ask(loop: Loop, command: tuple[str, ...]) -> None:
    helpers = HelperProcesses()
    names = hosts(loop, helpers, command, 2)
    names.ask()
    assert not helpers.pids
    assert names.named([1]) == "node 1"
    names.close()


def test_who_closes_ends_what_was_asked(loop: Loop) -> None:
    helpers = HelperProcesses()
    names = hosts(loop, helpers, ("sleep", "600"), 2)
    before = len(os.listdir("/proc/self/fd"))
    names.ask()
    names.close()
    serve(loop, helpers)
    assert len(os.listdir("/proc/self/fd")) == before
