"""The pyproject.toml files that may hold options of a launch: in the working directory, or in a folder above it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from ddp_run.values import private_files

_NAME = "pyproject.toml"
_MOST_BYTES = 1 << 20
_MAY_HOLD = re.compile(rb"""ddp-run["']?\s*[\].=]""")
"""As a table's name or a key: other files, with ddp-run among the dependencies say, are not parsed."""


def project_files() -> Iterator[tuple[str, str]]:
    """Path and text of each, the nearest first. What cannot be read is passed over."""
    try:
        here = Path.cwd()
    except OSError:  # somebody removed it
        return
    for folder in (here, *here.parents):
        data = _content(folder, here)
        if _MAY_HOLD.search(data):
            yield _NAME if folder == here else str(folder / _NAME), data.decode("utf-8", "replace")


def _content(folder: Path, here: Path) -> bytes:
    """Nothing of a file that somebody else has put where everybody may: it would choose what is run here.

    In the working directory itself he could as well replace the script, unless it is a place like /tmp.
    """
    try:
        with private_files.open_file(folder / _NAME) as file:
            owner, mode = os.fstat(file.fileno()).st_uid, folder.stat().st_mode
            anybodys = mode & stat.S_IWOTH and (mode & stat.S_ISVTX or folder != here)
            return b"" if anybodys and owner not in (0, os.geteuid()) else file.read(_MOST_BYTES)
    except OSError:
        return b""
