"""What a rank reads at a data path: a hash of names, sizes and sampled blocks of a limited number of files."""

from __future__ import annotations

import hashlib
import os
from typing import Any

_MOST_FILES = 64
_MOST_ENTRIES = 10_000
_BLOCK = 64 << 10


def sampled(path: str, *, full: bool) -> dict[str, Any]:
    """Return `hash`, `files` and `bytes` of the sample, or `error`. Equal content has an equal hash on every host."""
    try:
        files = _files(path, _MOST_FILES * (16 if full else 1))
        digest = hashlib.sha256()
        total = 0
        for name in files:
            file = os.path.join(path, name) if name else path
            size = os.stat(file).st_size
            digest.update(f"{name}\0{size}\0".encode(errors="surrogateescape"))
            for block in _blocks(file, size):
                digest.update(block)
                total += len(block)
    except OSError as error:
        return {"error": f"{error.strerror or error}: {error.filename or path}"}
    return {"hash": digest.hexdigest()[:12], "files": len(files), "bytes": total}


def _files(path: str, most: int) -> list[str]:
    """Return the first files below a folder, by name; an empty name if the path is a file."""
    if not os.path.isdir(path):
        return [""]
    found: list[str] = []
    seen = 0
    for folder, folders, names in os.walk(path, onerror=_raise):
        folders.sort()
        inside = os.path.relpath(folder, path)
        for name in sorted(names):
            found.append(os.path.normpath(os.path.join(inside, name)))
        seen += len(names) + len(folders)
        if len(found) >= most or seen >= _MOST_ENTRIES:
            break
    return [name for name in found[:most] if os.path.isfile(os.path.join(path, name))]


def _raise(error: OSError) -> None:
    raise error


def _blocks(path: str, size: int) -> list[bytes]:
    """Return the first, a middle and the last block of a file; all of a file that has no more."""
    with open(path, "rb") as file:
        if size <= 3 * _BLOCK:
            return [file.read(3 * _BLOCK)]
        found = []
        for start in sorted({0, max(0, size // 2 - _BLOCK // 2), max(0, size - _BLOCK)}):
            file.seek(start)
            found.append(file.read(_BLOCK))
    return found
