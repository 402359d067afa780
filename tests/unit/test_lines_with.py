"""Lines with words: as if each line were asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddp_run.evidence.lines_with import lines_with

TEXT = st.text("abé :", max_size=6)


@given(st.lists(TEXT, max_size=12), st.lists(st.text("abé :", min_size=1, max_size=3), max_size=3))
def test_the_same_lines_as_one_by_one(lines: list[str], words: list[str]) -> None:
    assert lines_with(words, lines) == [k for k, line in enumerate(lines) if any(word in line for word in words)]
