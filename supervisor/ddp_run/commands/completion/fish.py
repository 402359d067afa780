"""The script for fish. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddp_run.commands.completion.grammar import Context, Kind, Option, Takes, dashed

_TAKES: Mapping[Kind, str] = {
    "nothing": "",
    "text": "-x",
    "*.toml": "-x -k -a '(__fish_complete_suffix .toml)'",
    "folder": "-x -a '(__fish_complete_directories)'",
    "run": "-x -k -a '(__ddp_run_names __fish_complete_directories)'",
    "log": "-x -k -a '(__ddp_run_names __fish_complete_path)'",
    "file": "-F",
}

_HEAD = """\
# Completion of ddp-run for fish:  ddp-run completion fish | source

set -g __ddp_run_commands %(commands)s
set -g __ddp_run_with_value %(with_value)s

# Where the cursor is: start, launch (before the script), script (behind it), or in a command.
function __ddp_run_context
    set -l words (commandline -opc)[2..-1]
    if test (count $words) -eq 0
        echo start
        return
    end
    if contains -- $words[1] $__ddp_run_commands
        echo $words[1]
        return
    end
    set -l expecting no
    for word in $words
        if test $expecting = yes
            set expecting no
        else if string match -qr -- '^-.' $word
            string match -q -- '--*' $word; and set word (string replace -a -- _ - $word)
            contains -- $word $__ddp_run_with_value; and set expecting yes
        else
            echo script
            return
        end
    end
    echo launch
end

function __ddp_run_is
    contains -- (__ddp_run_context) $argv
end

function __ddp_run_names
    set -l folder ddp-run-logs
    set -q PET_LOG_DIR; and set folder $PET_LOG_DIR
    test -d $folder; and path basename $folder/*/ | sort -r
    $argv
end

complete -c ddp-run -e
complete -c ddp-run -f
complete -c ddp-run -n '__ddp_run_is start launch' -k -a '(__fish_complete_suffix .py)'
complete -c ddp-run -n '__ddp_run_is script' -F
"""


def script(contexts: Iterable[Context]) -> str:
    """The whole script."""
    launch, *commands = contexts
    with_value = [dashed(flag) for option in launch.options for flag in option.flags if option.takes.kind != "nothing"]
    head = _HEAD % {"commands": " ".join(each.name for each in commands), "with_value": " ".join(with_value)}
    lines = [f"complete -c ddp-run -n '__ddp_run_is start' -a {each.name} -d '{each.meaning}'" for each in commands]
    for context in (launch, *commands):
        where = "start launch" if context is launch else context.name
        lines += [_line(where, option) for option in context.options]
        if context is not launch and context.arguments.kind not in ("nothing", "text"):
            lines.append(f"complete -c ddp-run -n '__ddp_run_is {context.name}' {_takes(context.arguments)}")
    return head + "\n".join(lines) + "\n"


def _line(where: str, option: Option) -> str:
    flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
    takes = f"{'-r ' if option.takes.kind == 'file' else ''}{_takes(option.takes)}"
    return f"complete -c ddp-run -n '__ddp_run_is {where}' {flags} {takes} -d '{option.meaning}'"


def _takes(takes: Takes) -> str:
    return f"-x -a '{' '.join(takes.words)}'" if takes.kind == "words" else _TAKES[takes.kind]
