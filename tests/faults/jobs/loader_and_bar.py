"""DataLoader workers, and a progress bar on stderr.

loader_and_bar.py FAULT RANK
"""

import gc
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FAULT, FAULTY = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])
HERE = RANK == FAULTY


class Numbers(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        if HERE and index >= 40:
            if FAULT == "sample":
                raise KeyError(f"sample {index} has no label")  # <- sample
            if FAULT == "worker-killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if FAULT == "worker-exits":
                os._exit(5)
            if FAULT == "ragged":
                return torch.ones(index % 7 + 1)
            if FAULT == "missing-sample":
                open(f"/data/none/{index}.jpg", "rb")  # <- missing-sample
        return torch.full((8,), float(index))


def bar(step, total):
    done = f"{step * 100 // total:3d}%|{'#' * step:<{total}}| {step}/{total}"
    sys.stderr.write(f"\r{done} [00:0{step % 10}<00:01, 9.87it/s]")
    sys.stderr.flush()


def main():
    dist.init_process_group("gloo")
    data = Numbers()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step, batch in enumerate(loader):  # <- loader
        if FAULT == "in-the-bar" and HERE and step == 4:
            raise ZeroDivisionError("no samples in this shard")  # <- in-the-bar
        if FAULT == "killed-in-the-bar" and HERE and step == 4:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        bar(step + 1, len(loader))
    gc.collect()  # who still refers to the group then may abort within torch, under torchrun too
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
