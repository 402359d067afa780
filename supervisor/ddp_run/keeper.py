"""Ends a job's processes when ddp-run itself cannot. Runs alone: `python -I -S keeper.py RUN_ID PIDS FOLDER…`.

Its standard input is a pipe whose other end only ddp-run holds. `q` on it means a regular end. End of file without
that means that ddp-run died, with -9 or by the out-of-memory killer: then every process that carries this run's id in
its environment gets SIGKILL, and every one that was below ddp-run when this process looked last, as daemons may have
no environment. (The agent, the ranks and their forked workers have PDEATHSIG besides; programs that they started have
not.) PIDS, joined by commas, are of processes that were below ddp-run before the job was: they are let be. The folders,
of ddp-run's socket and of the ranks' boards, are removed then.

`s` on the pipe means that ddp-run was told to stop. Where it does not come to that, because it waits in the kernel (its
log folder's server does not answer, say: state D), the job is told here, by SIGTERM and after the grace by SIGKILL.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

_ROUNDS = 50
_ROUND_S = 0.1
_FIRST_LOOK_S, _LOOK_S = 0.5, 5.0
"""Between two looks at what is below ddp-run: a look at 100 processes takes 3 ms."""
_MOST = 4096
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
_STUCK_LOOK_S = 1
_STUCK_S, _GRACE_S = 6, 30
"""How long ddp-run waits in the kernel until it is taken for stuck, and how long the job then has."""


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


def below(root: int, but: frozenset[int] = frozenset()) -> dict[int, bytes]:
    """Pids of what main threads below a process have started or taken over, with when each began: pids come again.

    Without `but`, and what is below those.
    """
    found: dict[int, bytes] = {}
    waiting = [root]
    while waiting and len(found) < _MOST:
        parent = waiting.pop()
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_bytes().split()
        except OSError:
            continue
        for pid in map(int, children):
            began = began_at(pid)
            if began is not None and pid not in found and pid not in but and pid != os.getpid():
                found[pid] = began
                waiting.append(pid)
    return found


def began_at(pid: int) -> bytes | None:
    """When a process began (proc(5), starttime); null where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[19] if len(fields) > 19 and fields[0] not in (b"Z", b"X") else None


def cannot_stop(pid: int, told: bool) -> bool:
    """Whether a process that was told to stop waits in the kernel: by its own word, or with the signal pending."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except OSError:
        return False
    status = dict(line.split(b":\t", 1) for line in lines if b":\t" in line)
    pending = int(status.get(b"SigPnd", b"0"), 16) | int(status.get(b"ShdPnd", b"0"), 16)
    told = told or any(pending >> (signum - 1) & 1 for signum in _STOPS)
    return told and status.get(b"State", b"").startswith(b"D")


def last_look(supervisor: int, mark: bytes, but: frozenset[int]) -> dict[int, bytes] | None:
    """Wait for ddp-run's end: who was below it when it died, as `below` has it; null where it ended regularly."""
    told, stuck_s, wait_s, known = False, 0, _FIRST_LOOK_S, dict[int, bytes]()
    while True:
        if select.select([0], [], [], wait_s)[0]:
            said = os.read(0, 1)
            if said != b"s":
                return None if said == b"q" else known
            told = True
        known = below(supervisor, but)
        wait_s = min(2 * wait_s, _LOOK_S)
        if not cannot_stop(supervisor, told):
            stuck_s = 0
            continue
        wait_s = _STUCK_LOOK_S
        stuck_s += _STUCK_LOOK_S
        if stuck_s == _STUCK_S:
            tell({*carriers(mark), *known}, signal.SIGTERM)
        elif stuck_s >= _STUCK_S + _GRACE_S:
            end(mark, known)


def main(run_id: str, but: frozenset[int], folders: list[Path]) -> None:
    """Wait for the end of the pipe, then end what is left."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    mark = b"DDP_RUN_ID=" + run_id.encode()
    known = last_look(os.getppid(), mark, but)
    if known is None:
        return
    try:
        end(mark, known)
    except OSError:  # no /proc
        pass
    for folder in folders:
        try:
            for entry in folder.iterdir():
                entry.unlink()
            folder.rmdir()
        except OSError:
            pass


def end(mark: bytes, known: dict[int, bytes]) -> None:
    """SIGKILL to carriers and those known. They may fork meanwhile: this looks until there are none, 5 s at most."""
    for _ in range(_ROUNDS):
        pids = {*carriers(mark), *(pid for pid, began in known.items() if began_at(pid) == began)}
        if not pids:
            return
        for pid in pids:  # before it goes: who is below it is nobody's afterwards
            known = {**known, **below(pid)}
        tell(pids, signal.SIGKILL)
        time.sleep(_ROUND_S)


def tell(pids: set[int], signum: int) -> None:
    """Signal each; those that are gone are passed over."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except OSError:
            continue


if __name__ == "__main__":
    main(sys.argv[1], frozenset(map(int, filter(None, sys.argv[2].split(",")))), [Path(word) for word in sys.argv[3:]])
