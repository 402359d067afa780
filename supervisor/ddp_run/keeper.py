"""Ends a job's processes when ddp-run itself was killed. Runs alone: `python -I -S keeper.py RUN_ID FOLDER…`.

Its standard input is a pipe whose other end only ddp-run holds. `q` on it means a regular end. End of file without
that means that ddp-run died, with -9 or by the out-of-memory killer: then every process that carries this run's id in
its environment gets SIGKILL. (The agent, the ranks and their forked workers have PDEATHSIG besides; programs that they
started have not.) The folders, of ddp-run's socket and of the ranks' boards, are removed then.
"""

import os
import signal
import sys
import time
from pathlib import Path

_ROUNDS = 50
_ROUND_S = 0.1


def carriers(mark: bytes) -> list[int]:
    """Pids of the processes whose environment has the entry `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark in environ.split(b"\0"):
            found.append(int(entry.name))
    return found


def main(run_id: str, folders: list[Path]) -> None:
    """Wait for the end of the pipe, then end what is left."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    if os.read(0, 1) == b"q":
        return
    end_carriers(b"DDP_RUN_ID=" + run_id.encode())
    for folder in folders:
        try:
            for entry in folder.iterdir():
                entry.unlink()
            folder.rmdir()
        except OSError:
            pass


def end_carriers(mark: bytes) -> None:
    """SIGKILL to all carriers. They may fork meanwhile, so this looks until there are none, 5 s at most."""
    for _ in range(_ROUNDS):
        pids = carriers(mark)
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(_ROUND_S)


if __name__ == "__main__":
    main(sys.argv[1], [Path(word) for word in sys.argv[2:]])
