"""Values whose names say that they are secrets: `name=value`, `"name": "value"`, `<name>X</name>`, options. Pure.

What stands between a name and its value: any sign of assignment, the words of a list, a pair of `name` and `value` as
Kubernetes and Hadoop write it, a border of a table. A weak one hides only what is no plain word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from ddp_run.values.decoded_text import one_byte_each, other_signs
from ddp_run.values.secret_forms import Span, compiled, is_made_up
from ddp_run.values.secret_names import HINTS, PHRASES, TWO_WORDS, Grade, grade_of, hides
from ddp_run.values.word_lists import any_of

_OTHER_LETTERS = tuple(
    (spelling, other_signs(spelling))
    for phrase in PHRASES
    if not phrase.isascii()
    for spelling in {phrase, phrase.capitalize(), phrase.upper()}
)
_NAME_CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_LONGEST = 48
"""Characters of a name on either side of a hint."""
_LOOKED_AT = 64
"""Characters of a value that tell what it is."""
_NEXT_WORD = r"""(?a)\\*["'],\s{0,40}(?=[bBrRuUfF]{0,2}\\*["'])"""
"""Between the words of a list: `['--api-key', 'X']`."""
_EQUALS = r"""(?a)\\*["'`]?\]?[ \t]{0,4}(?::=|[-=]{1,2}>|==?|:)[ \t]{0,4}"""
_PAIR = (
    r"""(?a)\\*["']?(?:</\w{1,10}>)?[\s,]{0,40}(?:<(?:string|value)>"""
    r"""|\\*["']?[Vv]alue\\*["']?[ \t]{0,4}[:=][ \t]{0,4})"""
)
"""After a name that is itself a value: `{"name": "HF_TOKEN", "value": "X"}`, `<key>password</key><string>X`."""
_TABLE = r"[ \t]{1,40}\|[ \t]{1,4}"
_TUPLE = r"""(?a)\\*["'],[ ]{0,4}(?=[bB]?\\*["'])"""
_ELEMENT = r"""(?:\s[^<>\n]{0,200})?>\s{0,200}"""
_BLOCK = (
    r"[|>][+\-]?[ \t]{0,4}\r?\n(?P<value>(?P<indent>[ \t]{1,40})[^\n]{1,4000}(?:\n(?P=indent)[^\n]{0,4000}){0,100})"
)
"""YAML's text of several lines."""
_FAR = 4000
"""Characters of a value that may go over lines."""
_OPENED = r"<(?:[\w.\-]{1,20}:)?\Z"
_IN_TUPLE = r"""\([bB]?\\*["']\Z"""
_QUOTE = r"""(?a)[bBrRuUfF]{0,2}(?:(\\*["'`])\1\1|(\\*["'`]))"""
_KEY_MARKS = ("-----BEGIN ", "-----END ")
SCHEME = r"(?ai)(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey|AWS4-HMAC-SHA256)[ \t]{1,4}(?=[^\s\"'])"
_BARE = r"""(?a)(?:[^\s"'`<>,;&)\]}]|[,;&)\]}](?![\s"'`\\]|\Z|[\w.\-]{1,40}["']?[=:]))+"""
_OPTION = r"(?s)-[A-Za-z]|--[a-z]+(?:[\-_.][a-z]+)*(?:=.*)?"


def named(text: str) -> Iterator[Span]:
    """The values of all names that ask for it."""
    at = 0
    for hint_start, hint_end in _places(text):
        if hint_start < at:
            continue
        start, end = _around(text, hint_start, hint_end, at)
        at = end
        latin = text[hint_start:hint_end].isascii()
        grade = grade_of(_full_name(text, start, end)) if latin else Grade.SURE
        value = _value_at(text, start, end, grade) if grade is not Grade.NOTHING else None
        if value is None:
            continue
        grade, first, last, bare = value
        at = max(at, first)
        closed = bare and text[last : last + 1] in (")", "]")
        if hides(grade, text[first : last + closed], bare=bare):
            yield first, last, f"value of {text[start:end].strip('.')}"
            at = last


def _places(text: str) -> list[tuple[int, int]]:
    """Where words stand that names of secrets hold, in order."""
    found = [hit.span() for hit in _hints().finditer(one_byte_each(text).lower())]
    signs = other_signs(text)
    for spelling, its_signs in _OTHER_LETTERS if signs else ():
        if its_signs <= signs:
            found += (hit.span() for hit in re.finditer(re.escape(spelling), text))
    return sorted(found)


@cache
def _hints() -> re.Pattern[bytes]:
    return re.compile(any_of([*HINTS, *(phrase for phrase in PHRASES if phrase.isascii())]).encode())


def _around(text: str, start: int, end: int, least: int) -> tuple[int, int]:
    """The name that a hint stands in."""
    before, after = text[max(least, start - _LONGEST) : start], text[end : end + _LONGEST]
    return start - len(before) + len(before.rstrip(_NAME_CHARS)), end + len(after) - len(after.lstrip(_NAME_CHARS))


def _full_name(text: str, start: int, end: int) -> str:
    """With the word before it where it takes two."""
    if text[start - 1 : start] != " ":
        return text[start:end]
    before = text[max(0, start - 1 - _LONGEST) : start - 1]
    word = before[len(before.rstrip(_NAME_CHARS)) :]
    return text[start - 1 - len(word) if word.lower() in TWO_WORDS else start : end]


def _value_at(text: str, start: int, end: int, grade: Grade) -> tuple[Grade, int, int, bool] | None:
    """How certain it is, where the value begins and ends, and whether it stands without quotes."""
    opened = compiled(_OPENED).search(text, max(0, start - _LONGEST), start)
    if opened is not None and (element := compiled(_ELEMENT).match(text, end)) is not None:
        last = _closing(text, element.end(), "</", _FAR)
        return (grade, element.end(), last, False) if text.startswith("</", last) else None
    option, first, sign = text[start] == "-", None, ""
    weak = (_TABLE, _TUPLE) if grade is Grade.SURE else ()
    for divider in (_NEXT_WORD, _EQUALS) if option else (_EQUALS, _PAIR, *weak):
        found = compiled(divider).match(text, end)
        if found is None or (divider is _TUPLE and compiled(_IN_TUPLE).search(text, max(0, start - 9), start) is None):
            continue
        first, sign = found.end(), found[0]
        grade = Grade.MIXED if divider in weak else grade
        break
    else:
        first = _after_blanks(text, start, end, grade)
    if first is None:
        return None
    block = compiled(_BLOCK).match(text, first) if sign and grade is Grade.SURE else None
    if block is not None:
        return grade, *block.span("value"), False
    scheme = compiled(SCHEME).match(text, first)
    first = first if scheme is None else scheme.end()
    quote = compiled(_QUOTE).match(text, first)
    if quote is not None:
        scheme = compiled(SCHEME).match(text, quote.end())
        last = _closing(text, quote.end(), quote[1] or quote[2], _FAR if quote[1] else 0)
        if option and "," in sign and is_option(text[quote.end() : last]):
            return None
        return grade, scheme.end() if scheme is not None else quote.end(), last, False
    if grade is Grade.SURE and ":" in sign and text[start:end].lower().endswith(("cookie", "cookies")):
        return grade, first, _closing(text, first, ""), False
    last = _end_of_bare(text, first, grade)
    return (grade, first, last, True) if last > first else None


def _end_of_bare(text: str, first: int, grade: Grade) -> int:
    """Of a value without quotes. A sure one is hidden to its end, however long; of another the beginning tells."""
    bare = compiled(_BARE).match(text, first, len(text) if grade is Grade.SURE else first + _LOOKED_AT)
    if bare is not None and bare.end() == first + _LOOKED_AT and hides(grade, bare[0], bare=True):
        bare = compiled(_BARE).match(text, first)
    last = first if bare is None else first + len(bare[0].rstrip("\\"))  # they belong to a quote
    starts = (max(0, last - len(mark) + 1) for mark in _KEY_MARKS)  # it ends where a private key's mark begins
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
        return first if words and not is_option(words[0]) else None
    if grade is Grade.SURE and text[first] in "\"'":
        return first
    if grade is Grade.MAYBE:
        return None
    if text.startswith("is ", first):
        first += 3
    word = compiled(_BARE).match(text, first, first + _LOOKED_AT)
    return first if word is not None and is_made_up(word[0]) else None


def _closing(text: str, start: int, quote: str, over_lines: int = 0) -> int:
    """Where the quotation ends: so many characters on at most, if lines count; else with its line."""
    whole = quote if quote == "</" else quote * 3
    if over_lines and (end := text.find(whole, start, start + over_lines)) >= 0:
        return end
    ends = compiled(rf"{re.escape(quote)}|\n" if quote else r"\n")
    found = ends.search(text, start)
    while found is not None and len(quote) == 1 and _is_escaped(text, found.start(), start):
        found = ends.search(text, found.end())
    return len(text) if found is None else found.start()


def _is_escaped(text: str, at: int, start: int) -> bool:
    return text[at] != "\n" and at > start and text[at - 1] == "\\" and (at - start < 2 or text[at - 2] != "\\")


def is_option(word: str) -> bool:
    """Looks like an option's name, not like a value that begins with a dash."""
    return compiled(_OPTION).fullmatch(word) is not None
