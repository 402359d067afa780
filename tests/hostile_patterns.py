"""Feeds every pattern of the package hostile lines, and remembers which passed.

Every compiled pattern is found in its module, and every one written out in a call of `re`, so a new pattern needs no
entry anywhere. Its own pieces make the hostile lines: all runs of neighbouring pieces, repeated, alone and behind what
stands before them.

To feed all takes minutes of CPU. So `hostile_patterns.passed` keeps a digest of each pattern that passed, made with the
source of this file: another pattern, or another way to feed it, has another digest. The gate feeds what is not listed;
`-m slow_system` feeds everything.

Run after a change of patterns: python -m tests.hostile_patterns
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import pkgutil
import re
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from re import Pattern, _constants, _parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import ddp_run
from ddp_run.judge.signs import Sign

SIZES = (32, 512, 4096, 16384)
SLOW_S = 0.0004
"""CPU seconds for a line of 4096 characters below which nothing has blown up: 0.1 µs a character."""
HOPELESS_S = 0.1
"""CPU seconds after which a longer line is not waited for."""
GROWTH = 8.0
"""A line four times as long takes 4 times as long where time is linear, 4.7 times for n log n, 16 times for n²."""
MOST_PIECES = 14
PASSED = Path(__file__).with_suffix(".passed")


def modules() -> Iterator[str]:
    for each in pkgutil.walk_packages(ddp_run.__path__, f"{ddp_run.__name__}."):
        if not each.name.endswith(".__main__"):
            yield each.name


def held(value: object, seen: set[int]) -> Iterator[Pattern[str]]:
    """The patterns within a module's value: in containers, and in objects of the package's own classes."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Pattern):
        yield value
    elif isinstance(value, Sign):
        yield value.compiled
    elif isinstance(value, dict):
        for each in (*value, *value.values()):
            yield from held(each, seen)
    elif isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from held(each, seen)
    elif type(value).__module__.startswith("ddp_run") and not isinstance(value, type):
        for name in (*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", ())):
            yield from held(getattr(value, name, None), seen)


def called(module: ModuleType) -> Iterator[tuple[int, Pattern[str]]]:
    """The patterns that calls like `re.search("…", text)` hold, and their lines."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name("re"), attr=how), args=[ast.Constant(value=str(text)), *_]
            ) if how != "compile":
                whole = {"match": rf"\A(?:{text})", "fullmatch": rf"\A(?:{text})\Z"}.get(how, text)
                yield node.lineno, re.compile(whole, re.MULTILINE)  # the slower reading of ^ and $
            case _:
                pass


def collected() -> dict[tuple[str | bytes, int], tuple[str, Pattern[Any]]]:
    found: dict[tuple[str | bytes, int], tuple[str, Pattern[Any]]] = {}
    for module in modules():
        loaded, short = importlib.import_module(module), module.removeprefix("ddp_run.")
        for name, value in vars(loaded).items():
            for pattern in held(value, set()) if not name.startswith("__") else ():
                found.setdefault((pattern.pattern, pattern.flags), (f"{short}.{name}", pattern))
        for line, pattern in called(loaded):
            found.setdefault((pattern.pattern, pattern.flags), (f"{short}:{line}", pattern))
    return found


# ------------------------------------------------------------------------------------------------ hostile lines

_OF_CATEGORY = {
    _constants.CATEGORY_DIGIT: "1",
    _constants.CATEGORY_NOT_DIGIT: "a",
    _constants.CATEGORY_SPACE: " ",
    _constants.CATEGORY_NOT_SPACE: "a",
    _constants.CATEGORY_WORD: "a",
    _constants.CATEGORY_NOT_WORD: " ",
}
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_Pieces = list[str]


class _Any(str):
    """A character that stands for many: no part of a word beside it."""


def one_of(items: list[tuple[Any, Any]]) -> str:
    """A character of a class, a letter, digit or sign by preference."""
    negated = items[0][0] is _constants.NEGATE

    def has(character: str) -> bool:
        for kind, value in items:
            if kind is _constants.LITERAL and chr(value) == character:
                return True
            if kind is _constants.RANGE and value[0] <= ord(character) <= value[1]:
                return True
            if kind is _constants.CATEGORY and re.match(_SPELLED[value], character):
                return True
        return False

    fitting = [chr(code) for code in (97, 49, 46, 32, *range(33, 127), 9, 10, 0x2500) if has(chr(code)) != negated]
    return fitting[0] if fitting else "a"


_SPELLED = {
    _constants.CATEGORY_DIGIT: r"\d",
    _constants.CATEGORY_NOT_DIGIT: r"\D",
    _constants.CATEGORY_SPACE: r"\s",
    _constants.CATEGORY_NOT_SPACE: r"\S",
    _constants.CATEGORY_WORD: r"\w",
    _constants.CATEGORY_NOT_WORD: r"\W",
}


def spellings(tree: Any) -> Iterator[_Pieces]:
    """Texts that the pattern matches, in pieces; of alternatives each one once, the others at their first."""
    yield from _sequences(list(tree))


def _sequences(nodes: list[tuple[Any, Any]]) -> list[_Pieces]:
    """The first spelling, then those that differ from it in one alternative."""
    options = [_of_node(kind, value) for kind, value in nodes]
    first = [each[0] for each in options]
    found = [[*chain(*first)]]
    for place, others in enumerate(options):
        for other in others[1:]:
            found.append([*chain(*first[:place], other, *first[place + 1 :])])
    return found


def _of_node(kind: Any, value: Any) -> list[_Pieces]:
    if kind is _constants.LITERAL:
        return [[chr(value)]]
    if kind is _constants.NOT_LITERAL:
        return [[_Any("a" if value != ord("a") else "b")]]
    if kind is _constants.ANY:
        return [[_Any("a")]]
    if kind is _constants.IN:
        return [[_Any(one_of(value))]]
    if kind in _REPEATS:
        low, _high, inner = value
        return [[*each] * max(1, min(low, 3)) for each in _sequences(list(inner))]
    if kind is _constants.SUBPATTERN:
        return _sequences(list(value[3]))
    if kind is _constants.ATOMIC_GROUP:
        return _sequences(list(value))
    if kind is _constants.BRANCH:
        return [spelling for branch in value[1] for spelling in _sequences(list(branch))]
    if kind is _constants.ASSERT and value[0] > 0:
        return _sequences(list(value[1]))
    return [[]]  # places, back references, what must not stand here


def joined(pieces: _Pieces) -> _Pieces:
    """Words in place of letters, so that all runs of neighbours can be tried; at most `MOST_PIECES` of them."""
    words: _Pieces = []
    for piece in pieces:
        if words and not isinstance(piece, _Any) and not isinstance(words[-1], _Any) and (words[-1] + piece).isalpha():
            words[-1] += piece
        else:
            words.append(piece)
    while len(words) > MOST_PIECES:
        shortest = min(range(len(words) - 1), key=lambda k: len(words[k]) + len(words[k + 1]))
        words[shortest : shortest + 2] = [words[shortest] + words[shortest + 1]]
    return words


def hostile(pattern: Pattern[Any]) -> list[tuple[str, str]]:
    """What stands first, and what is repeated behind it."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    made: dict[tuple[str, str], None] = {}
    for repeated in ("1", " ", '"', "'", "a", ".", "/", "-", "a.", "a/", "1,", "1 ", "[", "(", "\\", "\x1b[", "="):
        made["", repeated] = None
    for spelling in spellings(_parser.parse(text, pattern.flags & ~re.DEBUG)):
        words = joined(spelling)
        for start in range(len(words)):
            for end in range(start + 1, len(words) + 1):
                run = "".join(words[start:end])
                made["", run] = made["", run + " "] = None
                if end - start <= 3:
                    made["".join(words[:start]), run] = None
    return list(made)


# ------------------------------------------------------------------------------------------------- what it costs


def cpu_s(pattern: Pattern[Any], text: str, rounds: int = 1) -> float:
    """CPU seconds of this thread for one search: the least of some rounds."""
    data: Any = text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
    spent = []
    for _ in range(rounds):
        before = time.thread_time()
        pattern.search(data)
        spent.append(time.thread_time() - before)
    return min(spent)


def blows_up(pattern: Pattern[Any], before: str, repeated: str) -> str | None:
    """How the time grows, where it does more than n log n."""

    def line(size: int) -> str:
        return before + repeated * max(1, size // len(repeated)) + "\x00"

    spent: list[float] = []
    for size in SIZES[:-1]:
        spent.append(cpu_s(pattern, line(size)))
        if spent[-1] > HOPELESS_S and cpu_s(pattern, line(size), 2) > HOPELESS_S:
            return f"{spent[-1]:.2f} s for {size} characters"
    if spent[-1] < SLOW_S or spent[-1] < GROWTH * 1.5 * min(spent[-2], cpu_s(pattern, line(SIZES[-3]), 3)):
        return None
    # In turn, as a busy host is slow for seconds: the least of either is what its length costs.
    in_turn = [(cpu_s(pattern, line(SIZES[-2])), cpu_s(pattern, line(SIZES[-1]))) for _ in range(10)]
    shorter, longer = map(min, zip(*in_turn, strict=True))
    if longer < GROWTH * shorter:
        return None
    return f"{shorter * 1e3:.2f} ms for {SIZES[-2]} characters, {longer * 1e3:.2f} ms for {SIZES[-1]}"


def failure(pattern: Pattern[Any]) -> str | None:
    """The first hostile line that costs more than its length allows; null where there is none."""
    for before, repeated in hostile(pattern):
        slow = blows_up(pattern, before, repeated)
        if slow is not None:
            return f"{pattern.pattern!r} on {before!r} + {repeated!r} * n: {slow}"
    return None


# ------------------------------------------------------------------------------------------------ what has passed


def digest(pattern: Pattern[Any]) -> str:
    """Of the pattern and of the way it is fed: the source of this file."""
    return hashlib.sha256(f"{_METHOD}\0{pattern.pattern!r}\0{pattern.flags}".encode()).hexdigest()[:16]


_METHOD = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def passed() -> set[str]:
    """Digests of the patterns that passed when they were fed last."""
    return set(PASSED.read_text().split()) if PASSED.exists() else set()


def main() -> int:
    """Feed what is not listed, and list what passed; digests that no pattern has any more go."""
    known, patterns = passed(), collected()
    kept: list[str] = []
    failures: list[str] = []
    for name, pattern in patterns.values():
        slow = failure(pattern) if digest(pattern) not in known else None
        if slow is None:
            kept.append(digest(pattern))
        else:
            failures.append(f"{name}: {slow}")
    PASSED.write_text("".join(f"{each}\n" for each in sorted(kept)))
    print(
        f"{len(patterns)} patterns, {len(set(kept) - known)} newly passed, {len(failures)} failed", *failures, sep="\n"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
