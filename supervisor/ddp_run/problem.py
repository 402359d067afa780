"""A mistake found before anything was started, told as one block that points at the word that is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where it came from and what is allowed.

    `word` is the index into the command line's words (0 is the first after `ddp-run`), null where the value came
    from elsewhere; then `origin` says from where ("environment variable PET_NNODES", "preset.toml:3").
    """

    code: str
    title: str
    word: int | None = None
    label: str = ""
    origin: str | None = None
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    cause: str = "syntax-or-usage"


@dataclass
class Refused(Exception):
    """Raised to refuse a launch: every problem found, nothing started. `exit_code` by interfaces: 2 or 78."""

    problems: tuple[Problem, ...]
    argv: tuple[str, ...] = ()
    exit_code: int = field(default=2)
