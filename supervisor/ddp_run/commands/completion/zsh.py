"""The script for zsh. Pure."""

from __future__ import annotations

from ddp_run.commands.completion.grammar import CASES, Context, Grammar, Takes, patterns

_HEAD = """\
#compdef ddp-run
# Completion of ddp-run for zsh:  eval "$(ddp-run completion zsh)"

"""
_COMMANDS = """\
_ddp_run_commands() {
    commands=(
%(commands)s
    )
}
"""
_BODY = r"""
_ddp_run_offer() {
    case "$kind" in
        words) compadd -- $list ;;
        preset) _files -g '*.toml' ;;
        python) _files -g '*.py' ;;
        folder) _files -/ ;;
        run | log)
            local folder=${PET_LOG_DIR:-ddp-run-logs}
            compadd -V runs -- $folder/*(N-/On:t)
            if [[ $kind == run ]]; then _files -/; else _files; fi ;;
        file) _files ;;
        text) _message 'value' ;;
        *) return 1 ;;
    esac
}

_ddp_run() {
    local context=launch expecting= script= kind= arguments= word
    local -a commands flags list
    local -i index=2
    _ddp_run_commands
    if ((CURRENT > 2)) && [[ -n ${(M)commands:#${words[2]}:*} ]]; then
        context=${words[2]} index=3
    fi
    for ((; index < CURRENT; index++)); do
        word=${words[index]}
        if [[ -n $expecting ]]; then
            expecting=
        elif [[ $word == -?* ]]; then
            _ddp_run_option $context $word
            [[ $kind == nothing || $word == *=* ]] || expecting=$word
        elif [[ $context == launch ]]; then
            script=$word
            break
        fi
    done
    if [[ -n $script ]]; then
        _files
        return
    fi
    if [[ -n $expecting ]]; then
        _ddp_run_option $context $expecting
        _ddp_run_offer
        return
    fi
    if [[ $PREFIX == --*=* ]]; then
        _ddp_run_option $context ${PREFIX%%=*}
        compset -P '*='
        _ddp_run_offer
        return
    fi
    _ddp_run_context $context
    if [[ $PREFIX == -* ]]; then
        _describe -o option flags
    elif [[ $context == launch ]]; then
        kind=python
        ((CURRENT == 2)) && _describe command commands
        _ddp_run_offer
    else
        kind=$arguments
        _ddp_run_offer
    fi
}

if [[ ${funcstack[1]} == _ddp-run ]]; then
    _ddp_run "$@"
else
    compdef _ddp_run ddp-run
fi
"""


def script(grammar: Grammar) -> str:
    """The whole script."""
    options = [
        f"        {patterns(context, option.flags)}) {_takes('kind', option.takes)} ;;"
        for context in grammar.contexts
        for option in context.options
        if option.takes.kind != "nothing"
    ]
    contexts = [
        f"        {context.name})\n{_flags(context)}\n            {_takes('arguments', context.arguments)} ;;"
        for context in grammar.contexts
    ]
    commands = [f"        '{context.name}:{context.meaning}'" for context in grammar.commands]
    cases = CASES % {"none": "()", "options": "\n".join(options), "contexts": "\n".join(contexts)}
    listed = _COMMANDS % {"commands": "\n".join(commands)}
    return f"{_HEAD}{cases}\n{listed}{_BODY}"


def _takes(kind: str, takes: Takes) -> str:
    return f"{kind}={takes.kind} list=({' '.join(takes.words)})"


def _flags(context: Context) -> str:
    lines = [f"                '{flag}:{option.meaning}'" for option in context.options for flag in option.flags]
    return "\n".join(["            flags=(", *lines, "            )"])
