"""When faulthandler's signal cannot meet a thread that runs Python."""

from __future__ import annotations

import os
import threading

import pytest
from tests.waiting import wait_until

from ddp_run.observe.boards import ThreadLook, at_rest, threads

MAIN, SAMPLER, WORKER = 10, 11, 12


def asleep(switches: int = 5) -> ThreadLook:
    return ThreadLook(asleep=True, stopped=False, switches=switches)


RUNS = ThreadLook(asleep=False, stopped=False, switches=5)
STOPPED = ThreadLook(asleep=False, stopped=True, switches=5)
Looks = dict[int, ThreadLook]


@pytest.mark.parametrize(
    ("before", "now", "rests"),
    [
        ({MAIN: asleep()}, {MAIN: asleep()}, True),
        ({MAIN: asleep(), WORKER: asleep()}, {MAIN: asleep(), WORKER: asleep()}, True),
        ({MAIN: asleep(), SAMPLER: asleep(1)}, {MAIN: asleep(), SAMPLER: asleep(3)}, True),
        ({MAIN: asleep()}, {MAIN: asleep(6)}, False),
        ({MAIN: RUNS}, {MAIN: RUNS}, False),
        ({MAIN: RUNS}, {MAIN: asleep()}, False),
        ({MAIN: asleep(), WORKER: RUNS}, {MAIN: asleep(), WORKER: RUNS}, False),
        ({MAIN: asleep()}, {MAIN: asleep(), WORKER: asleep()}, False),
        ({MAIN: RUNS, SAMPLER: asleep(1)}, {MAIN: RUNS, SAMPLER: asleep(90)}, True),
        ({MAIN: RUNS, SAMPLER: asleep(1)}, {MAIN: RUNS, SAMPLER: asleep(4)}, False),
        ({MAIN: STOPPED}, {MAIN: STOPPED}, False),
        ({MAIN: STOPPED, SAMPLER: asleep(1)}, {MAIN: STOPPED, SAMPLER: asleep(90)}, False),
        ({}, {MAIN: asleep()}, False),
        ({MAIN: asleep()}, {}, False),
        ({}, {}, False),
    ],
)
def test_at_rest(before: Looks, now: Looks, rests: bool) -> None:
    assert at_rest(before, now, SAMPLER) is rests


def test_the_threads_of_this_process() -> None:
    go = threading.Event()
    waits = threading.Thread(target=go.wait)
    waits.start()
    try:
        assert waits.native_id is not None
        number = waits.native_id
        wait_until(lambda: threads(os.getpid())[number].asleep, "the thread to sleep")
        before = threads(os.getpid())
        assert before[waits.native_id].asleep
        assert not before[os.getpid()].asleep
        assert before[waits.native_id] == threads(os.getpid())[waits.native_id]
    finally:
        go.set()
        waits.join()
    assert threads(2**22 + 1) == {}
