"""Text of /proc, /sys and cgroups, and the names that torch gives its threads there."""

from __future__ import annotations

import re
from pathlib import Path


def read(path: Path) -> str:
    """All of such a file, decoded like file names (os.fsdecode); empty if it can't be read.

    Names of processes are cut after 15 bytes (prctl(2), PR_SET_NAME), within a character too.
    """
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def lines(path: Path) -> list[str]:
    """Its lines. Names hold other characters that `str.splitlines` takes for the end of a line."""
    return read(path).removesuffix("\n").split("\n")


_LIBRARIES = "gloo|NCCL|RCCL|cuda|amdgpu|hsa|iou-wrk"

NOT_OF_THE_PROGRAM = re.compile(rf"pt_(?!main_thread)|{_LIBRARIES}")
WITHOUT_PYTHON = re.compile(rf"pt_(?:nccl|gloo|tcpstore|elastic)|{_LIBRARIES}")
"""Those that never run Python; the threads of autograd and of the DataLoader do."""
