"""`ddp-run completion`: the script that a shell loads, and what the script asks for each time a key is pressed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ddp_run.settings.table import Row

_SCRIPTS = {
    "bash": """\
_ddp_run() {
    compopt -o filenames 2>/dev/null
    compopt -o nosort 2>/dev/null
    mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}

complete -F _ddp_run ddp-run
""",
    "zsh": """\
_ddp_run() {
    local -a found=(${(f)"$($words[1] completion zsh -- "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)"})
    local -a folders=(${(M)found:#*/}) others=(${found:#*/})
    _describe -V ddp-run others
    _describe -V folder folders -S ''
}

if [[ ${funcstack[1]} == _ddp-run ]]; then
    _ddp_run "$@"
else
    compdef _ddp_run ddp-run
fi
""",
    "fish": """\
function __ddp_run
    set -l words (commandline -opc) (commandline -ct)
    $words[1] completion fish -- $words[2..-1] 2>/dev/null
end

complete -c ddp-run -e
complete -c ddp-run -f -k -a '(__ddp_run)'
""",
}

Takes = str | tuple[str, ...]
"""What can follow: one of these words; a folder, or a file of this pattern; empty: a value that isn't known here."""
_RUN, _LOG, _FILE, _FOLDER = "/run", "/log", "*", "/"
"""A run, the newest first, or a folder; a run or a file; a file; a folder. No file's name has a slash."""
_OF_LAUNCH = {"config": "*.toml", "log_dir": _FOLDER}
_USUAL = {"nproc_per_node": ("auto", "cpu", "gpu", "xpu"), "rdzv_backend": ("c10d", "static")}
"""Not all that is allowed."""
_ARGUMENTS = {
    **dict.fromkeys(("bundle", "explain", "report"), _LOG),
    **dict.fromkeys(("logs", "stacks", "stop", "watch"), _RUN),
    "hosts": _FOLDER,
}
_METAVARS = {"DIR": _FOLDER, "FILE": _FILE, "PATH": _FILE}
_WITH_A_LAUNCH = frozenset({"doctor"})
"""Commands that take a launch's options too."""
_MEANING_CHARS = 70


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its spellings, its meaning, and what its value can be; None if it takes none."""

    flags: tuple[str, ...]
    meaning: str
    takes: Takes | None = None


@click.command(context_settings={"allow_extra_args": True})
@click.argument("shell", type=click.Choice([*_SCRIPTS]), metavar="SHELL")
@click.pass_context
def command(context: click.Context, shell: str) -> int:
    """Print a shell completion script.

    \b
    bash, in ~/.bashrc:                  eval "$(ddp-run completion bash)"
    zsh, in ~/.zshrc behind compinit:    eval "$(ddp-run completion zsh)"
    fish, in ~/.config/fish/config.fish: ddp-run completion fish | source

    SHELL is bash, zsh or fish. When a key is pressed, the script asks the ddp-run on the command line.
    """
    if not context.args:
        sys.stdout.write(_SCRIPTS[shell])
        return 0
    for word, meaning in offered(context.args):
        if shell == "bash":  # it adds the slash itself
            line = word.removesuffix("/")
        elif shell == "zsh":
            line = word.replace(":", r"\:") + (f":{meaning}" if meaning else "")
        else:
            line = f"{word}\t{meaning}"
        sys.stdout.write(f"{line}\n")
    return 0


def offered(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What can stand in place of the last of these words, which begins like it; each with its meaning, or none."""
    from ddp_run import commands

    *before, current = words
    name = before[0] if before and before[0] in commands.names() else None
    options, takes = _of_launch() if name is None else _of_command(name)
    by_flag = {_dashed(flag): option for option in options for flag in option.flags}
    asking: Option | None = None
    for word in before[name is not None :]:
        flag, equals, _value = word.partition("=")
        if asking is not None:
            asking = asking if word == "=" else None  # readline splits --option=value at its "="
        elif word.startswith("-") and len(word) > 1:
            asking = None if equals else by_flag.get(_dashed(flag))
            asking = asking if asking is not None and asking.takes is not None else None
        elif name is None:
            yield from _fitting(_FILE, current)  # the script has its own words
            return
    flag, equals, value = current.partition("=")
    if asking is not None:
        yield from _fitting(asking.takes or "", value if current == "=" else current)
    elif current.startswith("--") and equals:
        option = by_flag.get(_dashed(flag))
        for word, meaning in _fitting((option and option.takes) or "", value):
            yield f"{flag}={word}", meaning
    elif current.startswith("-"):
        for option in options:
            for each in option.flags:
                spelled = each.replace("-", "_").replace("__", "--", 1) if "_" in current else each
                yield from [(spelled, option.meaning)] if spelled.startswith(current) else []
    else:
        yield from _fitting(takes, current)
        if name is None and not before:
            for each, found in commands.all_commands().items():
                yield from [(each, _short(found.get_short_help_str(200)))] if each.startswith(current) else []


def _dashed(flag: str) -> str:
    """The spelling with dashes: the others are understood, and offered only once an underscore was typed."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


# ------------------------------------------------------------------------------------------ what is known


def _of_launch() -> tuple[list[Option], Takes]:
    from ddp_run.plan.installed_torch import torch_rows
    from ddp_run.settings.table import all_rows
    from ddp_run.values.problem import Refused

    try:
        rows = all_rows(torch_rows())
    except Refused:
        rows = all_rows(())
    options = [_of_row(row) for row in rows if not row.prints_and_exits]
    version = Option(("-V", "--version"), "Show the version and exit")
    return [*options, Option(("-h", "--help"), "Show help and exit"), version], "*.py"


def _of_row(row: Row) -> Option:
    flags = tuple(flag for flag in row.flags if "_" not in flag) or row.flags
    takes = row.choices or _USUAL.get(row.dest) or _OF_LAUNCH.get(row.dest, "")
    return Option(flags, _short(row.help), takes if row.takes_value else None)


def _of_command(name: str) -> tuple[list[Option], Takes]:
    """Its options, and what its arguments can be."""
    from ddp_run import commands

    options = [Option(("-h", "--help"), "Show help and exit")]
    takes: Takes = _ARGUMENTS.get(name, "")
    for each in commands.all_commands()[name].params:
        choices = tuple(each.type.choices) if isinstance(each.type, click.Choice) else ()
        if isinstance(each, click.Option):
            value = choices or _METAVARS.get(each.metavar or "", "")
            options.append(
                Option(tuple(each.opts), _short(each.help or ""), None if each.is_flag or each.count else value)
            )
        else:
            takes = choices or takes
    if name == "rules":
        from ddp_run.judge.catalogue import catalogue

        takes = tuple(cause.rule.name for cause in catalogue())
    return [*options, *(_of_launch()[0] if name in _WITH_A_LAUNCH else ())], takes


def _short(text: str) -> str:
    """The first sentence, or what of it fits on a line."""
    first = " ".join(text.split()).partition(". ")[0].partition("; ")[0].rstrip(".")
    return first if len(first) <= _MEANING_CHARS else first[: _MEANING_CHARS - 1].rpartition(" ")[0] + "…"


# -------------------------------------------------------------------------------------------- what is there


def _fitting(takes: Takes, current: str) -> Iterator[tuple[str, str]]:
    if isinstance(takes, tuple):
        yield from ((word, "") for word in takes if word.startswith(current))
        return
    if takes in (_RUN, _LOG):
        from ddp_run.plan.checks.log_folder import runs_folder

        runs = _entries(runs_folder(None), current)
        yield from ((name, "") for name, is_folder in reversed(runs) if is_folder)
    pattern = "*" if takes == _LOG else takes
    folder, slash, begun = current.rpartition("/")
    for name, is_folder in _entries(Path(folder + slash).expanduser(), begun) if takes else ():
        if is_folder or fnmatchcase(name, pattern):
            yield f"{folder}{slash}{name}{'/' if is_folder else ''}", ""


def _entries(folder: Path, begun: str) -> list[tuple[str, bool]]:
    """The names in a folder that begin so, and whether each is a folder; hidden ones only after a dot."""
    try:
        with os.scandir(folder) as entries:
            fitting = [each for each in entries if each.name.startswith(begun)]
            return sorted((each.name, each.is_dir()) for each in fitting if begun or not each.name.startswith("."))
    except OSError:
        return []
