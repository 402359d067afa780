"""The program of `ddp-run selftest`'s ranks: they meet over gloo and agree on a sum.

Given a rank and an exit code, that rank then exits with that code.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

_PATIENCE = timedelta(seconds=15)


def main(failing_rank: int | None = None, exit_code: int = 0) -> None:
    """Add up the ranks' numbers (from 1), then count the ranks."""
    dist.init_process_group("gloo", timeout=_PATIENCE)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    _add_up(rank + 1, sum(range(1, ranks + 1)))
    if rank == failing_rank:
        os._exit(exit_code)  # after sys.exit, torch may abort: its process group is in use
    _add_up(1, ranks)
    dist.destroy_process_group()


def _add_up(mine: int, expected: int) -> None:
    number = torch.tensor([mine])
    dist.all_reduce(number)
    if number.item() != expected:
        sys.exit(f"all_reduce gave {number.item()} instead of {expected}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
