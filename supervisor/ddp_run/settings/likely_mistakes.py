"""What works under torchrun too, and is likely not meant: said at the start, never refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ddp_run.settings import scheduler
from ddp_run.settings.options import Options
from ddp_run.settings.shell_slips import slip_in

_UNMISTAKABLE = ("nproc_per_node", "nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "max_restarts", "standalone")
"""Options that hardly any script has of its own."""


def likely_mistakes(options: Options, environ: Mapping[str, str]) -> list[str]:
    """A line for each."""
    return [*_behind_the_script(options), *_line_ends(options), *scheduler.likely_mistakes(options, environ)]


def _behind_the_script(options: Options) -> list[str]:
    names = {flag: row.dest for row in options.rows if row.dest in _UNMISTAKABLE for flag in row.flags}
    for word in options.script_args:
        dest = names.get(word.partition("=")[0])
        if dest is not None and dest not in options.given:
            return [f"{word} comes after the script, so the script gets it; ddp-run's options go before the script"]
    return []


def _line_ends(options: Options) -> list[str]:
    last = options.script_args[-1] if options.script_args else ""
    slip = slip_in(last) if last.endswith("\r") else None
    return [f"the last word, {last!r}, has {slip.says}: {slip.help}"] if slip else []
