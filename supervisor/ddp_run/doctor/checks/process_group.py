"""torch inside the ranks: the device, the process group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ddp_run.doctor.check import Check, Group, Level
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, failed, skipped, warned

_SLOW_IMPORT_S = 20.0
_SLOW_GROUP_S = 15.0


def _look(around: Surroundings) -> Iterator[Finding]:
    reports = around.reports
    if reports is None:
        return
    if (torch := reports.one("torch")) is not None:
        yield imported(torch)
    for device in reports.of("device"):
        yield from computed(device, has_driver=around.has_driver, ranks=around.ranks)
    group = reports.one("group")
    yield met(group) if group is not None else skipped("process group", reports.why_not())


def imported(torch: Mapping[str, Any]) -> Finding:
    """How long `import torch` takes: each restart of a job pays for it."""
    value = f"{torch['version']}, imported in {torch['seconds']:.1f} s"
    if torch["seconds"] > _SLOW_IMPORT_S:
        helps = "put the environment on a local disk: a network file system is slow with many small files"
        return warned("import torch", value, f"more than {_SLOW_IMPORT_S:.0f} s", helps)
    return Finding("import torch", value)


def computed(device: Mapping[str, Any], *, has_driver: bool, ranks: int) -> Iterator[Finding]:
    """What a rank computed on. Nothing is said of a rank without a GPU where there is none."""
    name = f"device of rank {device['rank']}"
    if device["name"] == "cpu":
        if has_driver and not device["gpus"]:
            helps = 'python -c "import torch; print(torch.cuda.is_available(), torch.version.cuda)"'
            yield failed(name, "cpu", "there is an NVIDIA driver, and torch sees no GPU", helps, "nvidia-smi")
        elif device["gpus"]:
            against = f"{ranks} ranks on {device['gpus']} GPUs: the ranks used gloo"
            yield warned(name, "cpu", against, f"--nproc-per-node={device['gpus']}")
    elif device["right"]:
        yield Finding(name, f"{device['name']}, computes, NCCL {device['nccl'] or 'missing'}")
    else:
        yield failed(
            name, device["name"], "a product of matrices came out wrong", "run without this GPU; dcgmi diag -r 3"
        )


def met(group: Mapping[str, Any]) -> Finding:
    """init_process_group."""
    ranks = "1 rank" if group["world_size"] == 1 else f"{group['world_size']} ranks"
    value = f"{group['backend']}, {ranks}, {group['seconds']:.1f} s"
    if group["seconds"] > _SLOW_GROUP_S:
        helps = "time getent hosts $(hostname)   # slow DNS is the usual cause; GLOO_SOCKET_IFNAME avoids look-ups"
        return warned("process group", value, f"more than {_SLOW_GROUP_S:.0f} s", helps)
    return Finding("process group", value)


CHECK = Check(
    "process_group",
    Group.RANKS,
    "`import torch` (warns above 20 s), a product of matrices on each GPU, `init_process_group` with NCCL or gloo"
    " (warns above 15 s).",
    _look,
    Level.DEFAULT,
    of_ranks=True,
    place=2,
)
