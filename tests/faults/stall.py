"""A job of three ranks that comes to stand, or only seems to: `stall.py --kind KIND`. Imports nothing of ddp_run.

`HANGS` gives for each kind the rank at fault; it stands at the line marked `# KIND`. `SLOW` are the kinds that go on by
themselves after `--seconds`, and end with 0. With `--until FILE` those that ask `taking_long` go on when that file is
there, and all end when there is FILE.end. `--nccl`: on GPUs, where each rank calls itself another host, since NCCL
refuses two ranks of one host on one GPU. `--by-hand`: without DistributedDataParallel and an optimizer, as in train.py.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import http.server
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable

HANGS: dict[str, int | None] = {
    "branch": 0,
    "batches": 1,
    "spin": 1,
    "lock": 1,
    "queue": 1,
    "c-sleep": 1,
    "gil": 1,
    "gil-lock": 1,
    "stop": 1,
    "worker": 1,
    "dataset": 1,
    "no-init": 1,
    "order": 1,
    "shape": 1,
    "leave": 1,
    "subgroups": None,
    "save-pipe": 1,
    "process": 1,
    "recv": 1,
    "thread-lock": 1,
    "handle": 1,
    "poll": 1,
    "leave-poll": None,
    "mount-save": 1,
    "mount-read": 1,
    "mount-open": 1,
    "mount-map": 1,
    "vfork": 1,
    "file-lock": 1,
    "full-pipe": 1,
}
SLOW = ("evaluate", "save", "compile", "download", "debugger", "stopped", "suspended", "data", "pause", "accumulate")
SLOW += ("late-init", "startup", "wait-for-file", "timer", "upload")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", required=True, choices=[*HANGS, *SLOW])
    parser.add_argument("--folder", help="where the kinds of waiting for files find theirs")
    parser.add_argument("--seconds", type=float, default=23.0)
    parser.add_argument("--until", type=pathlib.Path)
    parser.add_argument("--nccl", action="store_true")
    parser.add_argument("--by-hand", action="store_true")
    return parser.parse_args()


args = arguments()
rank = int(os.environ["RANK"])


def taking_long() -> Callable[[], bool]:
    """Whether what begins now still has to take its time."""
    if args.until:
        return lambda: not args.until.exists()
    end = time.monotonic() + args.seconds
    return lambda: time.monotonic() < end


if args.kind == "startup":
    time.sleep(args.seconds)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402


class Numbers(Dataset[torch.Tensor]):
    """Four items, of which the third one comes only when `slow` says no more."""

    def __init__(self, path: str | None = None, slow: Callable[[], bool] | None = None) -> None:
        self.path, self.slow = path, slow

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2 and self.path:
            with open(os.open(self.path, os.O_RDWR), "rb", buffering=0) as pipe:
                pipe.read(4)  # dataset
        while index == 2 and self.slow is not None and self.slow():
            time.sleep(0.5)
        return torch.ones(4, device="cpu")


def pipe() -> str:
    """A named pipe that nobody else opens."""
    path = f"{tempfile.mkdtemp()}/pipe"
    os.mkfifo(path)
    return path


def burn() -> None:
    """Works all the while."""
    going_on = taking_long()
    while going_on():
        torch.ones(64, 64).mm(torch.ones(64, 64))


class Job:
    """A small model, and what goes wrong with it."""

    def __init__(self) -> None:
        if args.kind == "no-init" and rank == 1:
            threading.Event().wait()  # no-init
        if args.kind == "late-init" and rank == 1:
            burn()
        if args.nccl:
            os.environ |= {"NCCL_HOSTID": f"host-{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
            torch.cuda.set_device(rank % torch.cuda.device_count())
            torch.set_default_device("cuda")
        dist.init_process_group("nccl" if args.nccl else "gloo")
        layer = torch.nn.Linear(4, 4)
        self.model = layer if args.by_hand else DistributedDataParallel(layer)
        self.optimizer = None if args.by_hand else torch.optim.SGD(self.model.parameters(), 0.1)
        self.pairs = dist.new_group([0, 1]), dist.new_group([0, 1])

    def step(self) -> None:
        loss = self.model(torch.ones(2, 4)).sum()
        loss.backward()
        if self.optimizer is None:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
        else:
            self.optimizer.step()
        self.model.zero_grad()
        loss.item()  # as scripts do that log it; here a rank on a GPU waits

    def train(self, steps: int = 10) -> None:
        for _ in range(steps):
            self.step()
            time.sleep(0.02)

    def train_until_the_end(self) -> None:
        """All ranks make as many steps."""
        going_on = torch.ones(1)
        while going_on.item():
            self.train()
            going_on.fill_(float(not args.until.with_suffix(".end").exists()))
            dist.broadcast(going_on, 0)

    # -------------------------------------------------------------------------------- what hangs

    def branch(self) -> None:
        if rank == 0:
            dist.barrier()  # branch

    def batches(self) -> None:
        if rank == 1:
            dist.barrier()  # batches

    def spin(self) -> None:
        all(iter(lambda: rank == 1, False))  # spin

    def lock(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        if rank == 1:
            lock.acquire()  # lock

    def queue(self) -> None:
        if rank == 1:
            queue.Queue[int]().get()  # queue

    def c_sleep(self) -> None:
        libc = ctypes.CDLL(None)
        while rank == 1:
            libc.sleep(1000)  # c-sleep

    def gil(self) -> None:
        if rank == 1:
            re.match(r"(a+)+$", "a" * 60 + "b")  # gil

    def gil_lock(self) -> None:
        mutex = (ctypes.c_char * 64)()
        if rank == 1:
            for _ in range(2):
                ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # gil-lock

    def stop(self) -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)  # stop

    def worker(self) -> None:
        if rank == 1:
            for _ in DataLoader(Numbers(slow=lambda: True), num_workers=1):  # worker
                pass

    def dataset(self) -> None:
        if rank == 1:
            for _ in DataLoader(Numbers(path=pipe())):
                pass

    def order(self) -> None:
        if rank == 1:
            dist.broadcast(torch.ones(4), 0)  # order
            dist.all_reduce(torch.ones(4))
        else:
            dist.all_reduce(torch.ones(4))
            dist.broadcast(torch.ones(4), 0)

    def shape(self) -> None:
        size = 4 if rank == 1 else 9
        dist.all_reduce(torch.ones(size))  # shape

    def leave(self) -> None:
        if rank == 1:
            os._exit(0)
        dist.new_group([0, 1, 2])

    def subgroups(self) -> None:
        first, second = self.pairs
        if rank == 0:
            dist.all_reduce(torch.ones(4), group=first)  # subgroups
            dist.all_reduce(torch.ones(4), group=second)
        if rank == 1:
            dist.all_reduce(torch.ones(4), group=second)
            dist.all_reduce(torch.ones(4), group=first)

    def save_pipe(self) -> None:
        if rank == 1:
            torch.save(self.model.state_dict(), pipe())  # save-pipe

    def process(self) -> None:
        if rank == 1:
            subprocess.run(["sleep", "1000"])  # process

    def recv(self) -> None:
        if rank == 1:
            dist.recv(torch.ones(4), 2)  # recv

    def thread_lock(self) -> None:
        one, other = threading.Lock(), threading.Lock()

        def prefetch() -> None:
            with other:
                time.sleep(0.2)
                with one:
                    pass

        if rank == 1:
            with one:
                threading.Thread(target=prefetch, daemon=True).start()
                time.sleep(0.1)
                with other:  # thread-lock
                    pass

    def handle(self) -> None:
        if rank == 1:
            threading.Event().wait()  # handle
        work = dist.all_reduce(torch.ones(4), async_op=True)
        work.wait()

    def poll(self) -> None:
        while rank == 1 and not os.path.exists("/nowhere/done"):
            time.sleep(0.5)  # poll

    def leave_poll(self) -> None:
        if rank == 1:
            os._exit(0)
        while not os.path.exists("/nowhere/done"):
            time.sleep(0.05)  # leave-poll

    def mount_save(self) -> None:
        if rank == 1:
            torch.save(self.model.state_dict(), f"{args.folder}/ckpt.pt")  # mount-save

    def mount_read(self) -> None:
        if rank == 1:
            with open(f"{args.folder}/data.bin", "rb") as data:
                data.read(4096)  # mount-read

    def mount_open(self) -> None:
        if rank == 1:
            os.open(f"{args.folder}/data.bin", os.O_RDONLY)  # mount-open

    def mount_map(self) -> None:
        if rank == 1:
            torch.from_file(f"{args.folder}/data.bin", size=1024).sum()  # mount-map

    def vfork(self) -> None:
        if rank == 1 and ctypes.CDLL(None).vfork() == 0:
            time.sleep(10000)  # vfork

    def file_lock(self) -> None:
        with open(os.open(f"{args.folder}/lock", os.O_RDWR | os.O_CREAT), "rb") as file:
            if rank == 1:
                fcntl.flock(file, fcntl.LOCK_EX)  # file-lock

    def full_pipe(self) -> None:
        if rank == 1:
            path = pipe()
            with open(os.open(path, os.O_RDWR), "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))  # full-pipe

    # -------------------------------------------------------------------------- what only takes long

    def evaluate(self) -> None:
        if rank == 0:
            burn()
        dist.barrier()

    def save(self) -> None:
        if rank == 0:
            going_on = taking_long()
            with tempfile.TemporaryDirectory() as folder:
                while going_on():
                    torch.save({"weights": torch.ones(20_000_000)}, pathlib.Path(folder, "part.pt"))
        dist.barrier()

    def compile(self) -> None:
        def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> object:
            going_on = taking_long()
            while rank == 0 and going_on():
                time.sleep(0.5)
            return graph.forward

        torch.compile(self.model.module, backend=backend)(torch.ones(2, 4))
        dist.barrier()

    def download(self) -> None:
        if rank == 0:
            server = http.server.HTTPServer(("127.0.0.1", 0), Drip)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/") as answer:
                answer.read()
        dist.barrier()

    def debugger(self) -> None:
        if rank == 0:
            import pdb
            import pty

            keyboard, terminal = pty.openpty()
            threading.Thread(target=type_continue, args=(keyboard,)).start()
            with open(terminal) as typed:
                pdb.Pdb(stdin=typed, stdout=sys.stdout).set_trace()
        dist.barrier()

    def stopped(self) -> None:
        """The test stops and continues the ranks."""

    suspended = stopped

    def data(self) -> None:
        for _ in DataLoader(Numbers(slow=taking_long() if rank == 0 else None), num_workers=1):
            self.step()

    def pause(self) -> None:
        time.sleep(args.seconds)

    def accumulate(self) -> None:
        going_on = taking_long()
        wide = torch.nn.Linear(512, 512)
        with self.model.no_sync():
            while going_on():
                wide(torch.ones(512, 512)).sum().backward()
                self.model(torch.ones(2, 4)).sum().backward()
        dist.barrier()

    late_init = startup = stopped

    def timer(self) -> None:
        if rank == 0:
            items = queue.Queue[int]()
            threading.Timer(args.seconds, items.put, (1,)).start()
            items.get()
        dist.barrier()

    def upload(self) -> None:
        if rank == 0:
            subprocess.run(["sleep", str(args.seconds)])
        dist.barrier()

    def wait_for_file(self) -> None:
        if rank == 0:
            going_on = taking_long()
            while going_on():
                time.sleep(1.0)
        dist.barrier()


def type_continue(keyboard: int) -> None:
    going_on = taking_long()
    while going_on():
        time.sleep(0.5)
    os.write(keyboard, b"continue\n")


class Drip(http.server.BaseHTTPRequestHandler):
    """A slow server: a byte now and then."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        going_on = taking_long()
        while going_on():
            time.sleep(0.5)
            self.wfile.write(b".")

    def log_message(self, *_args: object) -> None:
        pass


if __name__ == "__main__":
    job = Job()
    job.train()
    print("training", flush=True)
    getattr(job, args.kind.replace("-", "_"))()
    if args.kind in ("stopped", "suspended"):
        job.train(300) if args.until is None else job.train_until_the_end()
    job.train()
    while args.until and not args.until.with_suffix(".end").exists():
        time.sleep(0.1)
    print("done", flush=True)
    dist.destroy_process_group()
