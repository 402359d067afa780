"""Text of /proc, /sys and cgroups: names in it are bytes of any kind, of processes, of mounts, of files."""

from __future__ import annotations

from pathlib import Path


def read(path: Path) -> str:
    """All of such a file; what is not UTF-8 stays as in file names (os.fsdecode). Raises OSError.

    Names of processes are cut after 15 bytes (prctl(2), PR_SET_NAME), within a character too.
    """
    return path.read_bytes().decode("utf-8", "surrogateescape")


def lines(path: Path) -> list[str]:
    """Its lines. Raises OSError. Names hold other characters that `str.splitlines` takes for the end of a line."""
    return read(path).removesuffix("\n").split("\n")
