"""Training loops of many kinds, two ranks: `loops.py --kind KIND`. Rank 1 raises after `--turns` turns of the loop.

How many optimizer steps that makes is in tests/system/test_training_loops.py. Imports nothing of ddp_run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def model() -> DistributedDataParallel:
    return DistributedDataParallel(torch.nn.Linear(4, 4))


def batch() -> torch.Tensor:
    return torch.ones(2, 4)


def loss_of(net: torch.nn.Module) -> torch.Tensor:
    return net(batch()).square().mean()


def simple(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    def turn() -> None:
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()

    return turn


def sgd() -> Callable[[], object]:
    net = model()
    return simple(net, torch.optim.SGD(net.parameters(), 0.1))


def amp(*, skips: bool = False) -> Callable[[], object]:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(net) * (float("inf") if skips and turns == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return turn


def accumulate() -> Callable[[], object]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def turn() -> None:
        with net.no_sync():
            loss_of(net).backward()
        loss_of(net).backward()
        optimizer.step()
        optimizer.zero_grad()

    return turn


def gan() -> Callable[[], object]:
    maker, judge = model(), model()
    of_maker, of_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())

    def turn() -> None:
        of_judge.zero_grad()
        judge(maker(batch()).detach()).mean().backward()
        of_judge.step()
        of_maker.zero_grad()
        judge.module(maker(batch())).mean().neg().backward()
        of_maker.step()

    return turn


def lbfgs() -> Callable[[], object]:
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(net)
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


def compiled_step() -> Callable[[], object]:
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    step = torch.compile(optimizer.step, backend="eager")

    def turn() -> None:
        optimizer.zero_grad()
        loss_of(net).backward()
        step()

    return turn


def compiled_turn() -> Callable[[], object]:
    return torch.compile(sgd(), backend="eager")


def optimizer_first() -> Callable[[], object]:
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    return simple(DistributedDataParallel(layer), optimizer)


def scheduler() -> Callable[[], object]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    step = simple(net, optimizer)
    return lambda: (step(), rate.step())


class Plain(torch.optim.Optimizer):
    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter -= 0.1 * parameter.grad


def own_optimizer() -> Callable[[], object]:
    net = model()
    return simple(net, Plain(net.parameters()))


def own_step() -> Callable[[], object]:
    torch.optim.SGD.step = Plain.step
    return sgd()


def late_own_step() -> Callable[[], object]:
    turn = sgd()
    torch.optim.SGD.step = Plain.step
    return turn


class Wrapping(torch.optim.Optimizer):
    """As those that look ahead, or sharpen: it steps another one within its own step."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: object = None) -> None:
        self.inner.step()
        self.inner.step()


def wrapped() -> Callable[[], object]:
    net = model()
    return simple(net, Wrapping(torch.optim.SGD(net.parameters(), 0.1)))


def raised() -> Callable[[], object]:
    """One optimizer's step raises once; another one's go on, within a third's."""
    net = model()
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    turn = simple(net, Wrapping(torch.optim.SGD(net.parameters(), 0.1)))
    turns = 0

    def closure() -> float:
        raise MemoryError

    def one() -> None:
        nonlocal turns
        turns += 1
        if turns > 1:
            turn()
            return
        try:
            other.step(closure)
        except MemoryError:
            pass

    return one


def zero() -> Callable[[], object]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = model()
    return simple(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.1))


def fsdp() -> Callable[[], object]:
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(torch.nn.Linear(4, 4), mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    return simple(net, torch.optim.AdamW(net.parameters()))


def no_optimizer() -> Callable[[], object]:
    total = torch.ones(4)
    return lambda: dist.all_reduce(total)


def no_group() -> Callable[[], object]:
    net = torch.nn.Linear(4, 4)
    return simple(net, torch.optim.SGD(net.parameters(), 0.1))


LOOPS: dict[str, Callable[[], Callable[[], object]]] = {
    "sgd": sgd,
    "amp": amp,
    "amp-skips": lambda: amp(skips=True),
    "accumulate": accumulate,
    "gan": gan,
    "lbfgs": lbfgs,
    "compiled-step": compiled_step,
    "compiled-turn": compiled_turn,
    "optimizer-first": optimizer_first,
    "scheduler": scheduler,
    "own-optimizer": own_optimizer,
    "own-step": own_step,
    "late-own-step": late_own_step,
    "wrapped": wrapped,
    "raised": raised,
    "zero": zero,
    "fsdp": fsdp,
    "no-optimizer": no_optimizer,
    "no-group": no_group,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", required=True, choices=LOOPS)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    if args.kind != "no-group":
        dist.init_process_group("gloo")
    turn = LOOPS[args.kind]()
    for _ in range(args.turns):
        turn()
    if os.environ["RANK"] == "1":
        raise ValueError("planned")
    if args.kind != "no-group":
        dist.barrier()


main()
