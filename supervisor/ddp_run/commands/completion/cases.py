"""What the scripts for bash and zsh have in common: the options and contexts as cases of their words. Pure."""

from __future__ import annotations

from ddp_run.commands.completion.grammar import Context, dashed

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
