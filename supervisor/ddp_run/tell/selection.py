"""What of the ranks' output is for the console, and what stands before it: `--console` and torchrun's own options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from string import Template
from typing import Final, Literal

from ddp_run.values.lines import Stream

Mode = Literal["all", "rank0", "failed", "none", "raw"]
Shown = Callable[[int, int, Stream], bool]
"""Whether (rank, local rank, stream) is for the console."""
Prefix = Callable[[int, int], str]
"""What stands before the lines of (rank, local rank)."""


_BIT: Final[Mapping[Stream, int]] = {"stdout": 1, "stderr": 2}


def shown_by(
    mode: Mode,
    redirects: int | Mapping[int, int] = 0,
    tee: int | Mapping[int, int] = 0,
    local_ranks: Collection[int] = (),
) -> Shown:
    """What of the ranks' output the console shows, by `--console` and torchrun's `-r`, `-t`, `--local-ranks-filter`.

    `redirects` and `tee` hold 1 for stdout, 2 for stderr, for all local ranks or by local rank; an empty
    `local_ranks` means all. As in torch.distributed.elastic.multiprocessing.api.DefaultLogsSpecs.reify: a stream that
    is redirected and not teed is in its file alone.
    """

    def bits(option: int | Mapping[int, int], local_rank: int) -> int:
        return option if isinstance(option, int) else option.get(local_rank, 0)

    def shown(rank: int, local_rank: int, stream: Stream) -> bool:
        if mode in {"failed", "none"} or (mode == "rank0" and rank != 0):
            return False
        if local_ranks and local_rank not in local_ranks:
            return False
        bit = _BIT[stream]
        return not bits(redirects, local_rank) & bit or bool(bits(tee, local_rank) & bit)

    return shown


def prefix_of(template: str | None, role: str = "default") -> Prefix | None:
    """Prefixes by torchrun's TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, none at all where it is empty; null: not set.

    Its names are those that torch.distributed.elastic.agent.server.local_elastic_agent fills in.
    """
    if template is None:
        return None
    text = Template(template)

    def prefix(rank: int, local_rank: int) -> str:
        return text.safe_substitute(role_name=role, rank=rank, local_rank=local_rank)

    return prefix
