"""The agent of one attempt: torch.distributed.run, which starts the ranks, ends them and reports a failure."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from ddp_run.plan.checks.warm import READ_AT_IMPORT
from ddp_run.plan.launch_plan import LaunchPlan, agent_environment, dist_timeout_s
from ddp_run.record import file_names
from ddp_run.record.run_folder import RunFolder
from ddp_run.settings.options import Options
from ddp_run.supervise import open_files
from ddp_run.supervise.inbox import Inbox
from ddp_run.values import terminal
from ddp_run.values.helper_process import HelperProcess, HelperProcesses, die_with_parent, reap
from ddp_run.values.private_files import open_private

if TYPE_CHECKING:
    from ddp_run.evidence.log_tail import GrowingLog


_GATE = "DDP_RUN_GATE"
"""For `ddp_run.agent.warm`: the descriptor that says when to begin."""


@final
class Agent:
    """The process, and its log."""

    def __init__(self, folder: Path, helpers: HelperProcesses) -> None:
        """`folder`: the attempt's, for the agent's output. `helpers`: the run's."""
        self._log = folder / file_names.AGENT_LOG
        self._helpers = helpers
        self._ahead: HelperProcess | None = None
        """Started, but waiting for `start`: not the job's yet."""
        self._read: GrowingLog | None = None
        self.pid: int | None = None
        """None before its start and once it has been reaped."""

    def get_ready(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start it ahead: it imports all that it needs, then waits for `start`. Raises OSError. Only with `--warm`."""
        ours, its = socket.socketpair()
        with ours, its:
            pid = self._spawn(argv, {**environ, _GATE: str(its.fileno())}, [its.fileno()])
            self._ahead = HelperProcess(pid, os.dup(ours.fileno()), os.dup(ours.fileno()))
        self._helpers.add(self._ahead)

    def start(self, argv: Sequence[str], environ: Mapping[str, str]) -> int:
        """Start it. Returns its pid. Raises OSError. The words are those that `get_ready` got.

        Only `ddp_run.supervise.loop.reap` may wait for it; anyone else would race for its exit code.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.tell(b"s"):
            self._helpers.remove(ahead)
            self.pid = ahead.pid
        else:
            self.pid = self._spawn(argv, environ)
        if ahead is not None:
            ahead.close()
        return self.pid

    def give_up(self) -> None:
        """End what `get_ready` started, and remove its log: there will be no such attempt."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        ahead.close()
        if not ahead.reaped:
            os.killpg(ahead.pid, signal.SIGKILL)  # not reaped, so the number is still its own
            if reap(ahead.pid):
                self._helpers.reaped(ahead.pid)
        self._log.unlink(missing_ok=True)

    def _spawn(self, argv: Sequence[str], environ: Mapping[str, str], keep: Collection[int] = ()) -> int:
        """Start the program in its own session. `keep`: descriptors that it gets."""
        follow = die_with_parent()

        def in_child() -> None:
            follow()
            open_files.give_back()

        with open(open_private(self._log, os.O_WRONLY | os.O_APPEND), "ab", buffering=0) as output:
            process = subprocess.Popen(
                argv,
                env=environ,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=keep,
                preexec_fn=in_child,  # noqa: PLW1509  # this process has one thread
            )
        process.returncode = 0  # the Popen object may go, the process stays
        return process.pid

    def has_reported(self) -> bool:
        """Whether its log has grown, and ends with its complete report of a failure."""
        from ddp_run.evidence import childfailed
        from ddp_run.evidence.log_tail import GrowingLog

        if self._read is None:
            self._read = GrowingLog(self._log.parent, file_names.AGENT_LOG)
        log = self._read.more()
        return log is not None and childfailed.is_complete(log.lines)


def agent_environ(
    plan: LaunchPlan, environ: Mapping[str, str], folder: RunFolder, inbox: Inbox, attempt: int, backend: str | None
) -> dict[str, str]:
    """The agent's environment. `backend`: the process group's, if it differs from the program's."""
    given = agent_environment(plan, environ, folder.run_id)
    given["DDP_RUN_AGENT"] = json.dumps(
        {
            "run_folder": str(folder.path),
            "attempt": attempt,
            "socket": str(inbox.path),
            "nccl_debug": plan.nccl_log,
            "restore": {**_terminal(plan.options, environ), **plan.restore},
            "watch": {
                "backend": backend or plan.options.backend,
                "timeout_s": dist_timeout_s(environ),
                "debug": plan.options.ddp_debug,
            },
            "logs_specs": plan.options.logs_specs,
            **_warm(plan),
        }
    )
    return given


def _warm(plan: LaunchPlan) -> dict[str, object]:
    """For `ddp_run.agent.warm`: variables that torch will set for the ranks, and those that it reads at its import."""
    if not plan.options.warm:
        return {}
    return {"by_torch": {each.name: each.value for each in plan.by_torch}, "read_at_import": READ_AT_IMPORT}


def _terminal(options: Options, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that let ranks draw what only a terminal can show (progress bars)."""
    shown = options.console in ("all", "rank0") and not options.redirects
    return terminal.variables_for_ranks(environ, options.nproc_count or 0) if shown else {}
