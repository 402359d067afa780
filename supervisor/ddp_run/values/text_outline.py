"""Which of many words a text holds: for a long log, asked of something much smaller. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import final

_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LEFT_OUT = bytes(set(range(256)) - set(_LETTERS + b"_-./=\n\r"))
_SHORT = 4096
"""Characters of a text that is searched as it is."""


def one_byte_each(text: str) -> bytes:
    """A byte for each character, at the same place; what is no Latin letter is not told apart."""
    return text.encode("latin-1", "replace")


@final
class Outline:
    """A text's lines without digits, blanks and most punctuation, equal ones once: a log has few kinds of lines.

    A word of the text stands there as well, less the same characters; so what does not is not in the text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines: bytes | None = None
        if len(text) > _SHORT:
            self._lines = b"\n".join(set(one_byte_each(text).translate(None, _LEFT_OUT).splitlines()))

    def words(self, among: tuple[str, ...]) -> list[str]:
        """Those that the text holds."""
        if self._lines is None:
            return [word for word in among if word in self._text]
        return [word for word, left in _left_of(among) if left in self._lines and word in self._text]

    def words_in_any_case(self, among: tuple[str, ...]) -> list[str]:
        """Of words in small letters those that it may hold, however it spells them."""
        if self._lines is None:
            lowered = self._text.lower()
            return [word for word in among if word in lowered]
        lines = self._lines.lower()
        return [word for word, left in _left_of(among) if left in lines]


@lru_cache(maxsize=8)
def _left_of(words: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    return tuple((word, one_byte_each(word).translate(None, _LEFT_OUT)) for word in words)
