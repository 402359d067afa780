"""Says once a second how a job gets on, for `--status`. Runs beside a launch: `python -P status.py FOLDER`.

It looks at the run as `ddp-run watch` does, until ddp-run ends, and writes each line that differs from the last one.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[3]))
from ddp_run.commands.watch.look import looks
from ddp_run.tell.snapshot import in_words

_LOOK_S = 1.0


def main(folder: Path) -> None:
    """Look until standard input ends."""
    said = ""
    for job, up in looks(folder, _LOOK_S):
        words = in_words(job)
        if up and words != said:
            said = words
            sys.stdout.write(f"{words}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
