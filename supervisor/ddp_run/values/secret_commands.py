"""Passwords behind options of one letter in commands that a shell shows (`set -x`): `+ curl -u me:X`. Pure.

Source: the programs' manuals. What their long options say (`--password=X`), a name says; this is for the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddp_run.values.secret_forms import Span

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
    """The passwords of `PROGRAMS`, where the text holds them."""
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
