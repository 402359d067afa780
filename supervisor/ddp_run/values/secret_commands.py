"""Passwords behind options of one letter in commands that a shell shows (`set -x`): `+ curl -u me:X`. Pure.

Source: the programs' manuals. What their long options say (`--password=X`), a name says; this is for the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddp_run.values.secret_forms import REDACTED

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


def without_passwords(text: str, programs: list[str], found: list[str] | None = None) -> str:
    """The text without the passwords of these programs, of `PROGRAMS`; `found` gets `password of curl`."""
    lines = text.split("\n")
    for program in programs:
        for index, line in enumerate(lines):
            start = line.find(program)
            if start < 0:
                continue
            lines[index] = line[:start] + "".join(_parts(line[start:], _OPTIONS[program]))
            if lines[index] != line and found is not None:
                found.append(f"password of {program.strip()}")
    return "\n".join(lines)


def _parts(command: str, option: re.Pattern[str]) -> Iterator[str]:
    at = 0
    for hit in option.finditer(command):
        yield command[at : hit.start("secret")]
        yield REDACTED
        at = hit.end("secret")
    yield command[at:]
