"""The scripts for bash (4 and newer), zsh and fish: one reads what was typed, and each shell offers what fits. Pure.

fish has another language, so there bash reads what was typed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ddp_run.commands.completion.grammar import LAUNCH, Context, Takes, dashed

_SCRIPT = """\
# Completion of ddp-run for %(shell)s; ddp-run completion --help says how to load it

_ddp_run_commands=(%(commands)s
)

# What an option takes: sets kind and list.
_ddp_run_option() {
    local name=$2
    [[ $name == --* ]] && name=${name//_/-}
    kind=nothing list=
    case "$1 $name" in%(options)s
    esac
}

# The context that a first word makes: sets context, its flags, and kind and list of its arguments.
_ddp_run_context() {
    context=$1
    case "$1" in%(contexts)s
    esac
}
%(read)s
%(offer)s"""
_READ = r"""
# What can replace $cur after these words: sets context, flags, kind and list. If $cur is --option=value, it becomes the
# value, and joined is --option=.
_ddp_run_read() {
    local word option=
    _ddp_run_context "$1"
    [[ $context == launch ]] || shift
    for word in "$@"; do
        if [[ -n $option ]]; then
            [[ $word == "=" ]] || option=  # readline splits --option=value at its "="
        elif [[ $word == -?* ]]; then
            _ddp_run_option $context "$word"
            [[ $kind == nothing || $word == *=* ]] || option=$word
        elif [[ $context == launch && $word != "=" ]]; then
            kind=file  # the script has its own words
            return
        fi
    done
    if [[ -n $option ]]; then
        [[ $cur == "=" ]] && cur=
    elif [[ $cur == --*=* ]]; then
        option=${cur%%=*} joined=${cur%%=*}= cur=${cur#*=}
    fi
    if [[ -n $option ]]; then
        _ddp_run_option $context "$option"
    else
        _ddp_run_context $context
        [[ $cur == -* ]] && kind=flags
    fi
}
"""
_RUNS = r"""
_ddp_run_runs() {
    local folder=${PET_LOG_DIR:-ddp-run-logs}
    ([[ -d $folder ]] && cd -- "$folder" && compgen -d -- "$cur" | sort -r)
}
"""
_OFFER = {
    "bash": _RUNS
    + r"""
_ddp_run_paths() {
    case $kind in
        run | log)
            _ddp_run_runs
            if [[ $kind == run ]]; then compgen -d -- "$cur"; else compgen -f -- "$cur"; fi | sort ;;
        file) compgen -f -- "$cur" ;;
        folder) compgen -d -- "$cur" ;;
        *) compgen -d -- "$cur"; compgen -f -X "!$kind" -- "$cur" ;;
    esac
}

_ddp_run() {
    local cur=${COMP_WORDS[COMP_CWORD]} context kind list joined=
    local -a flags
    COMPREPLY=()
    _ddp_run_read "${COMP_WORDS[@]:1:COMP_CWORD-1}"
    case $kind in
        nothing | text) ;;
        words) COMPREPLY=($(compgen -W "$list" -- "$cur")) ;;
        flags)
            flags=("${flags[@]%%:*}")
            [[ $cur == *_* ]] && flags=("${flags[@]//-/_}") && flags=("${flags[@]/#__/--}")
            COMPREPLY=($(compgen -W "${flags[*]}" -- "$cur")) ;;
        *)
            compopt -o filenames 2>/dev/null
            [[ $kind == run || $kind == log ]] && compopt -o nosort 2>/dev/null
            mapfile -t COMPREPLY < <(_ddp_run_paths)
            if ((COMP_CWORD == 1)) && [[ $kind == "*.py" ]]; then
                COMPREPLY+=($(compgen -W "${_ddp_run_commands[*]%%:*}" -- "$cur"))
            fi ;;
    esac
    [[ $joined ]] && COMPREPLY=("${COMPREPLY[@]/#/$joined}")
}

complete -F _ddp_run ddp-run
""",
    "zsh": r"""
_ddp_run() {
    local cur=$PREFIX context kind list joined=
    local -a flags
    _ddp_run_read "${(@)words[2,CURRENT-1]}"
    [[ -n $joined ]] && compset -P '*='
    case $kind in
        nothing) return 1 ;;
        text) _message 'value' ;;
        words) compadd -- ${=list} ;;
        flags) _describe -o option flags ;;
        file) _files ;;
        folder) _files -/ ;;
        run | log)
            compadd -V runs -- ${PET_LOG_DIR:-ddp-run-logs}/*(N-/On:t)
            if [[ $kind == run ]]; then _files -/; else _files; fi ;;
        *)
            ((CURRENT == 2)) && [[ $kind == "*.py" ]] && _describe command _ddp_run_commands
            _files -g "$kind" ;;
    esac
}

if [[ ${funcstack[1]} == _ddp-run ]]; then
    _ddp_run "$@"
else
    compdef _ddp_run ddp-run
fi
""",
    # Prints the kind, then words with their meanings.
    "fish": _RUNS
    + r"""
cur=${@: -1} joined=
_ddp_run_read "${@:1:$#-1}"
echo "$kind"
case $kind in
    words) printf -- "$joined%s\n" $list ;;
    flags) printf '%s\n' "${flags[@]/:/$'\t'}" ;;
    run | log) _ddp_run_runs ;;
    *.py) (($# > 1)) || printf '%s\n' "${_ddp_run_commands[@]/:/$'\t'}" ;;
esac
""",
}
_FISH = r"""# Completion of ddp-run for fish; ddp-run completion --help says how to load it

set -g __ddp_run_bash '%s'

function __ddp_run
    set -l current (commandline -ct)
    set -l found (bash --norc -c $__ddp_run_bash bash (commandline -opc)[2..-1] "$current")
    string join -- \n $found[2..-1]
    switch $found[1]
        case file log
            __fish_complete_path
        case folder run
            __fish_complete_directories
        case '*.*'
            __fish_complete_suffix (string trim -l -c '*' $found[1])
    end
end

complete -c ddp-run -e
complete -c ddp-run -f -k -a '(__ddp_run)'
"""


def script(contexts: Iterable[Context], shell: Literal["bash", "zsh", "fish"]) -> str:
    """The whole script."""
    launch, *commands = contexts
    options = [
        "|".join(f"'{context.name} {dashed(flag)}'" for flag in option.flags) + f") {_takes(option.takes)}"
        for context in (launch, *commands)
        for option in context.options
        if option.takes.kind != "nothing"
    ]
    cases = [f"{each.name}) flags=({_flags(each)}) {_takes(each.arguments)}" for each in commands]
    cases.append(f"*) context={LAUNCH} flags=({_flags(launch)}) {_takes(launch.arguments)}")
    made = _SCRIPT % {
        "shell": shell,
        "commands": _lines(f"'{each.name}:{each.meaning}'" for each in commands),
        "options": _lines(options),
        "contexts": _lines(cases),
        "read": _READ,
        "offer": _OFFER[shell],
    }
    return made if shell != "fish" else _FISH % made.replace("\\", "\\\\").replace("'", "\\'")


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"\n        {line}" for line in lines)


def _takes(takes: Takes) -> str:
    return f"kind='{takes.kind}' list='{' '.join(takes.words)}' ;;"


def _flags(context: Context) -> str:
    return " ".join(f"'{flag}:{option.meaning}'" for option in context.options for flag in option.flags)
