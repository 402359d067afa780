"""Looks at a run from beside its launch, until ddp-run ends: `python -P beside.py metrics|status FOLDER [FILE]`.

It looks as `ddp-run watch` does. `metrics` writes `--metrics FILE`; the first write that fails is told on standard
output. `status` says there once a second how the job gets on, for `--status`, if that has changed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[3]))
from ddp_run.commands.watch.look import Watched
from ddp_run.record.recorded_runs import recorded_run
from ddp_run.tell.snapshot import Snapshot, in_words, metrics_text
from ddp_run.values.lines import neutral
from ddp_run.values.private_files import replacing
from ddp_run.values.signals import STOP_SIGNALS

_METRICS_S, _STATUS_S = 15.0, 1.0


def looks(folder: Path, every_s: float) -> Iterator[tuple[Snapshot, bool]]:
    """The run now and then, and whether ddp-run runs. The last when standard input has ended.

    ddp-run holds the other end of it, so that ends with the run, also if ddp-run was killed.
    """
    for signum in STOP_SIGNALS:  # a terminal and schedulers send these to all processes
        signal.signal(signum, signal.SIG_IGN)
    run, up = recorded_run(folder), True
    if run is None:
        return
    with closing(Watched(run)) as watched:
        while up:
            up = not select.select([0], [], [], 0)[0]
            yield watched.look(), up
            if up:
                select.select([0], [], [], every_s)


def write_metrics(folder: Path, path: Path) -> None:
    """Write the file until the end, and once more then."""
    told = False
    for job, up in looks(folder, _METRICS_S):
        try:
            # Another user may be the reader, if the umask lets it. Not ending in .prom: all such files are collected.
            with replacing(path, path.with_name(f".{path.name}.{os.getpid()}"), 0o666) as file:
                file.write(metrics_text(job, path.stem, up=up, now_s=time.time()).encode("utf-8", "backslashreplace"))
        except OSError as error:
            if not told:
                _say(f"cannot write --metrics {neutral(str(path))}: {error.strerror}")
            told = True


def say_status(folder: Path) -> None:
    """Say each line that differs from the last one."""
    said = ""
    for job, up in looks(folder, _STATUS_S):
        words = in_words(job)
        if up and words != said:
            _say(words)
            said = words


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode("utf-8", "backslashreplace"))


if __name__ == "__main__":
    (write_metrics if sys.argv[1] == "metrics" else say_status)(*map(Path, sys.argv[2:]))
