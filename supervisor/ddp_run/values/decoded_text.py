"""A text as a reader sees it: without colours, with escapes resolved, each place traceable to the source. Pure."""

from __future__ import annotations

import binascii
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import final

_HTML = {"quot": '"', "apos": "'", "lt": "<", "gt": ">", "amp": "&"}
_CODE = r"\[[\d;:?]{0,40}[A-Za-z]"
_FLAT = re.compile(
    rf"\x1b{_CODE}|\\(?<!\\\\)(?:(?P<taken_back>(?:\r?\n|(?:\\{{2}}|\\{{5}})n)[ \t]{{0,40}})|\\{{0,7}}"
    rf"(?:(?:u001[bB]|x1[bB]|033|e){_CODE}|(?P<end>[nrt])|u(?P<letter>(?!00[0-7])[0-9a-fA-F]{{4}})))"
)
"""A terminal's control sequences; how JSON, Python and shells write them, line ends and non-ASCII letters in a string;
and line ends after a backslash, which continue the line."""
_EACH = (
    r"%(?:25){0,3}(?P<percent>0[aA]|[2-7][0-9a-fA-F])",
    r"\\\\{0,7}(?:u00(?P<u>[0-7][0-9a-fA-F])|x(?P<x>[2-7][0-9a-fA-F]))",
    r"&(?:amp;){0,3}(?:(?P<html>quot|apos|lt|gt|amp)|#x(?P<h>[2-7][0-9a-fA-F])|#(?P<decimal>\d{2,3}));",
)
_ENCODED, *_ALONE = (re.compile(pattern) for pattern in ("|".join(_EACH), *_EACH))
_NOTHING = re.compile(r"(?!)")
_ALIKE = {
    **{0xFF01 + at: chr(0x21 + at) for at in range(94)},
    **dict.fromkeys(map(ord, "→⇒⟶⟹➜➔"), "="),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e«»"), '"'),
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a"), "'"),
    **dict.fromkeys(map(ord, "\u00a0\u2007\u202f\u3000"), " "),
    **dict.fromkeys(map(ord, "│┃"), "|"),
}
"""Full-width signs, arrows, quotes, blanks and the sides of boxes, one for one."""
_ASCII = bytes(range(128))
_SHORTEST = 24
"""Shorter runs of base64 characters aren't decoded."""
_BASE64 = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
_MARKED = bytes(ord("a") if byte in _BASE64 else ord(" ") for byte in range(256))


@final
class Decoded:
    """The decoded text, and where in the source each of its characters comes from."""

    def __init__(self, source: str, pattern: re.Pattern[str]) -> None:
        self.text = pattern.sub(_meant, source)
        self._source, self._pattern = source, pattern

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where in the source the characters from `start` to `end` are; at least one."""
        return self._place(start)[0], self._place(end - 1)[1]

    def _place(self, at: int) -> tuple[int, int]:
        starts, sources = self._pieces
        piece = bisect_right(starts, at) - 1
        first, last, unchanged = sources[piece]
        after = at - starts[piece]
        return (first + after, first + after + 1) if unchanged else (first, last)

    @cached_property
    def _pieces(self) -> tuple[list[int], list[tuple[int, int, bool]]]:
        """Where each piece begins in the text; its span in the source, and whether it is unchanged."""
        starts: list[int] = []
        sources: list[tuple[int, int, bool]] = []
        at = done = 0
        for hit in self._pattern.finditer(self._source):
            for first, last, length in (done, hit.start(), hit.start() - done), (*hit.span(), len(_meant(hit))):
                if length:
                    starts.append(at)
                    sources.append((first, last, last == hit.start()))
                    at += length
            done = hit.end()
        return [*starts, at], [*sources, (done, len(self._source), True)]


def _meant(hit: re.Match[str]) -> str:
    """One character or none; U+FFFD for an escape that means nothing here."""
    match hit.lastgroup, hit[hit.lastgroup or 0]:
        case None, _:
            return ""
        case "end", sign:
            return "\t" if sign == "t" else "\n"
        case "taken_back", _:
            return " "
        case "html", name:
            return _HTML[name]
        case "decimal", number:
            return chr(int(number))
        case _, number:
            code = int(number, 16)
            return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)


def flat(text: str) -> Decoded:
    """Without colours; line ends as JSON and Python write them become line ends, continued lines a blank."""
    return Decoded(text, _FLAT if "\x1b" in text or "\\" in text else _NOTHING)


def other_signs(text: str) -> frozenset[str]:
    """The characters that aren't ASCII."""
    return frozenset("" if text.isascii() else text.encode("utf-8", "ignore").translate(None, _ASCII).decode())


def alike(text: str) -> str:
    """With Latin signs for those of the same meaning, each at its place."""
    return text if _ALIKE.keys().isdisjoint(map(ord, other_signs(text))) else text.translate(_ALIKE)


def encoded_lines(text: str) -> Iterator[tuple[int, Decoded]]:
    """Lines with `%22`, `\\u0022` or `&quot;` in place of characters: where each begins, and its decoded text."""
    lines: dict[int, int] = {}
    for pattern in _ALONE:  # a pattern that begins with one sign is ten times as fast as one for three
        at = 0
        while (hit := pattern.search(text, at)) is not None:
            start, end = text.rfind("\n", at, hit.start()) + 1 or at, text.find("\n", hit.end())
            lines[start] = at = len(text) if end < 0 else end
    for start, end in lines.items():
        yield start, Decoded(text[start:end], _ENCODED)


def one_byte_each(text: str) -> bytes:
    """A byte for each character, at the same place; `?` for all that aren't in Latin-1."""
    return text.encode("latin-1", "replace")


def base64_runs(text: str, least: int = _SHORTEST) -> Iterator[tuple[int, int]]:
    """The spans of `least` or more base64 characters in a row."""
    if len(text) < least:
        return
    marked = one_byte_each(text).translate(_MARKED)
    end = 0
    while (start := marked.find(b"a" * least, end)) >= 0:
        end = marked.find(b" ", start)
        end = len(text) if end < 0 else end
        yield start, end


def out_of_base64(run: str) -> str | None:
    """The text encoded in base64; None if it isn't text. The first look rejects most words and paths."""
    whole = run[: len(run) - (len(run) % 4 == 1)]
    try:
        if not binascii.a2b_base64(run[:_SHORTEST]).isascii():
            return None
        data = binascii.a2b_base64(whole + "=" * (-len(whole) % 4))
        sure = len(run) // 4 * 3  # the last bytes may be those of a character that was cut
        return data[:sure].decode("ascii") + data[sure:].decode("latin-1")
    except ValueError:
        return None
