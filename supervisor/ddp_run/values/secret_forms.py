"""Secrets that their form gives away: tokens, keys, users in URLs, passwords of commands. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product, takewhile
from pathlib import Path

from ddp_run.values.decoded_text import base64_runs

REDACTED = "[redacted]"
Span = tuple[int, int, str]
"""Where a secret begins and ends, and its kind without the secret: `token: GitHub`, `value of --key`."""


def rows(name: str) -> list[str]:
    """The lines of a list, without comments and blank ones."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def any_of(words: Iterable[str]) -> str:
    """A pattern for the shortest of these words that is at a place; by common beginnings, for speed."""
    by_first: dict[str, list[str]] = {}
    for word in words:
        by_first.setdefault(word[0], []).append(word[1:])
    choices = [re.escape(first) + ("" if "" in rest else any_of(rest)) for first, rest in sorted(by_first.items())]
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"


@dataclass(frozen=True, slots=True)
class _Token:
    """A maker's tokens: a literal, and what follows it."""

    maker: str
    prefix: str
    characters: str
    least: int
    usual: int | None
    """How many characters usually follow the prefix; None if that differs."""
    exact: bool

    @property
    def pattern(self) -> str:
        """A pattern for everything that may be one; its length then says whether it is."""
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
"""Maker, literal and pattern of tokens that a prefix and a length don't describe."""
LITERALS = ("PRIVATE KEY", *(token.prefix for token in TOKENS), *(literal for _maker, literal, _pattern in _ALONE))
"""A text without these contains no secret in a known maker's form."""
PRIVATE_KEY = "private key"
_KEY_MARK = r"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_WRAPPED = r"[ \t]{0,200}\|?[ \t]{0,9}\r?\n(?:[ \t]{0,40}\[[^\]\n]{1,40}\]:?)?[ \t]{0,200}\|?[ \t]{0,200}"
"""Between two parts of a word that a terminal's width or a box cut."""
_AT_WRAPS = (" ", "\t", "|", "\r", "\n")
compiled = cache(re.compile)


def forms(text: str, held: frozenset[str]) -> Iterator[Span]:
    """Every secret in a known form. `held`: which of `LITERALS` the text contains."""
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
    """Tokens that are long enough, continue on the next line, or are cut off by the text's end."""
    for hit in compiled(token.pattern).finditer(text):
        missing = None if token.usual is None else token.usual - len(hit[1])
        rest = list(_rest(text, hit.end(), token.characters, missing))
        cut = len(hit[1]) >= 4 and (hit.end() == len(text) or text[hit.end()] == "…")
        if len(hit[1]) >= token.least or rest or (cut and compiled(r"[a-z]*[A-Z\d]").match(hit[1]) is not None):
            yield hit.span()
            yield from rest


def _rest(text: str, end: int, characters: str, missing: int | None) -> Iterator[tuple[int, int]]:
    """What the next lines begin with, if a token ends its line: as many characters as are missing, or what looks
    random."""
    while (missing is None or missing > 0) and text[end : end + 1] in _AT_WRAPS:
        wrap = compiled(_WRAPPED).match(text, end)
        part = compiled(characters + "{4,200}").match(text, wrap.end()) if wrap is not None else None
        if part is None or (len(part[0]) != missing and not is_made_up(part[0])):
            return
        yield part.span()
        end, missing = part.end(), None if missing is None else missing - len(part[0])


def _is_openais(token: str) -> bool:
    """Whether what follows `sk-` is random, not the name of a run."""
    rest = token[3:]
    mixed = re.search(r"[a-z]", rest) and re.search(r"[A-Z]", rest)
    return mixed is not None or compiled(r"[0-9a-f]{32,}").fullmatch(rest) is not None


_KEY_LENGTHS = {40: 0, 44: 1, 64: 0, 76: 0, 84: 0, 88: 2}
"""Length to signs `=` at the end: AWS's secret keys, Azure's, and the lines of a key in PEM."""


def _is_random(found: re.Match[str]) -> bool:
    """Whether it is base64 of random bytes, by its length and how often characters change kind: no path, no hash."""
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
    """Whether it looks random: long, with letters and digits in no order."""
    return len(value) >= 12 and re.search(r"[\s/]", value) is None and _changes(value) >= max(5, len(value) // 4)


def _changes(text: str) -> int:
    """How often a text changes between letters, capitals and digits; a capital before letters doesn't count."""
    kinds = [kind for char in text if (kind := _kind(char)) != "-"]
    return sum(one != two and (one, two) != ("A", "a") for one, two in pairwise(kinds))


def _kind(char: str) -> str:
    return "0" if char.isdigit() else "A" if char.isupper() else "a" if char.isalpha() else "-"


# ---------------------------------------------------------------------------------------------- keys in PEM


def _keys(text: str) -> Iterator[tuple[int, int]]:
    """Each line of private keys in PEM, including keys cut off at the start or the end.

    Only the last word of a line belongs to the key: a launcher or a collector may have put others before it.
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
    """Where the last word of each line is, in a part of the text."""
    found = []
    for line in text[at:end].split("\n"):
        shown = line.rstrip()
        found.append((at + max(shown.rfind(" "), shown.rfind("\t")) + 1, at + len(shown)))
        at += len(line) + 1
    return found


def _while_base64(text: str, words: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    whole = compiled(r"[A-Za-z0-9+/=]{16,}")
    return takewhile(lambda word: whole.fullmatch(text, *word) is not None, words)


_WITH_NAMES = ("ssh", "sftp", "git+ssh", "rsync", "hdfs", "abfs", "wasb", "s3", "gs", "adl")
"""Schemes whose `name@` is an account's or a container's name."""
_URLS = re.compile(r"""://[^\s"'<>]+""")
_SCHEME = re.compile(r"(?a)[A-Za-z][\w+.\-]{0,23}\Z")
_AT_HOST = re.compile(
    r"(?a)@(?=(?:(?:[\w\-]+\.)+[A-Za-z]{2,24}|localhost|\d{1,3}(?:\.\d{1,3}){3}|\[[\da-fA-F:]+\]|[\w\-]+(?=:\d))"
    r"(?:[:/?#,]|\Z))"
)


def users(text: str) -> Iterator[Span]:
    """The `user:password` and the tokens before the hosts of URLs."""
    for word in _URLS.finditer(text) if "@" in text and "://" in text else ():
        url, at, offset = word[0], 0, word.start()
        last_sign = url.rfind("@")
        while (slashes := url.find("://", at)) >= 0 and slashes < last_sign:
            at = slashes + 3
            scheme = _SCHEME.search(text, max(0, offset + slashes - 24), offset + slashes)
            end = _user(url, scheme[0].lower() if scheme is not None else "", at, last_sign)
            if end is not None:
                yield offset + at, offset + end, "user or password in a URL"
                at = end


def _user(url: str, scheme: str, start: int, last_sign: int) -> int | None:
    """Where the `user:password` that begins there ends; None if there's nothing to hide."""
    path = re.compile(r"[/?#]").search(url, start)
    within = path.start() if path is not None else len(url)
    colon, sign = url.find(":", start, within), url.find("@", start, within)
    if colon >= 0 and (sign < 0 or colon < sign):
        port = re.compile(r"\d{1,5}(?=[/?#,]|\Z)").match(url, colon + 1)
        if port is not None or url.startswith("[", start) or colon > last_sign:
            return None
        return _end_of_password(url, colon)
    if sign < 0 or scheme.startswith(_WITH_NAMES):
        return None
    user = url[start:sign]
    return sign if len(user) >= 16 or (len(user) >= 8 and any(char.isdigit() for char in user)) else None


def _end_of_password(url: str, start: int) -> int:
    """The last `@` before what looks like a host, or else the last of all: a password may contain `@` and `/`."""
    hosts = [sign.start() for sign in _AT_HOST.finditer(url, start)]
    return hosts[-1] if hosts else url.rindex("@")


_USER = re.compile(
    r"""[ \t](?:-u|--user|-U|--proxy-user)[ \t=]{0,4}(?P<quote>["'])?[^\s"':]{1,200}:"""
    r"""(?P<secret>(?(quote)(?:(?!(?P=quote)).){1,400}|[^\s"'`]{1,400}))"""
)
_VALUE = r"""(?P<quote>["'])?(?P<secret>(?(quote)(?:(?!(?P=quote)).){1,400}|[^\s"'`-][^\s"'`]{0,400}))"""
_JOINED = re.compile(rf"[ \t]-p{_VALUE}")
_AFTER_P = re.compile(rf"[ \t]-p[ \t]{{0,4}}{_VALUE}")
_FIRST_P = re.compile(rf"\Asshpass[ \t]{{1,4}}-p[ \t]{{0,4}}{_VALUE}")  # ssh's own -p is a port
_AFTER_A = re.compile(rf"[ \t]-a[ \t]{{0,4}}{_VALUE}")

_OPTIONS = {
    "curl ": _USER,
    **dict.fromkeys(("mysql ", "mysqldump ", "mysqladmin ", "mariadb "), _JOINED),
    "sshpass ": _FIRST_P,
    "redis-cli ": _AFTER_A,
    **{f"{program} login ": _AFTER_P for program in ("docker", "podman", "nerdctl", "registry", "az")},
}
PROGRAMS = tuple(_OPTIONS)


def passwords(text: str, held: frozenset[str]) -> Iterator[Span]:
    """The passwords given to `PROGRAMS`. `held`: which of these the text contains."""
    for program in PROGRAMS if held else ():
        if program not in held:
            continue
        start = text.find(program)
        while start >= 0:
            end = text.find("\n", start)
            end = len(text) if end < 0 else end
            for hit in _OPTIONS[program].finditer(text[start:end]):
                yield start + hit.start("secret"), start + hit.end("secret"), f"password of {program.strip()}"
            start = text.find(program, end)
