"""Which pairs of nodes to measure when: each pair once, then the slow ones again; and for how many rounds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MUCH = 1.5
"""Times slower than the pair that only a quarter of all pairs beat."""
_LATE_AT_LEAST_S = 50e-6
_MOST = 32
TIMES = 3
"""So often pairs that still look slow are measured again."""
PAIR_SIZES = (16 << 10, 256 << 10, 4 << 20)
"""Bytes that the nodes of a pair send each other; the largest that doesn't take too long counts."""
_ROUNDS = 9
_LONG_S, _TOO_LONG_S = 0.5, 4.0
"""For one round there and back: after the first, more rounds aren't worth it; above the second, a size isn't tried."""


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Return the pairs to measure at the same time, round by round; the lower node of a pair comes first.

    The circle method: node 0 stays, the others move by one place each round. With an odd number, one node pauses.
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


def best(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each pair once, with the best latency and the best bandwidth of its measurements."""
    of_pair: dict[tuple[int, int], dict[str, Any]] = {}
    for each in found:
        one, other = each["nodes"]
        seen = of_pair.setdefault((one, other), dict(each))
        seen["latency_s"] = min(seen["latency_s"], each["latency_s"])
        seen["bytes_per_s"] = max(seen["bytes_per_s"], each["bytes_per_s"])
    return list(of_pair.values())


def suspicious(found: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return the pairs to measure again, given `{"nodes": [0, 1], "latency_s": …, "bytes_per_s": …}` of each pair.

    None if there are only two nodes. If there are too many, the pairs whose nodes have few slow ones come first: if all
    pairs of a node are slow, that's hardly an accident.
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
    """Return how many more rounds the first of these sizes is worth after one that took this long; -1: try the next."""
    if len(sizes) > 1 and took_s * sizes[1] / sizes[0] < _TOO_LONG_S:
        return -1
    return 0 if took_s > _LONG_S else _ROUNDS - 1
