"""An engine that is a context manager: it makes the process group and takes it down.

engine.py FAULT RANK
"""

import gc
import os
import sys

import torch
import torch.distributed as dist

FAULT, FAULTY = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])
HERE = FAULTY in (RANK, -1)


class Engine:
    def __init__(self):
        if FAULT == "construct" and HERE:
            raise ValueError("unknown precision 'bf17'")  # <- construct

    def __enter__(self):
        dist.init_process_group("gloo")
        if FAULT == "enter" and HERE:
            raise RuntimeError("no such device mesh")  # <- enter
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
        return self

    def __exit__(self, *raised):
        if FAULT == "exit" and HERE:
            raise BufferError("the queue is not empty")  # <- exit
        gc.collect()  # who still refers to the group then may abort within torch, under torchrun too
        dist.destroy_process_group()

    def step(self, batch):
        self.optimizer.zero_grad()
        (self.weight * batch).sum().backward()  # <- body
        dist.all_reduce(self.weight.grad)
        self.optimizer.step()


def batches(count):
    for number in range(count):
        if FAULT == "generator" and HERE and number == 3:
            raise StopAsyncIteration("the stream ended early")  # <- generator
        yield torch.randn(8)


def main():
    with Engine() as engine:
        for number, batch in enumerate(batches(6)):
            if FAULT == "body" and HERE and number == 3:
                engine.step(torch.randn(9))
            if FAULT == "code" and HERE and number == 3:
                raise SystemExit(42)  # <- code
            if FAULT == "suppressed" and HERE and number == 3:
                try:
                    raise ValueError("a first one that is handled")
                except ValueError:
                    pass
                raise IndexError("list index out of range")  # <- suppressed
            engine.step(batch)


main()
