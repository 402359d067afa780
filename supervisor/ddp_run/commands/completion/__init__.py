"""`ddp-run completion`: what a shell needs to complete ddp-run's words."""

from __future__ import annotations

import sys
from typing import Literal

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
def command(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print a shell completion script.

    \b
    bash, in ~/.bashrc:                  eval "$(ddp-run completion bash)"
    zsh, in ~/.zshrc behind compinit:    eval "$(ddp-run completion zsh)"
    fish, in ~/.config/fish/config.fish: ddp-run completion fish | source

    SHELL is bash, zsh or fish; in fish, bash must be installed too. The completion knows the options of the torch that
    is installed now, and starts no Python when a key is pressed.
    """
    from ddp_run import commands
    from ddp_run.commands.completion import script
    from ddp_run.commands.completion.grammar import grammar
    from ddp_run.judge.catalogue import catalogue
    from ddp_run.plan.installed_torch import torch_rows
    from ddp_run.settings.table import all_rows
    from ddp_run.values.problem import Refused

    try:
        rows = all_rows(torch_rows())
    except Refused:
        rows = all_rows(())
    contexts = grammar(rows, commands.all_commands(), [cause.rule.name for cause in catalogue()])
    sys.stdout.write(script.script(contexts, shell))
    return 0
