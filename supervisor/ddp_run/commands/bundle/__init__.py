"""`ddp-run bundle`: one archive to attach to a bug report."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from ddp_run.commands import busy
from ddp_run.values.lines import neutral_text
from ddp_run.values.private_files import replacing
from ddp_run.values.words import size_in_words

if TYPE_CHECKING:
    from ddp_run.commands.bundle.packing import Packing

_STANDARD_OUTPUT = "-"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LEAST_BYTES = 64 << 10


def _bytes(_context: click.Context, _option: click.Parameter, value: str) -> int:
    """Bytes of `50M`, `800k`, `1G`."""
    found = re.fullmatch(r"([0-9]{1,12})([kmg]?)(?:i?b)?", value.lower())
    if found is None or (size := int(found[1]) * _UNITS[found[2]]) < _LEAST_BYTES:
        raise click.BadParameter(f"{value!r} is not a size of at least 64k (examples: 800k, 50M, 1G)")
    return size


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option("-o", "--output", metavar="FILE", help="The archive, or a folder for it; - for standard output.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--max-size",
    callback=_bytes,
    metavar="SIZE",
    default="50M",
    show_default=True,
    help="Cut longer logs to their start and their end.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what is in the archive as JSON.")
def command(run: str | None, output: str | None, force: bool, max_size: int, as_json: bool) -> int:
    """Pack what a bug report needs into one archive, without secrets.

    RUN is a run's folder or name, a folder of runs, or a log of any launcher; without RUN, the folder where a launch
    from here puts its runs. From a folder of runs, it takes the newest that did not succeed, or else the newest. The
    archive has the verdict, the command, versions and the environment. It has all of the failing rank's log and the
    last 100 lines of the others. Secrets are removed from these copies; the run's own files stay as they are.
    """
    from ddp_run.commands.bundle.packing import Packing
    from ddp_run.commands.bundle.parts import asked
    from ddp_run.plan.checks.log_folder import runs_folder
    from ddp_run.record.runs_meant import run_named, runs_meant

    folder = runs_folder(None) if run is None else Path(run)
    if run is None:
        run_named(None, folder, "; name a run's folder or a log")
    chosen = runs_meant((str(folder),), lambda: runs_folder(None), failed_first=True)
    if chosen.note is not None:
        click.echo(f"ddp-run: {neutral_text(chosen.note)}", err=True)
    wanted = asked(chosen.paths, max_size)
    of = wanted.runs[0].folder.name if wanted.runs else wanted.logs[0].name
    name = "ddp-run-bundle-" + re.sub(r"[^\w.\-]", "_", of, flags=re.ASCII)[:100]
    path = output or f"{name}.tar.gz"
    if Path(path).is_dir():
        path = str(Path(path) / f"{name}.tar.gz")
    try:
        with busy("packing the bundle"), _opened(path, force=force) as out:
            packing = Packing(out, name, wanted)
            size = None if path == _STANDARD_OUTPUT else out.tell()
    except OSError as error:
        hint = "" if output else "; --output names another place"
        raise click.ClickException(f"{path} cannot be written: {error.strerror or error}{hint}") from error
    whole_path = None if size is None else str(Path(path).resolve())
    said = _as_json if as_json else _in_words
    click.echo(said(whole_path, size, packing), err=size is None)
    return 0


@contextmanager
def _opened(path: str, *, force: bool) -> Iterator[BinaryIO]:
    """The archive, for its owner alone; it appears at `path` once it is complete."""
    if path == _STANDARD_OUTPUT:
        if sys.stdout.isatty():
            raise click.ClickException("standard output is a terminal: name a file, or pipe it")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    if os.path.lexists(target) and not force:
        raise click.ClickException(f"{path} exists: --force replaces it, --output names another one")
    if target.exists() and not target.is_file():
        raise click.ClickException(f"{path} is not a regular file: --output - writes to standard output")
    with replacing(target, target.with_name(f".{target.name}.{os.urandom(4).hex()}")) as out:
        yield out


def _as_json(path: str | None, size: int | None, packing: Packing) -> str:
    from ddp_run.commands.bundle.packing import LOOK

    made = {
        "path": path,
        "bytes": size,
        "state": list(packing.state),
        "files": [{"name": each.name, "bytes": each.size, "left_out": each.left_out} for each in packing.files],
        "left_out": [{"name": each.name, "reason": each.why} for each in packing.left_out],
        "removed": packing.removed,
        "note": LOOK,
    }
    return json.dumps(made, indent=2)


def _in_words(path: str | None, size: int | None, packing: Packing) -> str:
    from ddp_run.commands.bundle.packing import LOOK

    written = [] if size is None else [f"{path}: {size_in_words(size)}, {len(packing.files) + 1} files"]
    removed = ", ".join(f"{kind} ({count})" for kind, count in packing.removed.items())
    secrets = f"secrets removed: {removed + ' (number of lines)' if removed else 'none found'}"
    left_out = f"left out: {len(packing.left_out)} files or parts; README.txt says why"
    return neutral_text("\n".join([*written, *packing.state, secrets, *([left_out] if packing.left_out else []), LOOK]))
