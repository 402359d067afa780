"""Turns the bytes of a rank's stream into whole lines that a terminal can show. Values only: no files, no clock."""

from __future__ import annotations

import re
from typing import Final, Literal, final

Stream = Literal["stdout", "stderr"]
STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")

MAX_HELD: Final = 16 << 20
"""How many bytes of unfinished lines may wait for their newlines, for all ranks together."""

_CURSOR_UP: Final = b"\x1b[A"
_LOWERED: Final = re.compile(rb"(?<!\n)(?<!\x1b\[A)(\n++)(\r[^\n]{0,4096}?)((?:\x1b\[A){1,128})")
"""A bar that tqdm draws below the cursor's place, to which it then returns."""
_UP_AND_DOWN: Final = re.compile(rb"(?<!\x1b\[A)((?:\x1b\[A){1,128})(\n++)")
_UNDECIDED: Final = re.compile(rb"(?:\r[^\r\x1b]*+(?:\x1b\[?)?)?")
"""What may become such a bar."""
_MOST_LOWERED: Final = 128
_REDRAWN: Final = re.compile(rb"\r\x1b\[2K((?:\x1b\[1A\x1b\[2K)+)")
_UP_A_LINE: Final = b"\x1b[1A"
_CURSOR_SHOWN: Final = b"\x1b[?25h"
_PLAIN: Final = b"\t\n" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
_UNSEEN: Final = re.compile(rb"\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]")
"""UTF-8 of C1 controls, of what ends a line or paragraph, and of what changes the direction of text."""
# Possessive repeats: a 5 MB line of broken sequences must stay linear.
_CONTROL: Final = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*+m)"
    r"|(?P<sequence>\x1b\[[0-?]*+[ -/]*+[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*+(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*+[0-~])"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_RESET: Final = "\x1b[0m"
_RESETS: Final = ("\x1b[m", _RESET)


_NEWLINE: Final = 0x0A
_EMPTY: Final = (b"\n\n", b"\n")


@final
class LineBuffer:
    """Cuts one stream of one rank into whole lines; holds the unfinished one.

    With `raw`, no byte is changed, and a carriage return ends a line too: there are no progress bars.
    """

    __slots__ = ("_held", "_raw", "progress")

    def __init__(self, *, raw: bool = False) -> None:
        self._held = bytearray()
        self._raw = raw
        self.progress = False
        """Whether a carriage return has rewritten the unfinished line: it is a progress bar."""

    @property
    def held(self) -> int:
        """Bytes of the unfinished line."""
        return len(self._held)

    def take(self, data: bytes) -> bytes:
        """The lines that `data` completes, each with its newline; may be empty.

        Empty lines at the end wait for what follows, which may be a bar that stands lower.
        """
        if self._raw:
            data = self.rest() + data
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            self._held += data[end:]
            return data[:end]
        if self._held[:1] == b"\n":
            data, self._held = self.rest() + data, bytearray()
        if b"\x1b" in data or (self._held and data[:1] == b"\n"):
            data = _without_stacked_bars(self._without_nested_bars(data))
        end = data.rfind(b"\n") + 1
        if data[max(0, end - 2) : end] in _EMPTY and _UNDECIDED.fullmatch(data, end):
            end -= self._empty_lines(data, end)
        if not end:
            self._hold(data)
            return b""
        block = b"".join((self._held, memoryview(data)[:end])) if self._held else data[:end]
        self._held, self.progress = bytearray(), False
        if end < len(data):
            self._hold(data[end:])
        return block

    def rest(self) -> bytes:
        """The unfinished line, which is then forgotten."""
        rest = bytes(self._held)
        self._held, self.progress = bytearray(), False
        return rest

    def state(self) -> bytes:
        """What the progress bar shows now; empty if there is none, or it has been wiped."""
        if not self.progress:
            return b""
        states = self._held.rsplit(b"\r", 2)
        return bytes(states[-1] or states[-2]).strip()

    def _hold(self, data: bytes) -> None:
        self._held += data
        if b"\r" in data:
            # Only the last state and the one before it can still be seen: older ones would pile up without end.
            self._held, self.progress = bytearray(b"\r").join(self._held.rsplit(b"\r", 2)[-2:]), True

    def _empty_lines(self, data: bytes, end: int) -> int:
        """How many empty lines end there; 0 if there are more than a bar stands lower."""
        count = 0
        while count < min(end, _MOST_LOWERED + 2) and data[end - count - 1] == _NEWLINE:
            count += 1
        if self._held or count < end:
            count -= 1  # the end of another line
        return count if 0 < count <= _MOST_LOWERED else 0

    def _without_nested_bars(self, data: bytes) -> bytes:
        """Tqdm draws an inner bar as newline, bar, cursor up: up and newline cancel out to a carriage return."""
        ups = 0
        while data[ups : ups + 1] == b"\n" and self._held.endswith(_CURSOR_UP):
            del self._held[-len(_CURSOR_UP) :]
            ups += 1
        if ups:
            data = b"\r" + data[ups:]
        first = bool(self._held) and data[:1] == b"\n"  # it ends what is held
        return data[:first] + _UP_AND_DOWN.sub(_level, _LOWERED.sub(_raised, data[first:]))


def _raised(drawn: re.Match[bytes]) -> bytes:
    """Without the newlines that the moves up take back; the end of a line before them stays."""
    ups, ended = len(drawn[3]) // len(_CURSOR_UP), drawn.start() > 0
    return drawn[1][:ended] + drawn[1][ended + ups :] + drawn[2] + drawn[3]


def _level(moves: re.Match[bytes]) -> bytes:
    """Ups and newlines cancel out to a carriage return."""
    ups, downs = len(moves[1]) // len(_CURSOR_UP), len(moves[2])
    return _CURSOR_UP * (ups - downs) + b"\r" + b"\n" * (downs - ups)


def _without_stacked_bars(data: bytes) -> bytes:
    """Turn bars below each other into one state: rich redraws them by moving up line by line.

    What rich prints in the meantime stands above them. Source: rich/live_render.py, position_cursor.
    """
    pieces = _REDRAWN.split(data)
    if len(pieces) == 1:
        return data
    drawn = [pieces[0]]
    for ups, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        count = ups.count(_UP_A_LINE)
        text, at_end, after = piece.partition(_CURSOR_SHOWN)
        parts = text.split(b"\n", count) if text.endswith(b"\n") else text.rsplit(b"\n", count)
        above, newline, bars = b"  ".join(parts).rpartition(b"\n")
        drawn.append(b"\r" + above + newline + (b"\r" if newline and bars else b"") + bars + at_end + after)
    return b"".join(drawn)


def readable(block: bytes, *, colour: bool) -> bytes:
    """`block` (lines, or a piece of one) as valid UTF-8 without anything that moves the cursor.

    Colours (SGR, ECMA-48 8.3.117) stay if `colour` is set, and end with their line. Other well-formed sequences, NUL
    and BEL are dropped; remaining control characters are shown as `^H` or `\\x9b`. If a line has carriage returns, what
    was written last stays.
    """
    if not block.translate(None, _PLAIN) and (block.isascii() or _is_clean_utf8(block)):
        return block
    if b"\r" in block:
        block = b"\n".join(map(_overwritten, block.split(b"\n")))
    text = _show(block.decode("utf-8", "replace"), colour)
    return text.encode()


def neutral(text: str) -> str:
    """One line of quoted text without control characters; lone surrogates become U+FFFD."""
    return _show(text.replace("\r", " ").replace("\n", " "), colour=False)


def neutral_text(text: str) -> str:
    """Text of several lines, without control characters except newlines."""
    return "\n".join(map(neutral, text.split("\n")))


def _is_clean_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return not _UNSEEN.search(block)


def _overwritten(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _show(text: str, colour: bool) -> str:
    def shown(match: re.Match[str]) -> str:
        if match["colour"]:
            return match[0] if colour else ""
        if match["sequence"] or match[0] in "\x00\x07":
            return ""
        return _caret(ord(match[0]))

    text = _CONTROL.sub(shown, text)
    if colour and "\x1b" in text:
        text = "\n".join(map(_closed, text.split("\n")))
    return text


def _closed(line: str) -> str:
    last = line.rfind("\x1b")
    return line if last < 0 or line.startswith(_RESETS, last) else line + _RESET


def _caret(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    if code >= 0x100:
        return f"\\u{code:04x}"
    if code >= 0x80:
        return f"\\x{code:02x}"
    return "^" + chr(code ^ 0x40)
