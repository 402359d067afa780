"""How the nodes of the job differ, and what failed on the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_run.doctor.check import Check, Group, Level
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.judge import unlike_nodes
from ddp_run.record.events import MonotonicNs, NodesCompared
from ddp_run.values.finding import Finding, failed, skipped, warned
from ddp_run.values.node_fact import Fact
from ddp_run.values.words import node_name

_NAME = "nodes compared"
_HELPS = "make the nodes alike"


def _look(around: Surroundings) -> Iterator[Finding]:
    reports = around.reports
    if reports is None or around.options.max_nodes == 1:
        return
    compared = reports.launched.compared
    if compared is not None:
        yield from of_launch(compared)
    found = reports.one("nodes")
    if found is None:
        if compared is None:
            yield skipped(_NAME, reports.why_not())
        return
    yield from others(found["nodes"], int(found["rank"]))
    if compared is None:
        yield from breaking(found["nodes"])


def of_launch(compared: NodesCompared) -> Iterator[Finding]:
    """On node 0, where the nodes were compared as they joined: a finding for each fact in which they differ."""
    for line in compared.breaking:
        name, _, value = line.partition(": ")
        yield failed(name, value, "not the same on all nodes: such jobs often fail", _HELPS)
    for line in compared.differing:
        name, _, value = line.partition(": ")
        yield warned(name, value, "not the same on all nodes", _HELPS)
    if not (compared.breaking or compared.differing):
        yield Finding(_NAME, f"alike in {len(compared.alike)} facts")


def others(nodes: Sequence[Mapping[str, Any]], own_rank: int) -> Iterator[Finding]:
    """What failed on other nodes: then none of them is fit for the job."""
    for node in nodes:
        name = node_name(node["node"], node["host"])
        if node["failed"] and node["rank"] != own_rank:
            yield failed(name, "; ".join(node["failed"]), "see what the doctor says there")


def breaking(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Elsewhere: the differences for which node 0 calls all of them unfit, from what the ranks told each other."""
    hosts = {int(node["node"]): str(node["host"]) for node in nodes}
    facts = {int(node["node"]): [Fact(str(name), str(value)) for name, value in node["facts"]] for node in nodes}
    rows = [row for row in unlike_nodes.compare(facts) if row.breaks]
    yield from of_launch(unlike_nodes.compared(MonotonicNs(0), rows, hosts, strict=False)) if rows else ()


CHECK = Check(
    "node_differences",
    Group.NODES,
    "Versions, variables, limits and interfaces of all nodes, compared on node 0; warns of differences, fails if such"
    " jobs often fail, or if something failed on another node.",
    _look,
    Level.DEFAULT,
    of_ranks=True,
)
