"""Ends a job's processes when ddp-run itself can't. Runs alone: `python -I -S keeper.py RUN_ID PIDS FOLDER…`.

Only ddp-run holds the other end of this process's standard input. `q` on it is a regular end. End of file without `q`
means that ddp-run was killed, or that something is left of a job that is over. Then SIGKILL goes to every process that
was below ddp-run at the last look. After that it goes to every process with this run's id in its environment. (The
agent, the ranks and their forked workers also have PDEATHSIG; programs that they started don't.) PIDS, joined by
commas, were below ddp-run before the job and are left alone. The folders (ddp-run's socket, the ranks' boards) are then
removed.

`s` means that ddp-run was told to stop. If it can't, because it waits in the kernel (state D: its log folder's server
doesn't answer, say), the keeper stops the job: SIGTERM, and SIGKILL after the grace period.
"""

import os
import select
import signal
import sys
import time
from itertools import chain
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # after Python's own folders, which are all that -I leaves
from ddp_run.values.process_table import began, below, carriers, children, in_masks, living, look, send

_ROUNDS = 50
_ROUND_S = 0.1
_LOOK_S = 0.5
"""Between two looks at ddp-run's own children, which include daemons."""
_ALL_LOOKS = 10
"""Every tenth of these looks is at everything below ddp-run: 100 processes take 3 ms."""
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
_STUCK_S, _GRACE_S = 6, 30
"""How long ddp-run must wait in the kernel to count as stuck, and how long the job then has."""


def cannot_stop(pid: int, told: bool) -> bool:
    """Whether a process was told to stop (it said so, or the signal is pending) and waits in the kernel."""
    found = look(pid)
    waits = found is not None and found.state == b"D"
    return waits and (told or in_masks(pid, ("SigPnd", "ShdPnd"), _STOPS))


def last_look(supervisor: int, mark: bytes, but: frozenset[int]) -> dict[int, int] | None:
    """Wait for ddp-run's end. Returns who was below it and when each began; None after a regular end."""
    told, stuck_s, turn, known = False, 0.0, 0, dict[int, int]()
    while True:
        if select.select([0], [], [], _LOOK_S)[0]:
            said = os.read(0, 1)
            if said != b"s":
                return None if said == b"q" else known
            told = True
        turn += 1
        if turn & (turn - 1) == 0 or turn % _ALL_LOOKS == 0:  # more often while the job starts
            known = below(supervisor, but) or {}
        else:
            known |= {pid: at for pid in children(supervisor) if pid not in but and (at := began(pid)) is not None}
        if not cannot_stop(supervisor, told):
            stuck_s = 0.0
            continue
        stuck_s += _LOOK_S
        if stuck_s == _STUCK_S:
            tell(known, mark, signal.SIGTERM)
        elif stuck_s >= _STUCK_S + _GRACE_S:
            end(known, mark)


def end(known: dict[int, int], mark: bytes) -> None:
    """SIGKILL those known and all carriers. They may fork meanwhile, so repeat until none is left, 5 s at most."""
    for _ in range(_ROUNDS):
        known = living(known)
        if not tell(known, mark, signal.SIGKILL):
            return
        time.sleep(_ROUND_S)


def tell(known: dict[int, int], mark: bytes, signum: int) -> bool:
    """Signal those known first, then the carriers of the mark, which takes reading. Returns whether there were any.

    Adds their descendants to `known` before they die: afterwards nothing shows whose they were.
    """
    marked = ({pid: at} for pid in carriers([mark]) if pid not in known and (at := began(pid)) is not None)
    for found in chain([{**known}], marked):
        tree = dict(chain(found.items(), *((below(pid) or {}).items() for pid in found)))
        send(tree, signum)
        known |= tree
    return bool(known)


def main(run_id: str, but: frozenset[int], folders: list[Path]) -> None:
    """Wait for the end of the pipe, then end what is left."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    mark = b"DDP_RUN_ID=" + run_id.encode()
    known = last_look(os.getppid(), mark, but | {os.getpid()})
    if known is None:
        return
    end(known, mark)
    for folder in folders:
        try:
            for entry in folder.iterdir():
                entry.unlink()
            folder.rmdir()
        except OSError:
            pass


if __name__ == "__main__":
    main(sys.argv[1], frozenset(map(int, filter(None, sys.argv[2].split(",")))), [Path(word) for word in sys.argv[3:]])
