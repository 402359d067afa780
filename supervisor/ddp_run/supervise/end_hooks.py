"""The user's own commands at the end of a run: --on-success or --on-failure, then --on-end.

They run one after another, when verdict.json is written and the verdict is shown, before the last line. Whatever
becomes of them, the exit code of the run stays what it is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

from ddp_run.judge.verdict import Verdict
from ddp_run.record.run_folder import RunFolder
from ddp_run.settings.options import Options, Setting, Source

_TURN_S = 1.0
_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL for a hook that ddp-run was told to end."""
_GIVE_UP_S = 0.5
"""After SIGKILL: what does not end then waits in the kernel, and is not waited for."""
_NOT_HANDED_ON = frozenset({"DDP_RUN_ON_SUCCESS", "DDP_RUN_ON_FAILURE", "DDP_RUN_ON_END"})
"""A hook that starts ddp-run must not run hooks for ever: neither those of variables, nor those of a preset."""
_WITHIN = "DDP_RUN_HOOK"
"""Set for a hook: of which scheduler's job. A job that it submits inherits the variable, and is another one."""
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


@dataclass(frozen=True, slots=True)
class Hook:
    """A command for /bin/sh, and the option that it came from, with its place where that is not the command line.

    `again`: it is a preset's, and this launch is part of such a command.
    """

    option: str
    command: str
    again: bool = False


def hooks(options: Options, outcome: str | None, environ: Mapping[str, str]) -> tuple[Hook, ...]:
    """What is to be run after a run that ended so, in order. An empty command is none."""
    first = ("on_success", options.on_success) if outcome == "succeeded" else ("on_failure", options.on_failure)
    wanted = (first, ("on_end", options.on_end))
    return tuple(_hook(options.settings[dest], dest, each, environ) for dest, each in wanted if each and each.strip())


def _hook(setting: Setting, dest: str, command: str, environ: Mapping[str, str]) -> Hook:
    name = f"--{dest.replace('_', '-')}"
    again = setting.source is Source.CONFIG and environ.get(_WITHIN) == _job_of(environ)
    return Hook(f"{name} ({setting.place})" if setting.place else name, command, again)


def _job_of(environ: Mapping[str, str]) -> str:
    return "/".join(environ.get(name, "") for name in _JOBS)


def hook_environ(
    environ: Mapping[str, str], options: Options, verdict: Verdict, folder: RunFolder, attempts: int
) -> dict[str, str]:
    """ddp-run's own environment and the verdict; what is not known is empty."""
    first = verdict.first_failure
    told = {
        "OUTCOME": verdict.outcome,
        "EXIT_CODE": verdict.exit_code,
        "CAUSE": verdict.cause,
        "CODE": verdict.code,
        "TITLE": verdict.title,
        "RANK": first.rank if first is not None else None,
        "NODE": first.host if first is not None else None,
        "NODE_RANK": _node_rank(options),
        "ATTEMPTS": attempts,
        "FOLDER": folder.path,
        "VERDICT": folder.verdict,
    }
    kept = {name: value for name, value in environ.items() if name not in _NOT_HANDED_ON}
    kept[_WITHIN] = _job_of(environ)
    return kept | {f"DDP_RUN_{name}": "" if value is None else str(value) for name, value in told.items()}


def _node_rank(options: Options) -> int | None:
    """Of this node, where it is known from the start."""
    if options.max_nodes == 1:
        return 0
    return options.node_rank if options.has_fixed_nodes else None


@final
@dataclass
class EndHooks:
    """Runs hooks. `serve` lets the loop go on for so many seconds at most; `stops` counts signals to stop."""

    environ: Mapping[str, str]
    serve: Callable[[float], None]
    stops: Callable[[], int]
    warn: Callable[[str], None]
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def run(self, wanted: tuple[Hook, ...]) -> None:
        """All, until a signal to stop comes: it ends the one that runs, and none is started after it."""
        before = self.stops()
        for hook in wanted:
            if hook.again:
                self.warn(f"{hook.option} not run: this launch is part of such a command")
            elif self.stops() > before:
                self.warn(f"{hook.option} not run: told to stop")
            else:
                self._run_one(hook, before)

    def reaped(self, pid: int, code: int) -> None:
        """A child was waited for: perhaps the hook's shell."""
        if self._process is not None and self._process.pid == pid:
            self._process.returncode = code

    def _run_one(self, hook: Hook, before: int) -> None:
        try:
            # Both streams go to stderr: stdout has what the ranks wrote, and scripts read that.
            process = subprocess.Popen(
                ["/bin/sh", "-c", hook.command],
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self.warn(f"{hook.option} not run: {error}")
            return
        self._process = process
        ended = self._wait(process, before)
        if not ended:
            process.returncode = 0  # nobody waits for it here; the object goes
            self.warn(f"{hook.option} did not end after SIGKILL")
        elif process.returncode:
            self.warn(f"{hook.option} {_end(process.returncode)}; the exit code of the run is unchanged")

    def _wait(self, process: subprocess.Popen[bytes], before: int) -> bool:
        """Until it ends, or is ended because of signals to stop; whether it has ended."""
        while process.returncode is None and self.stops() == before:
            self.serve(_TURN_S)
        for signum, within_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GIVE_UP_S)):
            if process.returncode is not None:
                break
            self._end(process, signum, within_s)
        return process.returncode is not None

    def _end(self, process: subprocess.Popen[bytes], signum: int, within_s: float) -> None:
        asked, deadline = self.stops(), time.monotonic() + within_s
        try:
            os.killpg(process.pid, signum)  # not reaped yet: the group is still its own
        except ProcessLookupError:
            pass
        while process.returncode is None and (left := deadline - time.monotonic()) > 0 and self.stops() == asked:
            self.serve(min(left, _TURN_S))


def _end(code: int) -> str:
    return f"exited with {code}" if code > 0 else f"was ended by signal {-code}"
