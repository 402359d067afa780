"""The agent with warm ranks (`--warm`): torch.distributed.run, whose ranks are forks of a process that has torch.

Runs in such a process (`ddp_run/rank/warm.py`). Everything of the agent is torch's own; only its `SubprocessHandler`,
which starts one rank, asks for a fork. What can't be forked is started as ever, and the first such rank says why.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

_BOOT_VARIABLE = "DDP_RUN_BOOT"
_ANSWER_S = 1.0
"""The server answers within milliseconds, but may be stopped, or the host may swap: then a rank counts as running."""
_LOOK_S = 0.01
_MOST = 1 << 16
_OF_A_RANK = frozenset(
    {"LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", _BOOT_VARIABLE}
    | {"LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
)
"""What the agent sets for its ranks (local_elastic_agent.py, _start_workers), besides TORCHELASTIC_*. Importing torch
reads none of them (seen with a getenv(3) that writes down its names, torch 2.13)."""


@final
class Server:
    """The process that ranks are forked from."""

    def __init__(self, channel: socket.socket, pid: int, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """`command`, `environ`: its own, which are the ranks' but for what differs between them."""
        self._channel = channel
        self._pid = pid
        self._command = command
        self._environ = environ
        self._seq = 0

    def start(self, args: Sequence[str], environ: Mapping[str, str], streams: Sequence[int]) -> WarmProcess:
        """Fork a rank. Raises OSError with the reason if it can't be forked.

        `args`: its command line. `streams`: descriptors for its stdout and stderr.
        """
        if list(args) != self._command:
            raise OSError("the ranks' commands differ")
        changed = {name for name in {*environ, *self._environ} if environ.get(name) != self._environ.get(name)}
        differs = sorted(name for name in changed if not _is_of_a_rank(name))
        if differs:
            raise OSError(f"the agent changes {', '.join(differs)}")
        boot = {**json.loads(environ.get(_BOOT_VARIABLE, "{}")), "agent": self._pid}
        return WarmProcess(self, self._fork({**environ, _BOOT_VARIABLE: json.dumps(boot)}, streams), args)

    def _fork(self, environ: Mapping[str, str], streams: Sequence[int]) -> int:
        with open(os.memfd_create("environment"), "w+", encoding="utf-8") as file:
            json.dump(environ, file)
            file.seek(0)
            handled = [int(each) for each in signal.valid_signals() if callable(signal.getsignal(each))]
            try:
                answer = self._ask({"fork": handled}, [file.fileno(), *streams])
            except OSError as error:
                raise OSError(f"the process that has torch doesn't answer: {error}") from None
        if answer["pid"] is None:
            raise OSError(answer["error"])
        return int(answer["pid"])

    def exit_code(self, pid: int) -> int | None:
        """How a rank ended, as `subprocess` says it; None while it runs."""
        try:
            status = self._ask({"wait": pid}, timeout_s=_ANSWER_S)["status"]
        except TimeoutError:
            return None
        except OSError:  # the kernel ends the ranks with the server
            return -signal.SIGKILL
        return None if status is None else os.waitstatus_to_exitcode(status)

    def _ask(
        self, request: Mapping[str, object], descriptors: Sequence[int] = (), timeout_s: float | None = None
    ) -> dict[str, Any]:
        self._seq += 1
        message = json.dumps({**request, "seq": self._seq}).encode()
        socket.send_fds(self._channel, [message], descriptors)
        while True:  # a signal may have kept an earlier answer from being read: the agent raises in its handlers
            answer = self._receive(timeout_s)
            if answer.get("seq") == self._seq:
                return answer

    def _receive(self, timeout_s: float | None) -> dict[str, Any]:
        self._channel.settimeout(timeout_s)
        message = self._channel.recv(_MOST)
        if not message:
            raise OSError("it has ended")
        return dict(json.loads(message))


@final
class WarmProcess:
    """What the agent uses of `subprocess.Popen`."""

    def __init__(self, server: Server, pid: int, args: Sequence[str]) -> None:
        self._server = server
        self.pid = pid
        self.args = args
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired after so many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and timeout is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(list(self.args), timeout)
            time.sleep(_LOOK_S)
        return code

    def send_signal(self, signum: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)


def _is_of_a_rank(name: str) -> bool:
    return name in _OF_A_RANK or name.startswith("TORCHELASTIC_")


def _start_ranks_with(server: Server | None, cold: str | None) -> None:
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    told = False

    class Handler(SubprocessHandler):  # type: ignore[misc]  # Any for mypy: pyproject.toml
        """Starts one rank."""

        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            nonlocal told
            streams = [file.fileno() if file else number for number, file in ((1, self._stdout), (2, self._stderr))]
            why = cold
            if server is not None:
                try:
                    return server.start(args, env, streams)
                except OSError as error:
                    why = str(error)
            if not told:
                env[_BOOT_VARIABLE] = json.dumps({**json.loads(env.get(_BOOT_VARIABLE, "{}")), "cold": why})
                told = True
            return super()._popen(args, env)

    api.get_subprocess_handler = Handler


def main(argv: Sequence[str], server: Server | None, cold: str | None) -> None:
    """Be torch's agent. `argv`: its command line. Without a `server` all ranks start as ever; `cold` says why."""
    from torch.distributed import run

    sys.argv = [run.__file__, *argv[argv.index(run.__name__) + 1 :]]
    _start_ranks_with(server, cold)
    run.main()
