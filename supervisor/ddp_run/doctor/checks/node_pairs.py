"""Each node with each other, one pair at a time: which node, or which link, is slower than the rest."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_run.doctor import odd_pairs
from ddp_run.doctor.check import Check, Group, Level
from ddp_run.doctor.odd_pairs import Odd, Pair
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, skipped, warned
from ddp_run.values.node_fact import Known
from ddp_run.values.words import node_name


def _look(around: Surroundings) -> Iterator[Finding]:
    reports = around.reports
    if reports is None or around.options.max_nodes == 1 or around.options.node_rank != 0:
        return
    found, nodes = reports.one("pairs"), reports.one("nodes")
    if found is None or nodes is None:
        yield skipped("pairs of nodes", reports.why_not())
        return
    pairs = odd_pairs.best(
        Pair(each["nodes"][0], each["nodes"][1], each["latency_s"], each["bytes_per_s"]) for each in found["pairs"]
    )
    hosts = {int(node["node"]): str(node["host"]) for node in nodes["nodes"]}
    facts = {int(node["node"]): dict(node["facts"]) for node in nodes["nodes"]}
    yield from judged(pairs, hosts, {node: str(told.get(Known.INTERFACE, "")) for node, told in facts.items()})


def judged(pairs: Sequence[Pair], hosts: Mapping[int, str], interfaces: Mapping[int, str]) -> Iterator[Finding]:
    """One finding for all, and one for each that is odd. `hosts`, `interfaces`: of each node."""
    data: tuple[Mapping[str, Any], ...] = tuple(
        {"nodes": [pair.one, pair.other], "latency_s": pair.latency_s, "bytes_per_s": pair.bytes_per_s}
        for pair in pairs
    )
    slowest, fastest = min(p.bytes_per_s for p in pairs), max(p.bytes_per_s for p in pairs)
    latencies = sorted(1e6 * pair.latency_s for pair in pairs)
    rates = f"{odd_pairs.rate_in_words(slowest)} to {odd_pairs.rate_in_words(fastest)}"
    value = f"{rates}, {latencies[0]:.0f} to {latencies[-1]:.0f} µs one way"
    detail = tuple(odd_pairs.table(pairs)) if len(pairs) <= 66 else ()
    yield Finding("pairs of nodes", value, detail=detail, data=data)
    for odd in odd_pairs.find(pairs):
        yield _of_node(odd, hosts, interfaces) if len(odd.nodes) == 1 else _of_link(odd, hosts)


def _of_node(odd: Odd, hosts: Mapping[int, str], interfaces: Mapping[int, str]) -> Finding:
    (node,) = odd.nodes
    name, interface = node_name(node, hosts.get(node)), interfaces.get(node) or "INTERFACE"
    helps = f"ethtool {interface}; ip -s link show {interface}   # speed, errors: on {name}"
    return warned(f"node {node}", odd.words, f"the median of the other pairs; {name}", helps)


def _of_link(odd: Odd, hosts: Mapping[int, str]) -> Finding:
    """Their interfaces serve other pairs as well: what is between them is looked at, from both ends."""
    one, other = (node_name(node, hosts.get(node)) for node in odd.nodes)
    peer = shlex.quote(hosts.get(odd.nodes[1]) or "HOST")
    helps = f"ping -c 50 -i 0.2 {peer}; tracepath -n {peer}   # loss, the way: on {one}; and back, on {other}"
    what = f"link of nodes {odd.nodes[0]} and {odd.nodes[1]}"
    return warned(what, odd.words, f"the median of the other pairs; {one} and {other}", helps)


CHECK = Check(
    "node_pairs",
    Group.NODES,
    "Latency and bandwidth of every pair of nodes, in rounds; with more than two nodes warns of a node all of whose"
    " pairs, or of a link that, has less than half the others' bandwidth or more than twice their latency.",
    _look,
    Level.DEFAULT,
    of_ranks=True,
)
