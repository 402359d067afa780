"""Secrets that their names give away, and where a name's value is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import cache, lru_cache

from ddp_run.values.decoded_text import one_byte_each, other_signs
from ddp_run.values.secret_forms import REDACTED, Span, any_of, compiled, is_made_up, rows


def sections(name: str) -> dict[str, list[str]]:
    """The lines below each heading of a list with `[headings]`."""
    found: dict[str, list[str]] = {}
    heading: list[str] = []
    for row in rows(name):
        if row.startswith("["):
            heading = found.setdefault(row.strip("[]"), [])
        else:
            heading.append(row)
    return found


class Grade(IntEnum):
    """What a name says about its value."""

    NOTHING = 0
    MAYBE = 1
    """A secret if the value looks random."""
    MIXED = 2
    """A secret if the value has digits and doesn't look like anything else."""
    LIKELY = 3
    """A secret unless the value looks like anything else."""
    SURE = 4


# ------------------------------------------------------------------------------------------------ names

_LISTS = sections("secret_words.txt")
_WORDS = {name: frozenset(" ".join(lines).split()) for name, lines in _LISTS.items()}
_SECRETS, _MAKERS, TWO_WORDS = _WORDS["secrets"], _WORDS["makers"], _WORDS["two words"]
_OF_KEYS, _OF_TOKENS = _WORDS["of keys"] | _MAKERS, _WORDS["of tokens"] | _MAKERS
PHRASES = tuple(phrase.strip() for line in _LISTS["phrases"] for phrase in line.split("|"))
"""Names of secrets with blanks, or in letters that are not Latin."""
HINTS = _WORDS["hints"] | {word for word in _SECRETS if not any(hint in word for hint in _WORDS["hints"])}
"""Each name of a secret that is one word of Latin letters contains one of these."""


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name may hold a secret."""
    return grade_of(name) is not Grade.NOTHING


@lru_cache(maxsize=1024)
def grade_of(name: str) -> Grade:
    """What the name of a variable, an option or a field says about its value."""
    lowered = name.lower()
    if name in ("PWD", "OLDPWD"):
        return Grade.LIKELY  # folders
    if lowered in PHRASES:
        return Grade.SURE
    if len(name) > 200 or not (any(hint in lowered for hint in HINTS) or lowered.endswith(("pat", "pw"))):
        return Grade.NOTHING
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    while len(words) > 1 and (words[-1] in _WORDS["suffixes"] or words[-1].isdigit()):
        words.pop()
    if (
        not words
        or words[-1] in _WORDS["places"]
        or (words[0] in _WORDS["switches"] and len(words) > 1 and words[-1] == "token")
    ):
        return Grade.NOTHING
    last, before, option = words[-1], words[-2] if len(words) > 1 else "", name.startswith("-")
    if _SECRETS & set(words) or (before == "connection" and last == "string"):
        return Grade.SURE
    if last == "token":
        known = before in _OF_TOKENS or (option and not before)
        return Grade.NOTHING if before in _WORDS["no tokens"] else Grade.SURE if known else Grade.LIKELY
    if last == "key" and before in _WORDS["no keys"]:
        return Grade.NOTHING
    if last == "key" or (last == "keys" and before in ("api", "access", "secret", "private", "account")):
        return Grade.SURE if before in _OF_KEYS else Grade.LIKELY if option and not before else Grade.MAYBE
    if last == "pass" or last.endswith(("token", "apikey", "password", "passwd", "secret")):
        return Grade.SURE if before in _WORDS["of pass"] or last != "pass" else Grade.LIKELY
    if last == "pat":
        return Grade.SURE if before in _MAKERS else Grade.NOTHING
    if last in ("session", "signature", "sessionid"):
        return Grade.MAYBE
    return Grade.LIKELY if last == "auth" else Grade.NOTHING


# ----------------------------------------------------------------------------------------------- values

_NO_VALUES = _WORDS["no values"] | {""}
_CODE = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_OBJECTS = tuple(f"{name}." for name in _WORDS["objects"])


def hides(grade: Grade, value: str, *, bare: bool) -> bool:
    """Whether a value must be hidden, given what its name says. `bare`: without quotes, so that it may be code."""
    plain = value.strip()
    if plain.lower() in _NO_VALUES or plain.rstrip("]") == REDACTED[:-1] or plain.startswith("$"):
        return False
    if (plain[0], plain[-1]) in (("<", ">"), ("{", "}")) or not plain.strip("*.…([{}])"):
        return False
    if bare and _is_code(plain):
        return False
    match grade:
        case Grade.SURE:
            return True
        case Grade.LIKELY:
            return not _is_plain(plain)
        case Grade.MIXED:
            return len(plain) >= 8 and not _is_plain(plain) and any(char.isdigit() for char in plain)
        case Grade.MAYBE:
            return is_made_up(plain)
        case _:
            return False


def _is_code(value: str) -> bool:
    """Whether it is a Python expression, not a value: `os.environ[`, `get_token()`, `hf_token`, `Optional[str]`."""
    if value.rstrip(",;:)]}").lower() in _WORDS["annotations"] | _NO_VALUES:
        return True
    called = re.match(rf"{_CODE}[(\[]", value)
    if called is not None and (value[-1] in "([{" or ")" in value or "]" in value):
        return True
    if re.fullmatch(_CODE, value.rstrip(",;)]}")) is None or any(char.isdigit() for char in value):
        return False
    if value.startswith(_OBJECTS):
        return True
    return (value.islower() or value.isupper()) and grade_of(value.rstrip(",;)]}")) is not Grade.NOTHING


_NUMBER_OR_TYPE = re.compile(r"[\d.,:eE+\-]{1,14}|(?:bf|fp|tf|int|uint)\d{1,2}(?:[_\-][\w\-]*|[a-z]{0,6})")


def _is_plain(value: str) -> bool:
    """Whether it is a number, a path, a URL, a file's name, or words, which can't be mistaken for a secret."""
    if len(value) < 6 or _NUMBER_OR_TYPE.fullmatch(value):
        return True
    if "://" in value or value.startswith(("/", "./", "../", "~")) or re.search(r"\.[a-z]{2,5}\Z", value):
        return True
    return len(value) < 20 and re.fullmatch(r"(?:[A-Za-z][a-z]*)?(?:[ _./:\-](?:[A-Za-z][a-z]*)?)*", value) is not None


_OTHER_LETTERS = tuple(
    (spelling, other_signs(spelling))
    for phrase in PHRASES
    if not phrase.isascii()
    for spelling in {phrase, phrase.capitalize(), phrase.upper()}
)
_NAME_CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_LONGEST = 48
"""Characters of a name on each side of a hint."""
_LOOKED_AT = 64
"""Characters of a value that show what it is."""
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
"""Characters of a value that may span lines."""
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
    """Where the text has words that names of secrets contain, in order."""
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
    """Where the name begins and ends that contains a hint."""
    before, after = text[max(least, start - _LONGEST) : start], text[end : end + _LONGEST]
    return start - len(before) + len(before.rstrip(_NAME_CHARS)), end + len(after) - len(after.lstrip(_NAME_CHARS))


def _full_name(text: str, start: int, end: int) -> str:
    """The name, with the word before it if it takes two."""
    if text[start - 1 : start] != " ":
        return text[start:end]
    before = text[max(0, start - 1 - _LONGEST) : start - 1]
    word = before[len(before.rstrip(_NAME_CHARS)) :]
    return text[start - 1 - len(word) if word.lower() in TWO_WORDS else start : end]


def _value_at(text: str, start: int, end: int, grade: Grade) -> tuple[Grade, int, int, bool] | None:
    """How certain it is, where the value begins and ends, and whether it has no quotes."""
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
    """The end of a value without quotes. A sure one is hidden to its end; others are judged by their beginnings."""
    bare = compiled(_BARE).match(text, first, len(text) if grade is Grade.SURE else first + _LOOKED_AT)
    if bare is not None and bare.end() == first + _LOOKED_AT and hides(grade, bare[0], bare=True):
        bare = compiled(_BARE).match(text, first)
    last = first if bare is None else first + len(bare[0].rstrip("\\"))  # they belong to a quote
    starts = (max(0, last - len(mark) + 1) for mark in _KEY_MARKS)  # it ends where a private key's mark begins
    return next((start for start in starts if text.startswith(_KEY_MARKS, start)), last)


def _after_blanks(text: str, start: int, end: int, grade: Grade) -> int | None:
    """Where a value begins that only blanks, or `is`, separate from its name: after an option; in quotes after a sure
    name; or if it looks made up (`machine api.wandb.ai login user password X`, `ENV WANDB_API_KEY X`)."""
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
    """Where the quotation ends: on its line, or within `over_lines` characters."""
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
    """Whether it looks like an option's name, not like a value that begins with a dash."""
    return compiled(_OPTION).fullmatch(word) is not None
