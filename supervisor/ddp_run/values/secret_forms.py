"""Secrets that show by their form what they are: tokens with their maker's prefix, keys in PEM, random base64. Pure.

The prefixes are a list (secret_tokens.txt). A pattern is compiled when a text holds its literal: ordinary text costs
one search for all literals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product, takewhile

from ddp_run.values.decoded_text import base64_runs
from ddp_run.values.word_lists import rows

REDACTED = "[redacted]"
Span = tuple[int, int, str]
"""Where a secret begins and ends, and its kind in words that are no secrets: `token: GitHub`, `value of --key`."""


@dataclass(frozen=True, slots=True)
class _Token:
    """Tokens of a maker: a literal, and what follows it."""

    maker: str
    prefix: str
    characters: str
    least: int
    usual: int | None
    """Of the characters behind the prefix; none where they differ."""
    exact: bool

    @property
    def pattern(self) -> str:
        """Of all that may be one; how much of it there is says whether it is."""
        literal = re.escape(self.prefix)
        before = rf"(?<![{'A-Za-z0-9_.-' if self.exact else 'A-Za-z0-9'}]{literal})"
        times, after = (f"{{{self.least}}}", r"(?![\w\-])") if self.exact else ("+", "")
        return f"{literal}{before}({self.characters}{times}){after}"


_CHARACTERS = {
    "alnum": "[A-Za-z0-9]",
    "word": "[A-Za-z0-9_]",
    "url": r"[A-Za-z0-9_\-]",
    "dot": r"[A-Za-z0-9_.\-]",
    "mail": r"[A-Za-z0-9_.=\-]",
    "hex": "[A-Fa-f0-9]",
    "upper": "[A-Z0-9]",
    "keys": r"[A-Z0-9\-]",
    "base64": "[A-Za-z0-9+/=]",
}


def _tokens() -> Iterator[_Token]:
    for row in rows("secret_tokens.txt"):
        prefixes, characters, length, maker = row.split(None, 3)
        least, more, usual = length.partition("+")
        choices = [part.split(",") for part in re.split(r"[{}]", prefixes)]
        for prefix in map("".join, product(*choices)):
            exact = None if more else int(least)
            usually = int(usual) if usual else exact
            yield _Token(maker, prefix, _CHARACTERS[characters], int(least), usually, exact is not None)


TOKENS = tuple(_tokens())
_OF_BEARER = r"[ ]{0,4}((?=[A-Za-z._~+/=\-]{0,400}\d)[\w.~+/=\-]{8,}|[\w.~+/=\-]{24,})"
_ALONE: tuple[tuple[str, str, str], ...] = (
    # W&B's older form is 40 hexadecimal digits, as a commit's
    ("Weights & Biases", "wandb login", r"wandb login (?:--relogin )?([0-9a-f]{40})"),
    ("Slack", "hooks.slack.com/", r"hooks\.slack\.com/([A-Za-z]+/[A-Za-z0-9_/\-]{8,})"),
    ("Discord", "api/webhooks/", r"api/webhooks/(\d+/[A-Za-z0-9_\-]{16,})"),
    ("Microsoft Teams", "webhook.office.com/", r"webhook\.office\.com/(\S{16,})"),
    ("Telegram", "api.telegram.org/", r"api\.telegram\.org/(bot\d+:[A-Za-z0-9_\-]{20,})"),
    ("Google", "1//0", r"(1//0(?<![\w/]1//0)[A-Za-z0-9_\-]{20,})"),
    ("Azure", "sig=", r"sig=(?<=[?&;]sig=)([^&\s\"'<>]+)"),  # a shared access signature
    ("JSON Web Token", "eyJ", r"(eyJ(?<![A-Za-z0-9_\-]eyJ)[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]{8,}){1,4}\.?)"),
    ("SendGrid", "SG.", r"(SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,})"),
    ("OpenAI", "sk-", r"(sk-(?<![A-Za-z0-9]sk-)(?=[A-Za-z_\-]{0,40}\d)[A-Za-z0-9_\-]{20,})"),
    ("bearer", "Bearer ", rf"Bearer {_OF_BEARER}"),
    ("bearer", "bearer ", rf"bearer {_OF_BEARER}"),
)
"""Maker, literal, and the pattern of what a prefix and a length do not tell."""
LITERALS = ("PRIVATE KEY", *(token.prefix for token in TOKENS), *(literal for _maker, literal, _pattern in _ALONE))
"""A text without these holds no secret of a known maker's form."""
PRIVATE_KEY = "private key"
_KEY_MARK = r"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_WRAPPED = r"[ \t]{0,200}\|?[ \t]{0,9}\r?\n(?:[ \t]{0,40}\[[^\]\n]{1,40}\]:?)?[ \t]{0,200}\|?[ \t]{0,200}"
"""Between two parts of a word that a terminal's width or a box cut."""
_AT_WRAPS = (" ", "\t", "|", "\r", "\n")
compiled = cache(re.compile)


def forms(text: str, held: frozenset[str]) -> Iterator[Span]:
    """Every secret of a known form. `held`: which of `LITERALS` the text holds."""
    if "PRIVATE KEY" in held:
        for start, end in _keys(text):
            yield start, end, PRIVATE_KEY
    for token in TOKENS if held else ():
        if token.prefix in held:
            for start, end in _of_maker(text, token):
                yield start, end, f"token: {token.maker}"
    for maker, literal, pattern in _ALONE if held else ():
        for hit in compiled(pattern).finditer(text) if literal in held else ():
            if literal != "sk-" or _is_openais(hit[1]):
                for start, end in (hit.span(1), *_rest(text, hit.end(), _CHARACTERS["dot"], None)):
                    yield start, end, f"token: {maker}"
    for start, _end in base64_runs(text, min(_KEY_LENGTHS)):
        random = compiled(r"(?<![A-Za-z0-9+/_.\-])[A-Za-z0-9+/]{40,88}={0,2}(?![A-Za-z0-9+/=_\-])").match(text, start)
        if random is not None and _is_random(random):
            yield *random.span(), "random base64 of a key's length"


def _of_maker(text: str, token: _Token) -> Iterator[tuple[int, int]]:
    """What is long enough, goes on in the next line, or is cut where the text ends."""
    for hit in compiled(token.pattern).finditer(text):
        missing = None if token.usual is None else token.usual - len(hit[1])
        rest = list(_rest(text, hit.end(), token.characters, missing))
        cut = len(hit[1]) >= 4 and (hit.end() == len(text) or text[hit.end()] == "…")
        if len(hit[1]) >= token.least or rest or (cut and compiled(r"[a-z]*[A-Z\d]").match(hit[1]) is not None):
            yield hit.span()
            yield from rest


def _rest(text: str, end: int, characters: str, missing: int | None) -> Iterator[tuple[int, int]]:
    """What the next lines begin with, where a token is the last of its line: as many characters as are missing, or
    what looks random."""
    while (missing is None or missing > 0) and text[end : end + 1] in _AT_WRAPS:
        wrap = compiled(_WRAPPED).match(text, end)
        part = compiled(characters + "{4,200}").match(text, wrap.end()) if wrap is not None else None
        if part is None or (len(part[0]) != missing and not is_made_up(part[0])):
            return
        yield part.span()
        end, missing = part.end(), None if missing is None else missing - len(part[0])


def _is_openais(token: str) -> bool:
    """What follows `sk-` is random: not the name of a run."""
    rest = token[3:]
    mixed = re.search(r"[a-z]", rest) and re.search(r"[A-Z]", rest)
    return mixed is not None or compiled(r"[0-9a-f]{32,}").fullmatch(rest) is not None


_KEY_LENGTHS = {40: 0, 44: 1, 64: 0, 76: 0, 84: 0, 88: 2}
"""Length to signs `=` at the end: AWS's secret keys, Azure's, and the lines of a key in PEM."""


def _is_random(found: re.Match[str]) -> bool:
    """Base64 of random bytes by its length and by how often its characters change their kind: no path, no hash."""
    text = found[0]
    if _KEY_LENGTHS.get(len(text)) != len(text) - len(text.rstrip("=")):
        return False
    before = found.string[max(0, found.start() - 7) : found.start()].lower()
    if before.startswith("sha") and not before[-1].isalnum():
        return False
    if text.isalnum() and (text.isalpha() or text in (text.lower(), text.upper())):
        return False
    kinds = [kind for char in text if (kind := _kind(char)) != "-"]
    numbers = len(re.findall(r"\d+", text))
    # 6 of 1,000 random keys stay unknown, and no word of torch's sources is taken for one
    often = sum(one != two for one, two in pairwise(kinds)) >= 0.42 * len(text)
    return often or _changes(text) >= (0.2 if numbers >= 3 else 0.35) * len(text)


def is_made_up(value: str) -> bool:
    """Random by its look: long, and letters and digits follow each other without order."""
    return len(value) >= 12 and re.search(r"[\s/]", value) is None and _changes(value) >= max(5, len(value) // 4)


def _changes(text: str) -> int:
    """How often letters, capitals and digits follow each other in a text; a capital before letters is none."""
    kinds = [kind for char in text if (kind := _kind(char)) != "-"]
    return sum(one != two and (one, two) != ("A", "a") for one, two in pairwise(kinds))


def _kind(char: str) -> str:
    return "0" if char.isdigit() else "A" if char.isupper() else "a" if char.isalpha() else "-"


# ---------------------------------------------------------------------------------------------- keys in PEM


def _keys(text: str) -> Iterator[tuple[int, int]]:
    """Private keys in PEM, each line of theirs; also of a key that is cut at its start or at its end.

    Only the last word of a line is the key's: a launcher or a collector may have put others before it.
    """
    at, inside = 0, False
    for mark in (*compiled(_KEY_MARK).finditer(text), None):
        end = len(text) if mark is None else mark.start()
        ends = mark is not None and mark[1] == "END"
        lines = _last_words(text, at, end)
        beside = lines[-1:] if ends and not text[end - 1 : end].isspace() else []
        if inside and ends:
            lines = [*lines[:-1], *beside]
        elif inside:
            lines = [lines[0], *_while_base64(text, lines[1:])]
        else:
            lines = [*beside, *_while_base64(text, reversed(lines[:-1]))] if ends else []
        yield from (line for line in lines if line[0] < line[1])
        if mark is not None:
            at, inside = mark.end(), not ends


def _last_words(text: str, at: int, end: int) -> list[tuple[int, int]]:
    """Of each line of a part of the text."""
    found = []
    for line in text[at:end].split("\n"):
        shown = line.rstrip()
        found.append((at + max(shown.rfind(" "), shown.rfind("\t")) + 1, at + len(shown)))
        at += len(line) + 1
    return found


def _while_base64(text: str, words: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    whole = compiled(r"[A-Za-z0-9+/=]{16,}")
    return takewhile(lambda word: whole.fullmatch(text, *word) is not None, words)
