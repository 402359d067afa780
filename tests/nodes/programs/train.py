"""A gloo training loop on several nodes, with a fault where asked. Imports nothing of ddp_run.

Each step all-reduces the ranks' numbers, from 1 on, and prints the sum. A rank that is about to fail writes the moment,
of the monotonic clock, to the file $MARK_FILE. The ranks of `--compute-node` take no part in the sum after
init_process_group but compute for `--step-s`: such a node does not notice what becomes of the others.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

OS_EXIT_CODE = 7


def fail(how: str) -> None:
    if "MARK_FILE" in os.environ:
        Path(os.environ["MARK_FILE"]).write_text(repr(time.monotonic()))
    if how == "raise":
        raise ValueError("fault in training")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit0":
        gc.collect()
        dist.destroy_process_group()
        sys.exit(0)
    if how == "os_exit":
        os._exit(OS_EXIT_CODE)


def is_to_fail(times: int | None) -> bool:
    """Whether this attempt is one of the first so many, counted in a file of the working directory."""
    if times is None:
        return True
    tried = Path("attempts_that_failed")
    before = len(tried.read_text()) if tried.exists() else 0
    tried.write_text("x" * (before + 1))
    return before < times


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    factor = torch.ones(64, 64)
    while time.monotonic() < until:
        factor = (factor @ factor).clamp(max=1.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--fail-rank", type=int)
    parser.add_argument("--fail-at-step", type=int, default=2)
    parser.add_argument("--how", choices=("raise", "kill", "exit0", "os_exit"), default="raise")
    parser.add_argument("--fail-times", type=int, help="attempts that fail; all by default")
    parser.add_argument("--compute-node", type=int)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, per_node = dist.get_rank(), int(os.environ["LOCAL_WORLD_SIZE"])
    together = [other for other in range(dist.get_world_size()) if other // per_node != args.compute_node]
    group = None if args.compute_node is None else dist.new_group(together)
    for step in range(args.steps):
        if rank == args.fail_rank and step == args.fail_at_step and is_to_fail(args.fail_times):
            fail(args.how)
        if rank in together:
            time.sleep(args.step_s)
            value = torch.tensor([rank + 1.0])
            dist.all_reduce(value, group=group)
            print(f"step {step} sum {value.item():g}", flush=True)
        else:
            compute(args.step_s)
            print(f"step {step} computed", flush=True)
    del group
    gc.collect()  # whoever still refers to gloo's group when the interpreter is gone may be aborted within torch
    dist.destroy_process_group()
    print(f"rank {rank} done", flush=True)


if __name__ == "__main__":
    main()
