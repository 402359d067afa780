"""Rounds of pairs: each node with each other once, as a tournament is drawn. Pure."""

from __future__ import annotations


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
