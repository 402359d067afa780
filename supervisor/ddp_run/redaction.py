"""Secrets out of what ddp-run writes itself. Pure.

A name says that its value is a secret; some values say so themselves. The ranks' own output is theirs and untouched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

REDACTED = "[redacted]"

_NAMES = re.compile(r"(?i)(?:secret|token|pass(?:w|phrase)|credential|(?:api|access|private)[-_]?key|auth(?!or))")
_VALUES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}|xox[abp]-[\w-]{10,})"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name holds a secret."""
    return _NAMES.search(name) is not None


def redact(text: str) -> str:
    """The text without tokens of known forms and passwords in URLs."""
    return _VALUES.sub(REDACTED, text)


def redact_words(words: Sequence[str]) -> tuple[str, ...]:
    """A command line without secrets: `--api-key X`, `--api-key=X`, `API_KEY=X`, and tokens of known forms."""
    result: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _value = word.partition("=")
        if hide_next and not word.startswith("-"):
            result.append(REDACTED)
            hide_next = False
        elif equals and is_secret(name):
            result.append(f"{name}={REDACTED}")
            hide_next = False
        else:
            result.append(redact(word))
            hide_next = word.startswith("-") and not equals and is_secret(word)
    return tuple(result)
