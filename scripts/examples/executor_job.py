"""Trainings from Python, through an executor: submitit's where it is installed, else threads of this process.

    python scripts/examples/executor_job.py --nproc-per-node 2 train.py --epochs 3

submitit starts `train` in a SLURM job of its own; it must then be able to import this file.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ddp_run


def train(script: str, args: list[str], nproc_per_node: int | str) -> str:
    """Run one training; raises where it fails, with the cause in the message. Results and exceptions can be pickled."""
    result = ddp_run.launch(script, args, nproc_per_node=nproc_per_node, max_retries=2)
    result.raise_for_failure()
    return str(result.folder)


def executor() -> Any:
    try:
        import submitit
    except ImportError:
        return ThreadPoolExecutor(max_workers=1)
    found = submitit.AutoExecutor(folder="submitit-logs")
    found.update_parameters(nodes=1, tasks_per_node=1, timeout_min=60)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc-per-node", default="gpu")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    job = executor().submit(train, str(Path(given.script).resolve()), given.args, given.nproc_per_node)
    try:
        print("done:", job.result())
    except ddp_run.LaunchRefused as refused:
        sys.stderr.write(str(refused))
        return 2
    except ddp_run.LaunchFailed as failed:
        print("failed:", failed)
        return failed.result.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
