"""The agent of one attempt: torch.distributed.run, which starts the ranks, ends them, and tells of a failure."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from ddp_run.record import file_names
from ddp_run.values.helper_process import die_with_parent
from ddp_run.values.private_files import open_private

if TYPE_CHECKING:
    from ddp_run.evidence.log_tail import GrowingLog


@final
class Agent:
    """What an attempt needs of it. Another kind of agent has the same four members."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the attempt's; the agent's output goes there."""
        self._log = folder / file_names.AGENT_LOG
        self._read: GrowingLog | None = None
        self._reported = False
        self.pid: int | None = None
        """Null before its start, and once it has been reaped."""

    def start(self, argv: Sequence[str], environ: Mapping[str, str]) -> int:
        """Start it in a session of its own; returns its pid. Raises OSError.

        Nobody may wait for it but `ddp_run.supervise.loop.reap`, which would otherwise race for its exit code.
        """
        with open(open_private(self._log, os.O_WRONLY | os.O_APPEND), "ab", buffering=0) as output:
            process = subprocess.Popen(
                argv,
                env=environ,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent(),  # noqa: PLW1509  # this process has one thread
            )
        process.returncode = 0  # the object goes, the process stays
        self.pid = process.pid
        return process.pid

    def reaped(self, pid: int) -> bool:
        """A child was waited for; whether it was the agent."""
        if pid != self.pid:
            return False
        self.pid = None
        return True

    def has_reported(self) -> bool:
        """Whether its log ends with its whole account of a failure."""
        from ddp_run.evidence import childfailed
        from ddp_run.evidence.log_tail import GrowingLog

        if self._read is None:
            self._read = GrowingLog(self._log.parent, file_names.AGENT_LOG)
        log = self._read.more()
        if log is not None:
            self._reported = childfailed.is_complete(log.lines)
        return self._reported
