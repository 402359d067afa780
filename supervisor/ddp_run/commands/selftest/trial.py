"""What `ddp-run selftest` tries: two small jobs through `ddp_run.launch`, in a folder of their own."""

from __future__ import annotations

import io
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import final

from ddp_run import __version__
from ddp_run.api.launching import launch
from ddp_run.api.result import LaunchRefused, Result
from ddp_run.values.process_table import carriers

_PROGRAM = Path(__file__).parents[2] / "selftest_ranks.py"
_FAILING_RANK, _EXIT_CODE = 1, 7
_HUNG_S = 20
_OF_OTHER_JOBS = ("PET_", "DDP_", "MASTER_", "SLURM_", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "MAX_RETRIES")
_ENDED_WITHIN_S = 5.0


@final
@dataclass(frozen=True, slots=True)
class Checked:
    """One thing that was tried. `said`: what was seen, for people."""

    ok: bool
    said: str
    seconds: float


def versions() -> dict[str, str]:
    """Of what is tested. torch is not imported for it: that takes a second."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "not found"
    return {"ddp-run": __version__, "torch": torch, "python": f"{platform.python_version()} ({sys.executable})"}


def checks(folder: Path) -> Iterator[Checked]:
    """Try one after the other; `folder` gets the jobs' files."""
    for check in (_meet, _name_who_fails, _leave_nothing):
        yield _timed(check, folder)


def _timed(check: Callable[[Path], tuple[bool, str]], folder: Path) -> Checked:
    began = time.monotonic()
    try:
        ok, said = check(folder)
    except LaunchRefused as refused:
        ok, said = False, f"nothing was started: {str(refused).splitlines()[0]}"
    return Checked(ok, said, round(time.monotonic() - began, 1))


def _meet(folder: Path) -> tuple[bool, str]:
    result = _run(folder)
    if result.ok:
        return True, "two ranks met over gloo and agreed on a sum"
    return False, f"two ranks over gloo: {_seen(result)}"


def _name_who_fails(folder: Path) -> tuple[bool, str]:
    result = _run(folder, _FAILING_RANK, _EXIT_CODE)
    first = result.verdict.first_failure if result.verdict is not None else None
    if result.exit_code == _EXIT_CODE and first is not None and first.rank == _FAILING_RANK:
        return True, f"rank {_FAILING_RANK} exited with code {_EXIT_CODE}, and was named with that code"
    return False, f"rank {_FAILING_RANK} was to exit with code {_EXIT_CODE} and to be named: {_seen(result)}"


def _leave_nothing(folder: Path) -> tuple[bool, str]:
    marks = {f"DDP_RUN_ID={path.parent.name}".encode() for path in folder.glob("2*/events.jsonl")}
    deadline = time.monotonic() + _ENDED_WITHIN_S
    while (left := [*carriers(marks)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        return False, f"processes of these jobs are left: {', '.join(map(str, left))}"
    return bool(marks), "no process of these jobs is left" if marks else "no job was started"


def _run(folder: Path, *args: int) -> Result:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_OF_OTHER_JOBS)}
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return launch(
            _PROGRAM,
            args,
            env={"OMP_NUM_THREADS": "1", **environ, "DDP_RUN_CONFIG": "none"},
            nnodes=1,
            nproc_per_node=2,
            log_dir=folder,
            hang_timeout=_HUNG_S,
            shutdown_timeout=_HUNG_S // 4,
        )


def _seen(result: Result) -> str:
    verdict = result.verdict
    return f"exit code {result.exit_code}" + (f", {verdict.title}" if verdict is not None and verdict.title else "")
