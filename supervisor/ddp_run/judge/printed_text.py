"""An error of a file that a program caught, printed with a word for a failure, and ended with. Pure.

What was handled looks the same: it counts in the very last lines only, and where no exception is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddp_run.evidence.model import Death
from ddp_run.judge.signs import QUOTED_PATH, Hit, Sign, in_last_words

LINES = 8
"""Lines before the end in which the reason must stand."""
_FAILURE = r"(?i:\b(?:error|critical|fatal|fail(?:ed|ure)?|exception|could not|cannot|unable)\b)"

_WARNED = re.compile(r"^.{0,60}\b[Ww](?:arning|ARNING)\b")


def errors(words: Iterable[str]) -> tuple[Sign, ...]:
    """Signs for the system's words for an error number; groups `what` and, where one is shown, `path`."""
    return tuple(
        Sign(
            each,
            re.compile(rf"{_FAILURE}[^\n]{{0,400}}?\[Errno \d+\] (?P<what>{re.escape(each)})(?:: {QUOTED_PATH})?"),
        )
        for each in words
    )


def at_the_end(death: Death, signs: tuple[Sign, ...]) -> Hit | None:
    """Such a line in the last ones of a rank that shows no exception."""
    hit = in_last_words(death, signs, LINES) if death.exception is None else None
    return None if hit is None or _WARNED.search(hit.text) else hit
