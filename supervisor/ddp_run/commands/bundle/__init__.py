"""`ddp-run bundle`: one archive to attach to a bug report."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from ddp_run.values.lines import neutral_text
from ddp_run.values.words import size_in_words

if TYPE_CHECKING:
    from ddp_run.commands.bundle.packing import Contents
    from ddp_run.commands.bundle.parts import Asked

_STANDARD_OUTPUT = "-"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LEAST_BYTES = 64 << 10


def _bytes(_context: click.Context, _option: click.Parameter, value: str) -> int:
    """Of `50M`, `800k`, `1G`."""
    text = value.lower().removesuffix("ib").removesuffix("b")
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "")
    if not re.fullmatch(r"[0-9]{1,12}", number) or (size := int(number) * _UNITS[unit]) < _LEAST_BYTES:
        raise click.BadParameter(f"{value!r} is no size of 64k or more, such as 800k, 50M or 1G")
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
    help="Of a longer log, only the start and the end.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what is in the archive as JSON.")
def command(run: str | None, output: str | None, force: bool, max_size: int, as_json: bool) -> int:
    """Pack what a bug report needs into one archive, without secrets.

    RUN is a run's folder or name, a folder of runs, or a log of any launcher; without RUN, the folder where a launch
    from here puts its runs. Of a folder of runs, the newest that did not succeed counts, or else the newest. The
    archive holds the verdict, the command, versions, the environment, all of the failing rank's log and the last 100
    lines of the others. Secrets are removed from these copies; the run's own files stay as they are.
    """
    from ddp_run.commands.bundle import meant
    from ddp_run.commands.explain.answer import NotReadable
    from ddp_run.plan.runs_folder import runs_folder
    from ddp_run.record.runs_meant import NoRun, run_named, runs_meant

    folder = runs_folder(None, os.environ) if run is None else Path(run)
    try:
        if run is None:
            run_named(None, folder)
    except NoRun as error:
        raise click.ClickException(f"{error}; name a run's folder or a log") from error
    chosen = runs_meant((str(folder),), lambda: runs_folder(None, os.environ), failed_first=True)
    if chosen.note is not None:
        click.echo(f"ddp-run: {neutral_text(chosen.note)}", err=True)
    try:
        asked = meant.asked(chosen.paths, max_size)
    except NotReadable as error:
        raise click.ClickException(str(error)) from error
    name = f"ddp-run-bundle-{_id(asked)}"
    path = output or f"{name}.tar.gz"
    if Path(path).is_dir():
        path = str(Path(path) / f"{name}.tar.gz")
    try:
        made = _write(asked, name, path, force=force)
    except OSError as error:
        hint = "" if output else "; --output names another place"
        raise click.ClickException(f"{path} cannot be written: {error.strerror or error}{hint}") from error
    text = json.dumps(_as_json(made), indent=2) if as_json else "\n".join(_in_words(made))
    click.echo(text, err=path == _STANDARD_OUTPUT)
    return 0


@dataclass(frozen=True, slots=True)
class _Made:
    """What was written: `path` and `size` (bytes) are null for standard output; `state`: sentences on the run."""

    path: str | None
    size: int | None
    state: Sequence[str]
    contents: Contents


def _id(asked: Asked) -> str:
    of = asked.runs[0].folder.name if asked.runs else asked.logs[0].name
    return re.sub(r"[^\w.\-]", "_", of, flags=re.ASCII)[:100]


def _write(asked: Asked, name: str, path: str, *, force: bool) -> _Made:
    """Write the archive. Raises OSError."""
    from ddp_run.commands.bundle.cleaned_copy import Cleaner
    from ddp_run.commands.bundle.packing import Packing
    from ddp_run.commands.bundle.parts import parts
    from ddp_run.commands.bundle.readme import readme

    with _opened(path, force=force) as (out, scratch):
        packing = Packing(out, name, Cleaner(asked.environ), asked.limit, scratch)
        packing.add(parts(asked))
        state = [*_state(asked), *_failing_ranks(asked, packing.contents)]
        packing.finish(readme(name, state, packing.contents))
        if path == _STANDARD_OUTPUT:
            return _Made(None, None, state, packing.contents)
        return _Made(str(Path(path).resolve()), out.tell(), state, packing.contents)


def _state(asked: Asked) -> Iterator[str]:
    for run in asked.runs:
        if not run.ended:
            yield f"{run.folder.name} has not ended, or ddp-run was killed: its journal has no end yet."


def _failing_ranks(asked: Asked, contents: Contents) -> Iterator[str]:
    """Which they are, and whether all that they wrote is there."""
    from ddp_run.commands.bundle.parts import is_of_failing_rank

    for run in asked.runs:
        if run.failing is None:
            continue
        attempt, rank = run.failing
        packed = [each for each in contents.files if is_of_failing_rank(each.name, run)]
        cut = [Path(each.name).name for each in packed if each.left_out]
        missing = [Path(each.name).name for each in contents.left_out if is_of_failing_rank(each.name, run)]
        of = f"The failing rank, rank {rank} of attempt {attempt} of {run.folder.name}"
        if cut or missing:
            more = "; --max-size takes more" if cut else ""
            yield f"{of}, is not there whole ({', '.join((*cut, *missing))}): README.txt says what is left out{more}."
        elif packed:
            yield f"{of}, is there whole."
        else:
            yield f"{of}, has no files in that folder."


@contextmanager
def _opened(path: str, *, force: bool) -> Iterator[tuple[BinaryIO, Path | None]]:
    """The archive, for its owner alone, and where temporary files go; it is at `path` only once it is whole."""
    if path == _STANDARD_OUTPUT:
        if sys.stdout.isatty():
            raise click.ClickException("standard output is a terminal: name a file, or pipe it")
        yield sys.stdout.buffer, None
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    if os.path.lexists(target) and not force:
        raise click.ClickException(f"{path} exists: --force replaces it, --output names another one")
    if target.exists() and not target.is_file():
        raise click.ClickException(f"{path} is not a regular file: --output - writes to standard output")
    half = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    opened = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(opened, "wb") as out:
            yield out, target.parent
        half.replace(target)
    except BaseException:
        half.unlink(missing_ok=True)
        raise


def _as_json(made: _Made) -> dict[str, object]:
    from ddp_run.commands.bundle.readme import LOOK

    return {
        "path": made.path,
        "bytes": made.size,
        "state": list(made.state),
        "files": [{"name": each.name, "bytes": each.size, "left_out": each.left_out} for each in made.contents.files],
        "left_out": [{"name": each.name, "reason": each.why} for each in made.contents.left_out],
        "removed": made.contents.removed,
        "note": LOOK,
    }


def _in_words(made: _Made) -> Iterator[str]:
    from ddp_run.commands.bundle.readme import LOOK

    if made.path is not None and made.size is not None:
        yield neutral_text(f"{made.path}: {size_in_words(made.size)}, {len(made.contents.files) + 1} files")
    yield from map(neutral_text, made.state)
    removed = ", ".join(f"{kind} ({count})" for kind, count in made.contents.removed.items())
    yield neutral_text(f"secrets removed: {removed + ' (number of lines)' if removed else 'none found'}")
    if made.contents.left_out:
        yield f"left out: {len(made.contents.left_out)} files or parts; README.txt says why"
    yield LOOK
