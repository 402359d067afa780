"""A file error that a program caught, printed with a word for failure, and exited with; and prints that failed. Pure.

Handled errors look the same, so it counts only in the very last lines, and only if no exception is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddp_run.evidence.exception_frames import statement
from ddp_run.evidence.model import Death
from ddp_run.evidence.went_on import WARNED
from ddp_run.evidence.windows import VERY_LAST
from ddp_run.judge.signs import QUOTED_PATH, Hit, Sign, in_last_words

_FAILURE = r"(?i:\b(?:error|critical|fatal|fail(?:ed|ure)?|exception|could not|cannot|unable)\b)"

_PRINTING = re.compile(r"\bprint\(|\b(?:sys\.)?std(?:out|err)\b|\btqdm\b|fp_write\(|\.emit\(|self\.flush\(\)")


def errors(words: Iterable[str]) -> tuple[Sign, ...]:
    """Return signs for the system's error messages; groups `what` and, if a path is shown, `path`."""
    return tuple(
        Sign(each, rf"{_FAILURE}[^\n]{{0,400}}?\[Errno \d+\] (?P<what>{re.escape(each)})(?:: {QUOTED_PATH})?")
        for each in words
    )


def at_the_end(death: Death, signs: tuple[Sign, ...]) -> Hit | None:
    """Return such a line among the last ones of a rank without an exception."""
    hit = in_last_words(death, signs, VERY_LAST) if death.exception is None else None
    return None if hit is None or WARNED.search(hit.text) else hit


def could_not_print(death: Death) -> bool:
    """Whether the exception that ended the rank comes from printing: its terminal is gone."""
    raised = death.exception
    if raised is None or raised.type not in ("OSError", "IOError") or raised.message != "[Errno 5] Input/output error":
        return False
    return _PRINTING.search(statement(raised)) is not None
