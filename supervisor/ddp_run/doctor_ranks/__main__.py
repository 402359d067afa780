"""What each rank of the doctor's launch runs. `DDP_RUN_DOCTOR`: a folder of its node with what to do, `order.json`.

It takes the steps of every DDP job, one after the other, and reports each; what stops it is judged by ddp-run like the
failure of any script.
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
from ddp_run.doctor_ranks.telling import Report, gather  # noqa: E402

_TIMEOUT = timedelta(seconds=60)
"""Of each collective: what takes longer here does not work."""
_SIZES = tuple(1 << bits for bits in range(10, 27, 2))
"""1 KiB to 64 MiB."""
_LARGER = tuple(1 << bits for bits in (27, 28, 29, 30))
_LONG_S = 0.5
"""Of one all_reduce: larger ones, of four times the size, are left out."""


class Steps:
    """One rank's way through the checks."""

    def __init__(self, folder: str) -> None:
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        with open(os.path.join(folder, "order.json"), encoding="utf-8") as file:
            self.order: dict[str, Any] = json.load(file)
        self.full = bool(self.order["full"])
        self.report = Report(folder, self.rank)
        self.device = torch.device("cpu")
        self.backend = "gloo"

    def take(self) -> None:
        """All of them."""
        self.report.doing("import torch")
        self.report.tell("torch", seconds=time.perf_counter() - _IMPORT_BEGAN, version=torch.__version__)
        self._choose_device()
        self._make_group()
        self._meet()
        self._check_collectives()
        self._read_data()
        if dist.get_world_size() > 1:
            self._measure_all_reduce()
        if len(self.firsts) > 1:
            self._measure_pairs()
        self.report.doing("destroy the process group")
        dist.barrier()
        dist.destroy_process_group()
        self.report.tell("done")

    # --------------------------------------------------------------------------------------- what a job needs

    def _choose_device(self) -> None:
        """NCCL where each rank of the node has a GPU of its own, and computes on it; else gloo."""
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not gpus or gpus < int(os.environ["LOCAL_WORLD_SIZE"]):
            self.report.tell("device", name="cpu", gpus=gpus)
            return
        self.report.doing(f"compute on GPU {self.local_rank}")
        self.device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(self.device)
        self.backend = "nccl"
        ones = torch.ones(256, 256, device=self.device)
        right = bool(((ones @ ones) == 256).all())
        about = torch.cuda.get_device_properties(self.device)
        nccl = (
            ".".join(
                map(str, torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
            )
            if dist.is_nccl_available()
            else None
        )
        self.report.tell("device", name=about.name, gpus=gpus, right=right, nccl=nccl)

    def _make_group(self) -> None:
        self.report.doing("init_process_group")
        began = time.perf_counter()
        dist.init_process_group(self.backend, timeout=_TIMEOUT)
        took = time.perf_counter() - began
        self.node_rank = int(os.environ.get("GROUP_RANK", "0"))
        self.report.tell("group", backend=dist.get_backend(), seconds=took, world_size=dist.get_world_size())

    def _meet(self) -> None:
        """What each node is like goes to all, by its first rank."""
        self.report.doing("tell the other ranks about this node")
        mine = {"rank": self.rank, "node": self.node_rank}
        if self.local_rank == 0:
            mine |= {key: self.order[key] for key in ("host", "facts", "failed")}
        found = gather(mine, self.device)
        self.firsts = {each["node"]: each["rank"] for each in found if "host" in each}
        self.report.tell("nodes", nodes=[each for each in found if "host" in each])

    def _check_collectives(self) -> None:
        """With values of which each rank knows what must come out."""
        world = dist.get_world_size()
        self.report.doing("barrier")
        began = time.perf_counter()
        dist.barrier()
        took = time.perf_counter() - began
        self.report.doing("all_reduce")
        data = torch.arange(1000, dtype=torch.float32, device=self.device) + self.rank
        dist.all_reduce(data)
        wanted = torch.arange(1000, dtype=torch.float32) * world + world * (world - 1) / 2
        wrong = [] if torch.equal(data.cpu(), wanted) else ["all_reduce"]
        self.report.doing("broadcast")
        for source in {0, world - 1}:
            data = torch.full((1000,), float(self.rank), device=self.device)
            dist.broadcast(data, source)
            wrong += [] if bool((data == source).all()) else [f"broadcast from rank {source}"]
        found = gather({"wrong": wrong, "barrier_s": took}, self.device)
        self.report.tell("collectives", ranks=found)

    def _read_data(self) -> None:
        for path in self.order["data_paths"]:
            self.report.doing(f"read {path}")
            self.report.tell("data", path=path, ranks=gather(sampled(path, full=self.full), self.device))

    # ------------------------------------------------------------------------------------------------ measured

    def _measure_all_reduce(self) -> None:
        for size in [*_SIZES, *(_LARGER if self.full else ())]:
            if size > _SIZES[-1] and not self._all_have_room(size):
                self.report.tell("no_room", bytes=size)
                return
            self.report.doing(f"all_reduce of {f'{size >> 20} MiB' if size >= 1 << 20 else f'{size >> 10} KiB'}")
            found = measuring.all_reduce(size, self.device, full=self.full)
            self.report.tell("bandwidth", **found)
            if found["seconds"] > (_LONG_S * 20 if self.full else _LONG_S):
                self.report.tell("too_slow", bytes=size)
                return

    def _all_have_room(self, size: int) -> bool:
        """Whether four times the size is free for each rank of every node: the data, and the library's own."""
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
        else:
            free = self.order["free_memory"] // int(os.environ["LOCAL_WORLD_SIZE"])
        least = torch.tensor([float(free)], device=self.device)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        return bool(least.item() > 4 * size)

    def _measure_pairs(self) -> None:
        """One rank of each node, in rounds; then what looks slow once more, alone: it may have been busy."""
        found: list[dict[str, Any]] = []
        plan = schedule.rounds(len(self.firsts))
        for number, pairs in enumerate(plan):
            self.report.doing(f"pairs of nodes, round {number + 1} of {len(plan)}")
            found += self._measured(pairs)
        together = self._of_all(found)
        again = schedule.suspicious(together)
        for one, other in again:
            self.report.doing(f"nodes {one} and {other} again, alone")
            found += self._measured([(one, other)])
        self.report.tell("pairs", pairs=self._of_all(found) if again else together)

    def _measured(self, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
        """What this rank measured of the pairs, as the first of one; all ranks wait for each other before."""
        dist.barrier()
        for one, other in pairs:
            if self.rank in (self.firsts[one], self.firsts[other]):
                first = self.rank == self.firsts[one]
                peer = self.firsts[other] if first else self.firsts[one]
                told = measuring.pair(peer, self.device, first=first)
                return [{"nodes": [one, other], **told}] if first else []
        return []

    def _of_all(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [each for of_rank in gather(found, self.device) for each in of_rank]


if __name__ == "__main__":
    Steps(os.environ["DDP_RUN_DOCTOR"]).take()
