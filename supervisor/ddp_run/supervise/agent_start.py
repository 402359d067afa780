"""What a run begins with: its first event; the agent's port and environment; what the console is to show."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast, final

from ddp_run import __version__
from ddp_run.plan.launch_plan import LaunchPlan, agent_environment, dist_timeout_s
from ddp_run.record.events import RunStarted
from ddp_run.record.journal import now
from ddp_run.record.own_process import this_process
from ddp_run.record.run_folder import RunFolder
from ddp_run.settings.options import Options
from ddp_run.supervise.inbox import Inbox
from ddp_run.tell.output import ConsoleSettings
from ddp_run.tell.selection import Mode
from ddp_run.values import terminal
from ddp_run.values.redaction import redact_words

_NEAR = 32
"""How far from the first port another one is looked for."""


@final
class MasterPorts:
    """The master port of each attempt of a run: a fresh one wherever ddp-run may choose it."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._used: set[int] = set()

    def choose(self, attempt: int, agreed: int | None = None) -> tuple[int | None, int | None]:
        """The attempt's port (null: torch takes a free one), and the one to put in the user's place.

        `agreed`: the one that several nodes have agreed on.
        """
        if agreed is not None:
            self._used.add(agreed)
            return agreed, agreed
        chosen = self._plan.chosen_port
        fixed = chosen is None or attempt == 0 or self._plan.options.max_nodes > 1
        if fixed and not self._plan.options.needs_port:
            self._used.update([chosen] if chosen else [])
            return chosen, None
        from ddp_run.plan.net import free_port

        fresh = free_port(self._plan.master or "127.0.0.1", avoid=self._used)
        self._used.add(fresh)
        return fresh, fresh

    def another(self) -> int:
        """A port on this machine for the next attempt of several nodes; raises OSError where there is none.

        One of the next after the first, where it is free: between rented machines a range of ports is open, if any.
        """
        from ddp_run.plan.net import free_port, port_is_free

        ip, first = self._plan.master, self._plan.chosen_port or 0
        for port in range(first + 1, min(first + _NEAR, 65536)) if first else ():
            if port not in self._used and port_is_free(port, ip):
                return port
        return free_port(ip, avoid=self._used)


def agent_environ(
    plan: LaunchPlan, environ: Mapping[str, str], folder: RunFolder, inbox: Inbox, attempt: int, backend: str | None
) -> dict[str, str]:
    """The agent's environment. `backend`: the process group's, where it is to be another than the program's."""
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
        }
    )
    return given


def _terminal(options: Options, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables by which ranks draw what only a terminal can show."""
    files_only = options.redirects.every or options.redirects.ranks
    shown = options.console in ("all", "rank0") and not files_only
    return terminal.variables_for_ranks(environ, options.nproc_count or 0) if shown else {}


def places(environ: Mapping[str, str], folder: RunFolder) -> tuple[str, ...]:
    """Where a job runs out of space: shared memory, ddp-run's files, temporary files, the job's own folder."""
    temporary = next((path for name in ("TMPDIR", "TEMP", "TMP") if (path := environ.get(name))), "/tmp")  # noqa: S108
    try:
        here = [str(Path.cwd())]
    except OSError:  # somebody removed it
        here = []
    return tuple(dict.fromkeys(["/dev/shm", str(folder.path), temporary, *here]))  # noqa: S108


def console_settings(options: Options) -> ConsoleSettings:
    """What of the options concerns the console."""
    return ConsoleSettings(
        mode=cast(Mode, options.console),
        json=options.log_format == "json",
        ranks=options.nproc_count or 0,
        redirects=options.redirects.ranks or int(options.redirects.every),
        tee=options.tee.ranks or int(options.tee.every),
        local_ranks=options.local_ranks_filter or (),
        prefix_template=options.prefix_template,
        role=options.role,
    )


def run_started(plan: LaunchPlan, run_id: str, argv: Sequence[str]) -> RunStarted:
    """The first event of a journal."""
    options = plan.options
    return RunStarted(
        at=now(),
        wall_ns=time.time_ns(),
        run_id=run_id,
        host=socket.gethostname(),
        node_rank=options.node_rank,
        nodes=options.max_nodes,
        argv=redact_words(argv),
        max_retries=options.max_retries,
        retry=options.retry,
        grace_s=options.grace_s,
        restarts=options.restarts,
        version=__version__,
        process=this_process(),
    )
