"""Writes `--metrics FILE`. Runs beside a launch: `python -P metrics.py FOLDER FILE`.

It looks at the run as `ddp-run watch` does. ddp-run holds the other end of its standard input: the end of that is the
end of the run, also if ddp-run was killed. The first write that fails is told on standard output.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[3]))
from ddp_run.commands.watch.look import Watched
from ddp_run.record.recorded_runs import recorded_run
from ddp_run.tell.metrics_text import metrics_text
from ddp_run.values.lines import neutral
from ddp_run.values.signals import STOP_SIGNALS

_EVERY_S = 15.0


def main(folder: Path, path: Path) -> None:
    """Write the file until standard input ends, and once more then."""
    for signum in STOP_SIGNALS:  # a scheduler sends these to all processes
        signal.signal(signum, signal.SIG_IGN)
    run, told = recorded_run(folder), False
    if run is None:
        return
    with closing(Watched(run)) as watched:
        up = True
        while up:
            up = not select.select([0], [], [], 0)[0]
            text = metrics_text(watched.look(), path.stem, up=up, now_s=time.time())
            try:
                _replace(path, text)
            except OSError as error:
                if not told:
                    os.write(1, f"cannot write --metrics {neutral(str(path))}: {error.strerror}\n".encode())
                told = True
            if up:
                select.select([0], [], [], _EVERY_S)


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
