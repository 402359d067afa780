"""Writes `--metrics FILE`. Runs beside a launch: `python -P metrics.py FOLDER FILE`.

It looks at the run as `ddp-run watch` does, until ddp-run ends. The first write that fails is told on standard output.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[3]))
from ddp_run.commands.watch.look import looks
from ddp_run.tell.metrics_text import metrics_text
from ddp_run.values.lines import neutral

_EVERY_S = 15.0


def main(folder: Path, path: Path) -> None:
    """Write the file until standard input ends, and once more then."""
    told = False
    for job, up in looks(folder, _EVERY_S):
        try:
            _replace(path, metrics_text(job, path.stem, up=up, now_s=time.time()))
        except OSError as error:
            if not told:
                os.write(1, f"cannot write --metrics {neutral(str(path))}: {error.strerror}\n".encode())
            told = True


def _replace(path: Path, text: str) -> None:
    """A reader sees the old file or the new one. Another user may be the reader, if the umask lets it."""
    # Not ending in .prom: the collector reads all files that do.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, "utf-8", "backslashreplace")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
