"""No pattern of a rule or reader may blow up on a line that somebody made for it: logs come from anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import chain
from re import Pattern, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from tests import hostile_patterns
from tests.hostile_patterns import blows_up, digest, failure, passed

collected = cache(hostile_patterns.collected)
"""Imports all of the package, and torch: when a test asks for it, not in each process that collects tests."""
PARTS = 16
"""In so many tests all patterns are fed, side by side."""


def test_one_that_blows_up_is_found() -> None:
    (said,) = failures([("bad", re.compile("a+b"))])
    assert said.startswith("bad: 'a+b' on '' + 'a' * n: ")


@pytest.mark.parametrize("text", [r"\ba{1,20}b", r"\Aa+b", "[ab]{1,200}c"])
def test_one_that_does_not_is_not(text: str) -> None:
    assert blows_up(re.compile(text), "", "a") is None


def test_patterns_are_found_in_every_layer_that_reads_text() -> None:
    layers = {name.partition(".")[0] for name, _pattern in collected().values()}
    assert layers >= {"values", "settings", "plan", "supervise", "observe", "evidence", "judge", "tell", "commands"}


def holds_on_to_more_than_a_character(tree: Any) -> bool:
    """Whether a possessive repeat holds anything but one character or class."""
    for kind, value in tree:
        if kind is _constants.POSSESSIVE_REPEAT:
            (repeated, _of), *others = value[2]
            if others or repeated not in (_constants.IN, _constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY):
                return True
        parts = value if isinstance(value, tuple | list) else [value]
        trees = chain(*(part if isinstance(part, list) else [part] for part in parts))
        if any(holds_on_to_more_than_a_character(part) for part in trees if isinstance(part, _parser.SubPattern)):
            return True
    return False


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5, Debian 12's among them, finds nothing by such ones (python/cpython#106052)."""
    for text, known in ((r"(?:(?!ab).)*+ab", True), (r"x|(?:(ab)++)?", True), (r"[a-z]*+a++.?+", False)):
        assert holds_on_to_more_than_a_character(_parser.parse(text)) is known, text
    for name, pattern in collected().values():
        tree = _parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
        assert not holds_on_to_more_than_a_character(tree), f"{name}: {pattern.pattern!r}"


def failures(fed: Iterable[tuple[str, Pattern[Any]]]) -> list[str]:
    """Of patterns by their names: those that cost more than their line is long, and that line."""
    return [f"{name}: {slow}" for name, pattern in fed if (slow := failure(pattern)) is not None]


@pytest.mark.timeout(1800)  # for all of them, where the way in which they are fed has changed
def test_a_pattern_that_is_new_costs_no_more_than_its_line_is_long() -> None:
    known = passed()
    assert failures(each for each in collected().values() if digest(each[1]) not in known) == []


@pytest.mark.slow_system
@pytest.mark.parametrize("part", range(PARTS))
def test_a_pattern_costs_no_more_than_its_line_is_long(part: int) -> None:
    assert failures([*collected().values()][part::PARTS]) == []
