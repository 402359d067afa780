"""`ddp-run completion`: what a shell needs to complete ddp-run's words."""

from __future__ import annotations

import sys

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
def command(shell: str) -> int:
    """Print a shell completion script.

    \b
    bash, in ~/.bashrc:                  eval "$(ddp-run completion bash)"
    zsh, in ~/.zshrc behind compinit:    eval "$(ddp-run completion zsh)"
    fish, in ~/.config/fish/config.fish: ddp-run completion fish | source

    SHELL is bash, zsh or fish. The completion knows the options of the torch that is installed now, and starts no
    Python when a key is pressed.
    """
    from ddp_run import commands
    from ddp_run.commands.completion import bash, fish, zsh
    from ddp_run.commands.completion.grammar import grammar
    from ddp_run.judge.catalogue import catalogue
    from ddp_run.plan.installed_torch import torch_rows
    from ddp_run.settings.table import all_rows
    from ddp_run.values.problem import Refused

    try:
        rows = all_rows(torch_rows())
    except Refused:
        rows = all_rows(())
    script = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}[shell]
    causes = [cause.rule.name for cause in catalogue()]
    sys.stdout.write(script(grammar(rows, commands.all_commands(), causes)))
    return 0
