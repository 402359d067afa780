"""A small real DDP training with a fault where asked. Imports nothing of ddp_run, so it runs under any launcher.

train.py [--steps N] [--fault KIND --rank R [--step S]] [--step-s SECONDS] [--workers N] [--by-hand]

With --by-hand gradients are averaged without DistributedDataParallel and the optimizer, which take as long to load as
torch itself: for tests that ask for neither.
"""

import argparse
import atexit
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--step", type=int, default=2)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument(
        "--first-attempts", type=int, default=10**9, help="fault only while the count file is below this"
    )
    parser.add_argument("--count-file")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--by-hand", action="store_true")
    parser.add_argument("--ddp", action="store_false", dest="by_hand")
    args = parser.parse_args()

    rank = int(os.environ["RANK"])
    faulty = rank == args.rank and _attempt(args, rank) < args.first_attempts
    if faulty and args.fault == "before-init":
        raise RuntimeError("fault before init")
    if args.fault == "ignore-term" and rank != args.rank:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.fault == "save-on-term":
        signal.signal(signal.SIGTERM, lambda *_: _save_and_leave(rank))
    if args.fault == "child":
        subprocess.Popen(["sleep", "300"])

    dist.init_process_group("gloo")
    _train(args, faulty)
    gc.collect()  # whoever still refers to gloo's group when the interpreter is gone may be aborted within torch
    dist.destroy_process_group()
    print(f"rank {rank} done", flush=True)


def _train(args: argparse.Namespace, faulty: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 1)
    model = layer if args.by_hand else DistributedDataParallel(layer)
    optimizer = None if args.by_hand else torch.optim.SGD(model.parameters(), lr=0.1)
    batches = _batches(args.workers)
    for step in range(args.steps):
        if faulty and step == args.step:
            _fail(args.fault)
        time.sleep(args.step_s)
        model.zero_grad()
        loss = model(next(batches)).square().mean()
        loss.backward()
        if optimizer is None:
            _step(layer)
        else:
            optimizer.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)


def _step(layer: torch.nn.Linear) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad)
            parameter -= 0.1 / dist.get_world_size() * parameter.grad


def _attempt(args: argparse.Namespace, rank: int) -> int:
    """How often this rank was started before, counted in a file of its own."""
    if not args.count_file:
        return 0
    path = f"{args.count_file}.{rank}"
    with open(path, "a+") as file:
        file.seek(0)
        count = len(file.read())
        file.write("x")
    return count


class _Zeros(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index % 7))


def _batches(workers: int):
    if workers:
        yield from torch.utils.data.DataLoader(_Zeros(), batch_size=4, num_workers=workers)
    while True:
        yield torch.ones(4, 8)


def _save_and_leave(rank: int) -> None:
    time.sleep(0.5)
    print(f"rank {rank} saved", flush=True)
    os._exit(0)


def _fail(kind: str) -> None:
    if kind in ("raise", "ignore-term", "child"):
        raise ValueError("fault in training")
    if kind == "slow-death":
        dist.destroy_process_group()
        atexit.register(time.sleep, 1.5)
        raise ValueError("fault with slow teardown")
    if kind.startswith("exit"):
        sys.exit(int(kind.removeprefix("exit")))
    if kind == "early-leave":
        os._exit(0)
    if kind.startswith("os-exit"):
        os._exit(int(kind.removeprefix("os-exit")))
    if kind == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "abort":
        os.abort()
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "oom":
        raise MemoryError("fault: out of memory")
    if kind == "stuck-teardown":
        threading.Thread(target=time.sleep, args=(300,)).start()
        raise ValueError("fault, then a thread that stays")


if __name__ == "__main__":
    main()
