"""`ddp-run selftest`: whether this installation starts jobs, and names the rank that fails."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ddp_run.api.child import Result

_PROGRAM = Path(__file__).parents[1] / "selftest_ranks.py"
_FAILING_RANK, _EXIT_CODE = 1, 7
_HUNG_S = 20
_OF_OTHER_JOBS = ("PET_", "DDP_", "MASTER_", "SLURM_", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "MAX_RETRIES")
_ENDED_WITHIN_S = 5.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(as_json: bool) -> int:
    """Run two small jobs to test this installation.

    Two ranks meet over gloo, without a GPU; then one of two ranks fails and must be named. The exit code is 0 if
    everything worked, else 1.
    """
    import shutil
    import tempfile

    from ddp_run.api.child import LaunchRefused

    folder = Path(tempfile.mkdtemp(prefix="ddp-run-selftest-"))
    versions, checks = _versions(), []
    if not as_json:
        click.echo(", ".join(f"{name} {version}" for name, version in versions.items()))
    for check in (_meet, _name_who_fails, _leave_nothing):
        began = time.monotonic()
        try:
            ok, said = check(folder)
        except LaunchRefused as refused:
            ok, said = False, f"nothing was started: {str(refused).splitlines()[0]}"
        seconds = round(time.monotonic() - began, 1)
        checks.append({"ok": ok, "said": said, "seconds": seconds})
        if not as_json:
            click.echo(f"{'ok    ' if ok else 'FAILED'} {said} ({seconds:.1f} s)")
    ok = all(check["ok"] for check in checks)
    if ok:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        kept = None if ok else str(folder)
        click.echo(json.dumps({"ok": ok, **versions, "checks": checks, "folder": kept}, indent=2))
    elif not ok:
        click.echo(f"files of these jobs: {folder}")
    return 0 if ok else 1


def _versions() -> dict[str, str]:
    """What is tested. torch is not imported for its version: that takes a second."""
    from importlib import metadata

    from ddp_run import __version__

    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "not found"
    return {"ddp-run": __version__, "torch": torch, "python": f"{platform.python_version()} ({sys.executable})"}


# ------------------------- the checks; `folder` gets the jobs' files. They return whether it is ok, and what was seen


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
    return False, f"rank {_FAILING_RANK} should exit with code {_EXIT_CODE} and be named: {_seen(result)}"


def _leave_nothing(folder: Path) -> tuple[bool, str]:
    from ddp_run.values.process_table import carriers

    marks = {f"DDP_RUN_ID={path.parent.name}".encode() for path in folder.glob("2*/events.jsonl")}
    deadline = time.monotonic() + _ENDED_WITHIN_S
    while (left := [*carriers(marks)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        return False, f"processes of these jobs are still running: {', '.join(map(str, left))}"
    return bool(marks), "no process of these jobs is still running" if marks else "no job was started"


def _run(folder: Path, *args: int) -> Result:
    from ddp_run.api.child import launch

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
