"""Secrets that show by their form what they are: tokens with their maker's prefix, keys in PEM, random base64. Pure.

Sources: the makers' own documents on the form of their tokens. Each pattern is compiled when a text holds its literal:
ordinary text costs a search for some seventy words in its outline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise

from ddp_run.values.text_outline import Outline, one_byte_each

REDACTED = "[redacted]"


def _run(maker: str, prefix: str, alphabet: str, least: int) -> tuple[str, str, str]:
    """`least` characters or more behind a literal prefix; four where the text ends there: it may have been cut."""
    cut = rf"(?=[a-z]*[A-Z\d]){alphabet}{{4,}}(?=…|\Z)"
    return maker, prefix, rf"{re.escape(prefix)}(?:{alphabet}{{{least},}}|{cut})"


_ALNUM, _WORD, _URL_SAFE = "[A-Za-z0-9]", r"[A-Za-z0-9_]", r"[A-Za-z0-9_\-]"

# Whose it is, the literal, and the pattern of the whole.
_FORMS: tuple[tuple[str, str, str], ...] = (
    _run("Hugging Face", "hf_", _ALNUM, 16),
    _run("Hugging Face", "api_org_", _ALNUM, 16),
    _run("Weights & Biases", "wandb_v1_", _WORD, 16),  # the older form is 40 hexadecimal digits, as a commit's
    ("Weights & Biases", "wandb login", r"(?:(?<=wandb login )|(?<=wandb login --relogin ))[0-9a-f]{40}"),
    _run("Anthropic", "sk-ant-", _URL_SAFE, 12),
    *(_run("OpenAI", f"sk-{kind}-", _URL_SAFE, 12) for kind in ("proj", "svcacct", "admin")),
    _run("OpenRouter", "sk-or-", _URL_SAFE, 12),
    _run("Langfuse", "sk-lf-", _URL_SAFE, 12),
    *(_run("GitHub", f"gh{kind}_", _ALNUM, 20) for kind in "pousr"),
    _run("GitHub", "github_pat_", _WORD, 20),
    *(
        _run("GitLab", f"gl{kind}-", r"[A-Za-z0-9_.\-]", 16)
        for kind in ("pat", "dt", "rt", "ptt", "soat", "cbt", "ft", "agent")
    ),
    *(_run("Slack", f"xox{kind}-", r"[A-Za-z0-9.\-]", 10) for kind in "abceoprs"),
    _run("Slack", "xoxe.", r"[A-Za-z0-9.\-]", 10),
    _run("Slack", "xapp-", r"[A-Za-z0-9\-]", 10),
    ("Slack", "hooks.slack.com/", r"(?<=hooks\.slack\.com/)[A-Za-z]+/[A-Za-z0-9_/\-]{8,}"),
    ("Discord", "discord", r"(?<=/api/webhooks/)\d+/[A-Za-z0-9_\-]{16,}"),
    ("Microsoft Teams", "webhook.office.com/", r"(?<=webhook\.office\.com/)\S{16,}"),
    ("Telegram", "api.telegram.org/", r"(?<=api\.telegram\.org/)bot\d+:[A-Za-z0-9_\-]{20,}"),
    *(("AWS", kind, rf"(?<![A-Za-z0-9]){kind}[A-Z0-9]{{16,}}(?![a-z])") for kind in ("AKIA", "ASIA", "ABIA", "ACCA")),
    _run("Google", "AIza", _URL_SAFE, 30),
    _run("Google", "ya29.", _URL_SAFE, 16),
    _run("Google", "GOCSPX-", _URL_SAFE, 16),
    ("Google", "1//0", r"(?<![\w/])1//0[A-Za-z0-9_\-]{20,}"),
    ("Azure", "sig=", r"(?<=[?&;]sig=)[^&\s\"'<>]+"),  # a shared access signature
    _run("npm", "npm_", _ALNUM, 30),
    _run("PyPI", "pypi-", _URL_SAFE, 30),
    ("JSON Web Token", "eyJ", r"(?<![A-Za-z0-9_\-])eyJ[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]{8,}){1,4}\.?"),
    *(_run("Stripe", f"{kind}_{mode}_", _ALNUM, 10) for kind in ("sk", "rk") for mode in ("live", "test")),
    _run("Stripe", "whsec_", r"[A-Za-z0-9+/=]", 16),
    ("SendGrid", "SG.", r"SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}"),
    _run("Docker", "dckr_pat_", _URL_SAFE, 16),
    _run("NVIDIA", "nvapi-", _URL_SAFE, 16),
    ("Databricks", "dapi", r"(?<![A-Za-z0-9])dapi[0-9a-f]{32}"),
    _run("Vault", "hvs.", _URL_SAFE, 16),
    _run("Groq", "gsk_", _ALNUM, 20),
    _run("xAI", "xai-", _ALNUM, 20),
    _run("Perplexity", "pplx-", _ALNUM, 20),
    _run("Replicate", "r8_", _ALNUM, 20),
    _run("DigitalOcean", "dop_v1_", _ALNUM, 20),
    _run("Shopify", "shpat_", _ALNUM, 20),
    _run("Linear", "lin_api_", _ALNUM, 20),
    _run("Atlassian", "ATATT", r"[A-Za-z0-9_=\-]", 20),
    _run("Tailscale", "tskey-", _URL_SAFE, 10),
    ("PEM in base64", "LS0tLS1CRUdJTi", r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{16,}={0,2}"),  # keys in a kubeconfig
    ("age", "AGE-SECRET-KEY-", r"AGE-SECRET-KEY-[A-Z0-9]{10,}"),
)
_LITERALS = ("PRIVATE KEY", "sk-", "earer", *(literal for _maker, literal, _pattern in _FORMS))
PRIVATE_KEY = "private key"
_KEY_MARK = r"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_compiled = cache(re.compile)


def without_forms(text: str, outline: Outline, found: list[str] | None = None) -> str:
    """The text with every secret of a known form replaced; the number of its lines stays. `found` gets their kinds.

    `outline`: of this text.
    """
    held = outline.words(_LITERALS)
    if "PRIVATE KEY" in held:
        text = _told(text, _without_keys(text), PRIVATE_KEY, found)
    for maker, literal, pattern in _FORMS if held else ():
        if literal in held:
            text = _told(text, _compiled(pattern).sub(REDACTED, text), f"token: {maker}", found)
    if "sk-" in held:
        cleaned = _compiled(r"sk-(?<![A-Za-z0-9]sk-)[A-Za-z0-9_\-]{20,}").sub(_if(_is_openais), text)
        text = _told(text, cleaned, "token: OpenAI", found)
    if "earer" in held:
        pattern = r"(?<=[Bb]earer )[ ]{0,4}[A-Za-z0-9._~+/=\-]{8,}"
        cleaned = _compiled(pattern).sub(_if(lambda found: bool(re.search(r"\d|.{24}", found[0]))), text)
        text = _told(text, cleaned, "bearer token", found)
    return _told(text, _without_random(text), "random base64 of a key's length", found)


def _told(before: str, after: str, kind: str, found: list[str] | None) -> str:
    """The cleaned text; `found` gets the kind of what it lacks."""
    if found is not None and after != before:
        found.append(kind)
    return after


def _if(known: Callable[[re.Match[str]], bool]) -> Callable[[re.Match[str]], str]:
    return lambda found: REDACTED if known(found) else found[0]


def _is_openais(found: re.Match[str]) -> bool:
    """What follows `sk-` is random: not the name of a run."""
    rest = found[0][3:]
    mixed = re.search(r"\d", rest) and re.search(r"[a-z]", rest) and re.search(r"[A-Z]", rest)
    return mixed is not None or _compiled(r"[0-9a-f]{32,}").fullmatch(rest) is not None


_KEY_LENGTHS = {40: 0, 44: 1, 64: 0, 76: 0, 84: 0, 88: 2}
"""Length to signs `=` at the end: AWS's secret keys, Azure's, and the lines of a key in PEM."""


_BASE64 = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
_MARKED = bytes(ord("a") if byte in _BASE64 else ord(" ") for byte in range(256))
_SHORTEST = b"a" * min(_KEY_LENGTHS)


def _without_random(text: str) -> str:
    """Without base64 of random bytes: only where as many of its characters follow each other, a pattern is tried."""
    if len(text) < len(_SHORTEST):
        return text
    marked = one_byte_each(text).translate(_MARKED)
    pattern = _compiled(r"(?<![A-Za-z0-9+/_.\-])[A-Za-z0-9+/]{40,88}={0,2}(?![A-Za-z0-9+/=_\-])")
    done: list[str] = []
    told = at = 0
    while (start := marked.find(_SHORTEST, at)) >= 0:
        end = marked.find(b" ", start)
        at = len(text) if end < 0 else end
        found = pattern.match(text, start)
        if found is not None and _is_random(found):
            done += [text[told:start], REDACTED]
            told = found.end()
    return "".join([*done, text[told:]]) if done else text


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
    return often or changes(text) >= (0.2 if numbers >= 3 else 0.35) * len(text)


def changes(text: str) -> int:
    """How often letters, capitals and digits follow each other in a text; a capital before letters is none."""
    kinds = [kind for char in text if (kind := _kind(char)) != "-"]
    return sum(one != two and (one, two) != ("A", "a") for one, two in pairwise(kinds))


def _kind(char: str) -> str:
    return "0" if char.isdigit() else "A" if char.isupper() else "a" if char.isalpha() else "-"


def _without_keys(text: str) -> str:
    """Private keys in PEM, each line of theirs; also of a key that is cut at its start or at its end."""
    done: list[str] = []
    at, inside = 0, False
    for mark in _compiled(_KEY_MARK).finditer(text):
        between, ends = text[at : mark.start()], mark[1] == "END"
        if inside and ends:
            *lines, last = between.split("\n")  # what stands before the mark in its own line may be a launcher's
            lines = [*map(_without_last_word, lines), last if last[-1:].isspace() else _without_last_word(last)]
            between = "\n".join(lines)
        else:
            between = _without_key_lines(between, after_begin=inside, before_end=ends)
        done += [between, mark[0]]
        at, inside = mark.end(), not ends
    done.append(_without_key_lines(text[at:], after_begin=inside, before_end=False))
    return "".join(done)


def _without_key_lines(text: str, *, after_begin: bool, before_end: bool) -> str:
    """The text without the lines of a key at its start, or at its end."""
    lines = text.split("\n")
    if after_begin:
        lines[0] = _without_last_word(lines[0])
        for index in _while_base64(lines, range(1, len(lines))):
            lines[index] = _without_last_word(lines[index])
    if before_end:
        lines[-1] = lines[-1] if lines[-1][-1:].isspace() else _without_last_word(lines[-1])
        for index in _while_base64(lines, range(len(lines) - 2, -1, -1)):
            lines[index] = _without_last_word(lines[index])
    return "\n".join(lines)


def _while_base64(lines: Sequence[str], indices: Iterable[int]) -> Iterator[int]:
    word = _compiled(r"[A-Za-z0-9+/=]{16,}")
    for index in indices:
        words = lines[index].rsplit(None, 1)
        if not words or word.fullmatch(words[-1]) is None:
            return
        yield index


def _without_last_word(line: str) -> str:
    """The rest of a line may be what a launcher or a collector puts before it."""
    shown = line.rstrip()
    start = max(shown.rfind(" "), shown.rfind("\t")) + 1
    return line[:start] + REDACTED + line[len(shown) :] if shown else line
