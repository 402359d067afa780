"""Which pairs of nodes are measured when, and how: each node with each other once, then what looks slow again. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_MUCH = 1.5
"""Times slower or later than a quarter of all pairs."""
_LATE_AT_LEAST_S = 50e-6
_MOST = 32
PAIR_SIZES = (16 << 10, 256 << 10, 4 << 20)
"""Bytes that the two of a pair send each other; the largest counts that does not take too long."""
_ROUNDS = 9
_LONG_S, _TOO_LONG_S = 0.5, 4.0
"""Of one round to and fro: more rounds are not worth it; a size that would take so long is not tried."""


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Pairs that can be measured at the same time, round by round; the lower node of a pair first.

    The circle method: node 0 stays, the others move on by one place each round. With an odd number one pauses.
    """
    places: list[int | None] = [*range(nodes)] + [None] * (nodes % 2)
    found = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        found.append(
            [(min(one, other), max(one, other)) for one, other in facing if one is not None and other is not None]
        )
        places = [places[0], places[-1], *places[1:-1]]
    return found


def suspicious(found: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """The pairs to be measured again, of `{"nodes": [0, 1], "latency_s": …, "bytes_per_s": …}`; none of two nodes.

    Where they are many, first those whose nodes have few of them: a node all of whose pairs are slow is no accident.
    """
    if len(found) < 3:
        return []
    rate = sorted(each["bytes_per_s"] for each in found)[-1 - len(found) // 4]
    latency = sorted(each["latency_s"] for each in found)[len(found) // 4]
    late = max(_MUCH * latency, latency + _LATE_AT_LEAST_S)
    slow = [each["nodes"] for each in found if each["bytes_per_s"] < rate / _MUCH or each["latency_s"] > late]
    counts = Counter(node for nodes in slow for node in nodes)
    return sorted(((one, other) for one, other in slow), key=lambda pair: (max(counts[node] for node in pair), pair))[
        :_MOST
    ]


def further_rounds(sizes: Sequence[int], took_s: float) -> int:
    """Of the first of these sizes, where one round took so long; -1: the next one is to be tried."""
    if len(sizes) > 1 and took_s * sizes[1] / sizes[0] < _TOO_LONG_S:
        return -1
    return 0 if took_s > _LONG_S else _ROUNDS - 1
