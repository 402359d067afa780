"""Measures how fast ranks talk: all_reduce by size, and pairs of nodes. All ranks call these at the same time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ddp_run.doctor_ranks import schedule

_LEAST_ROUNDS, _MOST_ROUNDS = 3, 20
_BUDGET_S = 0.4
"""For all rounds of one size."""
_PING_ROUNDS = 30


def all_reduce(size: int, device: torch.device, *, full: bool) -> dict[str, Any]:
    """Measure an all_reduce of `size` bytes: median seconds of the slowest rank, over rounds after a warm-up.

    `wrong`: whether this rank got a wrong sum. Bus bandwidth in GB/s as nccl-tests defines it (doc/PERFORMANCE.md):
    bytes / seconds * 2 (n - 1) / n.
    """
    world = dist.get_world_size()
    data = torch.empty(size // 4, dtype=torch.float32, device=device)
    warm_up = max(_timed(data), _timed(data))
    rounds = _agreed_rounds(warm_up, device, budget_s=_BUDGET_S * (4 if full else 1))
    times, wrong = [], False
    for _ in range(rounds):
        times.append(_timed(data))
        wrong |= not bool((data == world).all())
    took = torch.tensor(times, dtype=torch.float32, device=device)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    seconds = statistics.median(took.tolist())
    algorithm = size / seconds / 1e9
    bus = algorithm * 2 * (world - 1) / world
    return {"bytes": size, "seconds": seconds, "algbw": algorithm, "busbw": bus, "rounds": rounds, "wrong": wrong}


def _timed(data: torch.Tensor) -> float:
    data.fill_(1.0)
    _wait(data.device)
    began = time.perf_counter()
    dist.all_reduce(data)
    _wait(data.device)
    return time.perf_counter() - began


def _agreed_rounds(warm_up_s: float, device: torch.device, *, budget_s: float) -> int:
    """Return how many rounds fit for the slowest rank: all ranks must make the same number of calls."""
    slowest = torch.tensor([warm_up_s], dtype=torch.float32, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(budget_s / max(slowest.item(), 1e-6))))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def pair(peer: int, device: torch.device, *, first: bool) -> dict[str, float]:
    """Measure the way to another rank and back: seconds one way for 8 bytes, and bytes per second for 4 MiB.

    The best round counts, not the median: other work on a host makes single rounds slow, a bad wire all of them. If
    4 MiB take too long, it sends less: all other ranks wait meanwhile.
    """
    small = torch.zeros(2, dtype=torch.float32, device=device)
    _to_and_fro(small, peer, first=first)  # the first use makes the connection
    latency = min(_to_and_fro(small, peer, first=first) for _ in range(_PING_ROUNDS)) / 2
    return {"latency_s": latency, "bytes_per_s": _bandwidth(peer, device, schedule.PAIR_SIZES, first=first)}


def _bandwidth(peer: int, device: torch.device, sizes: Sequence[int], *, first: bool) -> float:
    """Return bytes per second one way, for the largest of these sizes that doesn't take too long."""
    data, told = torch.zeros(sizes[0] // 4, device=device), torch.zeros(1, device=device)
    took = _to_and_fro(data, peer, first=first)
    if first:
        told.fill_(schedule.further_rounds(sizes, took))
    _to_and_fro(told, peer, first=first)
    further = int(told.item())
    if further < 0:
        return _bandwidth(peer, device, sizes[1:], first=first)
    # the first round grows the connection's windows: it counts only if it's the only one
    times = [_to_and_fro(data, peer, first=first) for _ in range(further)] or [took]
    return sizes[0] / (min(times) / 2)


def _to_and_fro(data: torch.Tensor, peer: int, *, first: bool) -> float:
    _wait(data.device)
    began = time.perf_counter()
    if first:
        dist.send(data, peer)
        dist.recv(data, peer)
    else:
        dist.recv(data, peer)
        dist.send(data, peer)
    _wait(data.device)
    return time.perf_counter() - began
