"""Who and with which password in URLs, whatever characters the password has. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddp_run.values.secret_forms import Span

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
    """Where the `user:password` that begins there ends; null where there is none to hide."""
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
    """The last `@` before what looks like a host, else the last of all: a password may hold one, and a slash."""
    hosts = [sign.start() for sign in _AT_HOST.finditer(url, start)]
    return hosts[-1] if hosts else url.rindex("@")
