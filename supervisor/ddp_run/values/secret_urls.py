"""Who and with which password in URLs, whatever characters the password has. Pure."""

from __future__ import annotations

import re

from ddp_run.values.secret_forms import REDACTED

_WITH_NAMES = ("ssh", "sftp", "git+ssh", "rsync", "hdfs", "abfs", "wasb", "s3", "gs", "adl")
"""Schemes whose `name@` is an account's or a container's name."""
_AT_HOST = (
    r"(?a)@(?=(?:(?:[\w\-]+\.)+[A-Za-z]{2,24}|localhost|\d{1,3}(?:\.\d{1,3}){3}|\[[\da-fA-F:]+\]|[\w\-]+(?=:\d))"
    r"(?:[:/?#,]|\Z))"
)


def without_users(text: str) -> str:
    """Without who and with which password in URLs, whatever characters the password has."""

    def cleaned(found: re.Match[str]) -> str:
        before = text[max(0, found.start() - 24) : found.start()].rpartition("/")[2]
        return _without_user(before + found[0])[len(before) :]

    return re.sub(r"""://[^\s"'<>]+""", cleaned, text)


def _without_user(url: str) -> str:
    """One word that holds a URL, or several."""
    done: list[str] = []
    at, last_sign = 0, url.rfind("@")
    while (slashes := url.find("://", at)) >= 0 and slashes < last_sign:
        start = slashes + 3
        end = _user(url, url[max(0, slashes - 24) : slashes], start, last_sign)
        done.append(url[at:start])
        at = start
        if end is not None:
            done.append(REDACTED)
            at = end
    return "".join([*done, url[at:]])


def _user(url: str, before: str, start: int, last_sign: int) -> int | None:
    """Where the `user:password` that begins there ends; null where there is none to hide."""
    path = re.compile(r"[/?#]").search(url, start)
    within = path.start() if path is not None else len(url)
    colon, sign = url.find(":", start, within), url.find("@", start, within)
    if colon >= 0 and (sign < 0 or colon < sign):
        port = re.compile(r"\d{1,5}(?=[/?#,]|\Z)").match(url, colon + 1)
        if port is not None or url.startswith("[", start) or colon > last_sign:
            return None
        return _end_of_password(url, colon)
    scheme = re.search(r"(?a)[A-Za-z][\w+.\-]{0,23}\Z", before)
    if sign < 0 or (scheme is not None and scheme[0].lower().startswith(_WITH_NAMES)):
        return None
    user = url[start:sign]
    return sign if len(user) >= 16 or (len(user) >= 8 and any(char.isdigit() for char in user)) else None


def _end_of_password(url: str, start: int) -> int:
    """The last `@` before what looks like a host, else the last of all: a password may hold one, and a slash."""
    hosts = [sign.start() for sign in re.compile(_AT_HOST).finditer(url, start)]
    return hosts[-1] if hosts else url.rindex("@")
