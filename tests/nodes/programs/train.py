"""A training loop on several nodes, with a fault where asked. Imports nothing of ddp_run.

Each step sums the ranks' numbers, from 1 on, with gloo's all_reduce, and prints the sum. A rank that is about to fail
writes the moment, of the monotonic clock, to the file $MARK_FILE. The ranks of `--compute-node` take no part in the sum
after init_process_group but compute for `--step-s`: such a node does not notice what becomes of the others.

With `--no-torch` the numbers go over plain TCP, for tests that ask nothing of torch, which takes 2 CPU seconds a rank.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

OS_EXIT_CODE = 7
PORT = 29900
"""Where rank 0 awaits the others, without torch. Each cluster has ports of its own."""


class Gloo:
    """The sums of these ranks of all."""

    def __init__(self, together: Sequence[int]) -> None:
        import torch
        import torch.distributed as dist

        gc.freeze()  # else gc.collect and the interpreter's end go through all objects of torch
        self._torch, self._dist = torch, dist
        dist.init_process_group("gloo")
        self._group = None if len(together) == dist.get_world_size() else dist.new_group(together)

    def sum(self, value: float) -> float:
        values = self._torch.tensor([value])
        self._dist.all_reduce(values, group=self._group)
        return float(values.item())

    def end(self) -> None:
        self._group = None
        gc.collect()  # whoever still refers to gloo's group when the interpreter is gone may be aborted within torch
        self._dist.destroy_process_group()


class Wires:
    """The same without torch: by way of rank 0. Of fewer than all ranks, only one."""

    def __init__(self, together: Sequence[int]) -> None:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._is_first, self._alone = rank == 0, len(together) < world
        assert not self._alone or len(together) == 1
        self._peers = [Peer(wire) for wire in (accepted(world - 1) if rank == 0 else [connected()])]

    def sum(self, value: float) -> float:
        if self._alone:
            return value
        if self._is_first:
            value += sum(peer.told() for peer in self._peers)
        for peer in self._peers:
            peer.tell(value)
        return value if self._is_first else self._peers[0].told()

    def end(self) -> None:
        self._peers.clear()


class Peer:
    """Whoever loses it raises what gloo raises then."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._name = "[{}]:{}".format(*wire.getpeername())

    def tell(self, value: float) -> None:
        try:
            self._wire.sendall(struct.pack("d", value))
        except ConnectionError:
            raise self._lost() from None

    def told(self) -> float:
        try:
            data = self._wire.recv(8, socket.MSG_WAITALL)
        except ConnectionError:
            data = b""
        if not data:
            raise self._lost()
        return float(*struct.unpack("d", data))

    def _lost(self) -> RuntimeError:
        return RuntimeError(f"[gloo/transport/tcp/pair.cc:525] Connection closed by peer {self._name}")


def accepted(peers: int) -> list[socket.socket]:
    with socket.create_server(("", PORT)) as server:
        return [server.accept()[0] for _ in range(peers)]


def connected() -> socket.socket:
    while True:
        try:
            return socket.create_connection((os.environ["MASTER_ADDR"], PORT))
        except ConnectionRefusedError:
            time.sleep(0.05)


def fail(how: str, sums: Gloo | Wires) -> None:
    if "MARK_FILE" in os.environ:
        Path(os.environ["MARK_FILE"]).write_text(repr(time.monotonic()))
    if how == "raise":
        raise ValueError("fault in training")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit0":
        sums.end()
        sys.exit(0)
    if how == "os_exit":
        os._exit(OS_EXIT_CODE)


def is_to_fail(times: int | None) -> bool:
    """Whether this attempt is one of the first so many, counted in a file of the working directory."""
    if times is None:
        return True
    tried = Path("attempts_that_failed")
    before = len(tried.read_text()) if tried.exists() else 0
    tried.write_text("x" * (before + 1))
    return before < times


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--fail-rank", type=int)
    parser.add_argument("--fail-at-step", type=int, default=2)
    parser.add_argument("--how", choices=("raise", "kill", "exit0", "os_exit"), default="raise")
    parser.add_argument("--fail-times", type=int, help="attempts that fail; all by default")
    parser.add_argument("--compute-node", type=int)
    parser.add_argument("--no-torch", dest="sums", action="store_const", const=Wires, default=Gloo)
    args = parser.parse_args()

    rank, per_node = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    ranks = range(int(os.environ["WORLD_SIZE"]))
    together = [other for other in ranks if other // per_node != args.compute_node]
    sums = args.sums(together)
    for step in range(args.steps):
        if rank == args.fail_rank and step == args.fail_at_step and is_to_fail(args.fail_times):
            fail(args.how, sums)
        if rank in together:
            time.sleep(args.step_s)
            print(f"step {step} sum {sums.sum(rank + 1.0):g}", flush=True)
        else:
            compute(args.step_s)
            print(f"step {step} computed", flush=True)
    sums.end()
    print(f"rank {rank} done", flush=True)


if __name__ == "__main__":
    main()
