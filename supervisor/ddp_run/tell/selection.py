"""Which of the ranks' lines the console shows, and their prefixes: `--console` and torchrun's own options."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final, Literal

from ddp_run.record import file_names
from ddp_run.record.events import Event, Rank, RankExited, RankStarted
from ddp_run.record.run_folder import open_run_file
from ddp_run.tell.tail import Chunk
from ddp_run.values.lines import Stream
from ddp_run.values.redaction import redact_lines
from ddp_run.values.words import rank_list

if TYPE_CHECKING:
    from ddp_run.judge.verdict import Verdict

Mode = Literal["all", "rank0", "failed", "none", "raw"]
Shown = Callable[[int, int, Stream], bool]
"""Whether the console shows (rank, local rank, stream)."""
Prefix = Callable[[int, int], str]
"""The prefix of the lines of (rank, local rank)."""

_BIT: Final[Mapping[Stream, int]] = {"stdout": 1, "stderr": 2}
_LAST_BYTES: Final = 64 << 10
_LAST_LINES: Final = 200
_SENT_LINES: Final = 50


def shown_by(
    mode: Mode,
    redirects: int | Mapping[int, int] = 0,
    tee: int | Mapping[int, int] = 0,
    local_ranks: Collection[int] = (),
) -> Shown:
    """What the console shows by `--console` and torchrun's `-r`, `-t`, `--local-ranks-filter`.

    `redirects` and `tee` hold 1 for stdout, 2 for stderr, for all local ranks or by local rank; an empty
    `local_ranks` means all. As in torch.distributed.elastic.multiprocessing.api.DefaultLogsSpecs.reify, a stream that
    is redirected but not teed goes to its file only.
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


# ---------------------------------------------------------------------------------------------- prefixes


def prefix_of(template: str | None, role: str = "default") -> Prefix | None:
    """Prefixes by torchrun's TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE: none if it is empty; None if it is not set.

    Its names are those that torch.distributed.elastic.agent.server.local_elastic_agent fills in.
    """
    if template is None:
        return None
    text = Template(template)

    def prefix(rank: int, local_rank: int) -> str:
        return text.safe_substitute(role_name=role, rank=rank, local_rank=local_rank)

    return prefix


def label(ranks: Iterable[int]) -> str:
    """ddp-run's own prefix for a line of these ranks: `[rank0,2-3]: `."""
    return f"[rank{rank_list(ranks)}]: "


def prefixed(block: bytes, prefix: bytes, *, once: bool) -> tuple[bytes, memoryview]:
    """Every line of `block` with `prefix`, in two pieces: joining them would copy a flood once more.

    With `once`, a line that has the prefix gets no second one: torch's excepthook writes `[rank3]: ` itself.
    """
    newline = b"\n" + prefix
    if once and block.rfind(prefix) >= 0:  # three times as fast as `in`
        block = block.removeprefix(prefix).replace(newline, b"\n")
    lines = memoryview(block.replace(b"\n", newline))
    return prefix, lines[: len(lines) - len(prefix)]


# -------------------------------------------------------------------------- the last lines of failed ranks


def failed_lines(verdict: Verdict, events: Sequence[Event], folder: Path) -> Iterator[Chunk]:
    """For `--console failed`: at most 200 lines and 64 KiB of each stream of the ranks that failed by themselves.

    Read from the files of the run's last attempt.
    """
    started = _started(events)
    for start in (started[rank] for rank in sorted(_failed(verdict, events)) if rank in started):
        for stream, name in file_names.OF_A_STREAM.items():
            if data := _ending(folder, start, name):
                yield Chunk(start.rank, start.local_rank, stream, data)


def last_lines(verdict: Verdict, events: Sequence[Event], folder: Path) -> tuple[str, ...]:
    """For the job's other nodes: the end of the stderr of the rank that the verdict on the last attempt names.

    Without secrets.
    """
    named = verdict.first_failure.rank if verdict.first_failure is not None else None
    start = _started(events).get(named) if named is not None else None
    data = _ending(folder, start, file_names.STDERR) if start is not None else b""
    return tuple(redact_lines(data.decode("utf-8", "replace").splitlines()[-_SENT_LINES:]))


def _started(events: Sequence[Event]) -> dict[Rank, RankStarted]:
    """The last start of each rank."""
    return {event.rank: event for event in events if isinstance(event, RankStarted)}


def _failed(verdict: Verdict, events: Sequence[Event]) -> set[Rank]:
    """The ranks that ended with their own code or signal, with the one that the verdict names."""
    followed = {each.rank for each in verdict.collateral}
    codes = {event.rank: event.code for event in events if isinstance(event, RankExited)}
    found = {rank for rank, code in codes.items() if code and rank not in followed}
    first = verdict.first_failure
    return found | ({first.rank} if first is not None and first.rank is not None else set())


def _ending(folder: Path, start: RankStarted, name: str) -> bytes:
    """The file's last whole lines; empty if it cannot be read."""
    try:
        with open_run_file(folder, f"{start.folder}/{name}", start.links) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _LAST_BYTES))
            data = file.read(_LAST_BYTES)
    except OSError:
        return b""
    if size > _LAST_BYTES:
        data = data.partition(b"\n")[2]
    lines = data.removesuffix(b"\n").split(b"\n")[-_LAST_LINES:]
    return b"\n".join(lines) + b"\n" if data else b""
