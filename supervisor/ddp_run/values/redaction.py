"""Removes secrets from what ddp-run itself writes and shows. Pure.

Either a name says that its value is a secret (`--api-key X`, `"token": "X"`), or the value's form does. A name that
means a secret hides any value; one that may mean a secret hides only values that look made up by a machine. What the
ranks write isn't touched.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar, cast

from ddp_run.values.decoded_text import alike, base64_runs, encoded_lines, flat, one_byte_each, out_of_base64
from ddp_run.values.secret_forms import LITERALS, PROGRAMS, REDACTED, Span, any_of, forms, passwords, users
from ddp_run.values.secret_names import SCHEME, Grade, grade_of, hides, is_option, is_secret, named

__all__ = [
    "REDACTED",
    "cleaned",
    "is_secret",
    "kinds_in",
    "redact",
    "redact_lines",
    "redact_mapping",
    "redact_value",
    "redact_words",
    "secrets_in",
]

_T = TypeVar("_T")


# ------------------------------------------------------------------------------------------------- text


def redact(text: str) -> str:
    """The text without secrets. It has as many lines as before; where nothing is hidden it is unchanged.

    Never raises: whatever a text does to `cleaned` must not end a job, so such a text is hidden as a whole.
    """
    try:
        return cleaned(text)
    except Exception:
        return "\n".join([REDACTED] * (text.count("\n") + 1))


def cleaned(text: str) -> str:
    """Like `redact`, but may raise."""
    done: list[str] = []
    at = 0
    for start, end, _kind in secrets_in(text):
        done += [text[at:start], REDACTED]
        at = end
    return "".join([*done, text[at:]])


def redact_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Lines of one text, redacted together: a private key spans several lines."""
    whole = tuple(redact("\n".join(lines)).split("\n"))
    return whole if len(whole) == len(lines) else tuple(map(redact, lines))


def kinds_in(text: str) -> tuple[str, ...]:
    """What `redact` hides there, each kind once, without the secrets: `token: GitHub`, `value of --key`."""
    return tuple(dict.fromkeys(kind for _start, _end, kind in secrets_in(text)))


def secrets_in(text: str) -> list[Span]:
    """Where the secrets of a text are, in order and none across lines, and what each is by the first sign of it."""
    shown = flat(text)
    found: list[tuple[int, int, int, str]] = []
    for order, (first, last, kind) in enumerate(_within(shown.text, 2)):
        for part in _without_ends(shown.text, first, last):
            found += ((*piece, order, kind) for piece in _without_ends(text, *shown.span(*part)))
    merged: list[tuple[int, int, int, str]] = []
    for each in sorted(found):
        if merged and each[0] < merged[-1][1]:
            other = merged.pop()
            merged.append((other[0], max(each[1], other[1]), *min(each[2:], other[2:])))
        else:
            merged.append(each)
    return [(start, end, kind) for start, end, _order, kind in merged if text[start:end] != REDACTED]


def _without_ends(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The part on each line, without blanks at its ends."""
    for line in text[start:end].split("\n"):
        if line and not line.isspace():
            yield start + len(line) - len(line.lstrip()), start + len(line.rstrip())
        start += len(line) + 1


def _within(text: str, depth: int) -> Iterator[Span]:
    """The secrets of a text, and of what is encoded in it, `depth` times over."""
    text = alike(text)
    held = _held(text)
    yield from users(text)
    yield from passwords(text, held)
    yield from forms(text, held)
    yield from named(text)
    if not depth:
        return
    for line_start, line in encoded_lines(text):
        for start, end, kind in _within(line.text, depth - 1):
            first, last = line.span(start, end)
            yield line_start + first, line_start + last, kind
    for start, end in base64_runs(text):
        inner = out_of_base64(text[start:end])
        for _start, _end, kind in _within(inner, depth - 1) if inner is not None else ():
            yield start, end, kind


_LITERALS = (*LITERALS, *PROGRAMS)
_DIGITS = b"0123456789"


@cache
def _without_digits() -> tuple[dict[bytes, list[str]], re.Pattern[bytes]]:
    """The literals as `_held` looks for them, each at the beginning of a word."""
    by_letters: dict[bytes, list[str]] = {}
    for word in _LITERALS:
        by_letters.setdefault(word.encode().translate(None, _DIGITS), []).append(word)
    return by_letters, re.compile(rb"[^A-Za-z](?=(" + any_of(map(bytes.decode, by_letters)).encode() + rb"))")


def _held(text: str) -> frozenset[str]:
    """Literals that the text contains. A log has few kinds of lines: without digits, equal ones are looked at once."""
    by_letters, pattern = _without_digits()
    lines = one_byte_each(text).translate(None, _DIGITS)
    if len(lines) > 4096:
        lines = b"\n".join(set(lines.splitlines()))
    found = tuple(set(pattern.findall(b"\n" + lines)))
    held = (words for letters, words in by_letters.items() if letters.startswith(found))
    return frozenset(word for words in held for word in words if word in text)


# ------------------------------------------------------------------------------------ words and values


def redact_words(words: Sequence[str]) -> tuple[str, ...]:
    """A command line without secrets: `--api-key X`, `--api-key=X`, `API_KEY=X`, `-p X`, `--header 'Name: X'`."""
    return tuple(_redact_word(word, before) for before, word in pairwise(("", *words)))


def _redact_word(word: str, before: str) -> str:
    if not (before.startswith("-") and is_option(word)) and hides(_asks_for(before), word, bare=False):
        scheme = re.match(SCHEME, word)
        return f"{scheme[0] if scheme is not None else ''}{REDACTED}"
    if before in ("-u", "--user") and re.search(r":(?!\d*\Z|//)", word) is not None:
        return f"{word.partition(':')[0]}:{REDACTED}"
    name, equals, value = word.partition("=")
    if equals and re.fullmatch(r"[\w.+~\-\[\]/@]+", name) and hides(grade_of(name), value, bare=False):
        return f"{name}={REDACTED}"
    return redact(word)


def _asks_for(word: str) -> Grade:
    """What a word of a command line says about the next one."""
    if word in ("-p", "login"):  # a port, a partition, a precision look like what they are
        return Grade.LIKELY
    return grade_of(word) if word.startswith("-") and "=" not in word else Grade.NOTHING


def redact_mapping(values: Mapping[str, str]) -> dict[str, str]:
    """An environment without secrets."""
    return {
        name: REDACTED if hides(grade_of(name), value, bare=False) else redact(value) for name, value in values.items()
    }


def redact_value(value: _T) -> _T:
    """The same value with redacted texts, however deeply nested: an event, a verdict, an exception."""
    return value if _holds_none("…\n".join(_texts(value))) else cast(_T, _redacted(value))


def _holds_none(texts: str) -> bool:
    """Look at all texts of a value at once: an event has a dozen short ones."""
    try:
        return not secrets_in(texts)
    except Exception:
        return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
    else:
        for name in _names(cast(Hashable, type(value))):
            yield from _texts(getattr(value, name))


@cache
def _names(kind: Hashable) -> tuple[str, ...]:
    """The fields that a dataclass is made of; none of another class."""
    return tuple(each.name for each in fields(cast(Any, kind)) if each.init) if is_dataclass(kind) else ()


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, tuple | list):
        texts = all(isinstance(each, str) for each in value)
        return type(value)(redact_lines(value) if texts else map(_redacted, value))
    if isinstance(value, dict):
        return {key: _redacted(each) for key, each in value.items()}
    names = _names(cast(Hashable, type(value)))
    return replace(value, **{name: _redacted(getattr(value, name)) for name in names}) if names else value
