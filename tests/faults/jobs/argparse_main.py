"""A script as most are: argparse, a main guard, the process group taken down in `finally`.

argparse_main.py [--fault NAME] [--rank R] [--at STEP] [--steps N]
"""

import argparse
import ctypes
import errno
import gc
import os
import resource
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--path", default="")
    return parser.parse_args()


def before_init(fault):
    if fault == "raise-early":
        raise RuntimeError("no configuration")  # <- raise-early
    if fault == "missing-file":
        open("/no/such/folder/config.yaml")  # <- missing-file
    if fault == "import":
        import a_package_of_tomorrow  # <- import
    if fault == "unset-variable":
        print(os.environ["A_VARIABLE_OF_NOBODY"])  # <- unset-variable
    if fault == "cuda":
        torch.zeros(1, device="cuda")  # <- cuda
    if fault == "set-device":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # <- set-device
    if fault == "no-group":
        dist.barrier()  # <- no-group
    if fault == "sleep-early":
        print("sleeping", flush=True)
        time.sleep(600)


def load(model, fault):
    if fault == "other-shape":
        state = {"module." + name: torch.zeros(3, 3) for name in model.state_dict()}
        model.load_state_dict(state)  # <- other-shape
    if fault == "torn-checkpoint":
        with open(f"torn-{RANK}.pt", "wb") as file:
            torch.save({"weight": torch.zeros(1000)}, file)
            file.truncate(600)
        torch.load(f"torn-{RANK}.pt")  # <- torn-checkpoint


def strike(fault, path):
    if fault == "raise":
        raise ValueError("a bad sample")  # <- raise
    if fault == "exit-7":
        sys.exit(7)  # <- exit-7
    if fault == "exit-words":
        sys.exit("cannot go on")  # <- exit-words
    if fault == "os-exit-9":
        os._exit(9)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "segv":
        ctypes.string_at(0)  # <- segv
    if fault == "abort":
        os.abort()  # <- abort
    if fault == "group":
        raise ExceptionGroup("two of them", [ValueError("one"), KeyError("other")])  # <- group
    if fault == "recursion":
        strike(fault, path)  # <- recursion
    if fault == "nan":
        raise FloatingPointError("loss is nan at step 3, stopping training")  # <- nan
    if fault == "assert":
        assert path, "a path must be given"  # <- assert
    if fault == "chained":
        try:
            {}["lr"]
        except KeyError as error:
            raise RuntimeError("no learning rate") from error  # <- chained
    if fault == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        torch.zeros(1 << 40)  # <- memory
    if fault == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = [open("/dev/null") for _ in range(100)]  # <- descriptors
        print(held)
    if fault == "full-disk":
        with open(f"{path}/checkpoint.pt", "wb") as file:
            file.write(bytes(64 << 20))  # <- full-disk
    if fault == "permission":
        raise PermissionError(errno.EACCES, "Permission denied", "/data/shared/index.bin")  # <- permission
    if fault == "shapes":
        torch.zeros(4, 3) @ torch.zeros(4, 3)  # <- shapes
    if fault == "leave":
        sys.exit(0)
    if fault == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(600)


def train(args, faulty):
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    if faulty:
        load(model.module, args.fault)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.steps):
        if faulty and step == args.at:
            strike(args.fault, args.path)
        if args.fault == "slow-steps":
            time.sleep(0.2)
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        print(f"step {step}", flush=True)


def after(fault):
    if fault == "raise-late":
        raise OSError("the summary cannot be written")  # <- raise-late
    if fault == "sleep-late":
        print("sleeping", flush=True)
        time.sleep(600)


def main():
    args = parsed()
    faulty = args.rank in (RANK, -1)
    if faulty:
        before_init(args.fault)
    dist.init_process_group("nccl" if args.fault == "nccl" else "gloo")  # <- nccl
    try:
        train(args, faulty)
    finally:
        gc.collect()  # who still refers to the group then may abort within torch, under torchrun too
        dist.destroy_process_group()
    if faulty:
        after(args.fault)


if __name__ == "__main__":
    main()
