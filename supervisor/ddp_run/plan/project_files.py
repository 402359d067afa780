"""The pyproject.toml files that may hold options of a launch: in the working directory, or in a folder above it."""

from __future__ import annotations

import os
import re
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
        data = _content(folder)
        if _MAY_HOLD.search(data):
            yield _NAME if folder == here else str(folder / _NAME), data.decode("utf-8", "replace")


def _content(folder: Path) -> bytes:
    """Nothing of a file that somebody else has put into a place like /tmp: it would choose what is run here."""
    try:
        with private_files.open_file(folder / _NAME) as file:
            owner = os.fstat(file.fileno()).st_uid
            planted = owner not in (0, os.geteuid()) and private_files.is_shared(folder)
            return b"" if planted else file.read(_MOST_BYTES)
    except OSError:
        return b""
