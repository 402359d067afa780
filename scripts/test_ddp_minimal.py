#!/usr/bin/env python3
"""Does distributed training work here at all? Six steps without any training code, exit code 0 if all pass, else 1.

    python scripts/test_ddp_minimal.py                            # one process: torch and the device
    torchrun --nproc-per-node 2 scripts/test_ddp_minimal.py       # or ddp-run in torchrun's place
    DDP_BACKEND=gloo torchrun --nproc-per-node 2 scripts/test_ddp_minimal.py   # without NCCL

On several nodes start it as the training is started. The lines of each rank begin with `[DDP-TEST] rank N:`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

try:
    from ddp_run import training
except ImportError:  # not installed: take it from the checkout that this file is in
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "supervisor"))
    from ddp_run import training

if TYPE_CHECKING:
    import torch

STEPS = ("environment", "versions", "process group", "device", "communication", "clean-up")
NAMED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PREFIXES = ("NCCL_", "GLOO_", "CUDA_", "TORCH_", "DDP_BACKEND")
ELEMENTS = 1_000_000


class Told:
    """Where the test is, for the line that says where it failed."""

    def __init__(self) -> None:
        self.rank = os.environ.get("RANK", "0")
        self.step = 0

    def begin(self) -> None:
        self.step += 1
        self.say(f"step {self.step}/{len(STEPS)}: {STEPS[self.step - 1]}")

    def say(self, text: str) -> None:
        self._write(sys.stdout, text)

    def _write(self, stream: TextIO, text: str) -> None:
        # One write a line, so that lines of different ranks do not meet in one.
        stream.write(f"[DDP-TEST] rank {self.rank}: {text}\n")
        stream.flush()

    def failed(self, error: BaseException) -> None:
        where = f"in step {self.step}/{len(STEPS)} ({STEPS[self.step - 1]})"
        text = str(error) if isinstance(error, training.SetupError) else f"{type(error).__name__}: {error}"
        for line in (f"FAILED {where}", *text.splitlines()):
            self._write(sys.stderr, line)


def environment(told: Told) -> None:
    names = [*NAMED, *sorted(name for name in os.environ if name.startswith(PREFIXES) and name not in NAMED)]
    for name in names:
        told.say(f"  {name}={os.environ.get(name, '(not set)')}")


def versions(told: Told) -> None:
    import torch
    import torch.distributed as dist

    told.say(f"  host {platform.node()}, Python {platform.python_version()}, torch {torch.__version__}")
    available = torch.cuda.is_available()
    told.say(f"  built for CUDA {torch.version.cuda or '-'}, ROCm {torch.version.hip or '-'}; available: {available}")
    if available:
        devices = range(torch.cuda.device_count())
        told.say(f"  {len(devices)} GPUs: {', '.join(torch.cuda.get_device_name(index) for index in devices)}")
    if dist.is_nccl_available():
        told.say(f"  NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    else:
        told.say("  NCCL: not in this build")


def use_device(told: Told, here: training.Placement) -> None:
    """A product whose result is known, computed there."""
    import torch

    ones = torch.ones(256, 256, device=here.device)
    result = float((ones @ ones).sum())
    if result != 256.0**3:
        raise ArithmeticError(f"{here.device} computed {result} for {256.0**3}")
    told.say(f"  {here.device} computes")


def expect(told: Told, name: str, values: torch.Tensor, expected: float) -> None:
    """All elements have the value, but for rounding, or ValueError."""
    low, high = float(values.min()), float(values.max())
    if max(abs(low - expected), abs(high - expected)) > 1e-5 * max(1.0, expected):
        raise ValueError(f"{name} gave {low:g} to {high:g}, expected {expected:g}")
    told.say(f"  {name}: {low:g}, as expected")


def communicate(told: Told, here: training.Placement) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    ranks = here.world_size
    small = torch.full((1,), float(here.rank), device=here.device)
    dist.all_reduce(small)
    expect(told, "all_reduce of the ranks' numbers", small, ranks * (ranks - 1) / 2)
    large = torch.ones(ELEMENTS, device=here.device)
    dist.all_reduce(large)
    expect(told, f"all_reduce of {ELEMENTS} ones", large, float(ranks))
    first = torch.full((1,), float(here.rank + 7), device=here.device)
    dist.broadcast(first, 0)
    expect(told, "broadcast from rank 0", first, 7.0)

    on_gpu = here.device.type == "cuda"
    linear = torch.nn.Linear(4, 1, bias=False).to(here.device)
    model = DistributedDataParallel(linear, device_ids=[here.device.index] if on_gpu else None)
    model(torch.full((1, 4), float(here.rank), device=here.device)).sum().backward()
    training.report_unused_parameters(model)
    gradient = linear.weight.grad
    if gradient is None:
        raise ValueError("DistributedDataParallel left no gradient")
    expect(told, "mean gradient of DistributedDataParallel", gradient, (ranks - 1) / 2)


def test(told: Told, timeout_s: float) -> None:
    told.begin()
    environment(told)
    told.begin()
    versions(told)
    told.begin()
    here = training.setup_distributed(timeout_s=timeout_s, single_process=True)
    told.say(f"  backend {here.backend}: rank {here.rank} of {here.world_size}, local rank {here.local_rank}")
    told.begin()
    use_device(told, here)
    told.begin()
    communicate(told, here)
    told.begin()
    finish(told, timeout_s)


def finish(told: Told, timeout_s: float) -> None:
    import torch.distributed

    # Of the key-value store first: it names the ranks that did not come this far.
    training.check_step_counts(told.step, what="steps of this test", timeout_s=timeout_s)
    torch.distributed.barrier()
    told.say("  all ranks came to the last step")
    training.cleanup()
    told.say("  process group destroyed")


def main() -> None:
    parser = argparse.ArgumentParser(description="Six steps of distributed training, without the training.")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for other ranks (default 60)")
    arguments = parser.parse_args()
    told = Told()
    try:
        test(told, arguments.timeout)
    except Exception as error:
        told.failed(error)
        raise SystemExit(1) from error
    finally:
        training.cleanup()
    told.say("PASSED all steps")


if __name__ == "__main__":
    main()
