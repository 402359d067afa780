"""What can be completed: commands, options and what they take, from the table of options and from click's commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ddp_run.settings.table import Row

if TYPE_CHECKING:
    import click

Kind = Literal["nothing", "text", "words", "*.py", "*.toml", "file", "folder", "run", "log"]
"""A pattern: such files, and folders. `run`: a run, the newest first, or a folder; `log`: a run, or any file."""
LAUNCH = "launch"
"""The context of words that belong to no command."""

_LAUNCH_KINDS: Mapping[str, Kind] = {"config": "*.toml", "log_dir": "folder"}
_USUAL = {"nproc_per_node": ("auto", "cpu", "gpu", "xpu"), "rdzv_backend": ("c10d", "static")}
"""Not all that is allowed."""
_ARGUMENTS: Mapping[str, Kind] = {
    **dict.fromkeys(("bundle", "explain", "report"), "log"),
    **dict.fromkeys(("logs", "stacks", "stop", "watch"), "run"),
    "hosts": "folder",
}
_METAVARS: Mapping[str, Kind] = {"DIR": "folder", "FILE": "file", "PATH": "file"}
_WITH_A_LAUNCH = frozenset({"doctor"})
"""Commands that take a launch's options too."""
_MEANING_CHARS = 70
_SHELLS_OWN = '"`$\\[]:'


@dataclass(frozen=True, slots=True)
class Takes:
    """What may follow: an option's value, or a command's arguments."""

    kind: Kind
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its spellings with dashes in them (the others are understood, not offered), and its meaning."""

    flags: tuple[str, ...]
    meaning: str
    takes: Takes


@dataclass(frozen=True, slots=True)
class Context:
    """A command, or a launch: before its script."""

    name: str
    meaning: str
    options: tuple[Option, ...]
    arguments: Takes


def dashed(flag: str) -> str:
    """The spelling that a shell's words are compared with."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def grammar(
    rows: Sequence[Row], commands: Mapping[str, click.Command], causes: Sequence[str] = ()
) -> Iterator[Context]:
    """A launch, from the rows of its options, then the commands by name. `causes`: the names of the causes."""
    helping = Option(("-h", "--help"), "Show help and exit", Takes("nothing"))
    version = Option(("-V", "--version"), "Show the version and exit", Takes("nothing"))
    launch = tuple(_of_row(row) for row in rows if not row.prints_and_exits)
    yield Context(LAUNCH, "", (*launch, helping, version), Takes("*.py"))
    for name, command in commands.items():
        options = (*_options_of(command), helping, *(launch if name in _WITH_A_LAUNCH else ()))
        takes = Takes("words", tuple(causes)) if name == "rules" else _arguments_of(name, command)
        yield Context(name, _short(command.get_short_help_str(200)), options, takes)


def _of_row(row: Row) -> Option:
    flags = tuple(flag for flag in row.flags if "_" not in flag) or row.flags
    words = row.choices or _USUAL.get(row.dest)
    kind: Kind = "words" if words else _LAUNCH_KINDS.get(row.dest, "text")
    return Option(flags, _short(row.help), Takes(kind, words or ()) if row.takes_value else Takes("nothing"))


def _options_of(command: click.Command) -> Iterator[Option]:
    import click

    for each in command.params:
        if isinstance(each, click.Option):
            kind = "nothing" if each.is_flag or each.count else _METAVARS.get(each.metavar or "", "text")
            yield Option(tuple(each.opts), _short(each.help or ""), _choice(each) or Takes(kind))


def _arguments_of(name: str, command: click.Command) -> Takes:
    import click

    for each in command.params:
        if isinstance(each, click.Argument):
            return _choice(each) or Takes(_ARGUMENTS.get(name, "text"))
    return Takes("nothing")


def _choice(parameter: click.Parameter) -> Takes | None:
    import click

    return Takes("words", tuple(parameter.type.choices)) if isinstance(parameter.type, click.Choice) else None


def _short(text: str) -> str:
    """The first sentence, or what of it fits on a line; without what a shell would read as its own."""
    first = " ".join(text.split()).partition(". ")[0].partition("; ")[0].rstrip(".")
    plain = "".join(each for each in first.replace("'", "\u2019") if each.isprintable() and each not in _SHELLS_OWN)
    return plain if len(plain) <= _MEANING_CHARS else plain[: _MEANING_CHARS - 1].rpartition(" ")[0] + "…"
