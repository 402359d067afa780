"""The script for bash (4 and newer). Pure."""

from __future__ import annotations

from ddp_run.commands.completion.grammar import CASES, Context, Grammar, Takes, patterns

_HEAD = """\
# Completion of ddp-run for bash:  eval "$(ddp-run completion bash)"

"""
_BODY = r"""
_ddp_run_offer() {
    local folder files=f
    case "$kind" in
        words) COMPREPLY=($(compgen -W "$list" -- "$cur")) ;;
        preset) _ddp_run_files '!*.toml' ;;
        python) _ddp_run_files '!*.py' ;;
        folder) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
        run | log)
            [[ $kind == run ]] && files=d
            compopt -o filenames 2>/dev/null
            compopt -o nosort 2>/dev/null
            folder=${PET_LOG_DIR:-ddp-run-logs}
            mapfile -t COMPREPLY < <(
                ([[ -d $folder ]] && cd -- "$folder" && compgen -d -- "$cur" | sort -r)
                compgen -$files -- "$cur" | sort
            ) ;;
        file) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    esac
}

_ddp_run_files() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -d -- "$cur"; compgen -f -X "$1" -- "$cur")
}

_ddp_run() {
    local cur=${COMP_WORDS[COMP_CWORD]} context=launch index=1 word expecting= script= kind list flags arguments words
    COMPREPLY=()
    if ((COMP_CWORD > 1)) && [[ " $_ddp_run_commands " == *" ${COMP_WORDS[1]} "* ]]; then
        context=${COMP_WORDS[1]} index=2
    fi
    # readline parts --option=value at its "=".
    for ((; index < COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        if [[ $expecting ]]; then
            [[ $word == "=" ]] || expecting=
        elif [[ $word == -?* ]]; then
            _ddp_run_option "$context" "$word"
            [[ $kind == nothing || $word == *=* ]] || expecting=$word
        elif [[ $context == launch && $word != "=" ]]; then
            script=$word
            break
        fi
    done
    _ddp_run_context "$context"
    if [[ $script ]]; then
        kind=file
    elif [[ $expecting ]]; then
        [[ $cur == "=" ]] && cur=
        _ddp_run_option "$context" "$expecting"
    elif [[ $cur == --*=* ]]; then
        word=${cur%%=*} cur=${cur#*=}
        _ddp_run_option "$context" "$word"
        _ddp_run_offer
        COMPREPLY=("${COMPREPLY[@]/#/$word=}")
        return
    elif [[ $cur == -* ]]; then
        [[ $cur == *_* ]] && flags=$(sed 's/\([a-z]\)-/\1_/g' <<<"$flags")
        kind=words list=$flags
    elif [[ $context == launch ]]; then
        kind=python
        _ddp_run_offer
        ((COMP_CWORD == 1)) && COMPREPLY+=($(compgen -W "$_ddp_run_commands" -- "$cur"))
        return
    else
        kind=$arguments list=$words
    fi
    _ddp_run_offer
}

complete -F _ddp_run ddp-run
"""


def script(grammar: Grammar) -> str:
    """The whole script."""
    options = [
        f"        {patterns(context, flags)}) {_takes('kind', 'list', takes)} ;;"
        for context in grammar.contexts
        for flags, takes in ((option.flags, option.takes) for option in context.options)
        if takes.kind != "nothing"
    ]
    contexts = [
        f"        {context.name}) flags='{_flags(context)}' {_takes('arguments', 'words', context.arguments)} ;;"
        for context in grammar.contexts
    ]
    names = " ".join(context.name for context in grammar.commands)
    cases = CASES % {"none": "", "options": "\n".join(options), "contexts": "\n".join(contexts)}
    return f"{_HEAD}{cases}\n_ddp_run_commands='{names}'\n{_BODY.lstrip()}"


def _takes(kind: str, words: str, takes: Takes) -> str:
    return f"{kind}={takes.kind} {words}='{' '.join(takes.words)}'"


def _flags(context: Context) -> str:
    return " ".join(flag for option in context.options for flag in option.flags)
