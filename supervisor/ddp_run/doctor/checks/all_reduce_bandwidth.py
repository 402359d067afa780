"""How fast all ranks together reduce, by size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_run.doctor.check import Check, Group, Level
from ddp_run.doctor.checks.interfaces import towards_master
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, Grade, failed, skipped
from ddp_run.values.words import size_in_words

_NAME = "all_reduce bandwidth"
_SHARE = 0.25
"""Of the link between nodes: less than this is worth a look."""
_FIELDS = ("bytes", "seconds", "algbw", "busbw", "rounds")


def _look(around: Surroundings) -> Iterator[Finding]:
    reports = around.reports
    if reports is None:
        return
    rows = [row for row in reports.of("bandwidth") if row["rank"] == min(reports.by_rank)]
    group = reports.one("group")
    if not rows or group is None:
        alone = group is not None and group["world_size"] == 1
        yield skipped(_NAME, "one rank has nobody to reduce with" if alone else reports.why_not())
        return
    interface = towards_master(around) if around.options.max_nodes > 1 else None
    no_room = reports.one("no_room")
    more = f"; no memory for {size_in_words(no_room['bytes'])}" if no_room is not None else ""
    if (slow := reports.one("too_slow")) is not None:
        more += f"; more than {size_in_words(slow['bytes'])} takes too long"
    yield judged(rows, str(group["backend"]), interface.speed if interface is not None else None, more)
    wrong = [row["bytes"] for row in reports.of("bandwidth") if row["wrong"]]
    if wrong:
        helps = "NCCL_P2P_DISABLE=1 ddp-run doctor; dcgmi diag -r 3   # a link or memory that damages data"
        yield failed(_NAME, f"wrong sums of {size_in_words(min(wrong))} and more", "the known sums", helps)


def judged(rows: Sequence[Mapping[str, Any]], backend: str, link_mbit: int | None, more: str = "") -> Finding:
    """`link_mbit`: of the interface between nodes; null on one node, and where it is not known: then nothing is judged.

    InfiniBand is another link than that of the interface, and faster: it passes.
    """
    best = max(rows, key=lambda row: float(row["busbw"]))
    value = f"{rate(best['busbw'])} bus bandwidth at {size_in_words(best['bytes'])} ({backend})"
    grade, against = Grade.PASS, f"not judged: compare it with other nodes of this kind{more}"
    advice: tuple[str, ...] = ()
    if link_mbit is not None:
        link = link_mbit / 8000
        against = f"the link's {rate(link)}{more}"
        if float(best["busbw"]) < _SHARE * link:
            grade = Grade.WARN
            advice = ("iperf3 -c NODE   # the network alone; NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose another",)
    data = tuple({name: row[name] for name in _FIELDS} for row in rows)
    return Finding(_NAME, value, grade, against, advice, tuple(table(rows)), data)


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For people."""
    yield f"{'size':>10}  {'time':>10}  {'algorithm':>12}  {'bus':>12}"
    for row in rows:
        took = f"{1e6 * row['seconds']:.0f} µs" if row["seconds"] < 0.01 else f"{1e3 * row['seconds']:.1f} ms"
        yield f"{size_in_words(row['bytes']):>10}  {took:>10}  {rate(row['algbw']):>12}  {rate(row['busbw']):>12}"


def rate(gigabytes: float) -> str:
    """GB/s in words, decimal units as nccl-tests has them."""
    return f"{gigabytes:.2f} GB/s" if gigabytes >= 0.1 else f"{1000 * gigabytes:.2f} MB/s"


CHECK = Check(
    "all_reduce_bandwidth",
    Group.RANKS,
    "Median time, algorithm and bus bandwidth (as nccl-tests defines them) of `all_reduce` from 1 KiB to 64 MiB, with"
    " `--full` to 1 GiB; warns below a quarter of the link between nodes, fails if a sum is wrong.",
    _look,
    Level.DEFAULT,
    of_ranks=True,
)
