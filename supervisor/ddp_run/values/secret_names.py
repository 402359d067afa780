"""What the name of a value says of it, and what the value itself: whether it is to be hidden. Pure."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

from ddp_run.values.secret_forms import REDACTED, is_made_up
from ddp_run.values.word_lists import sections


class Grade(IntEnum):
    """What a name says of its value."""

    NOTHING = 0
    MAYBE = 1
    """A secret where the value looks random."""
    MIXED = 2
    """A secret where the value has digits and looks like nothing else."""
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
"""Each name of a secret in one word of Latin letters holds one of these."""


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name may hold a secret."""
    return grade_of(name) is not Grade.NOTHING


@lru_cache(maxsize=1024)
def grade_of(name: str) -> Grade:
    """What a variable's, an option's or a field's name says of its value."""
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

_NO_VALUES = frozenset({"", "none", "null", "nil", "true", "false", "yes", "no", "on", "off", "auto", "default"})
_ANNOTATIONS = frozenset({"str", "bytes", "int", "bool", "any", "optional", "union", "callable", "secretstr"})
_CODE = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_OBJECTS = ("self.", "args.", "cfg.", "config.", "conf.", "opt.", "opts.", "settings.", "os.", "kwargs.", "options.")


def hides(grade: Grade, value: str, *, bare: bool) -> bool:
    """Whether a value is to be hidden, given what its name says. `bare`: without quotes, so that it may be code."""
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
    """An expression of Python's in place of a value: `os.environ[`, `get_token()`, `hf_token`, `Optional[str]`."""
    if value.rstrip(",;:)]}").lower() in _ANNOTATIONS | _NO_VALUES:
        return True
    called = re.match(rf"{_CODE}[(\[]", value)
    if called is not None and (value[-1] in "([{" or ")" in value or "]" in value):
        return True
    if re.fullmatch(_CODE, value.rstrip(",;)]}")) is None or any(char.isdigit() for char in value):
        return False
    if value.startswith(_OBJECTS):
        return True
    return (value.islower() or value.isupper()) and grade_of(value.rstrip(",;)]}")) is not Grade.NOTHING


def _is_plain(value: str) -> bool:
    """A number, a path, a URL, a file's name, words: nothing that anybody would take for a secret."""
    if len(value) < 6 or re.fullmatch(r"[\d.,:eE+\-]{1,14}|(?:bf|fp|tf|int|uint)\d{1,2}[\w\-]*", value):
        return True
    if "://" in value or value.startswith(("/", "./", "../", "~")) or re.search(r"\.[a-z]{2,5}\Z", value):
        return True
    return len(value) < 20 and re.fullmatch(r"(?:[A-Za-z][a-z]*)?(?:[ _./:\-](?:[A-Za-z][a-z]*)?)*", value) is not None
