"""Which of several runs are the nodes of one job. Pure.

Each node of a job has a run of its own, and no file that all of them have names the job. What is known of it: its nodes
start within the time that a rendezvous waits, there are no more of them than they say, each has another number, and
mostly they are told the same place to meet at. A rendezvous that is not static gives the numbers later: then all runs
have number 0, on different hosts.

In doubt, runs are taken for one job: who removes old jobs keeps too much then, not too little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddp_run.record.events import RunStarted
from ddp_run.record.recorded_runs import RecordedRun

_ONE_JOB_NS = 900 * 10**9
"""The nodes of one job start within a quarter of an hour: torch's static rendezvous waits that long."""


@dataclass(frozen=True, slots=True)
class _Node:
    """One run, by its place among all."""

    place: int
    run: RecordedRun
    start: RunStarted


_Nodes = list[_Node]
"""Of one job, or of what is known of it so far."""


def jobs(runs: Sequence[RecordedRun]) -> list[list[RecordedRun]]:
    """The runs by job, the newest job last, and within a job by their start; `runs` are by their start, too.

    A run of one node, or one of which the start is not known, is a job of its own.
    """
    nodes: list[_Nodes] = []
    found: list[tuple[int, list[RecordedRun]]] = []
    for place, run in enumerate(runs):
        if run.started is not None and run.started.nodes > 1:
            nodes.append([_Node(place, run, run.started)])
        else:
            found.append((place, [run]))
    for may_join in (_meet_there, _have_other_numbers, _have_no_numbers):
        nodes = _joined(nodes, may_join)
    found += [(_newest(job), [node.run for node in sorted(job, key=lambda node: node.place)]) for job in nodes]
    return [job for _place, job in sorted(found, key=lambda each: each[0])]


def _joined(found: Sequence[_Nodes], may_join: Callable[[_Nodes, _Nodes], bool]) -> list[_Nodes]:
    """Each of them with the first newer one that it may be of one job with."""
    joined: list[_Nodes] = []
    waiting: list[_Nodes] = []
    for nodes in sorted(found, key=_newest, reverse=True):
        waiting = [job for job in waiting if _start_ns(job) - _start_ns(nodes) <= _ONE_JOB_NS]
        job = next((job for job in waiting if _fit(job, nodes) and may_join(job, nodes)), None)
        if job is not None:
            job.extend(nodes)
            continue
        joined.append(nodes)
        waiting.append(nodes)
    return joined


def _fit(job: _Nodes, nodes: _Nodes) -> bool:
    size = job[0].start.nodes
    return nodes[0].start.nodes == size and len(job) + len(nodes) <= size


def _meet_there(job: _Nodes, nodes: _Nodes) -> bool:
    """They were told the same place, which others at the same time were not."""
    return job[0].run.meets == nodes[0].run.meets is not None and _have_other_numbers(job, nodes)


def _have_other_numbers(job: _Nodes, nodes: _Nodes) -> bool:
    return {node.start.node_rank for node in job}.isdisjoint(node.start.node_rank for node in nodes)


def _have_no_numbers(job: _Nodes, nodes: _Nodes) -> bool:
    """All have number 0, which is said where none was given, on different hosts."""
    if any(node.start.node_rank for node in (*job, *nodes)):
        return False
    return {node.start.host for node in job}.isdisjoint(node.start.host for node in nodes)


def _newest(nodes: _Nodes) -> int:
    return max(node.place for node in nodes)


def _start_ns(nodes: _Nodes) -> int:
    """When the last of them started; nanoseconds since the epoch."""
    return max(node.start.wall_ns for node in nodes)
