"""Finds which lines of a long text contain one of a few words, without asking each line. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate


def lines_with(words: Iterable[str], lines: Sequence[str]) -> list[int]:
    """Return the indexes of these lines, in order. No word contains a newline."""
    whole = "\n".join(lines)
    found: set[int] = set()
    starts: list[int] = []
    for word in words:
        place = whole.find(word)
        if place >= 0 and not starts:
            starts = [0, *accumulate(map((1).__add__, map(len, lines)))]
        while place >= 0:
            index = bisect_right(starts, place) - 1
            found.add(index)
            place = whole.find(word, starts[index + 1])
    return sorted(found)
