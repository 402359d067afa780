"""The rank processes of one attempt, as far as they are known: from a hello, or a look below the agent, to the end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import final

from ddp_run.observe import processes
from ddp_run.record import file_names
from ddp_run.record.events import LocalRank, Rank, RankStarted
from ddp_run.record.journal import now
from ddp_run.supervise.inbox import Heard
from ddp_run.supervise.loop import Loop

_LOOK_FOR_DEATHS_S = 0.05
"""How often to look at ranks whose death nothing reports. A zombie shows its exit code until the agent reaps it."""


@dataclass(slots=True)
class RankProcess:
    """One of them. `pidfd` reports its death; null where there is none, or once it was reported."""

    event: RankStarted
    pidfd: int | None
    alive: bool = True
    exited_clean: bool = False
    """It ended with 0."""


@final
class Ranks:
    """Those of one attempt, by rank: of each the last that was started.

    `hear` reads what ranks have said so far: it belongs before their deaths. `ended` is told of one that is gone.
    """

    def __init__(
        self, attempt: int, loop: Loop, hear: Callable[[], None], ended: Callable[[RankProcess], None]
    ) -> None:
        self._attempt = attempt
        self._loop = loop
        self._hear = hear
        self._ended = ended
        self._by_rank: dict[Rank, RankProcess] = {}
        self._silent: set[int] = set()
        """Pids of those that were found and have not said hello: another process may yet do that for its rank."""

    def __iter__(self) -> Iterator[RankProcess]:
        return iter(self._by_rank.values())

    def of(self, rank: Rank) -> RankProcess | None:
        """The last that was started of this rank."""
        return self._by_rank.get(rank)

    def of_pid(self, pid: int) -> list[RankProcess]:
        """Those that are, or were, this process."""
        return [process for process in self if process.event.pid == pid]

    @property
    def started(self) -> dict[Rank, int]:
        """Their pids."""
        return {rank: process.event.pid for rank, process in self._by_rank.items()}

    @property
    def living(self) -> dict[Rank, int]:
        """The pids of those that have not ended, by rank."""
        return {rank: process.event.pid for rank, process in sorted(self._by_rank.items()) if process.alive}

    @property
    def latest(self) -> list[RankProcess]:
        """The ranks of the latest start."""
        latest = max((process.event.restart for process in self), default=0)
        return [process for process in self if process.event.restart == latest]

    @property
    def complete(self) -> bool:
        """Whether all ranks of the latest start are known."""
        known = self.latest
        return bool(known) and len(known) >= known[0].event.local_world_size

    def add(self, event: RankStarted) -> bool:
        """It has started; false where it said hello, ended and was reaped before we came to read."""
        pidfd, gone = None, False
        try:
            pidfd = os.pidfd_open(event.pid)
        except ProcessLookupError:
            gone = True
        except OSError:  # the kernel is older than 5.3, or there are no descriptors left
            self._loop.set_timer(_LOOK_FOR_DEATHS_S, self._look_for_deaths)
        process = self._by_rank[event.rank] = RankProcess(event, pidfd)
        if pidfd is not None:
            self._loop.watch(pidfd, partial(self._died, process))
        return not gone

    def forget(self, process: RankProcess) -> None:
        """Wait for its death no more."""
        if process.pidfd is not None:
            self._loop.unwatch(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = None

    def close(self) -> None:
        """The attempt is over."""
        for process in self:
            self.forget(process)

    def is_own_word(self, heard: Heard) -> bool:
        """Whether the rank itself says this: every process of the job can send, and those of an earlier attempt too.

        What a process forks is not the rank. Where the kernel cannot tell the sender, it may be a rank that is silent.
        """
        if heard.attempt != self._attempt:
            return False
        known, sender = self._by_rank.get(heard.rank), heard.sender
        if not isinstance(heard.said, RankStarted):
            if known is None or known.event.restart != heard.restart:
                return False
            return sender == known.event.pid or (sender == 0 and known.event.pid in self._silent)
        if known is not None and known.event.pid not in (sender, *self._silent):
            lives = known.alive and processes.is_alive(known.event.pid)
            if heard.restart < known.event.restart or (lives and heard.restart == known.event.restart):
                return False
        self._silent.discard(sender)
        return True

    def unheard(self, agent: int) -> list[RankStarted]:
        """Ranks below the agent that have not said hello: those of programs without Python, say."""
        found = processes.find_ranks(agent, [process.event.pid for process in self])
        self._hear()  # whoever has said hello by now has said more than can be found
        silent = [(pid, environ) for pid, environ in found if not self.of_pid(pid)]
        self._silent.update(pid for pid, _environ in silent)
        return [_silent(pid, environ, self._attempt) for pid, environ in silent]

    def _died(self, process: RankProcess) -> None:
        self._hear()
        self._ended(process)

    def _look_for_deaths(self) -> None:
        self._hear()
        silent = [process for process in self if process.alive and process.pidfd is None]
        for process in silent:
            if not processes.is_alive(process.event.pid):
                self._ended(process)
        if any(process.alive for process in silent):
            self._loop.set_timer(_LOOK_FOR_DEATHS_S, self._look_for_deaths)


def _silent(pid: int, environ: Mapping[str, str], attempt: int) -> RankStarted:
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
    )


def _links(environ: Mapping[str, str]) -> tuple[str, ...]:
    """As `ddp_run.agent.logs_specs` has told this rank's bootstrap."""
    try:
        return tuple(map(str, json.loads(environ["DDP_RUN_BOOT"]).get("links") or ()))
    except (KeyError, ValueError, AttributeError, TypeError):
        return ()
