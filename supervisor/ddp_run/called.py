"""`ddp-run` as a child of a Python program that called `ddp_run.launch`: `python -m ddp_run.called FD PID WORDS…`.

It reports to the program through descriptor FD, one JSON object per line: `folder` once the run has one, `refused` with
the message if nothing was started, and `exit_code` at the end. PID is the program: when it ends, or the thread of it
that called, the job is stopped.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import NoReturn

from ddp_run import cli
from ddp_run.values.helper_process import stop_with_parent
from ddp_run.values.problem import Refused, render


def main() -> NoReturn:
    """Run the launch that the words describe, and exit with its code."""
    channel, caller, words = int(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3:])
    os.set_inheritable(channel, False)
    # The calling thread may have blocked signals for itself, and its mask is inherited.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    stop_with_parent(caller)
    code = _launch(words, channel)
    _tell(channel, exit_code=code)
    cli.finish(code)


def _launch(words: tuple[str, ...], channel: int) -> int:
    try:
        return cli.launch(words, begun=lambda folder: _tell(channel, folder=str(folder)))
    except Refused as refused:
        _tell(channel, refused=render(refused.problems, refused.argv))
    except OSError as error:
        _tell(channel, refused=f"ddp-run: cannot start: {error}\n")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 2


def _tell(channel: int, **said: object) -> None:
    try:
        os.write(channel, json.dumps(said).encode() + b"\n")
    except OSError:  # the program is gone
        pass


if __name__ == "__main__":
    main()
