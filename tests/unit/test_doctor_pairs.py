"""Rounds of pairs of nodes, and who is odd: planted slow nodes and links."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_run.doctor.checks import nodes as of_nodes
from ddp_run.doctor.checks.nodes import Pair
from ddp_run.doctor.findings import Grade
from ddp_run.doctor_ranks.schedule import PAIR_SIZES, best, further_rounds, rounds, suspicious


@pytest.mark.parametrize("nodes", range(2, 20))
def test_each_node_meets_each_other_once(nodes: int) -> None:
    plan = rounds(nodes)
    assert len(plan) == nodes - 1 + nodes % 2
    assert sorted(pair for each in plan for pair in each) == list(combinations(range(nodes), 2))
    for each in plan:
        busy = [node for pair in each for node in pair]
        assert len(busy) == len(set(busy))


def measured(
    nodes: int, slow: tuple[int, ...] = (), link: tuple[int, int] | None = None, late: tuple[int, ...] = ()
) -> list[Pair]:
    """1 GB/s and 50 µs, a tenth of that where something is planted; a little different for each pair."""
    found = []
    for one, other in combinations(range(nodes), 2):
        rate = 1e9 * (1 + 0.02 * (one + other) / nodes)
        rate *= 0.1 if {one, other} & {*slow} or (one, other) == link else 1
        found.append(Pair(one, other, 2e-3 if {one, other} & {*late} else 50e-6, rate))
    return found


@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 33])
def test_a_slow_node_is_named(nodes: int) -> None:
    for node in {*range(0, nodes, max(1, nodes // 8)), nodes - 1}:
        assert [odd.nodes for odd in of_nodes.find(measured(nodes, slow=(node,)))] == [(node,)]
        assert [odd.nodes for odd in of_nodes.find(measured(nodes, late=(node,)))] == [(node,)]


@pytest.mark.parametrize("nodes", [3, 4, 5, 8])
def test_a_slow_link_is_named(nodes: int) -> None:
    for link in combinations(range(nodes), 2):
        assert [odd.nodes for odd in of_nodes.find(measured(nodes, link=link))] == [link]


def test_what_was_busy_for_a_moment_is_not_slow() -> None:
    busy = [Pair(0, 1, 9e-3, 1e9), Pair(0, 2, 50e-6, 1e9), Pair(1, 2, 50e-6, 1e9)]
    again = [Pair(0, 1, 50e-6, 1e8), Pair(0, 2, 50e-6, 1e9), Pair(1, 2, 9e-3, 1e9)]
    assert of_nodes.find(busy) != []
    quiet = [Pair(0, 1, 50e-6, 1e9), *busy[1:]]
    assert best([*as_told(busy), *as_told(again)]) == as_told(quiet)
    assert of_nodes.find(quiet) == []


def as_told(pairs: list[Pair]) -> list[dict[str, Any]]:
    return [
        {"nodes": [pair.one, pair.other], "latency_s": pair.latency_s, "bytes_per_s": pair.bytes_per_s}
        for pair in pairs
    ]


def test_what_looks_slow_is_measured_again() -> None:
    assert suspicious(as_told(measured(2, slow=(0,)))) == []
    assert suspicious(as_told(measured(8))) == []
    assert suspicious(as_told(measured(4, link=(1, 3)))) == [(1, 3)]
    assert suspicious(as_told(measured(8, slow=(2,), link=(4, 6))))[0] == (4, 6)
    assert len(suspicious(as_told(measured(64, slow=(5,))))) == 32


def test_two_slow_nodes_of_many() -> None:
    assert [odd.nodes for odd in of_nodes.find(measured(8, slow=(2, 5)))] == [(2,), (5,)]


def test_a_slow_node_and_a_slow_link() -> None:
    assert [odd.nodes for odd in of_nodes.find(measured(8, slow=(2,), link=(4, 6)))] == [(2,), (4, 6)]


def test_two_racks_have_no_odd_one() -> None:
    racks = [
        Pair(one, other, 50e-6, 1e9 if one // 2 == other // 2 else 2e8) for one, other in combinations(range(4), 2)
    ]
    assert of_nodes.find(racks) == []


def test_two_nodes_and_even_ones_are_not_judged() -> None:
    assert of_nodes.find(measured(2, slow=(0,))) == []
    for nodes in (3, 4, 16):
        assert of_nodes.find(measured(nodes)) == []


@given(st.integers(3, 8), st.data())
def test_noise_below_the_limit_names_nobody(nodes: int, data: st.DataObject) -> None:
    pairs = [
        Pair(one, other, data.draw(st.floats(10e-6, 100e-6)), data.draw(st.floats(0.7e9, 1.3e9)))
        for one, other in combinations(range(nodes), 2)
    ]
    assert of_nodes.find(pairs) == []


def test_findings() -> None:
    found = list(of_nodes.pairs_judged(measured(4, slow=(2,)), {2: "gpu-07"}, {2: "eth1"}))
    assert [each.grade for each in found] == [Grade.PASS, Grade.WARN]
    assert len(found[0].data) == 6
    assert (found[1].looked_at, found[1].value) == ("node 2", "102 MB/s, others 1015 MB/s")
    assert found[1].advice[0].startswith("ethtool eth1; ")
    assert found[1].advice[0].endswith("on node 2 (gpu-07)")


def test_a_link_is_looked_at_from_both_ends() -> None:
    found = list(of_nodes.pairs_judged(measured(4, link=(1, 2)), {1: "gpu-06", 2: "gpu-07"}, {1: "eth1", 2: "eth2"}))
    assert (found[1].looked_at, found[1].grade) == ("link of nodes 1 and 2", Grade.WARN)
    assert found[1].advice[0].startswith("ping -c 50 -i 0.2 gpu-07; tracepath -n gpu-07   # ")
    assert found[1].advice[0].endswith("on node 1 (gpu-06); and back, on node 2 (gpu-07)")


@pytest.mark.parametrize(
    ("rate", "words"), [(1.5744e9, "1574 MB/s"), (24e6, "24 MB/s"), (2.44e6, "2.4 MB/s"), (62_400.0, "62 kB/s")]
)
def test_a_rate_is_one_also_where_it_is_low(rate: float, words: str) -> None:
    assert of_nodes.rate_in_words(rate) == words


@pytest.mark.parametrize(
    ("at", "took_s", "further"), [(0, 1e-4, -1), (0, 2.1, 0), (1, 0.04, -1), (1, 0.3, 8), (2, 1e-3, 8), (2, 0.6, 0)]
)
def test_a_pair_is_not_measured_with_more_than_its_link_carries(at: int, took_s: float, further: int) -> None:
    """All other ranks wait meanwhile, and none longer than the limit of a collective."""
    assert further_rounds(PAIR_SIZES[at:], took_s) == further


@pytest.mark.parametrize("bytes_per_s", [10**power for power in range(3, 11)])
def test_a_pair_takes_seconds_at_most(bytes_per_s: int) -> None:
    took, further = 0.0, -1
    sizes: tuple[int, ...] = PAIR_SIZES
    while further < 0:
        once = 2 * sizes[0] / bytes_per_s
        further = further_rounds(sizes, once)
        took += once * (1 + max(further, 0))
        sizes = sizes[1:]
    assert took < max(10.0, 2.1 * PAIR_SIZES[0] / bytes_per_s)
