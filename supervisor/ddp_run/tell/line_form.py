"""The form of a line on the console: its prefix, and as much of it as a row holds."""

from __future__ import annotations

from collections.abc import Iterable

from ddp_run.values.words import rank_list


def label(ranks: Iterable[int]) -> str:
    """What stands before a line of theirs: `[rank0,2-3]: `."""
    return f"[rank{rank_list(ranks)}]: "


def prefixed(block: bytes, prefix: bytes, *, own: bool) -> tuple[bytes, memoryview]:
    """Every line of `block` with `prefix` before it, in two pieces: a flood is not copied once more to join them.

    With `own`, a line that has it already gets no second: torch's excepthook writes `[rank3]: ` itself.
    """
    newline = b"\n" + prefix
    if own and block.rfind(prefix) >= 0:  # three times as fast as `in`
        block = block.removeprefix(prefix).replace(newline, b"\n")
    lines = memoryview(block.replace(b"\n", newline))
    return prefix, lines[: len(lines) - len(prefix)]


def fitting(line: bytes, columns: int) -> bytes:
    """The start of `line` that fits on one row of a terminal, so that it can be erased as one."""
    if line.isascii():
        return line[: columns - 1]
    from unicodedata import combining, east_asian_width

    text, used = line.decode("utf-8", "replace"), 0
    for index, character in enumerate(text):
        used += 0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1
        if used > columns - 1:
            return text[:index].encode()
    return line
