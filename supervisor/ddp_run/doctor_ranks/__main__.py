"""What each of the doctor's ranks runs. `DDP_RUN_DOCTOR` names a folder on its node, with `order.json`: what to do.

It takes the steps of every DDP job, one by one, and reports each. If a step fails, ddp-run judges it like the failure
of any script.
"""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from typing import Any

_IMPORT_BEGAN = time.perf_counter()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from ddp_run.doctor_ranks import measuring, schedule  # noqa: E402
from ddp_run.doctor_ranks.sampling import sampled  # noqa: E402

_TIMEOUT = timedelta(seconds=60)
"""For each collective: one that takes longer here doesn't work."""
_SIZES = tuple(1 << bits for bits in range(10, 27, 2))
"""1 KiB to 64 MiB."""
_LARGER = tuple(1 << bits for bits in (27, 28, 29, 30))
_LONG_S = 0.5
"""For one all_reduce: after a longer one, larger sizes are left out."""


class Steps:
    """One rank's steps. Each report is a line of JSON in the rank's file, for the doctor on its node."""

    def __init__(self, folder: str) -> None:
        self.rank, self.local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        with open(os.path.join(folder, "order.json"), encoding="utf-8") as file:
            self.order: dict[str, Any] = json.load(file)
        self.full = bool(self.order["full"])
        path = os.path.join(folder, f"rank_{self.rank}.jsonl")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.device = torch.device("cpu")
        self.backend = "gloo"

    def report(self, kind: str, **fields: Any) -> None:
        """Write a report as a whole line, at once."""
        os.write(self._fd, json.dumps({"report": kind, **fields}).encode() + b"\n")

    def doing(self, step: str) -> None:
        """Report a step before it begins: if the ranks end during it, the doctor names it."""
        self.report("doing", what=step)

    def take(self) -> None:
        """Take all steps."""
        self.doing("import torch")
        self.report("torch", seconds=time.perf_counter() - _IMPORT_BEGAN, version=torch.__version__)
        self._choose_device()
        self._make_group()
        self._introduce_nodes()
        self._check_collectives()
        self._read_data()
        if dist.get_world_size() > 1:
            self._measure_all_reduce()
        if len(self.firsts) > 1:
            self._measure_pairs()
        self.doing("destroy the process group")
        dist.barrier()
        dist.destroy_process_group()
        self.report("done")

    # --------------------------------------------------------------------------------------- what a job needs

    def _choose_device(self) -> None:
        """Choose NCCL and compute on a GPU if each rank of the node has its own; else choose gloo."""
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not gpus or gpus < int(os.environ["LOCAL_WORLD_SIZE"]):
            self.report("device", name="cpu", gpus=gpus)
            return
        self.doing(f"compute on GPU {self.local_rank}")
        self.device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(self.device)
        self.backend = "nccl"
        ones = torch.ones(256, 256, device=self.device)
        right = bool(((ones @ ones) == 256).all())
        name = torch.cuda.get_device_properties(self.device).name
        version = torch.cuda.nccl.version() if dist.is_nccl_available() else ()
        self.report("device", name=name, gpus=gpus, right=right, nccl=".".join(map(str, version)) or None)

    def _make_group(self) -> None:
        self.doing("init_process_group")
        began = time.perf_counter()
        dist.init_process_group(self.backend, timeout=_TIMEOUT)
        took = time.perf_counter() - began
        self.report("group", backend=dist.get_backend(), seconds=took, world_size=dist.get_world_size())

    def _introduce_nodes(self) -> None:
        """Send what each node's first rank knows about its node to all ranks."""
        self.doing("exchange facts about the nodes")
        mine = {"rank": self.rank, "node": int(os.environ.get("GROUP_RANK", "0"))}
        if self.local_rank == 0:
            mine |= {key: self.order[key] for key in ("host", "facts", "failed")}
        nodes = [each for each in self._gather(mine) if "host" in each]
        self.firsts = {each["node"]: each["rank"] for each in nodes}
        self.report("nodes", nodes=nodes)

    def _check_collectives(self) -> None:
        """Run collectives whose results each rank knows."""
        world = dist.get_world_size()
        self.doing("barrier")
        began = time.perf_counter()
        dist.barrier()
        took = time.perf_counter() - began
        self.doing("all_reduce")
        data = torch.arange(1000, dtype=torch.float32, device=self.device) + self.rank
        dist.all_reduce(data)
        wanted = torch.arange(1000, dtype=torch.float32) * world + world * (world - 1) / 2
        wrong = [] if torch.equal(data.cpu(), wanted) else ["all_reduce"]
        self.doing("broadcast")
        for source in {0, world - 1}:
            data = torch.full((1000,), float(self.rank), device=self.device)
            dist.broadcast(data, source)
            wrong += [] if bool((data == source).all()) else [f"broadcast from rank {source}"]
        self.report("collectives", ranks=self._gather({"wrong": wrong, "barrier_s": took}))

    def _read_data(self) -> None:
        for path in self.order["data_paths"]:
            self.doing(f"read {path}")
            self.report("data", path=path, ranks=self._gather(sampled(path, full=self.full)))

    def _gather(self, told: Any) -> list[Any]:
        """Return what each rank told, by rank. It's sent as JSON: gather_object would unpickle what others send."""
        text = json.dumps(told).encode()
        lengths = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(dist.get_world_size())]
        dist.all_gather(lengths, torch.tensor([len(text)], dtype=torch.int64, device=self.device))
        sizes = [int(length.item()) for length in lengths]
        mine = torch.zeros(max(sizes), dtype=torch.uint8, device=self.device)
        mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.device)
        theirs = [torch.zeros_like(mine) for _ in sizes]
        dist.all_gather(theirs, mine)
        return [json.loads(bytes(data[:size].cpu().tolist())) for data, size in zip(theirs, sizes, strict=True)]

    # ------------------------------------------------------------------------------------------ measurements

    def _measure_all_reduce(self) -> None:
        for size in [*_SIZES, *(_LARGER if self.full else ())]:
            if size > _SIZES[-1] and not self._all_have_room(size):
                self.report("no_room", bytes=size)
                return
            self.doing(f"all_reduce of {f'{size >> 20} MiB' if size >= 1 << 20 else f'{size >> 10} KiB'}")
            found = measuring.all_reduce(size, self.device, full=self.full)
            self.report("bandwidth", **found)
            if found["seconds"] > (_LONG_S * 20 if self.full else _LONG_S):
                self.report("too_slow", bytes=size)
                return

    def _all_have_room(self, size: int) -> bool:
        """Return whether each rank has four times the size free: for the data, and for the library's buffers."""
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
        else:
            free = self.order["free_memory"] // int(os.environ["LOCAL_WORLD_SIZE"])
        least = torch.tensor([float(free)], device=self.device)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        return bool(least.item() > 4 * size)

    def _measure_pairs(self) -> None:
        """Measure pairs of the nodes' first ranks, in rounds; then slow ones again, alone: they may have been busy."""
        found: list[dict[str, Any]] = []
        plan = schedule.rounds(len(self.firsts))
        for number, pairs in enumerate(plan):
            self.doing(f"pairs of nodes, round {number + 1} of {len(plan)}")
            found += self._measured(pairs)
        told = schedule.best(self._of_all(found))
        for _ in range(schedule.TIMES):
            again = schedule.suspicious(told)
            if not again:
                break
            found = []
            for one, other in again:
                self.doing(f"nodes {one} and {other} again, alone")
                found += self._measured([(one, other)])
            told = schedule.best([*told, *self._of_all(found)])
        self.report("pairs", pairs=told)

    def _measured(self, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
        """Wait for all ranks, then measure this rank's pair. Only the first rank of a pair returns it."""
        dist.barrier()
        for one, other in pairs:
            if self.rank in (self.firsts[one], self.firsts[other]):
                first = self.rank == self.firsts[one]
                peer = self.firsts[other] if first else self.firsts[one]
                told = measuring.pair(peer, self.device, first=first)
                return [{"nodes": [one, other], **told}] if first else []
        return []

    def _of_all(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [each for of_rank in self._gather(found) for each in of_rank]


if __name__ == "__main__":
    Steps(os.environ["DDP_RUN_DOCTOR"]).take()
