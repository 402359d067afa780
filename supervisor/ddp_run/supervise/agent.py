"""The agent of one attempt: torch.distributed.run, which starts the ranks, ends them and reports a failure."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from ddp_run.plan.launch_plan import LaunchPlan, agent_environment, dist_timeout_s
from ddp_run.record import file_names
from ddp_run.record.run_folder import RunFolder
from ddp_run.settings.options import Options
from ddp_run.supervise import open_files
from ddp_run.supervise.inbox import Inbox
from ddp_run.values import terminal
from ddp_run.values.helper_process import die_with_parent
from ddp_run.values.private_files import open_private

if TYPE_CHECKING:
    from ddp_run.evidence.log_tail import GrowingLog

Start = Callable[[Sequence[str], Mapping[str, str], int], int]
"""Starts an agent, given its command line, its environment and a descriptor for its output. Returns its pid."""
SETTINGS_VARIABLE = "DDP_RUN_AGENT"
"""For `ddp_run.agent.logs_specs`, which takes it out of the agent's environment."""


@final
class Agent:
    """The process, and its log."""

    def __init__(self, folder: Path, start: Start) -> None:
        """`folder`: the attempt's, for the agent's output."""
        self._log = folder / file_names.AGENT_LOG
        self._start = start
        self._read: GrowingLog | None = None
        self.pid: int | None = None
        """None before its start and once it has been reaped."""

    def start(self, argv: Sequence[str], environ: Mapping[str, str]) -> int:
        """Start it. Returns its pid. Raises OSError.

        Only `ddp_run.supervise.loop.reap` may wait for it; anyone else would race for its exit code.
        """
        with open(open_private(self._log, os.O_WRONLY | os.O_APPEND), "ab", buffering=0) as log:
            self.pid = self._start(argv, environ, log.fileno())
        return self.pid

    def has_reported(self) -> bool:
        """Whether its log has grown, and ends with its complete report of a failure."""
        from ddp_run.evidence import childfailed
        from ddp_run.evidence.log_tail import GrowingLog

        if self._read is None:
            self._read = GrowingLog(self._log.parent, file_names.AGENT_LOG)
        log = self._read.more()
        return log is not None and childfailed.is_complete(log.lines)


def start(argv: Sequence[str], environ: Mapping[str, str], log: int, keep: Collection[int] = ()) -> int:
    """Start a program in its own session; it ends with ddp-run. Returns its pid. Raises OSError.

    `log`: a descriptor for its stdout and stderr. `keep`: descriptors that it gets.
    """
    follow = die_with_parent()

    def in_child() -> None:
        follow()
        open_files.give_back()

    process = subprocess.Popen(
        argv,
        env=environ,
        stdout=log,
        stderr=log,
        start_new_session=True,
        pass_fds=keep,
        preexec_fn=in_child,  # noqa: PLW1509  # this process has one thread
    )
    process.returncode = 0  # the Popen object may go, the process stays
    return process.pid


def agent_environ(
    plan: LaunchPlan, environ: Mapping[str, str], folder: RunFolder, inbox: Inbox, attempt: int, backend: str | None
) -> dict[str, str]:
    """The agent's environment. `backend`: the process group's, if it differs from the program's."""
    given = agent_environment(plan, environ, folder.run_id)
    given[SETTINGS_VARIABLE] = json.dumps(
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
        }
    )
    return given


def _terminal(options: Options, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that let ranks draw what only a terminal can show (progress bars)."""
    shown = options.console in ("all", "rank0") and not options.redirects
    return terminal.variables_for_ranks(environ, options.nproc_count or 0) if shown else {}
