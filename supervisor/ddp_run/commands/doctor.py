"""`ddp-run doctor`: whether a job can work here, before it is paid for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

import click

from ddp_run.doctor import findings
from ddp_run.doctor.findings import Finding, Row
from ddp_run.values.lines import neutral_text
from ddp_run.values.terminal import ERASE, colour, columns

_UNFIT = 78
"""sysexits.h EX_CONFIG, the code of a launch with --preflight strict too."""

_LONG_S = 10.0
"""After this long without a line, a log gets one that says what's going on."""


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

    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    level = Level.QUICK if quick else Level.FULL if full else Level.DEFAULT
    own_options = [flag for each in command.params for flag in each.opts if flag.startswith("--")]
    around = prepared(words, level, data_paths, own_options)
    page = Page(as_json=as_json, node=around.one_of_several)
    around.say, around.doing = page.say, page.doing
    try:
        for check, found in examine(around):
            page.add(check.name, check.group, found)
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


@final
class Page:
    """Shows findings on stdout as they come, and what it's doing on stderr.

    Findings are a table on a terminal, and one line each in a log. `node`: this node's name if there are several.
    """

    def __init__(self, *, as_json: bool, node: str = "") -> None:
        self._as_json, self._node = as_json, node
        self._width, self._colour = columns(), colour(sys.stdout)
        self._rows: list[Row] = []
        self._group = ""
        self._step = ""
        """What the terminal's last line shows."""
        self._began = self._shown_at = time.monotonic()

    def add(self, check: str, group: str, findings: Sequence[Finding]) -> None:
        """Show what a check found."""
        self._erase_step()
        rows = [Row(check, group, found) for found in findings]
        self._rows += rows
        if not self._as_json:
            sys.stdout.write("".join(map(self._shown, rows)))
            sys.stdout.flush()

    def _shown(self, row: Row) -> str:
        if not sys.stdout.isatty():
            return findings.plain_lines(row, self._node)
        heading = findings.heading(row.group, colour=self._colour) if row.group != self._group else ""
        self._group = row.group
        return heading + findings.table_rows(row, width=self._width, colour=self._colour)

    def say(self, line: str) -> None:
        """Show a line that stays."""
        self._erase_step()
        node = f"{self._node}: " if self._node else ""
        sys.stderr.write(f"ddp-run: {node}{neutral_text(line)}\n")
        sys.stderr.flush()

    def doing(self, step: str) -> None:
        """Show what's going on: in place of the last step on a terminal; in a log only if it takes long."""
        if sys.stderr.isatty():
            if step != self._step:
                sys.stderr.write(f"{ERASE}{neutral_text(step)[: self._width - 4]} ...")
                sys.stderr.flush()
                self._step = step
        elif time.monotonic() - self._shown_at > _LONG_S:
            self.say(step)

    def _erase_step(self) -> None:
        self._shown_at = time.monotonic()
        if self._step:
            sys.stderr.write(ERASE)
            sys.stderr.flush()
            self._step = ""

    def end(self, about: Mapping[str, Any]) -> bool:
        """Show the last line, or all of the JSON with `about`. Returns whether nothing failed."""
        self._erase_step()
        seconds = time.monotonic() - self._began
        if self._as_json:
            about = {**about, "seconds": round(seconds, 3)}
            sys.stdout.write(json.dumps(findings.as_json(self._rows, about), indent=2) + "\n")
        else:
            sys.stdout.write(findings.summary([row.found.grade for row in self._rows], seconds, self._node))
        sys.stdout.flush()
        return findings.is_fit(self._rows)
