"""A healthy job drawn from a seed: `healthy.py --seed N --seconds S`. It ends with 0, whatever it does on the way.

All ranks draw the same chapters. Each is something that real jobs do and that may look like a hang: one rank alone at
work, or waiting for what comes from outside, while the others wait for it. Imports nothing of ddp_run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import fcntl
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SHARED = Path(tempfile.gettempdir(), "ddp-run-soak-" + os.environ["MASTER_PORT"])


class Slow(Dataset[torch.Tensor]):  # type: ignore[misc]
    """A few items, of which one takes long."""

    def __init__(self, seconds: float, at: int = 3) -> None:
        self.seconds, self.at = seconds, at

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.at:
            time.sleep(self.seconds)
        return torch.ones(16)


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.ones(64, 64).mm(torch.ones(64, 64))


class Job:
    """`draw` gives the same numbers on all ranks, `own` other ones on each."""

    def __init__(self, seed: int) -> None:
        self.draw, self.own = random.Random(seed), random.Random(f"{seed} {rank}")
        self.begin()

    def begin(self) -> None:
        if self.draw.random() < 0.3:
            time.sleep(self.own.uniform(0, 8))
        dist.init_process_group("gloo")
        self.model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 1)))
        kind = self.draw.choice([torch.optim.SGD, torch.optim.AdamW])
        self.optimizer = kind(self.model.parameters(), 1e-3)
        self.step_s = self.draw.choice([0.0, 0.01, 0.1, 1.0])
        self.slow_rank = self.draw.choice([None, self.draw.randrange(size)])
        self.train()

    def alone(self) -> float:
        """Seconds that one rank is alone with something."""
        return self.draw.choice([2.0, 10.0, 20.0, 30.0, 45.0])

    def step(self, batch: torch.Tensor | None = None) -> None:
        pause = self.step_s * self.own.uniform(0.7, 1.3) * (2.5 if rank == self.slow_rank else 1.0)
        time.sleep(pause) if self.own.random() < 0.5 else burn(pause)
        self.model(torch.ones(2, 16) if batch is None else batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    # ------------------------------------------------------------------------------------- chapters

    def train(self) -> None:
        end = time.monotonic() + self.draw.uniform(2, 20)
        go_on = torch.ones(1)
        while go_on.item():
            self.step()
            go_on.fill_(float(time.monotonic() < end))
            dist.broadcast(go_on, 0)

    def evaluate(self) -> None:
        seconds, who = self.alone(), self.draw.randrange(size)
        if rank == who:
            burn(seconds)
        dist.barrier()

    def evaluate_apart(self) -> None:
        seconds = self.alone()
        burn(seconds * self.own.random())
        dist.all_reduce(torch.ones(4))

    def wait_for_a_thread(self) -> None:
        seconds = self.alone()
        if rank == 0:
            items = queue.Queue[int]()
            threading.Timer(seconds, items.put, (1,)).start()
            items.get()
        dist.barrier()

    def wait_for_a_thread_at_work(self) -> None:
        seconds = self.alone()
        if rank == 0:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                pool.submit(burn, seconds).result()
        dist.barrier()

    def wait_for_a_lock(self) -> None:
        """A background thread saves under a lock that the main thread wants, too."""
        seconds = self.alone()
        if rank == 0:
            lock, taken = threading.Lock(), threading.Event()

            def save() -> None:
                with lock, tempfile.TemporaryDirectory() as folder:
                    taken.set()
                    end = time.monotonic() + seconds
                    while time.monotonic() < end:
                        torch.save(torch.ones(1_000_000), Path(folder, "part.pt"))
                        time.sleep(0.5)

            threading.Thread(target=save).start()
            taken.wait()
            with lock:
                pass
        dist.barrier()

    def wait_for_a_process(self) -> None:
        seconds = self.alone()
        if rank == 0:
            subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=True)
        dist.barrier()

    def file_lock(self) -> None:
        seconds = self.alone()
        with open(SHARED, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not self.own.randrange(size):
                time.sleep(seconds / 2)
            fcntl.flock(file, fcntl.LOCK_UN)
        dist.barrier()

    def one_after_the_other(self) -> None:
        seconds = self.alone() / size
        for turn in range(size):
            if rank == turn:
                burn(seconds)
            dist.barrier()

    def save(self) -> None:
        if rank == 0:
            with tempfile.TemporaryDirectory() as folder:
                for _ in range(self.own.randrange(1, 20)):
                    torch.save({"weights": torch.ones(5_000_000)}, Path(folder, "part.pt"))
        dist.barrier()

    def slow_batch(self) -> None:
        seconds, workers, who = self.alone(), self.draw.choice([0, 1, 2]), self.draw.randrange(size)
        for batch in DataLoader(Slow(seconds if rank == who else 0.0), batch_size=2, num_workers=workers):
            self.step(batch)

    def pause(self) -> None:
        time.sleep(self.alone())

    def store(self) -> None:
        seconds, mark = self.alone(), f"soak-{self.draw.random()}"
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            time.sleep(seconds)
            store.set(mark, "ready")
        else:
            store.wait([mark])
        dist.barrier()

    def pipeline(self) -> None:
        """Each rank waits for the one before it."""
        seconds = self.alone() / size
        for _ in range(2):
            if rank > 0:
                dist.recv(torch.ones(4), rank - 1)
            burn(seconds / 2)
            if rank < size - 1:
                dist.send(torch.ones(4), rank + 1)

    def subgroups(self) -> None:
        half = dist.new_group(list(range(max(1, size // 2))))
        other = dist.new_group(list(range(max(1, size // 2), size))) if size > 1 else half
        mine = half if rank < max(1, size // 2) else other
        for _ in range(self.own.randrange(1, 4) if size < 2 else 3):
            dist.all_reduce(torch.ones(8), group=mine)
        if mine is half and rank == 0:
            time.sleep(self.alone())
        else:
            self.alone()
        if mine is half:
            dist.all_reduce(torch.ones(8), group=half)
        dist.barrier()

    def objects(self) -> None:
        seconds = self.alone()
        if rank == size - 1:
            burn(seconds)
        gathered: list[object] = [None] * size
        dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 1000})
        dist.broadcast_object_list([gathered], 0)

    def large(self) -> None:
        for _ in range(3):
            dist.all_reduce(torch.ones(10_000_000))

    def many_small(self) -> None:
        for _ in range(500):
            dist.all_reduce(torch.ones(1))

    def uneven(self) -> None:
        """Ranks with fewer batches shadow the others' collectives; the model goes on with those after it."""
        model = DistributedDataParallel(torch.nn.Linear(16, 1))
        with Join([model]):
            for _ in range(3 + rank % 3):
                model(torch.ones(2, 16)).sum().backward()
        dist.barrier()

    def monitored(self) -> None:
        seconds = self.alone()
        if rank == size - 1:
            time.sleep(seconds)
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=300))

    def accumulate(self) -> None:
        with self.model.no_sync():
            end = time.monotonic() + self.alone()
            while time.monotonic() < end:
                self.model(torch.ones(2, 16)).sum().backward()
        self.step()

    def late_end(self) -> None:
        """Rank 0 goes on alone when all is done.

        The pause: a model whose reducer goes while gloo's thread lets go of a tensor deadlocks (torch 2.13), and so
        does a second process group after the first (under torchrun, too): neither is healthy.
        """
        dist.barrier()
        time.sleep(0.5)
        dist.destroy_process_group()
        seconds = self.alone()
        if rank == 0:
            self.draw.choice([burn, time.sleep])(seconds)


CHAPTERS = [name for name, value in vars(Job).items() if callable(value) and name[0] != "_"]
CHAPTERS = [name for name in CHAPTERS if name not in ("begin", "alone", "step", "late_end")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--chapter", choices=CHAPTERS, help="only this one")
    args = parser.parse_args()
    job = Job(args.seed)
    begin = time.monotonic()
    go_on = torch.ones(1)
    while go_on.item():
        name = args.chapter or job.draw.choice([*CHAPTERS, "train", "train"])
        print(f"{time.monotonic() - begin:.0f} s: {name}", flush=True)
        getattr(job, name)()
        job.train()
        go_on.fill_(float(time.monotonic() - begin < args.seconds))
        dist.broadcast(go_on, 0)
    job.late_end()
    print("done", flush=True)


if __name__ == "__main__":
    main()
