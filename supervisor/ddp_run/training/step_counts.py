"""Whether all ranks did the same number of steps: checked before a rank with more waits forever."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_run.training.told import StepCountError

_MOST_S_BETWEEN_LOOKS = 0.25
_LET_READ_S = 5.0


def check_step_counts(steps: int, *, what: str = "", timeout_s: float = 60.0) -> None:
    """Compare this rank's number of steps with the other ranks'; every rank must call it, equally often.

    Called before an epoch with `len(loader)`, it finds the mistake before a rank waits for one that has finished.
    `what` (such as "epoch 3") only goes into the message. Waits at most `timeout_s` seconds for the others. It uses the
    group's key-value store, not a collective, so it is safe while another rank is inside one. Does nothing without a
    process group.

    Raises StepCountError on every rank that called, with all known counts; torch's own error if the store is gone.
    """
    import torch.distributed

    dist: Any = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        return
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("ddp_run.training/steps", dist.distributed_c10d._get_default_store())
    # The store keeps the number of this check, so that it fits the keys after a restart.
    number = store.add(f"calls/{rank}", 1)
    store.set(f"{number}/{rank}", str(int(steps)))
    if store.add(f"{number}/arrived", 1) == world_size:
        store.set(f"{number}/complete", "1")
        _forget(store, number - 1, world_size)
    complete = _appears(store, f"{number}/complete", timeout_s)
    counts = _counts(store, number, world_size)
    if complete and store.add(f"{number}/read", 1) == world_size:
        store.set(f"{number}/all-read", "1")
    if complete and rank == 0:
        # The store may be in this process, which may end next: wait until the others have read.
        _appears(store, f"{number}/all-read", _LET_READ_S)
    if not complete and len(counts) < world_size:
        raise _absent(rank, counts, world_size, what, timeout_s)
    if len(set(counts.values())) > 1:
        raise _different(counts, what)


def _forget(store: Any, number: int, world_size: int) -> None:
    """Remove this check's keys: every rank is in a later check."""
    if number > 0:
        for name in ("arrived", "complete", "read", "all-read", *map(str, range(world_size))):
            store.delete_key(f"{number}/{name}")


def _appears(store: Any, key: str, within_s: float) -> bool:
    """Whether the key appears before the time is over.

    Asks repeatedly: `Store.wait` occupies the store's connection and can't be interrupted.
    """
    end = time.monotonic() + within_s
    pause = 0.005
    while not store.check([key]):
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _MOST_S_BETWEEN_LOOKS)
    return True


def _counts(store: Any, number: int, world_size: int) -> dict[int, int]:
    keys = {rank: f"{number}/{rank}" for rank in range(world_size)}
    if store.check(list(keys.values())):
        return {rank: int(value) for rank, value in zip(keys, store.multi_get(list(keys.values())), strict=True)}
    return {rank: int(store.get(key)) for rank, key in keys.items() if store.check([key])}


def _different(counts: Mapping[int, int], what: str) -> StepCountError:
    title = f"the ranks do different numbers of steps{_of(what)}: {_by_count(counts)}"
    helps = (
        "DistributedSampler(dataset, drop_last=True), and a batch size that is the same on every rank",
        "or torch.distributed.algorithms.join.Join([model]) for uneven inputs",
    )
    return _step_count_error(title, (), helps, counts, ())


def _absent(rank: int, counts: Mapping[int, int], world_size: int, what: str, within_s: float) -> StepCountError:
    absent = tuple(each for each in range(world_size) if each not in counts)
    title = (
        f"rank {rank} did {counts[rank]} steps{_of(what)}, and {_ranks(absent)} did not reach the same check "
        f"within {within_s:g} s"
    )
    evidence = [f"reached it: {_by_count(counts)}", f"did not reach it: {_ranks(absent)}"]
    helps = (
        f"py-spy dump --pid PID   # of {_ranks(absent)}: in a collective, it waits for a step that others never do",
        "check_step_counts(len(loader)) before the epoch finds this before any rank has to wait",
    )
    return _step_count_error(title, evidence, helps, counts, absent)


def _step_count_error(
    title: str, evidence: Sequence[str], helps: Sequence[str], counts: Mapping[int, int], absent: tuple[int, ...]
) -> StepCountError:
    error = StepCountError(title, evidence, helps)
    error.counts, error.absent = dict(counts), absent
    return error


def _of(what: str) -> str:
    return f" ({what})" if what else ""


def _by_count(counts: Mapping[int, int]) -> str:
    """The ranks of each count, the most steps first: "5 on ranks 0-2, 4 on rank 3"."""
    return ", ".join(
        f"{steps} on {_ranks([rank for rank, each in counts.items() if each == steps])}"
        for steps in sorted(set(counts.values()), reverse=True)
    )


def _ranks(ranks: Sequence[int]) -> str:
    """As people write them: "rank 3", "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
