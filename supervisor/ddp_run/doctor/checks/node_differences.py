"""How the nodes of the job differ, and what failed on the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_run.doctor.check import Check, Group, Level
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.judge import unlike_nodes
from ddp_run.values.finding import Finding, Grade, failed, skipped, warned
from ddp_run.values.node_fact import Fact
from ddp_run.values.words import node_name


def _look(around: Surroundings) -> Iterator[Finding]:
    reports = around.reports
    if reports is None or around.options.max_nodes == 1:
        return
    found = reports.one("nodes")
    if found is None:
        yield skipped("nodes compared", reports.why_not())
        return
    nodes = found["nodes"]
    yield from others(nodes, int(next(iter(reports.of("nodes")))["rank"]))
    differences = compared(nodes)
    yield from (each for each in differences if around.options.node_rank == 0 or each.grade is Grade.FAIL)


def others(nodes: Sequence[Mapping[str, Any]], own_rank: int) -> Iterator[Finding]:
    """What failed on other nodes: then none of them is fit for the job."""
    for node in nodes:
        name = node_name(node["node"], node["host"])
        if node["failed"] and node["rank"] != own_rank:
            yield failed(name, "; ".join(node["failed"]), "see what the doctor says there")


def compared(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """A finding for each fact in which they differ."""
    hosts = {int(node["node"]): str(node["host"]) for node in nodes}
    facts = {int(node["node"]): [Fact(str(name), str(value)) for name, value in node["facts"]] for node in nodes}
    rows = unlike_nodes.compare(facts)
    differing = [row for row in rows if row.differs]
    for row in differing:
        (line,) = unlike_nodes.warnings([row], hosts)
        value = line.removeprefix("nodes differ in ").partition("; a job of such nodes")[0].partition(": ")[2]
        grade = failed if row.breaks else warned
        against = "the same on all nodes" + ("; a job of such nodes often fails" if row.breaks else "")
        yield grade(row.name, value, against, "make the nodes alike")
    if not differing:
        yield Finding("nodes compared", f"{len(nodes)} nodes are alike in {len(rows)} facts")


CHECK = Check(
    "node_differences",
    Group.NODES,
    "Versions, variables, limits and interfaces of all nodes, compared on node 0; warns of differences, fails if such"
    " jobs often fail, or if something failed on another node.",
    _look,
    Level.DEFAULT,
    of_ranks=True,
)
