"""What the hooks cost a training: a step with and without them, and whether anything of it changes.

    python tests/bench/bench_step.py [--steps N] [--rounds N]

Runs itself in turns as plain Python and as a rank with hooks. Prints what the hook adds to `optimizer.step()` of one
small SGD (where a fixed cost shows most): in a rank, steps with and without it in turns, the difference at the first
decile (what is undisturbed) and in the median. Then the best whole training step of each; whether all losses are equal
bit by bit; and the number of graph breaks of a compiled model (backend "eager").
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
from statistics import median, quantiles
from typing import Any

from ddp_run.plan.launch_plan import RANK_PROGRAM

TURNS, BATCH = 3000, 4


def measured(steps: int) -> dict[str, Any]:
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

    hook_ns = added_by_hooks(small.step, sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks)
    step_ns = timed(step, steps)
    whole = untyped._dynamo.explain(lambda x: (model.module(x) * 2).sum())
    explained = whole(batch)
    compiled = untyped.compile(model.module, backend="eager")
    losses.append(compiled(batch).sum().item().hex())
    dist.destroy_process_group()
    return {"hook_ns": hook_ns, "step_ns": step_ns, "losses": losses, "breaks": explained.graph_break_count}


def added_by_hooks(call: Callable[[], object], hooks: dict[int, object]) -> tuple[float, float]:
    """Nanoseconds that a call takes longer with what is in `hooks` than without it: at the first decile, in the median.

    Single calls in short turns: on a virtual machine the pace changes by half within a second.
    """
    kept = dict(hooks)
    took: dict[bool, list[int]] = {True: [], False: []}
    clock = time.perf_counter_ns
    for turn in range(TURNS):
        for filled in (turn % 2 == 0, turn % 2 == 1):
            hooks.clear()
            hooks.update(kept if filled else {})
            call()
            for _ in range(BATCH):
                begin = clock()
                call()
                took[filled].append(clock() - begin)
    hooks.clear()
    hooks.update(kept)
    first = {filled: quantiles(each, n=10)[0] for filled, each in took.items()}
    return first[True] - first[False], median(took[True]) - median(took[False])


def run(hooked: bool, steps: int) -> dict[str, Any]:
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
    deciles, medians = zip(*(each["hook_ns"] for each in hooked), strict=True)
    for name, added in (("first decile", deciles), ("median", medians)):
        listed = ", ".join(f"{each:+.0f}" for each in added)
        print(f"added to optimizer.step(), {name}: {listed} ns; median {median(added):+.0f} ns")
    one, other = (min(float(str(each["step_ns"])) for each in rounds) for rounds in (plain, hooked))
    print(f"whole step: {one:.0f} ns without, {other:.0f} with hooks ({(other / one - 1):+.2%})")
    alike = all(each["losses"] == plain[0]["losses"] for each in [*plain, *hooked])
    print(f"losses equal bit by bit: {alike}; graph breaks: {plain[0]['breaks']} and {hooked[0]['breaks']}")


if __name__ == "__main__":
    main()
