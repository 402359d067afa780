"""The host, its kernel, Python and ddp-run."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ddp_run import __version__
from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, warned

_LEAST_KERNEL = (5, 3)


def _look(_around: Surroundings) -> Iterator[Finding]:
    yield Finding("host", f"{platform.node()}{_container()}")
    yield kernel(platform.release())
    yield Finding("Python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("ddp-run", __version__)


def kernel(release: str) -> Finding:
    """pidfd_open, by which ranks' deaths are ordered and their exit codes read, is of Linux 5.3."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is not None and (int(found[1]), int(found[2])) < _LEAST_KERNEL:
        return warned("kernel", release, "5.3 or newer: some exit codes of ranks cannot be read")
    return Finding("kernel", release)


def _container() -> str:
    inside = any(Path(path).exists() for path in ("/.dockerenv", "/run/.containerenv", "/.singularity.d"))
    return ", in a container" if inside else ""


CHECK = Check("system", Group.HOST, "Host name, container, kernel (5.3 or newer), versions.", _look, place=1)
