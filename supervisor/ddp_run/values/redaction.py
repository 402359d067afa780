"""Secrets out of what ddp-run writes and shows itself. Pure.

A name says that its value is a secret (`--api-key X`, `"token": "X"`), or the value says so by its form. Doubt is
settled by who would be hurt: a name that means a secret hides anything, one that may mean one hides what looks made up
by a machine. What the ranks write is theirs and untouched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

from ddp_run.values.secret_commands import PROGRAMS, without_passwords
from ddp_run.values.secret_forms import REDACTED, without_forms
from ddp_run.values.secret_names import Grade, grade_of, hides, is_made_up, is_secret
from ddp_run.values.secret_urls import without_users
from ddp_run.values.text_outline import Outline, one_byte_each

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
]

_T = TypeVar("_T")
_compiled = cache(re.compile)


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
    """What `redact` gives, where nothing goes wrong."""
    if "\x1b[" in text:  # colours may stand within a token
        plain = re.sub(r"\x1b\[[\d;:]*m", "", text)
        without = _redact(plain)
        return text if without == plain else without
    return _redact(text)


def redact_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Lines of one text: a private key goes over many."""
    whole = tuple(redact("\n".join(lines)).split("\n")) if lines else ()
    return whole if len(whole) == len(lines) else tuple(map(redact, lines))


def kinds_in(text: str) -> tuple[str, ...]:
    """What `redact` hides there, each kind once, in words that are no secrets: `token: GitHub`, `value of --key`."""
    found: list[str] = []
    _redact(re.sub(r"\x1b\[[\d;:]*m", "", text), found)
    return tuple(dict.fromkeys(found))


_ESCAPED_END = re.compile(r"((?<!\\)\\{1,8}(?:[nr]|t(?=-)))")
"""Ends of lines as JSON and Python write them in a string; and a tab before an option."""


def _redact(text: str, found: list[str] | None = None) -> str:
    """`found` gets the kinds of what is hidden."""
    if "\\" not in text or ("\\n" not in text and "\\r" not in text and "\\t-" not in text):
        return _redact_lines(text, found)
    lines, ends = (parts := _split(text))[::2], parts[1::2]
    done = _redact_lines("\n".join(lines), found).split("\n")
    return "".join(part for pair in zip(done, [*ends, ""], strict=True) for part in pair)


def _split(text: str) -> list[str]:
    """Lines and their ends, in turns."""
    done: list[str] = []
    for line in text.split("\n"):
        done += _ESCAPED_END.split(line) if "\\" in line else (line,)
        done.append("\n")
    return done[:-1]


def _redact_lines(text: str, found: list[str] | None) -> str:
    if "@" in text and "://" in text:
        without = without_users(text)
        if found is not None and without != text:
            found.append("user or password in a URL")
        text = without
    outline = Outline(text)
    programs = outline.words(PROGRAMS)
    if programs:
        text = without_passwords(text, programs, found)
    text = without_forms(text, outline, found)
    hints = outline.words_in_any_case(_HINTS)
    return _without_named(text, hints, found) if hints else text


_HINTS = (
    *("secret", "token", "pass", "pwd", "cred", "key", "auth", "cookie", "signature", "session", "dsn"),
    *("connection", "jwt"),
)
_TWO_WORDS = frozenset(
    {"api", "access", "secret", "private", "account", "auth", "bearer", "wandb", "cache", "hash", "graph", "sort"}
    | {"store"}
)
"""Before a blank they belong to the name: `API key`, `access token`."""
_WORD_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_NAME_CHARS = _WORD_CHARS | {".", "-"}
_LONGEST = 48
"""Characters of a name on either side of a hint."""
_LOOKED_AT = 64
"""Characters of a value that tell what it is."""
_NEXT_WORD = r"""(?a)\\*["'],\s{0,40}(?=[bBrRuUfF]{0,2}\\*["'])"""
"""Between the words of a list: `['--api-key', 'X']`."""
_EQUALS = r"""(?a)\\*["']?\]?[ \t]{0,4}(?::=|=>|==?|:)[ \t]{0,4}"""
_QUOTE = r"""(?a)[bBrRuUfF]{0,2}(\\*["'])"""
_KEY_MARKS = ("-----BEGIN ", "-----END ")
_SCHEME = r"(?ai)(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey|AWS4-HMAC-SHA256)[ \t]{1,4}(?=[^\s\"'])"
_BARE = r"""(?a)(?:[^\s"'<>,;&)\]}]|[,;&)\]}](?![\s"'\\]|\Z|[\w.\-]{1,40}["']?[=:]))+"""


def _without_named(text: str, hints: Sequence[str], kinds: list[str] | None = None) -> str:
    """Without the values of names that say so: `name=value`, `"name": "value"`, `Name: value`, `--name value`."""
    done: list[str] = []
    at = told = 0  # what has been looked at, and what has been taken over
    for hint_start, hint_end in _places(hints, text):
        if hint_start < at:
            continue
        start, end = _around(text, hint_start, hint_end, told)
        at = end
        grade = grade_of(_full_name(text, start, end))
        if grade is Grade.NOTHING:
            continue
        value = _value_at(text, start, end, grade)
        if value is None:
            continue
        first, last, bare = value
        at = max(at, first)
        closed = bare and text[last : last + 1] in (")", "]")
        if hides(grade, text[first : last + closed], bare=bare):
            done += [text[told:first], REDACTED]
            at = told = last
            if kinds is not None:
                kinds.append(f"value of {text[start:end].strip('.')}")
    return "".join([*done, text[told:]])


def _places(hints: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Where hints stand, in order. Looked for one by one: a pattern of all of them is ten times as slow."""
    lowered = one_byte_each(text).lower()
    found: list[tuple[int, int]] = []
    for hint in map(str.encode, hints):
        start = lowered.find(hint)
        while start >= 0:
            found.append((start, start + len(hint)))
            start = lowered.find(hint, start + 1)
    return sorted(found)


def _around(text: str, start: int, end: int, least: int) -> tuple[int, int]:
    """The name that a hint stands in."""
    least, most = max(least, start - _LONGEST), min(len(text), end + _LONGEST)
    while start > least and text[start - 1] in _NAME_CHARS:
        start -= 1
    while end < most and text[end] in _NAME_CHARS:
        end += 1
    return start, end


def _full_name(text: str, start: int, end: int) -> str:
    """With the word before it where it takes two."""
    if text[start - 1 : start] != " ":
        return text[start:end]
    before = start - 1
    while before > max(0, start - _LONGEST) and text[before - 1] in _WORD_CHARS:
        before -= 1
    return text[before if text[before : start - 1].lower() in _TWO_WORDS else start : end]


def _value_at(text: str, start: int, end: int, grade: Grade) -> tuple[int, int, bool] | None:
    """Where the value of a name begins and ends, and whether it stands without quotes; null where there is none."""
    divider = _NEXT_WORD if text[start] == "-" else _EQUALS
    equals = _compiled(divider).match(text, end) or _compiled(_EQUALS).match(text, end)
    first = equals.end() if equals is not None else _after_blanks(text, start, end, grade)
    if first is None:
        return None
    scheme = _compiled(_SCHEME).match(text, first)
    if scheme is not None:
        first = scheme.end()
    quote = _compiled(_QUOTE).match(text, first)
    if quote is not None:
        scheme = _compiled(_SCHEME).match(text, quote.end())
        last = _closing(text, quote.end(), quote[1])
        if equals is not None and text[start] == "-" and "," in equals[0] and _is_option(text[quote.end() : last]):
            return None
        return scheme.end() if scheme is not None else quote.end(), last, False
    if grade is Grade.SURE and text[start:end].lower().endswith(("cookie", "cookies")) and ":" in text[end:first]:
        return first, _closing(text, first, ""), False
    # a sure one is hidden to its end, however long; of another the beginning tells
    bare = _compiled(_BARE).match(text, first, len(text) if grade is Grade.SURE else first + _LOOKED_AT)
    if (
        bare is not None
        and bare.end() == first + _LOOKED_AT
        and grade is not Grade.SURE
        and hides(grade, bare[0], bare=True)
    ):
        bare = _compiled(_BARE).match(text, first)
    last = first if bare is None else _before_mark(text, bare.end())
    return (first, last, True) if last > first else None


def _before_mark(text: str, last: int) -> int:
    """Where a value ends of which a private key's mark seems to be a part."""
    starts = (max(0, last - len(mark) + 1) for mark in _KEY_MARKS)
    return next((start for start in starts if text.startswith(_KEY_MARKS, start)), last)


def _after_blanks(text: str, start: int, end: int, grade: Grade) -> int | None:
    """A value that nothing but blanks, or `is`, divide from its name: after an option; in quotes after a sure name;
    and what looks made up (`machine api.wandb.ai login user password X`, `ENV WANDB_API_KEY X`)."""
    first = end
    while first < len(text) and text[first] in " \t" and first - end < 8:
        first += 1
    if first == end or first == len(text):
        return None
    if text[start] == "-":
        words = text[first : first + 40].split(maxsplit=1)
        return first if words and not _is_option(words[0]) else None
    if grade is Grade.SURE and text[first] in "\"'":
        return first
    if grade is Grade.MAYBE:
        return None
    if text.startswith("is ", first):
        first += 3
    word = _compiled(_BARE).match(text, first, first + _LOOKED_AT)
    return first if word is not None and is_made_up(word[0]) else None


def _closing(text: str, start: int, quote: str) -> int:
    """Where the quotation ends; with its line where nothing closes it."""
    ends = re.compile(rf"{re.escape(quote)}|\n" if quote else r"\n")
    found = ends.search(text, start)
    while found is not None and len(quote) == 1 and _is_escaped(text, found.start(), start):
        found = ends.search(text, found.end())
    return len(text) if found is None else found.start()


def _is_escaped(text: str, at: int, start: int) -> bool:
    return text[at] != "\n" and at > start and text[at - 1] == "\\" and (at - start < 2 or text[at - 2] != "\\")


# ------------------------------------------------------------------------------------ words and values


def redact_words(words: Sequence[str]) -> tuple[str, ...]:
    """A command line without secrets: `--api-key X`, `--api-key=X`, `API_KEY=X`, `-p X`, `--header 'Name: X'`."""
    result: list[str] = []
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        result.append(_redact_word(word, before))
    return tuple(result)


def _redact_word(word: str, before: str) -> str:
    grade = _asks_for(before)
    if grade is not Grade.NOTHING and not (before.startswith("-") and _is_option(word)):
        scheme = re.match(_SCHEME, word)
        if hides(grade, word, bare=False):
            return f"{scheme[0] if scheme is not None else ''}{REDACTED}"
    if before in ("-u", "--user") and re.search(r":(?!\d*\Z|//)", word) is not None:
        return f"{word.partition(':')[0]}:{REDACTED}"
    name, equals, value = word.partition("=")
    named = equals and re.fullmatch(r"[\w.+~\-\[\]/@]+", name) and not name.startswith("/")
    if named and hides(grade_of(name), value, bare=False):
        return f"{name}={REDACTED}"
    return redact(word)


def _asks_for(word: str) -> Grade:
    """What a word of a command line says of the next."""
    if word in ("-p", "login"):  # a port, a partition, a precision look like what they are
        return Grade.LIKELY
    return grade_of(word) if word.startswith("-") and "=" not in word else Grade.NOTHING


def _is_option(word: str) -> bool:
    """Looks like an option's name, not like a value that begins with a dash."""
    return re.fullmatch(r"-[A-Za-z]|--[a-z]+(?:[\-_.][a-z]+)*(?:=.*)?", word, re.DOTALL) is not None


def redact_mapping(values: Mapping[str, str]) -> dict[str, str]:
    """An environment without secrets."""
    return {
        name: REDACTED if hides(grade_of(name), value, bare=False) else redact(value) for name, value in values.items()
    }


def redact_value(value: _T) -> _T:
    """The same value with redacted texts, however deep: an event, a verdict, an exception."""
    return cast(_T, _redacted(value))


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, tuple | list):
        texts = value and all(isinstance(each, str) for each in value)
        return type(value)(redact_lines(value) if texts else map(_redacted, value))
    if isinstance(value, dict):
        return {key: _redacted(each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        old = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        changed = {name: new for name, each in old.items() if (new := _redacted(each)) != each}
        return replace(value, **changed) if changed else value
    return value
