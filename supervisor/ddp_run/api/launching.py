"""`ddp_run.launch`: runs a job to its end from a Python program."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Unpack

from ddp_run.api import child
from ddp_run.api.options import LaunchOptions, words
from ddp_run.api.result import LaunchRefused, Result, read_result
from ddp_run.values.problem import why_not_here


def launch(
    script: str | Path,
    args: Iterable[str | int | float | Path] = (),
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    **options: Unpack[LaunchOptions],
) -> Result:
    """Run `ddp-run OPTIONS SCRIPT ARGS` as a child process, from any thread, and wait for its end.

    `options` are those of the command line, with underscores: `nproc_per_node=2`, `module=True`. `env` is the whole
    environment and `cwd` the working directory, both the program's own by default. What ddp-run prints goes to
    `sys.stdout` and `sys.stderr` as they are at the call; standard input is empty.

    A job that fails is a result like any other: see `Result.ok` and `Result.raise_for_failure`. If nothing was started,
    raises `LaunchRefused` with the text that the command prints. Raises TypeError for arguments that can't be words,
    and for shortened option names. An exception that interrupts the wait (such as KeyboardInterrupt) stops the job
    first. The job is also stopped when the program ends, for whatever reason.
    """
    if reason := why_not_here(sys.platform):
        raise LaunchRefused(reason)
    said = child.run(words(script, args, options), env, cwd)
    if said.refused is not None and said.folder is None:
        raise LaunchRefused(said.refused)
    if said.folder is None:
        raise LaunchRefused(f"ddp-run exited with code {said.exit_code} before it started a run\n")
    return read_result(1 if said.exit_code is None else said.exit_code, said.folder)
