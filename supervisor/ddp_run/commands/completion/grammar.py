"""What can be completed: commands, options and what they take, from the table of options and from click's commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ddp_run.settings.table import Row

if TYPE_CHECKING:
    import click

Kind = Literal["nothing", "words", "preset", "folder", "file", "run", "log", "text"]
"""`run`: a run, the newest first, or a folder; `log`: a run, or any file."""
LAUNCH = "launch"
"""The context of words that belong to no command."""

_LAUNCH_KINDS: Mapping[str, Kind] = {"config": "preset", "log_dir": "folder"}
_USUAL = {"nproc_per_node": ("auto", "cpu", "gpu", "xpu"), "rdzv_backend": ("c10d", "static")}
"""Not all that is allowed."""
_ARGUMENTS: Mapping[str, Kind] = {"bundle": "log", "explain": "log", "logs": "run", "stop": "run", "hosts": "folder"}
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


@dataclass(frozen=True, slots=True)
class Grammar:
    """All that can be completed."""

    launch: Context
    commands: tuple[Context, ...]

    @property
    def contexts(self) -> tuple[Context, ...]:
        """The launch first."""
        return (self.launch, *self.commands)


def dashed(flag: str) -> str:
    """The spelling that a shell's words are compared with."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def grammar(rows: Sequence[Row], commands: Mapping[str, click.Command], causes: Sequence[str] = ()) -> Grammar:
    """From the rows of all options of a launch, the commands by name, and the names of the causes."""
    asking = (
        Option(("-h", "--help"), "Show help and exit", Takes("nothing")),
        Option(("-V", "--version"), "Show the version and exit", Takes("nothing")),
    )
    options = tuple(_of_row(row) for row in rows if not row.prints_and_exits)
    launch = Context(LAUNCH, "", (*options, *asking), Takes("file"))
    found = [_of_command(name, command) for name, command in commands.items()]
    found = [
        replace(each, options=(*each.options, *options)) if each.name in _WITH_A_LAUNCH else each for each in found
    ]
    of_causes = Takes("words", tuple(causes))
    return Grammar(
        launch, tuple(replace(each, arguments=of_causes) if each.name == "rules" else each for each in found)
    )


def _of_row(row: Row) -> Option:
    flags = tuple(flag for flag in row.flags if "_" not in flag) or row.flags
    return Option(flags, _short(row.help), _row_takes(row))


def _row_takes(row: Row) -> Takes:
    if not row.takes_value:
        return Takes("nothing")
    if row.dest in _LAUNCH_KINDS:
        return Takes(_LAUNCH_KINDS[row.dest])
    words = row.choices or _USUAL.get(row.dest)
    return Takes("words", words) if words else Takes("text")


def _of_command(name: str, command: click.Command) -> Context:
    import click

    options = [each for each in command.params if isinstance(each, click.Option)]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    found = [Option(tuple(each.opts), _short(each.help or ""), _option_takes(each)) for each in options]
    helping = Option(("-h", "--help"), "Show help and exit", Takes("nothing"))
    words = next((tuple(map(str, each.type.choices)) for each in arguments if isinstance(each.type, click.Choice)), ())
    takes = Takes("words", words) if words else Takes(_ARGUMENTS.get(name, "text" if arguments else "nothing"))
    return Context(name, _short(command.get_short_help_str(200)), (*found, helping), takes)


def _option_takes(option: click.Option) -> Takes:
    import click

    if option.is_flag or option.count:
        return Takes("nothing")
    if isinstance(option.type, click.Choice):
        return Takes("words", tuple(map(str, option.type.choices)))
    return Takes(_METAVARS.get(option.metavar or "", "text"))


def _short(text: str) -> str:
    """The first sentence, or what of it fits on a line; without what a shell would read as its own."""
    first = " ".join(text.split()).partition(". ")[0].partition("; ")[0].rstrip(".")
    plain = "".join(each for each in first.replace("'", "\u2019") if each.isprintable() and each not in _SHELLS_OWN)
    return plain if len(plain) <= _MEANING_CHARS else plain[: _MEANING_CHARS - 1].rpartition(" ")[0] + "…"


# ------------------------------------------------------------------- shared by the scripts for bash and zsh

CASES = """\
# What an option takes: sets kind and list.
_ddp_run_option() {
    local name=$2
    [[ $name == --* ]] && name=${name//_/-}
    kind=nothing list=%(none)s
    case "$1 $name" in
%(options)s
    esac
}

_ddp_run_context() {
    case "$1" in
%(contexts)s
    esac
}
"""


def patterns(context: Context, flags: tuple[str, ...]) -> str:
    """For a `case` of a context's name and an option."""
    return "|".join(f"'{context.name} {dashed(flag)}'" for flag in flags)
