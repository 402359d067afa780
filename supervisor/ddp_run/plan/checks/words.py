"""What works under torchrun too, but is likely a mistake: reported at the start, never refused."""

from __future__ import annotations

from ddp_run.plan.preflight import Answer, Check, Launch
from ddp_run.settings import schedulers
from ddp_run.settings.checks import slip_in
from ddp_run.settings.options import Options

_UNMISTAKABLE = ("nproc_per_node", "nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "max_restarts", "standalone")
"""Options that hardly any script has."""


def _check(launch: Launch) -> Answer:
    options = launch.options
    found = (*_after_the_script(options), *_line_ends(options), *schedulers.likely_mistakes(options, launch.environ))
    return Answer(options, warnings=found)


def _after_the_script(options: Options) -> list[str]:
    names = {flag: row.dest for row in options.rows if row.dest in _UNMISTAKABLE for flag in row.flags}
    for word in options.script_args:
        dest = names.get(word.partition("=")[0])
        if dest is not None and dest not in options.given:
            return [f"{word} comes after the script, so the script gets it; ddp-run's options go before the script"]
    return []


def _line_ends(options: Options) -> list[str]:
    last = options.script_args[-1] if options.script_args else ""
    slip = slip_in(last) if last.endswith("\r") else None
    return [f"the last word, {last!r}, has {slip[0]}: {slip[1]}"] if slip else []


CHECK = Check("the words", _check)
