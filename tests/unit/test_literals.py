"""The words that a sign's regular expression contains for certain: a scanner skips all lines without them."""

from __future__ import annotations

from re import _parser  # type: ignore[attr-defined]

import pytest
from tests.hostile_patterns import spellings

from ddp_run.evidence.literals import longest
from ddp_run.judge.catalogue import catalogue


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("no GPU found", "no GPU found"),
        (r"size \(ulimit -l\)\.", "size (ulimit -l)."),
        ("one or (?:two|three) of them", " of them"),
        ("ab(?P<name>cd)ef", "abcdef"),
        ("ab(?P<name>cd)?efg", "efg"),
        ("abc(?:d|e){2}f", "abc"),
        ("colou?r of it", "r of it"),
        ("lines? of", "line"),
        (r"ab+d{1,3}efgh*", "efg"),
        ("a{0,3}b", "b"),
        ("(?<!not )found(?! it)", "found"),
        (r"^\bat the end$", "at the end"),
        (r"x[abc\]]yz\u2018z", "yz"),
        ("(?s)all of it.*", "all of it"),
        ("(?i)any case", ""),
        ("(?i:any) case", " case"),
        ("one|two", ""),
        ("(?P<quote>['\"]).(?P=quote) is it", " is it"),
    ],
)
def test_the_longest_text_of_all_matches(pattern: str, text: str) -> None:
    assert longest(pattern) == text


def test_each_match_of_a_sign_has_its_longest_text() -> None:
    patterns = {sign.pattern for cause in catalogue() for sign in cause.signs if sign.pattern is not None}
    assert len(patterns) > 500
    for pattern in patterns:
        text = longest(pattern)
        assert all(text in "".join(each) for each in spellings(_parser.parse(pattern))), pattern


def test_each_sign_has_words() -> None:
    assert all(sign.words for cause in catalogue() for sign in cause.signs)
