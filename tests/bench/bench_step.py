"""What the hooks cost a training: a step with and without them, and whether anything of it changes.

    python tests/bench/bench_step.py [--steps N] [--rounds N]

Runs itself in turns as plain Python and as a rank with hooks, and prints the best of each, in CPU time of its thread:
`optimizer.step()` of one small SGD (where a fixed cost shows most) and a whole training step. And whether all losses
are equal bit by bit, and the number of graph breaks of a compiled model (backend "eager").
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from ddp_run.launch import RANK_PROGRAM


def measured(steps: int) -> dict[str, object]:
    """Runs in the child: nanoseconds a step, the losses, and the graph breaks."""
    import torch
    import torch.distributed as dist

    untyped: Any = torch
    dist.init_process_group("gloo", store=untyped.distributed.HashStore(), rank=0, world_size=1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    weight = torch.ones(1, requires_grad=True)
    weight.grad = torch.ones(1)
    small = torch.optim.SGD([weight], lr=1e-9)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(32, 64)
    losses = []

    def step() -> None:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())

    def timed(call: Callable[[], object], count: int) -> float:
        for _ in range(count // 10):
            call()
        begin = time.thread_time_ns()
        for _ in range(count):
            call()
        return (time.thread_time_ns() - begin) / count

    small_ns, step_ns = timed(small.step, 20 * steps), timed(step, steps)
    whole = untyped._dynamo.explain(lambda x: (model.module(x) * 2).sum())
    explained = whole(batch)
    compiled = untyped.compile(model.module, backend="eager")
    losses.append(compiled(batch).sum().item().hex())
    dist.destroy_process_group()
    return {"small_ns": small_ns, "step_ns": step_ns, "losses": losses, "breaks": explained.graph_break_count}


def run(hooked: bool, steps: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1"}
        words = [sys.executable, "-u"]
        if hooked:
            boot = {"socket": f"{folder}/events.sock", "folder": folder, "relative": "r", "watch": {}}
            environment["DDP_RUN_BOOT"] = json.dumps(boot)
            words += [str(RANK_PROGRAM), "script"]
        words += [__file__, "--child", "--steps", str(steps)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert os.path.exists(f"{folder}/board_0_0") is hooked
        return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measured(args.steps)))
        return
    plain, hooked = [], []
    for _ in range(args.rounds):
        plain.append(run(False, args.steps))
        hooked.append(run(True, args.steps))
    for name in ("small_ns", "step_ns"):
        one, other = (min(float(str(each[name])) for each in rounds) for rounds in (plain, hooked))
        print(f"{name}: {one:.0f} without, {other:.0f} with hooks, {other - one:+.0f} ns ({(other / one - 1):+.2%})")
    alike = all(each["losses"] == plain[0]["losses"] for each in [*plain, *hooked])
    print(f"losses equal bit by bit: {alike}; graph breaks: {plain[0]['breaks']} and {hooked[0]['breaks']}")


if __name__ == "__main__":
    main()
