"""The doctor's ranks: their launch, torch and the process group, collectives, and how fast they reduce."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_run.doctor.check import Group, Surroundings, check
from ddp_run.doctor.checks.network import towards_master
from ddp_run.doctor.findings import Finding, Grade, failed, skipped, warned
from ddp_run.values.words import named_ranks, size_in_words


@check(Group.RANKS, "the launch", of_ranks=True)
def launch(around: Surroundings) -> Iterator[Finding]:
    """Whether the ranks start, meet and end, in a launch by ddp-run; fails with its verdict."""
    end, step = around.reports.launched, around.reports.last_step()
    if end.exit_code == 0:
        yield Finding("launch", f"all ranks ended normally after {end.seconds:.1f} s")
        return
    verdict = end.verdict or {}
    title = (
        verdict.get("title")
        or ("the ranks made no progress for minutes" if end.exit_code == 124 else "")
        or re.sub(r"^error(\[\w+\]):", r"\1", end.refused.partition("\n")[0])
        or f"exit code {end.exit_code}"
    )
    code = f"[{verdict['code']}] " if verdict.get("code") else ""
    during = f"during: {step}" if step is not None else "before any rank started its program"
    advice = [str(each) for each in verdict.get("advice") or ()]
    if end.folder:
        advice.append(f"ddp-run explain {end.folder}")
    quotes = (str(quote["text"]) for quote in (verdict.get("evidence") or ())[:3])
    detail = (*end.refused.splitlines()[1:], *end.said, *quotes)
    yield failed("launch", f"{code}{title}", during, *advice, detail=detail)


_SLOW_IMPORT_S = 20.0
_SLOW_GROUP_S = 15.0


@check(Group.RANKS, "the process group", of_ranks=True)
def process_group(around: Surroundings) -> Iterator[Finding]:
    """`import torch` (warns above 20 s), a matrix product on each GPU, `init_process_group` with NCCL or gloo (warns
    above 15 s)."""
    reports = around.reports
    if (torch := reports.one("torch")) is not None:
        yield torch_import(torch)
    for each in reports.of("device"):
        yield from device(each, has_driver=around.has_driver, ranks=around.ranks)
    group = reports.one("group")
    yield group_made(group) if group is not None else skipped("process group", reports.why_not())


def torch_import(torch: Mapping[str, Any]) -> Finding:
    """Judge how long `import torch` takes: each restart of a job takes that long too."""
    value = f"{torch['version']}, imported in {torch['seconds']:.1f} s"
    if torch["seconds"] > _SLOW_IMPORT_S:
        helps = "put the environment on a local disk: network file systems are slow with many small files"
        return warned("import torch", value, f"more than {_SLOW_IMPORT_S:.0f} s", helps)
    return Finding("import torch", value)


def device(told: Mapping[str, Any], *, has_driver: bool, ranks: int) -> Iterator[Finding]:
    """Judge what a rank computed on; says nothing about CPUs on a host without GPUs."""
    name = f"device of rank {told['rank']}"
    if told["name"] == "cpu":
        if has_driver and not told["gpus"]:
            helps = 'python -c "import torch; print(torch.cuda.is_available(), torch.version.cuda)"'
            yield failed(name, "cpu", "there is an NVIDIA driver, but torch sees no GPU", helps, "nvidia-smi")
        elif told["gpus"]:
            against = f"{ranks} ranks on {told['gpus']} GPUs: the ranks used gloo"
            yield warned(name, "cpu", against, f"--nproc-per-node={told['gpus']}")
    elif told["right"]:
        yield Finding(name, f"{told['name']}, computes, NCCL {told['nccl'] or 'missing'}")
    else:
        helps = "run without this GPU; dcgmi diag -r 3"
        yield failed(name, told["name"], "it computed a wrong matrix product", helps)


def group_made(group: Mapping[str, Any]) -> Finding:
    """Judge how long init_process_group took."""
    ranks = "1 rank" if group["world_size"] == 1 else f"{group['world_size']} ranks"
    value = f"{group['backend']}, {ranks}, {group['seconds']:.1f} s"
    if group["seconds"] > _SLOW_GROUP_S:
        helps = "time getent hosts $(hostname)   # slow DNS is the usual cause; GLOO_SOCKET_IFNAME avoids look-ups"
        return warned("process group", value, f"more than {_SLOW_GROUP_S:.0f} s", helps)
    return Finding("process group", value)


_WRONG_DATA = (
    "NCCL_P2P_DISABLE=1, then NCCL_SHM_DISABLE=1, NCCL_IB_DISABLE=1: the one that helps names the broken path",
    "virtual machines: disable ACS and the IOMMU for the GPUs (NCCL's troubleshooting, PCI Access Control Services)",
)


@check(Group.RANKS, "collectives", of_ranks=True)
def collectives(around: Surroundings) -> Iterator[Finding]:
    """`barrier`, `all_reduce` and `broadcast` with known results; fails if one is wrong on any rank."""
    found = around.reports.one("collectives")
    if found is None:
        yield skipped("collectives", around.reports.why_not())
    elif wrong := {rank: told["wrong"] for rank, told in enumerate(found["ranks"]) if told["wrong"]}:
        names = ", ".join(dict.fromkeys(name for names in wrong.values() for name in names))
        against = f"the correct results are known: data is corrupted on its way to {named_ranks(wrong)}"
        yield failed("collectives", f"wrong: {names}", against, *_WRONG_DATA)
    else:
        slowest_s = max(told["barrier_s"] for told in found["ranks"])
        yield Finding("collectives", f"barrier ({1000 * slowest_s:.1f} ms), all_reduce and broadcast are right")


_BANDWIDTH = "all_reduce bandwidth"
_LEAST_SHARE = 0.25
"""Of the link between nodes; warns below."""
_FIELDS = ("bytes", "seconds", "algbw", "busbw", "rounds")


@check(Group.RANKS, "the bandwidth of all_reduce", of_ranks=True)
def all_reduce_bandwidth(around: Surroundings) -> Iterator[Finding]:
    """Median time, algorithm and bus bandwidth (as nccl-tests defines them) of `all_reduce` from 1 KiB to 64 MiB, with
    `--full` to 1 GiB; warns below a quarter of the link between nodes, fails if a sum is wrong."""
    reports = around.reports
    rows = [row for row in reports.of("bandwidth") if row["rank"] == min(reports.by_rank)]
    group = reports.one("group")
    if not rows or group is None:
        alone = group is not None and group["world_size"] == 1
        yield skipped(_BANDWIDTH, "all_reduce needs two ranks" if alone else reports.why_not())
        return
    interface = towards_master(around) if around.options.max_nodes > 1 else None
    more = ""
    if (no_room := reports.one("no_room")) is not None:
        more += f"; not enough memory for {size_in_words(no_room['bytes'])}"
    if (slow := reports.one("too_slow")) is not None:
        more += f"; more than {size_in_words(slow['bytes'])} takes too long"
    yield bandwidth(rows, str(group["backend"]), interface.speed if interface is not None else None, more)
    wrong = [row["bytes"] for row in reports.of("bandwidth") if row["wrong"]]
    if wrong:
        helps = "NCCL_P2P_DISABLE=1 ddp-run doctor; dcgmi diag -r 3   # a link or memory that damages data"
        yield failed(_BANDWIDTH, f"wrong sums from {size_in_words(min(wrong))} up", "the correct sums are known", helps)


def bandwidth(rows: Sequence[Mapping[str, Any]], backend: str, link_mbit: int | None, more: str = "") -> Finding:
    """Judge the bandwidth against the interface between nodes, in Mbit/s; None if unknown, and on one node.

    InfiniBand is another link than the interface's, and faster: it passes.
    """
    best = max(rows, key=lambda row: float(row["busbw"]))
    value = f"{rate(best['busbw'])} bus bandwidth at {size_in_words(best['bytes'])} ({backend})"
    grade, against = Grade.PASS, f"no reference value: compare with similar nodes{more}"
    advice: tuple[str, ...] = ()
    if link_mbit is not None:
        link = link_mbit / 8000
        against = f"the link's {rate(link)}{more}"
        if float(best["busbw"]) < _LEAST_SHARE * link:
            grade = Grade.WARN
            advice = ("iperf3 -c NODE   # the network alone; NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose another",)
    data = tuple({name: row[name] for name in _FIELDS} for row in rows)
    return Finding(_BANDWIDTH, value, grade, against, advice, tuple(_table(rows)), data)


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{'size':>10}  {'time':>10}  {'algorithm':>12}  {'bus':>12}"
    for row in rows:
        took = f"{1e6 * row['seconds']:.0f} µs" if row["seconds"] < 0.01 else f"{1e3 * row['seconds']:.1f} ms"
        yield f"{size_in_words(row['bytes']):>10}  {took:>10}  {rate(row['algbw']):>12}  {rate(row['busbw']):>12}"


def rate(gigabytes: float) -> str:
    """Format GB/s in decimal units, as nccl-tests does."""
    return f"{gigabytes:.2f} GB/s" if gigabytes >= 0.1 else f"{1000 * gigabytes:.2f} MB/s"
