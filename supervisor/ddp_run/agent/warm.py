"""The agent with warm ranks (`--warm`): torch.distributed.run, whose ranks are forks of one process that has torch.

Run by path, with the agent's words. Everything of the agent is torch's own; only its `SubprocessHandler`, which starts
one rank, asks the process (`ddp_run/rank/warm.py`) for a fork. What can't be forked is started as ever, and the first
such rank says why.
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
from pathlib import Path
from typing import Any, final

_RANK_PROGRAM = str(Path(__file__).parents[1] / "rank" / "__main__.py")
_AGENT_VARIABLE, _BOOT_VARIABLE, _SERVER_VARIABLE = "DDP_RUN_AGENT", "DDP_RUN_BOOT", "DDP_RUN_SERVE"
_GATE_VARIABLE = "DDP_RUN_GATE"
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

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], read_at_import: str) -> None:
        """Start it. `words`: a rank's, after Python's own. `environ`: the ranks', but for what differs between them."""
        self._command = (sys.executable, "-u", *words)
        self._environ = {name: value for name, value in environ.items() if not _is_of_a_rank(name)}
        self._cold: str | None = None
        self._ready = self._told = False
        self._seq = 0
        try:
            self._begin(read_at_import)
        except OSError as error:
            self._cold, self._ready = f"no process to fork from: {error}", True

    def _begin(self, read_at_import: str) -> None:
        self._channel, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wanted = {"channel": its.fileno(), "agent": os.getpid(), "read_at_import": read_at_import}
        # Files in memory as its streams: as seekable as a rank's, and anything in them shows.
        with its, open(os.memfd_create("stdout"), "wb") as stdout, open(os.memfd_create("stderr"), "wb") as stderr:
            self._process = subprocess.Popen(
                self._command,
                env={**self._environ, _SERVER_VARIABLE: json.dumps(wanted)},
                stdout=stdout,
                stderr=stderr,
                pass_fds=[its.fileno()],
            )

    def start(self, args: Sequence[str], environ: dict[str, str], streams: Sequence[int]) -> WarmProcess | None:
        """Fork a rank. None if it has to be started cold; then its bootstrap gets the reason, once.

        `streams`: descriptors for its stdout and stderr.
        """
        boot = json.loads(environ.get(_BOOT_VARIABLE, "{}"))
        try:
            cold = self._why_cold(args, environ)
            if cold is None:
                given = {**environ, _BOOT_VARIABLE: json.dumps({**boot, "agent": self._process.pid})}
                return WarmProcess(self, self._fork(given, streams), args)
        except OSError as error:
            cold = f"the process that has torch doesn't answer: {error}"
        if not self._told:
            environ[_BOOT_VARIABLE] = json.dumps({**boot, "cold": cold})
            self._told = True
        return None

    def _why_cold(self, args: Sequence[str], environ: Mapping[str, str]) -> str | None:
        if not self._ready:
            self._cold = self._receive(None)["cold"]
            self._ready = True
        if self._cold is not None:
            return self._cold
        if tuple(args) != self._command:
            return "the ranks' commands differ"
        changed = {name for name in {*environ, *self._environ} if environ.get(name) != self._environ.get(name)}
        differs = sorted(name for name in changed if not _is_of_a_rank(name))
        return f"the agent changes {', '.join(differs)}" if differs else None

    def _fork(self, environ: Mapping[str, str], streams: Sequence[int]) -> int:
        with open(os.memfd_create("environment"), "w+", encoding="utf-8") as file:
            json.dump(environ, file)
            file.seek(0)
            handled = [int(each) for each in signal.valid_signals() if callable(signal.getsignal(each))]
            answer = self._ask({"fork": handled}, [file.fileno(), *streams])
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

    def close(self) -> None:
        """End it, and so its ranks."""
        self._channel.close()
        self._process.wait()

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


def _start_ranks_with(server: Server) -> None:
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    class Handler(SubprocessHandler):  # type: ignore[misc]  # Any for mypy: pyproject.toml
        """Starts one rank."""

        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            streams = [file.fileno() if file else number for number, file in ((1, self._stdout), (2, self._stderr))]
            return server.start(args, env, streams) or super()._popen(args, env)

    api.get_subprocess_handler = Handler


def main() -> None:
    """Start the server, then be torch's agent; started ahead of its time, wait for that in between."""
    gate = os.environ.pop(_GATE_VARIABLE, None)
    wishes: dict[str, Any] = json.loads(os.environ.get(_AGENT_VARIABLE, "{}"))
    environ = {**os.environ, **wishes.get("by_torch", {})}
    environ.pop(_AGENT_VARIABLE, None)
    server = Server(sys.argv[sys.argv.index(_RANK_PROGRAM) :], environ, wishes["read_at_import"])
    from torch.distributed import run

    _start_ranks_with(server)
    if gate is not None:
        if not os.read(int(gate), 1):  # there is no next attempt; the server ends with this process
            os._exit(0)
        os.close(int(gate))
    sys.argv[0] = run.__file__
    run.main()


if __name__ == "__main__":
    main()
