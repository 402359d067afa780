"""Says once a second how a job gets on, for `--status`. Runs beside a launch: `python -P status.py FOLDER`.

It looks at the run as `ddp-run watch` does, and writes a line whenever it differs from the last one. It
ends when its standard input does.
"""

from __future__ import annotations

import select
import signal
import sys
from contextlib import closing
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[3]))
from ddp_run.commands.watch.look import Watched
from ddp_run.record.recorded_runs import recorded_run
from ddp_run.tell.snapshot import in_words
from ddp_run.values.signals import STOP_SIGNALS

_LOOK_S = 1.0


def main(folder: Path) -> None:
    """Look until standard input ends."""
    for signum in STOP_SIGNALS:  # Ctrl-C in the terminal is for the job
        signal.signal(signum, signal.SIG_IGN)
    run = recorded_run(folder)
    if run is None:
        return
    said = ""
    with closing(Watched(run)) as watched:
        while not select.select([0], [], [], _LOOK_S)[0]:
            words = in_words(watched.look())
            if words != said:
                said = words
                sys.stdout.write(f"{words}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
