"""The options of a launch in this folder: words, variables, a preset, or the nearest pyproject.toml."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ddp_run.settings.options import Options
from ddp_run.settings.parse import parse
from ddp_run.settings.table import Row
from ddp_run.values import private_files

_NAME = "pyproject.toml"
_MOST_BYTES = 1 << 20
_MAY_HOLD = re.compile(rb"""ddp-run["']?\s*[\].=]""")
"""ddp-run as a table's name or a key. Other files, as with ddp-run among the dependencies, are not parsed."""


def read_options(words: Sequence[str], environ: Mapping[str, str], rows: Sequence[Row]) -> Options:
    """Read a launch, and the files that it names. `rows`: the installed torch's. Raises as `parse` does."""
    return parse(words, environ, torch_rows=rows, read_file=_read_file, projects=project_files)


def _read_file(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def project_files() -> Iterator[tuple[str, str]]:
    """Path and text of each pyproject.toml that may hold options, the nearest first; unreadable ones are skipped."""
    try:
        here = Path.cwd()
    except OSError:  # it was removed
        return
    for folder in (here, *here.parents):
        data = _content(folder, here)
        if _MAY_HOLD.search(data):
            yield _NAME if folder == here else str(folder / _NAME), data.decode("utf-8", "replace")


def _content(folder: Path, here: Path) -> bytes:
    """Ignore another user's file in a world-writable folder: it would choose what runs here.

    In the working directory that user could replace the script anyway, unless the sticky bit is set, as in /tmp.
    """
    try:
        with private_files.open_file(folder / _NAME) as file:
            owner, mode = os.fstat(file.fileno()).st_uid, folder.stat().st_mode
            anybodys = mode & stat.S_IWOTH and (mode & stat.S_ISVTX or folder != here)
            return b"" if anybodys and owner not in (0, os.geteuid()) else file.read(_MOST_BYTES)
    except OSError:
        return b""
