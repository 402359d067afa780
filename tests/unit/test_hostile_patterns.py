"""No pattern of a rule or reader may blow up on a line that somebody made for it: logs come from anywhere."""

from __future__ import annotations

import re
from itertools import chain
from re import Pattern, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from tests.hostile_patterns import blows_up, collected, digest, failure, passed

PATTERNS = collected()
PASSED = passed()


def test_one_that_blows_up_is_found() -> None:
    assert blows_up(re.compile("a+b"), "", "a") is not None


@pytest.mark.parametrize("text", [r"\ba{1,20}b", r"\Aa+b", "[ab]{1,200}c"])
def test_one_that_does_not_is_not(text: str) -> None:
    assert blows_up(re.compile(text), "", "a") is None


def test_patterns_are_found_in_every_layer_that_reads_text() -> None:
    layers = {name.partition(".")[0] for name, _pattern in PATTERNS.values()}
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
    for name, pattern in PATTERNS.values():
        tree = _parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
        assert not holds_on_to_more_than_a_character(tree), f"{name}: {pattern.pattern!r}"


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(each, id=f"{name}-{k}", marks=[pytest.mark.slow_system] if digest(each) in PASSED else [])
        for k, (name, each) in enumerate(PATTERNS.values())
    ],
)
def test_a_pattern_costs_no_more_than_its_line_is_long(pattern: Pattern[Any]) -> None:
    assert failure(pattern) is None
