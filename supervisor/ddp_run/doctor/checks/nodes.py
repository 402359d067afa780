"""All nodes of a job: how they differ, and which node or link is slower than the others. Pure."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ddp_run.doctor.check import Group, Surroundings, check
from ddp_run.doctor.findings import Finding, failed, skipped, warned
from ddp_run.judge import unlike_nodes
from ddp_run.record.events import MonotonicNs, NodesCompared
from ddp_run.values.node_fact import Fact, Known
from ddp_run.values.typed_fields import frozen
from ddp_run.values.words import node_name

_COMPARED = "nodes compared"


@check(Group.NODES, "differences between nodes", of_ranks=True)
def node_differences(around: Surroundings) -> Iterator[Finding]:
    """Versions, variables, limits and interfaces of all nodes, compared on node 0; warns of differences, fails if jobs
    with such a difference often fail, or if something failed on another node."""
    if around.options.max_nodes == 1:
        return
    compared, found = around.reports.launched.compared, around.reports.one("nodes")
    if compared is not None:
        yield from differences(compared)
    elif found is None:
        yield skipped(_COMPARED, around.reports.why_not())
    if found is not None:
        yield from others(found["nodes"], int(found["rank"]))
        if compared is None:
            yield from breaking(found["nodes"])


def differences(compared: NodesCompared) -> Iterator[Finding]:
    """Yield a finding for each fact in which nodes differ. Node 0 compares them as they join."""
    helps = "use the same image, settings and limits on every node"
    for line in (*compared.breaking, *compared.differing):
        name, _, value = line.partition(": ")
        breaks = line in compared.breaking
        against = f"not the same on all nodes{': jobs with this difference often fail' if breaks else ''}"
        yield (failed if breaks else warned)(name, value, against, helps)
    if not (compared.breaking or compared.differing):
        yield Finding(_COMPARED, f"{len(compared.alike)} facts are the same")


def others(nodes: Sequence[Mapping[str, Any]], own_rank: int) -> Iterator[Finding]:
    """Yield what failed on other nodes: it makes all nodes unfit for the job."""
    for node in nodes:
        if node["failed"] and node["rank"] != own_rank:
            name = node_name(node["node"], node["host"])
            yield failed(name, "; ".join(node["failed"]), "see the doctor's output on that node")


def breaking(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield, on other nodes than 0, the differences that make node 0 call all nodes unfit."""
    facts = {int(node["node"]): [Fact(str(name), str(value)) for name, value in node["facts"]] for node in nodes}
    rows = [row for row in unlike_nodes.compare(facts) if row.breaks]
    if rows:
        yield from differences(
            unlike_nodes.compared(
                MonotonicNs(0), rows, partial(unlike_nodes.by_number, hosts=_hosts(nodes)), strict=False
            )
        )


def _hosts(nodes: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    return {int(node["node"]): str(node["host"]) for node in nodes}


_SLOW = 0.5
"""A share of the others' bandwidth."""
_LATE = 2.0
"""Times the others' latency."""
_LATE_AT_LEAST_S = 100e-6
"""More than the others' latency: less is noise."""
_MOST_ROWS = 66


@frozen
class Pair:
    """Two nodes: seconds one way for a small message, and bytes per second one way for large ones."""

    one: int
    other: int
    latency_s: float
    bytes_per_s: float


@frozen
class Odd:
    """A slow node, or the two nodes of a slow link; `words` says what's slow."""

    nodes: tuple[int, ...]
    words: str


@check(Group.NODES, "pairs of nodes", of_ranks=True)
def node_pairs(around: Surroundings) -> Iterator[Finding]:
    """Latency and bandwidth of every pair of nodes, in rounds. With more than two nodes, warns of a slow link, or of a
    node all of whose links are slow: less than half the others' bandwidth, or more than twice their latency."""
    if around.options.max_nodes == 1 or around.options.node_rank != 0:
        return
    found, nodes = around.reports.one("pairs"), around.reports.one("nodes")
    if found is None or nodes is None:
        yield skipped("pairs of nodes", around.reports.why_not())
        return
    measured = [(*each["nodes"], each["latency_s"], each["bytes_per_s"]) for each in found["pairs"]]
    pairs = [Pair(one, other, latency_s, rate) for one, other, latency_s, rate in measured]
    interfaces = {int(node["node"]): str(dict(node["facts"]).get(Known.INTERFACE, "")) for node in nodes["nodes"]}
    yield from pairs_judged(pairs, _hosts(nodes["nodes"]), interfaces)


def pairs_judged(pairs: Sequence[Pair], hosts: Mapping[int, str], interfaces: Mapping[int, str]) -> Iterator[Finding]:
    """Yield a finding for all pairs, and one for each odd node or link. `hosts`, `interfaces`: by node."""
    data: tuple[Mapping[str, Any], ...] = tuple(
        {"nodes": [pair.one, pair.other], "latency_s": pair.latency_s, "bytes_per_s": pair.bytes_per_s}
        for pair in pairs
    )
    rates = sorted(pair.bytes_per_s for pair in pairs)
    latencies = sorted(1e6 * pair.latency_s for pair in pairs)
    value = f"{rate_in_words(rates[0])} to {rate_in_words(rates[-1])}, "
    value += f"{latencies[0]:.0f} to {latencies[-1]:.0f} µs one way"
    yield Finding("pairs of nodes", value, detail=tuple(_table(pairs)) if len(pairs) <= _MOST_ROWS else (), data=data)
    for odd in find(pairs):
        yield _of_node(odd, hosts, interfaces) if len(odd.nodes) == 1 else _of_link(odd, hosts)


def _of_node(odd: Odd, hosts: Mapping[int, str], interfaces: Mapping[int, str]) -> Finding:
    (node,) = odd.nodes
    name, interface = node_name(node, hosts.get(node)), interfaces.get(node) or "INTERFACE"
    helps = f"ethtool {interface}; ip -s link show {interface}   # speed, errors: on {name}"
    return warned(f"node {node}", odd.words, f"the median of the other pairs; {name}", helps)


def _of_link(odd: Odd, hosts: Mapping[int, str]) -> Finding:
    """Both interfaces serve other pairs well: look at what's between them, from both ends."""
    one, other = (node_name(node, hosts.get(node)) for node in odd.nodes)
    peer = shlex.quote(hosts.get(odd.nodes[1]) or "HOST")
    helps = f"ping -c 50 -i 0.2 {peer}; tracepath -n {peer}   # loss, route: on {one}; and back, on {other}"
    what = f"link of nodes {odd.nodes[0]} and {odd.nodes[1]}"
    return warned(what, odd.words, f"the median of the other pairs; {one} and {other}", helps)


def find(pairs: Sequence[Pair]) -> list[Odd]:
    """Return the odd nodes, then the odd links between the other nodes.

    A node is odd if all its pairs are much worse than the median of the pairs without it; a link, if its pair alone is.
    Two nodes, or two groups of nodes that are far apart, have no odd one.
    """
    nodes = sorted({node for pair in pairs for node in (pair.one, pair.other)})
    if len(nodes) < 3:
        return []
    odd = []
    for node in nodes:
        own = [pair for pair in pairs if node in (pair.one, pair.other)]
        without = [pair for pair in pairs if node not in (pair.one, pair.other)]
        if all(_worse([pair], without) for pair in own):
            odd.append(Odd((node,), _worse(own, without) or "slower than the others"))
    taken = {found.nodes[0] for found in odd}
    rest = [pair for pair in pairs if pair.one not in taken and pair.other not in taken]
    for pair in rest:
        without = [other for other in rest if other is not pair]
        if len(without) >= 2 and (words := _worse([pair], without)):
            odd.append(Odd((pair.one, pair.other), words))
    return odd


def _worse(own: Sequence[Pair], others: Sequence[Pair]) -> str:
    """Say what's much worse, with both medians; empty if nothing is."""
    rates = [statistics.median(pair.bytes_per_s for pair in pairs) for pairs in (own, others)]
    latencies = [statistics.median(pair.latency_s for pair in pairs) for pairs in (own, others)]
    found = []
    if rates[0] < _SLOW * rates[1]:
        found.append(f"{rate_in_words(rates[0])}, others {rate_in_words(rates[1])}")
    if latencies[0] > max(_LATE * latencies[1], latencies[1] + _LATE_AT_LEAST_S):
        found.append(f"{1e6 * latencies[0]:.0f} µs one way, others {1e6 * latencies[1]:.0f} µs")
    return "; ".join(found)


def _table(pairs: Sequence[Pair]) -> Iterator[str]:
    yield f"{'nodes':>9}  {'bandwidth':>11}  {'one way':>9}"
    for pair in sorted(pairs, key=lambda each: (each.one, each.other)):
        names = f"{pair.one} - {pair.other}"
        yield f"{names:>9}  {rate_in_words(pair.bytes_per_s):>11}  {f'{1e6 * pair.latency_s:.0f} µs':>9}"


def rate_in_words(bytes_per_s: float) -> str:
    """Format a rate in decimal units, as networks do: `1574 MB/s`, `2.4 MB/s`, `62 kB/s`."""
    if bytes_per_s < 1e6:
        return f"{bytes_per_s / 1e3:.0f} kB/s"
    return f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 10e6 else f"{bytes_per_s / 1e6:.1f} MB/s"
