"""Which parameters got no gradient, before DistributedDataParallel complains."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

from ddp_run.training.told import block

_NAMES_SHOWN = 20


def report_unused_parameters(model: torch.nn.Module) -> tuple[str, ...]:
    """Name the parameters that got no gradient on this rank: on stderr, and as the result.

    Call it after `loss.backward()` and before `zero_grad()`. Each rank reports its own, without waiting. A gradient
    left from an earlier step counts. For DistributedDataParallel the numbers are those of its error ("Parameter
    indices which did not receive grad"). If ranks differ, `backward()` itself may wait forever, and with
    `find_unused_parameters=True` unused parameters get the other ranks' gradients; to avoid both:

        with model.no_sync():
            loss_of(model(batch)).backward()
            report_unused_parameters(model)
    """
    import torch
    import torch.distributed as dist

    from ddp_run.rank import reducer

    wrapped = model if isinstance(model, torch.nn.parallel.DistributedDataParallel) else None
    inner = model if wrapped is None else wrapped.module
    trained = None
    with suppress(Exception):  # a wrapper of another make, without torch's own reducer
        trained = None if wrapped is None else reducer.numbered(wrapped)
    if trained is None:
        trained = [(name, each) for name, each in inner.named_parameters() if each.requires_grad]
    unused = [(index, name) for index, (name, parameter) in enumerate(trained) if parameter.grad is None]
    mixed = wrapped is not None and wrapped.find_unused_parameters and wrapped.require_backward_grad_sync
    if unused or mixed:
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        sys.stderr.write(_unused_text(rank, unused, len(trained), mixed) + "\n")
        sys.stderr.flush()
    return tuple(name for _index, name in unused)


def _unused_text(rank: int, unused: Sequence[tuple[int, str]], trained: int, mixed: bool) -> str:
    names = ", ".join(f"{name} ({index})" for index, name in unused[:_NAMES_SHOWN])
    if len(unused) > _NAMES_SHOWN:
        names += f" and {len(unused) - _NAMES_SHOWN} more"
    if mixed:
        title = f"warning: rank {rank}: find_unused_parameters=True gives unused parameters other ranks' gradients"
        helps = ["with model.no_sync(): around the backward and this call, to see what this rank itself didn't use"]
        return block(title, (f"without a gradient on all ranks: {names or 'none'}",), helps)
    if len(unused) == trained:
        title = f"warning: rank {rank}: none of the {trained} parameters has a gradient"
        return block(title, (names,), ("call it after loss.backward() and before zero_grad()",))
    title = f"warning: rank {rank}: {len(unused)} of {trained} parameters got no gradient"
    helps = [
        "use them in forward() on every rank, or requires_grad_(False) on what is never trained",
        "or DistributedDataParallel(model, find_unused_parameters=True), which costs time in every step",
    ]
    return block(title, (names,), helps)
