"""`ddp-run doctor`: whether a job can work here, before it is paid for."""

from __future__ import annotations

import sys

import click

_UNFIT = 78
"""sysexits.h EX_CONFIG, the code of a launch with --preflight strict too."""


def _not_empty(_context: click.Context, _option: click.Parameter, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse an empty path, which would mean the working directory."""
    if "" in paths:
        raise click.BadParameter("the path is empty: is a variable unset?")
    return paths


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--quick", is_flag=True, help="Check only this host, in under 2 s, without importing torch.")
@click.option("--full", is_flag=True, help="Measure longer, with more data: takes minutes.")
@click.option(
    "--data-path",
    "data_paths",
    multiple=True,
    callback=_not_empty,
    metavar="PATH",
    help="A file or folder that every rank must be able to read, with the same content. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[LAUNCH…]")
def command(quick: bool, full: bool, data_paths: tuple[str, ...], as_json: bool, words: tuple[str, ...]) -> int:
    """Check this host, or all nodes of a job, before a launch.

    LAUNCH: a launch's options without its script: --nproc-per-node, --nnodes, --node-rank, --master-addr, …
    With the same options on every node, or under srun, it checks all nodes together. Without --nproc-per-node it
    starts a rank for each GPU, or two ranks. Exit code 0: fit, perhaps with warnings; 78: unfit.
    """
    from ddp_run.doctor.check import Level
    from ddp_run.doctor.examination import Terminated, examine, prepared
    from ddp_run.doctor.page import Page

    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    level = Level.QUICK if quick else Level.FULL if full else Level.DEFAULT
    own_options = [flag for each in command.params for flag in each.opts if flag.startswith("--")]
    around = prepared(words, level, data_paths, own_options)
    page = Page(as_json=as_json, node=around.one_of_several)
    around.say, around.doing = page.say, page.doing
    try:
        for check, findings in examine(around):
            page.add(check.name, check.group, findings)
    except Terminated as end:
        return 128 + end.signum
    about = {
        "level": level.name.lower(),
        "host": around.host,
        "python": sys.executable,
        "nodes": around.options.max_nodes,
        "node_rank": around.options.node_rank,
        "ranks_per_node": around.ranks,
        "folder": around.reports.launched.folder or None,
    }
    return 0 if page.end(about) else _UNFIT
