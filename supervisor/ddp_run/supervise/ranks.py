"""The rank processes of one attempt: who they are, whether they live, how they end, and signals to them.

A rank is known from its hello, or from a look below the agent. Source: proc(5), linux/pidfd.h.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from ddp_run.record import file_names
from ddp_run.record.events import Event, LocalRank, Noted, Rank, RankStarted, SignalSent, Target
from ddp_run.record.journal import now
from ddp_run.supervise.actions import SendSignal
from ddp_run.supervise.inbox import Heard
from ddp_run.supervise.loop import Loop
from ddp_run.values.process_table import children, environs, in_masks, is_alive, look, send, send_one

_LOOK_FOR_DEATHS_S = 0.05
"""How often to look at ranks without a pidfd. A zombie shows its exit code until the agent reaps it."""
# linux/pidfd.h: struct pidfd_info in its first version (64 bytes), its ioctl, and the flag for the exit code.
_PIDFD_INFO = struct.Struct("QQ11Ii")
_PIDFD_GET_INFO = 0xC0000000 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3


@dataclass(slots=True)
class RankProcess:
    """A rank's process. `pidfd` reports its death; None if there's none, or once it was reported."""

    event: RankStarted
    pidfd: int | None
    alive: bool = True
    exited_clean: bool = False
    """It ended with 0."""


@final
class Ranks:
    """The ranks of one attempt; of each rank, the process that was started last.

    `hear` reads what ranks have said so far, which belongs before their deaths. `ended` is called for each that ended.
    """

    def __init__(
        self, attempt: int, loop: Loop, hear: Callable[[], None], ended: Callable[[RankProcess], None]
    ) -> None:
        self._attempt = attempt
        self._loop = loop
        self._hear = hear
        self._ended = ended
        self._by_rank: dict[Rank, RankProcess] = {}
        self.killed: set[int] = set()
        """Pids that got SIGKILL from `send`, the agent's and others of the job included."""
        self._silent: set[int] = set()
        """Pids that were found and haven't said hello: another process may still do that for its rank."""

    def __iter__(self) -> Iterator[RankProcess]:
        return iter(self._by_rank.values())

    def of(self, rank: Rank) -> RankProcess | None:
        """The last process of this rank."""
        return self._by_rank.get(rank)

    def of_pid(self, pid: int) -> list[RankProcess]:
        """Those that are, or were, this process."""
        return [process for process in self if process.event.pid == pid]

    @property
    def started(self) -> dict[Rank, int]:
        """All pids by rank."""
        return {rank: process.event.pid for rank, process in self._by_rank.items()}

    @property
    def living(self) -> dict[Rank, int]:
        """The pids of those that haven't ended, by rank."""
        return {rank: process.event.pid for rank, process in sorted(self._by_rank.items()) if process.alive}

    @property
    def latest(self) -> list[RankProcess]:
        """The ranks of the latest restart."""
        latest = max((process.event.restart for process in self), default=0)
        return [process for process in self if process.event.restart == latest]

    @property
    def complete(self) -> bool:
        """Whether all ranks of the latest restart are known."""
        known = self.latest
        return bool(known) and len(known) >= known[0].event.local_world_size

    def add(self, event: RankStarted) -> bool:
        """Add a rank that has started. Returns False if it ended and was reaped before we read its hello."""
        pidfd, gone = None, False
        try:
            pidfd = os.pidfd_open(event.pid)
        except ProcessLookupError:
            gone = True
        except OSError:  # the kernel is older than 5.3, or no descriptors are left
            self._loop.set_timer(_LOOK_FOR_DEATHS_S, self._look_for_deaths)
        process = self._by_rank[event.rank] = RankProcess(event, pidfd)
        if pidfd is not None:
            self._loop.watch(pidfd, partial(self._died, process))
        return not gone

    def forget(self, process: RankProcess) -> None:
        """Stop waiting for its death."""
        if process.pidfd is not None:
            self._loop.unwatch(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = None

    def close(self) -> None:
        """Forget all: the attempt is over."""
        for process in self:
            self.forget(process)

    def is_own_word(self, heard: Heard) -> bool:
        """Whether the rank itself says this. Any process of the job can send, and so can one of an earlier attempt.

        A process that a rank forked isn't the rank. If the kernel can't tell the sender, a silent rank may be it.
        """
        if heard.attempt != self._attempt:
            return False
        known, sender = self._by_rank.get(heard.rank), heard.sender
        if not isinstance(heard.said, RankStarted):
            if known is None or known.event.restart != heard.restart:
                return False
            return sender == known.event.pid or (sender == 0 and known.event.pid in self._silent)
        if known is not None and known.event.pid not in (sender, *self._silent):
            lives = known.alive and is_alive(known.event.pid)
            if heard.restart < known.event.restart or (lives and heard.restart == known.event.restart):
                return False
        self._silent.discard(sender)
        return True

    def unheard(self, agent: int) -> list[RankStarted]:
        """Ranks below the agent that haven't said hello, such as programs without Python."""
        found = find_ranks(agent, [process.event.pid for process in self])
        self._hear()  # a hello tells more than what can be found
        silent = [(pid, environ) for pid, environ in found if not self.of_pid(pid)]
        self._silent.update(pid for pid, _environ in silent)
        return [_silent_start(pid, environ, self._attempt) for pid, environ in silent]

    # ------------------------------------------------------------------------------------------- signals

    def send(self, order: SendSignal, agent: int | None, job: Callable[[], Mapping[int, int]]) -> Iterator[Event]:
        """Send a signal. Yields what to record: whom it reached, and who didn't get it.

        `agent`: its pid; it is our child, so it needs no pidfd. `job`: all processes now, and when each began.
        """
        if order.target is Target.JOB:
            reached = send(job(), order.signum)
        else:
            whom: dict[int, int | None] = {} if agent is None else {agent: None}
            if order.target is Target.RANKS:
                asked = (each for each in self if each.alive and (not order.ranks or each.event.rank in order.ranks))
                whom = {each.event.pid: each.pidfd for each in asked}
            deaf: list[int] = []
            if order.only_if_handled:
                name = signal.Signals(order.signum).name
                deaf = [pid for pid in whom if not in_masks(pid, ("SigCgt", "SigIgn"), [order.signum])]
                if not whom:
                    yield Noted(now(), f"{name} not forwarded: no rank is running")
                if deaf:
                    yield Noted(now(), f"{name} not forwarded to {deaf}: no handler, it would kill them")
            reached = tuple(pid for pid, fd in whom.items() if pid not in deaf and send_one(pid, order.signum, fd))
        if order.signum == signal.SIGKILL:
            self.killed.update(reached)
        yield SignalSent(now(), order.target, order.signum, reached, order.reason)

    # -------------------------------------------------------------------------------------------- deaths

    def _died(self, process: RankProcess) -> None:
        self._hear()
        self._ended(process)

    def _look_for_deaths(self) -> None:
        self._hear()
        without_pidfd = [process for process in self if process.alive and process.pidfd is None]
        for process in without_pidfd:
            if not is_alive(process.event.pid):
                self._ended(process)
        if any(process.alive for process in without_pidfd):
            self._loop.set_timer(_LOOK_FOR_DEATHS_S, self._look_for_deaths)


# ------------------------------------------------------------------------------------------ silent ranks


def find_ranks(agent: int, but: Collection[int] = ()) -> list[tuple[int, dict[str, str]]]:
    """The agent's children that have a rank in their environment: (pid, environment)."""
    return [
        (pid, environ)
        for pid, environ in environs(pid for pid in children(agent) if pid not in but).items()
        if environ.get("RANK", "").isdigit() and environ.get("TORCHELASTIC_RESTART_COUNT", "").isdigit()
    ]


def _silent_start(pid: int, environ: Mapping[str, str], attempt: int) -> RankStarted:
    rank, restart = Rank(int(environ["RANK"])), int(environ["TORCHELASTIC_RESTART_COUNT"])
    return RankStarted(
        at=now(),
        rank=rank,
        local_rank=LocalRank(int(environ.get("LOCAL_RANK", "0"))),
        restart=restart,
        pid=pid,
        world_size=int(environ.get("WORLD_SIZE", "0")),
        local_world_size=int(environ.get("LOCAL_WORLD_SIZE", "0")),
        folder=file_names.rank_folder(attempt, rank, restart),
        links=_links(environ),
        group_rank=int(environ.get("GROUP_RANK", "0")),
        group_world_size=int(environ.get("GROUP_WORLD_SIZE", "0")),
    )


def _links(environ: Mapping[str, str]) -> tuple[str, ...]:
    """As `ddp_run.agent.logs_specs` told this rank's bootstrap."""
    try:
        return tuple(map(str, json.loads(environ["DDP_RUN_BOOT"]).get("links") or ()))
    except (KeyError, ValueError, AttributeError, TypeError):
        return ()


# ----------------------------------------------------------------------------------------- exit statuses


def read_exit_status(pid: int, pidfd: int | None) -> int | None:
    """The wait status of an ended process that isn't our child, as wait(2) gives it; None if it can't be read.

    Until its parent reaps it, /proc/PID/stat has the status in its last field (proc(5), field 52). After that, the
    pidfd still tells (Linux 6.15 and newer: linux/pidfd.h, PIDFD_GET_INFO).
    """
    found = look(pid)
    if found is not None and found.ended and (found.exit_status or _may_trace(pid)):
        return found.exit_status
    return _pidfd_status(pidfd) if pidfd is not None else None


def _may_trace(pid: int) -> bool:
    """Whether the kernel would show an exit code: it shows 0 to those who may not trace the process.

    Reading the process's namespaces needs the same right (fs/proc/array.c, fs/proc/namespaces.c). A rank may have
    become another user.
    """
    try:
        Path(f"/proc/{pid}/ns/user").readlink()
    except PermissionError:
        return False
    except OSError:
        pass
    return True


def _pidfd_status(pidfd: int) -> int | None:
    request = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request)
    except OSError:
        return None
    mask, *_rest, status = _PIDFD_INFO.unpack(request)
    return status if mask & _PIDFD_INFO_EXIT else None
