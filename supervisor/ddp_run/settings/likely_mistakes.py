"""What works under torchrun too, and is likely not meant: said at the start, never refused. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddp_run.settings.options import Options
from ddp_run.settings.shell_slips import slip_in

_UNMISTAKABLE = ("nproc_per_node", "nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "max_restarts", "standalone")
"""Options that hardly any script has of its own."""


def likely_mistakes(options: Options, environ: Mapping[str, str]) -> list[str]:
    """A line for each."""
    return [*_behind_the_script(options), *_line_ends(options), *_one_of_several_tasks(options, environ)]


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


def _one_of_several_tasks(options: Options, environ: Mapping[str, str]) -> list[str]:
    """Under srun (which alone sets SLURM_STEP_ID; sbatch's own script has none) with several tasks on this node."""
    if "SLURM_STEP_ID" not in environ or environ.get("SLURM_LOCALID") != "0" or (options.nproc_count or 2) < 2:
        return []
    tasks = _tasks_here(environ.get("SLURM_STEP_TASKS_PER_NODE", ""), environ.get("SLURM_NODEID", "0"))
    if tasks < 2:
        return []
    return [f"srun starts ddp-run {tasks} times on this node: use --ntasks-per-node=1, ddp-run starts the ranks itself"]


def _tasks_here(text: str, node: str) -> int:
    """Of `2(x3),1` (sbatch(1), SLURM_TASKS_PER_NODE) the number for this node; 0 where that cannot be told."""
    index = int(node) if node.isdigit() else 0
    for tasks, times in re.findall(r"(?<!\d)(\d{1,9})(?:\(x(\d{1,9})\))?(?:,|$)", text):
        index -= int(times or 1)
        if index < 0:
            return int(tasks)
    return 0
