"""How the agreement of many nodes costs: `python tests/bench/bench_nodes.py [--nodes 10 100 1000]`.

The real code of node 0 in this process, the real code of all other nodes in another one, over loopback. Measured: until
all have joined; CPU of node 0 a second with nothing wrong; from one failure until all have been told to end, and until
all have the verdict of all; memory of node 0.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from ddp_run.evidence.model import Quote
from ddp_run.judge.of_nodes import Ends
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import FirstFailure, Verdict
from ddp_run.plan.net import free_port
from ddp_run.record.events import Event, MonotonicNs, Rank, RankFailed
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes.hub import Hub
from ddp_run.supervise.nodes.member import Member
from ddp_run.supervise.nodes.messages import Report
from ddp_run.supervise.nodes.place import Ears, Place

IDLE_S = 5.0


def failed(rank: int) -> Verdict:
    first = FirstFailure(Rank(rank), exit_code=1, at=MonotonicNs(time.monotonic_ns()))
    quotes = tuple(Quote(f"attempt_0/rank_{rank}/stderr.log", line, "x" * 100) for line in range(10))
    title = f"rank {rank} lost its connection to a peer"
    return Verdict("failed", 75, "peer-died", "DDP501", title, "certain", first_failure=first, evidence=quotes)


def ears(loop: Loop, told: list[Event]) -> Ears:
    return Ears(
        loop=loop,
        emit=lambda _event: None,
        events=(),
        say=print,
        end_ranks=lambda _attempt, event: told.append(event),
        serve=lambda seconds: serve(loop, seconds),
        stops=lambda: 0,
    )


def serve(loop: Loop, seconds: float) -> None:
    for wakeup in loop.wait(seconds):
        if not isinstance(wakeup, int):
            wakeup()


def serve_until(loop: Loop, done: Callable[[], bool]) -> None:
    while not done():
        serve(loop, 0.1)


def members(place: Place, to_hub: Connection) -> None:
    """All nodes but node 0. Told by the other process when to fail; tells it when each step is done."""
    with Loop([]) as loop:
        told: list[Event] = []
        nodes = [Member(_at(place, rank), ears(loop, told)) for rank in range(1, place.nodes)]
        while not to_hub.poll():
            serve(loop, 0.05)
        to_hub.recv()
        nodes[0].hear(RankFailed(MonotonicNs(time.monotonic_ns()), Rank(1), 0, 1, None))
        serve_until(loop, lambda: len(told) == place.nodes - 2)
        to_hub.send(time.monotonic())
        for rank, node in enumerate(nodes, 1):
            node._send(Report(0, failed(rank), ("last line",) * 50, Ends()))
        serve_until(loop, lambda: all(node._agreed is not None for node in nodes))
        to_hub.send(time.monotonic())


def _at(place: Place, rank: int) -> Place:
    return Place(
        *(rank, place.nodes, f"host{rank}", place.folder, place.address, place.port, place.job_key),
        *(place.grace_s, place.agent_restarts),
    )


def measure(nodes: int) -> str:
    folder = tempfile.mkdtemp()
    place = Place(0, nodes, "host0", folder, "127.0.0.1", free_port(), b"key", 1.0, agent_restarts=False)
    ours, theirs = multiprocessing.Pipe()
    with Loop([]) as loop:
        hub = Hub(place, ears(loop, []))
        began = time.monotonic()
        process = multiprocessing.Process(target=members, args=(place, theirs))
        process.start()
        serve_until(loop, lambda: len(hub._nodes) == nodes - 1)
        joined_s = time.monotonic() - began
        cpu, until = time.process_time(), time.monotonic() + IDLE_S
        while time.monotonic() < until:
            serve(loop, 0.1)
        idle = (time.process_time() - cpu) / IDLE_S
        cpu, failed_at = time.process_time(), time.monotonic()
        ours.send("fail")
        serve_until(loop, lambda: hub._first is not None)
        hub.agree(failed(0), 0, lambda _verdict: Decision(False, "no retry"))
        serve_until(loop, ours.poll)
        told_s = ours.recv() - failed_at
        serve_until(loop, ours.poll)
        agreed_s = ours.recv() - failed_at
        spent = time.process_time() - cpu
        process.join()
        hub.close()
    shutil.rmtree(folder)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return f"| {nodes} | {joined_s:.2f} | {100 * idle:.2f} | {told_s:.2f} | {agreed_s:.2f} | {spent:.2f} | {memory} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 10, 100, 1000])
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"{os.cpu_count()} cores; seconds, % of a core, MiB")
    print("| nodes | all joined | idle CPU of node 0 | all told | all agreed | CPU of node 0 for that | memory |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for nodes in args.nodes:
        print(measure(nodes), flush=True)


if __name__ == "__main__":
    main()
