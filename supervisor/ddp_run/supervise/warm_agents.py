"""Agents with `--warm`: each is a process that has imported torch, and leaves another one for the next attempt."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import final

from ddp_run.plan.checks.warm import READ_AT_IMPORT
from ddp_run.plan.launch_plan import RANK_PROGRAM, LaunchPlan
from ddp_run.supervise.agent import SETTINGS_VARIABLE, start
from ddp_run.supervise.loop import Loop
from ddp_run.values.helper_process import HelperProcess, HelperProcesses, reap

_SERVER_VARIABLE = "DDP_RUN_SERVE"
_MOST = 1 << 16


@final
class WarmAgents:
    """Starts a run's agents. What it asks of the processes: `ddp_run/rank/warm.py`."""

    def __init__(self, plan: LaunchPlan, loop: Loop, helpers: HelperProcesses) -> None:
        self._plan = plan
        self._loop = loop
        self._helpers = helpers
        self._channel: socket.socket | None = None
        """Leads to the process that becomes the next agent; it's closed there if there is none."""
        self._waiting: HelperProcess | None = None
        """That process. It isn't the job's yet."""

    def start(self, argv: Sequence[str], environ: Mapping[str, str], log: int) -> int:
        """Start an agent: the process that waits becomes it, or else a new one. Returns its pid. Raises OSError.

        `argv`, `environ`: as for a cold agent. `log`: a descriptor for its stdout and stderr.
        """
        self._hear()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and self._order(argv, environ, log):
            self._helpers.remove(waiting)
            waiting.close()
            return waiting.pid
        self.close()
        self._channel, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            wanted = {"channel": its.fileno(), "parent": os.getpid(), "read_at_import": READ_AT_IMPORT}
            by_torch = {each.name: each.value for each in self._plan.by_torch}
            given = {**environ, **by_torch, _SERVER_VARIABLE: json.dumps(wanted)}
            del given[SETTINGS_VARIABLE]
            ranks = [argv[0], "-u", *argv[argv.index(str(RANK_PROGRAM)) :]]
            pid = start(ranks, given, log, keep=[its.fileno()])
        self._loop.watch(self._channel.fileno(), self._hear)
        self._order(argv, environ, log)
        return pid

    def close(self) -> None:
        """There will be no further attempt: end what waits for it."""
        if self._channel is not None:
            self._loop.unwatch(self._channel.fileno())
            self._channel.close()
            self._channel = None
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.end()
            if not waiting.reaped and reap(waiting.pid):
                self._helpers.reaped(waiting.pid)

    def _order(self, argv: Sequence[str], environ: Mapping[str, str], log: int) -> bool:
        """Have the process at the other end become the agent. False if it has ended."""
        assert self._channel is not None
        begin = {"begin": self._plan.options.max_retries > 0, "seq": 0}
        with open(os.memfd_create("order"), "w+", encoding="utf-8") as file:
            json.dump({"argv": argv, "environ": dict(environ)}, file)
            file.seek(0)
            with suppress(OSError):
                socket.send_fds(self._channel, [json.dumps(begin).encode()], [file.fileno(), log])
                return True
        return False

    def _hear(self) -> None:
        """Take the name of the process that waits, or the end of the channel."""
        if self._channel is None:
            return
        try:
            said = self._channel.recv(_MOST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self.close()
            return
        self._waiting = HelperProcess(json.loads(said)["pid"], os.dup(self._channel.fileno()))
        self._helpers.add(self._waiting)
