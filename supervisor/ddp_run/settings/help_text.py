"""The texts of `-h` (short, with examples) and of `--help` (every option). Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from ddp_run.settings.table import Row

_HEAD = """\
Usage: ddp-run [OPTIONS] SCRIPT [ARGS...]
       ddp-run COMMAND ...

Use ddp-run in place of torchrun: same options, same script. When a job fails, it
names the rank that failed first, why and where, and exits with that rank's code.

Examples:
  ddp-run --nproc-per-node 4 train.py --lr 1e-3     four ranks on this machine
  ddp-run --nproc-per-node gpu -m pkg.train         one rank per GPU; a module
  ddp-run --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 8 train.py
                                                    the first of two nodes

Commands:
{commands}
"""
_VERSION = ("version", "Print ddp-run's version; also -V and --version.")
_COMMON = ("nproc_per_node", "max_retries", "hang_timeout", "console", "log_dir", "config", "dry_run")
_OWN_MEANING = {
    "log_dir": "Folder for all runs, one subfolder per run (default: ddp-run-logs).",
    "redirects": "Streams to hide from the console: 1 stdout, 2 stderr, 3 both, 0:1,1:2 by local rank. "
    "The files always have everything.",
    "tee": "Streams to print even if --redirects hides them; same values as --redirects.",
}
"""What ddp-run makes of torchrun's options about files and console."""
_INDENT = 28


def short_help(rows: Sequence[Row], commands: Sequence[tuple[str, str]], width: int) -> str:
    """What `-h` prints, `width` columns wide. `commands`: how each is typed, and what it does."""
    by_dest = {row.dest: row for row in rows}
    common = _entries((by_dest[dest] for dest in _COMMON if dest in by_dest), width)
    return f"{_head(commands)}\nCommon options:\n{common}\n  {'--help':26}All options, including torchrun's.\n"


def whole_help(rows: Sequence[Row], commands: Sequence[tuple[str, str]], width: int) -> str:
    """What `--help` prints: ddp-run's own options first, then torchrun's."""
    own = _entries((row for row in rows if row.is_ours), width)
    torchs = _entries((row for row in rows if not row.is_ours), width)
    ending = f"torchrun's options, from the installed torch:\n{torchs}\n"
    return f"{_head(commands)}\nddp-run's own options:\n{own}\n\n{ending}"


def _head(commands: Sequence[tuple[str, str]]) -> str:
    lines = [f"  ddp-run {typed:20}{meaning}" for typed, meaning in (*commands, _VERSION)]
    return _HEAD.format(commands="\n".join(lines))


def _entries(rows: Iterable[Row], width: int) -> str:
    return "\n".join(_help_entry(row, width) for row in rows if not row.prints_and_exits)


def _help_entry(row: Row, width: int) -> str:
    flags = ", ".join([flag for flag in row.flags if not flag.startswith("--")] + [row.name])
    head = f"  {flags} {placeholder(row)}".rstrip()
    default = "" if row.default in (None, "", False, []) else f"default {row.default}"
    origin = "; ".join(text for text in (", ".join(row.variables), default) if text)
    meaning = " ".join(_OWN_MEANING.get(row.dest, row.help).split())
    text = f"{meaning} [{origin}]" if origin else meaning
    body = textwrap.wrap(text, max(20, width - _INDENT), break_on_hyphens=False) or [""]
    first = [head] if len(head) >= _INDENT - 1 else [head.ljust(_INDENT) + body.pop(0)]
    return "\n".join([*first, *(" " * _INDENT + line for line in body)])


def placeholder(row: Row) -> str:
    """What stands for the option's value; empty if it takes none."""
    if not row.takes_value:
        return ""
    if row.choices:
        return "{" + ",".join(row.choices) + "}"
    return row.metavar or {"int": "N", "float": "NUMBER"}.get(row.type, "TEXT")
