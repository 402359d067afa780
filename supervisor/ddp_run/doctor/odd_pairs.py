"""Which node, or which link, is slower than the others, from measurements of every pair. Pure.

A node is odd if all its pairs are much worse than the median of the pairs without it; a link, if its pair alone is.
With two nodes, or two groups of nodes that are far from each other, nobody is odd.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from ddp_run.values.typed_fields import frozen

_SLOW = 0.5
"""Of the others' bandwidth."""
_LATE = 2.0
"""Times the others' latency."""
_LATE_AT_LEAST_S = 100e-6
"""More than theirs: below this it is noise."""


@frozen
class Pair:
    """Two nodes, seconds one way of a small message, and bytes per second one way of large ones."""

    one: int
    other: int
    latency_s: float
    bytes_per_s: float

    def has(self, node: int) -> bool:
        """Whether it is one of the two."""
        return node in (self.one, self.other)


def best(pairs: Iterable[Pair]) -> list[Pair]:
    """Of several measurements of a pair the better latency and bandwidth."""
    found: dict[tuple[int, int], Pair] = {}
    for pair in pairs:
        seen = found.setdefault((pair.one, pair.other), pair)
        latency, rate = min(seen.latency_s, pair.latency_s), max(seen.bytes_per_s, pair.bytes_per_s)
        found[pair.one, pair.other] = Pair(pair.one, pair.other, latency, rate)
    return list(found.values())


@frozen
class Odd:
    """One node, or the two of a link, and what is slow about it."""

    nodes: tuple[int, ...]
    words: str


def find(pairs: Sequence[Pair]) -> list[Odd]:
    """The odd nodes; then the odd links between nodes that are not."""
    nodes = sorted({node for pair in pairs for node in (pair.one, pair.other)})
    if len(nodes) < 3:
        return []
    odd = list(_odd_nodes(pairs, nodes))
    taken = {found.nodes[0] for found in odd}
    rest = [pair for pair in pairs if pair.one not in taken and pair.other not in taken]
    return odd + list(_odd_links(rest))


def _odd_nodes(pairs: Sequence[Pair], nodes: Sequence[int]) -> Iterator[Odd]:
    for node in nodes:
        own = [pair for pair in pairs if pair.has(node)]
        others = [pair for pair in pairs if not pair.has(node)]
        if all(_is_worse(pair, others) for pair in own):
            yield Odd((node,), _words(own, others))


def _odd_links(pairs: Sequence[Pair]) -> Iterator[Odd]:
    for pair in pairs:
        others = [other for other in pairs if other is not pair]
        if len(others) >= 2 and _is_worse(pair, others):
            yield Odd((pair.one, pair.other), _words([pair], others))


def _is_worse(pair: Pair, others: Sequence[Pair]) -> bool:
    return pair.bytes_per_s < _SLOW * _bandwidth(others) or _is_late(pair.latency_s, _latency(others))


def _is_late(latency_s: float, usual_s: float) -> bool:
    return latency_s > max(_LATE * usual_s, usual_s + _LATE_AT_LEAST_S)


def _bandwidth(pairs: Sequence[Pair]) -> float:
    return statistics.median(pair.bytes_per_s for pair in pairs)


def _latency(pairs: Sequence[Pair]) -> float:
    return statistics.median(pair.latency_s for pair in pairs)


def _words(own: Sequence[Pair], others: Sequence[Pair]) -> str:
    """What is worse, with both numbers."""
    found = []
    if _bandwidth(own) < _SLOW * _bandwidth(others):
        found.append(f"{rate_in_words(_bandwidth(own))}, others {rate_in_words(_bandwidth(others))}")
    if _is_late(_latency(own), _latency(others)):
        found.append(f"{1e6 * _latency(own):.0f} µs one way, others {1e6 * _latency(others):.0f} µs")
    return "; ".join(found) or "slower than the others"


def table(pairs: Sequence[Pair]) -> Iterator[str]:
    """For people: bandwidth, and latency in µs."""
    yield f"{'nodes':>9}  {'bandwidth':>11}  {'one way':>9}"
    for pair in sorted(pairs, key=lambda each: (each.one, each.other)):
        names = f"{pair.one} - {pair.other}"
        yield f"{names:>9}  {rate_in_words(pair.bytes_per_s):>11}  {f'{1e6 * pair.latency_s:.0f} µs':>9}"


def rate_in_words(bytes_per_s: float) -> str:
    """`1574 MB/s`, `2.4 MB/s`, `62 kB/s`: decimal units, as of networks."""
    if bytes_per_s < 1e6:
        return f"{bytes_per_s / 1e3:.0f} kB/s"
    return f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 10e6 else f"{bytes_per_s / 1e6:.1f} MB/s"
