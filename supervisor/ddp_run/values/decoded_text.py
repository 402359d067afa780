"""A text as a reader sees it: without colours, with escapes resolved; each place known in what it was made of. Pure."""

from __future__ import annotations

import binascii
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import final

from ddp_run.values.text_outline import one_byte_each

_HTML = {"quot": '"', "apos": "'", "lt": "<", "gt": ">", "amp": "&"}
_COLOUR = r"(?:\x1b|\\{1,8}(?:u001[bB]|x1[bB]|033|e))\[[\d;:?]{0,40}[A-Za-z]"
"""A terminal's control sequence, also as JSON, Python and shells write it in a string."""
_FLAT = re.compile(rf"{_COLOUR}|(?<!\\)\\{{1,8}}(?P<end>[nr]|t(?=-))|(?P<goes_on>\\\r?\n[ \t]{{0,40}})")
_ENCODED = re.compile(
    r"%(?:25){0,3}(?P<percent>0[aA]|[2-7][0-9a-fA-F])|\\{1,8}(?:u(?P<u>[0-9a-fA-F]{4})|x(?P<x>[2-7][0-9a-fA-F]))"
    r"|&(?:amp;){0,3}(?:(?P<html>quot|apos|lt|gt|amp)|#x(?P<h>[2-7][0-9a-fA-F])|#(?P<decimal>\d{2,3}));"
)
_ALIKE = {
    **{0xFF01 + at: chr(0x21 + at) for at in range(94)},
    **dict.fromkeys(map(ord, "→⇒⟶⟹➜➔"), "="),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e«»"), '"'),
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a"), "'"),
    **dict.fromkeys(map(ord, "\u00a0\u2007\u202f\u3000"), " "),
    **dict.fromkeys(map(ord, "│┃"), "|"),
}
"""Full-width signs, arrows, quotes, blanks and the sides of boxes, one for one."""
_UNLIKE = re.compile(f"[{''.join(map(chr, _ALIKE))}]")
_SHORTEST = 24
"""Characters of base64 below which none is decoded."""
_BASE64 = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
_MARKED = bytes(ord("a") if byte in _BASE64 else ord(" ") for byte in range(256))


@final
class Decoded:
    """What a text says, and where in the text each of its characters comes from."""

    def __init__(self, source: str, pattern: re.Pattern[str] | None = None) -> None:
        self.text = source
        self._at: list[int] = []
        self._from: list[tuple[int, int]] = []
        if pattern is None or pattern.search(source) is None:
            return
        pieces: list[str] = []
        length = done = 0
        for hit in pattern.finditer(source):
            for start, end, piece in ((done, hit.start(), source[done : hit.start()]), (*hit.span(), _meant(hit))):
                if piece:
                    self._at.append(length)
                    self._from.append((start, end))
                    pieces.append(piece)
                    length += len(piece)
            done = hit.end()
        self._at.append(length)
        self._from.append((done, len(source)))
        self.text = "".join([*pieces, source[done:]])

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where in the source the characters from `start` to `end` are; at least one."""
        return (self._place(start)[0], self._place(end - 1)[1]) if self._at else (start, end)

    def _place(self, at: int) -> tuple[int, int]:
        piece = bisect_right(self._at, at) - 1
        first, last = self._from[piece]
        after = at - self._at[piece]
        next_piece = self._at[piece + 1] if piece + 1 < len(self._at) else len(self.text)
        whole = next_piece - self._at[piece] != last - first
        return (first, last) if whole else (first + after, first + after + 1)


def _meant(hit: re.Match[str]) -> str:
    """One character or none; an escape that has no meaning here stands for something unknown."""
    match hit.lastgroup, hit[hit.lastgroup] if hit.lastgroup else "":
        case None, _:
            return ""
        case "end", sign:
            return "\t" if sign == "t" else "\n"
        case "goes_on", _:
            return " "
        case "html", name:
            return _HTML[name]
        case "decimal", number:
            return chr(int(number))
        case _, number:
            code = int(number, 16)
            return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)


def flat(text: str) -> Decoded:
    """Without colours; ends of lines as JSON and Python write them in a string are ends of lines, one that a backslash
    takes back is a blank."""
    return Decoded(text, _FLAT if "\x1b" in text or "\\" in text else None)


def alike(text: str) -> str:
    """With Latin signs for those of the same meaning, each at its place."""
    return text if text.isascii() or _UNLIKE.search(text) is None else text.translate(_ALIKE)


def encoded_lines(text: str) -> Iterator[tuple[int, Decoded]]:
    """Lines with `%22`, `\\u0022` or `&quot;` in place of characters: where each begins, and what it says."""
    if "%" not in text and "\\" not in text and "&" not in text:
        return
    at = 0
    while (hit := _ENCODED.search(text, at)) is not None:
        start, end = text.rfind("\n", at, hit.start()) + 1 or at, text.find("\n", hit.end())
        end = len(text) if end < 0 else end
        yield start, Decoded(text[start:end], _ENCODED)
        at = end


def base64_runs(text: str) -> Iterator[tuple[int, int]]:
    """Where so many characters of base64 follow each other."""
    if len(text) < _SHORTEST:
        return
    marked = one_byte_each(text).translate(_MARKED)
    end = 0
    while (start := marked.find(b"a" * _SHORTEST, end)) >= 0:
        end = marked.find(b" ", start)
        end = len(text) if end < 0 else end
        yield start, end


def out_of_base64(run: str) -> str | None:
    """The text that base64 holds; None where it holds anything else. Most words and paths go at the first look."""
    try:
        if not binascii.a2b_base64(run[:_SHORTEST]).isascii():
            return None
        data = binascii.a2b_base64(run[: len(run) // 4 * 4])
        return data.decode("ascii") + _rest(run)
    except ValueError:
        return None


def _rest(run: str) -> str:
    left = run[len(run) // 4 * 4 :]
    return binascii.a2b_base64(left + "=" * (-len(left) % 4)).decode("latin-1") if len(left) > 1 else ""
