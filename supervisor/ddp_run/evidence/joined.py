"""All lines of a log as one text, to see fast which words do not occur in it. Pure."""

from __future__ import annotations

from functools import lru_cache


class Joined:
    """Sixty rules search each log for their words, mostly in vain, and that is fast in one text.

    Each set of words is searched once: a rule checks the agent's log for every rank.
    """

    __slots__ = ("_held", "_text")

    def __init__(self, lines: tuple[str, ...]) -> None:
        self._text = "\n".join(lines)
        self._held: dict[str, bool] = {}

    def holds(self, words: str) -> bool:
        """Whether they occur anywhere in it."""
        held = self._held.get(words)
        if held is None:
            held = self._held[words] = words in self._text
        return held


@lru_cache(maxsize=4)
def joined(lines: tuple[str, ...]) -> Joined:
    """Return the lines as one text; those of the last few logs are kept."""
    return Joined(lines)
