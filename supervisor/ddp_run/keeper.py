"""Ends a job's processes when ddp-run itself cannot. Runs alone: `python -I -S keeper.py RUN_ID PIDS FOLDER…`.

Its standard input is a pipe whose other end only ddp-run holds. `q` on it means a regular end. End of file without
that means that ddp-run died, with -9 or by the out-of-memory killer, or that something is left of a job that is over:
then every process that was below ddp-run when this process looked last gets SIGKILL, and then every one that carries
this run's id in its environment. (The agent, the ranks and their forked workers have PDEATHSIG besides; programs that
they started have not.) PIDS, joined by commas, are of processes that were below ddp-run before the job was: they are
let be. The folders, of ddp-run's socket and of the ranks' boards, are removed then.

`s` on the pipe means that ddp-run was told to stop. Where it does not come to that, because it waits in the kernel (its
log folder's server does not answer, say: state D), the job is told here, by SIGTERM and after the grace by SIGKILL.
"""

import os
import select
import signal
import sys
import time
from itertools import chain
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # behind Python's own folders: with -I there are no others
from ddp_run.values.process_table import began, below, carriers, children, in_masks, living, look, send

_ROUNDS = 50
_ROUND_S = 0.1
_LOOK_S = 0.5
"""Between two looks at ddp-run's own children: daemons are among them."""
_ALL_LOOKS = 10
"""How many of these come between two looks at all below it: 100 processes take 3 ms."""
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
_STUCK_S, _GRACE_S = 6, 30
"""How long ddp-run waits in the kernel until it is taken for stuck, and how long the job then has."""


def cannot_stop(pid: int, told: bool) -> bool:
    """Whether a process that was told to stop waits in the kernel: by its own word, or with the signal pending."""
    found = look(pid)
    waits = found is not None and found.state == b"D"
    return waits and (told or in_masks(pid, (b"SigPnd:", b"ShdPnd:"), _STOPS))


def last_look(supervisor: int, mark: bytes, but: frozenset[int]) -> dict[int, int] | None:
    """Wait for ddp-run's end: who was below it when it died, and since when; null where it ended regularly."""
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
    """SIGKILL to those known and to carriers. They may fork meanwhile: this looks until there are none, 5 s at most."""
    for _ in range(_ROUNDS):
        known = living(known)
        if not tell(known, mark, signal.SIGKILL):
            return
        time.sleep(_ROUND_S)


def tell(known: dict[int, int], mark: bytes, signum: int) -> bool:
    """Signal those known, then those who carry the mark: who that is has to be read of them. Whether there was anybody.

    What is below them becomes known before they go: it is nobody's afterwards.
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
