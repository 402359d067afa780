"""`ddp-run doctor`: whether a job can work here, before it is paid for."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ddp_run.values.terminal import colour, columns

if TYPE_CHECKING:
    from ddp_run.values.problem import Problem

_UNFIT = 78
"""sysexits.h EX_CONFIG, as a launch with --preflight strict says it."""


def _named(_context: click.Context, _option: click.Parameter, paths: tuple[str, ...]) -> tuple[str, ...]:
    """An empty variable would be the working directory."""
    if "" in paths:
        raise click.BadParameter("it is empty: is the variable after it empty?")
    return paths


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--quick", is_flag=True, help="Look at this host only, in less than 2 s; torch is not imported.")
@click.option("--full", is_flag=True, help="Measure longer, and with more data: minutes.")
@click.option(
    "--data-path",
    "data_paths",
    multiple=True,
    callback=_named,
    metavar="PATH",
    help="A file or folder that every rank must be able to read, with the same content. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[LAUNCH…]")
def command(quick: bool, full: bool, data_paths: tuple[str, ...], as_json: bool, words: tuple[str, ...]) -> int:
    """Check this host, or all nodes of a job, before a launch.

    LAUNCH: the options of a launch, without the script: --nproc-per-node, --nnodes, --node-rank, --master-addr, …
    With the same options on every node, or under srun, all nodes are checked together. Without --nproc-per-node, there
    is a rank for each GPU, or two. Exit code 0: fit, perhaps with warnings; 78: unfit.
    """
    from ddp_run.doctor.examination import Terminated, Wanted, examine, prepared
    from ddp_run.tell.doctor_page import Page
    from ddp_run.values.problem import Refused

    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    wanted = Wanted(words, quick=quick, full=full, data_paths=data_paths)
    try:
        around, launch_words = prepared(wanted)
    except Refused as refused:
        raise Refused(tuple(map(_with_own_options, refused.problems)), refused.argv) from None
    page = Page(
        as_json=as_json,
        width=columns(),
        colour=colour(sys.stdout),
        terminal=sys.stdout.isatty(),
        node=around.one_of_several,
    )
    try:
        fit = examine(wanted, around, launch_words, page)
    except Terminated as end:
        return 128 + end.signum
    return 0 if fit else _UNFIT


def _with_own_options(problem: Problem) -> Problem:
    """What a launch does not know may be one of the doctor's, with a letter wrong."""
    from ddp_run.settings.grammar import UNKNOWN_OPTION
    from ddp_run.values.problem import nearest

    if problem.helps or not problem.title.startswith(UNKNOWN_OPTION):
        return problem
    name = problem.title.removeprefix(UNKNOWN_OPTION).strip()
    close = nearest(name, [flag for each in command.params for flag in each.opts if flag.startswith("--")], count=1)
    helps = [f"did you mean {each}?" for each in close] or ["ddp-run doctor --help", "ddp-run --help   # a launch's"]
    return replace(problem, helps=tuple(helps))
