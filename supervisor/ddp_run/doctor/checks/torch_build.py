"""The installed torch, the CUDA and NCCL that it was built for, and whether the driver is new enough; torch itself is
not imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import NoAnswer, Surroundings
from ddp_run.plan import node_facts
from ddp_run.values.finding import Finding, failed, skipped, warned
from ddp_run.values.node_fact import Known

_LEAST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
"""By CUDA's major version: the oldest Linux driver that its minor versions run on (NVIDIA, CUDA Compatibility, minor
version compatibility)."""
_DRIVERS_CUDA = re.compile(r"CUDA (?:UMD )?Version: *(\d+)\.(\d+)")


def _look(around: Surroundings) -> Iterator[Finding]:
    facts = {fact.name: fact.value for fact in node_facts.collect(around.options, {}, "127.0.0.1").facts}
    if Known.TORCH not in facts:
        yield failed("torch", "not found", "", f"{sys.executable} -m pip install torch")
        return
    yield Finding("torch", facts[Known.TORCH])
    yield from _cuda(around, facts)


def _cuda(around: Surroundings, facts: Mapping[str, str]) -> Iterator[Finding]:
    cuda = facts.get(Known.CUDA, "none")
    if "+rocm" in facts[Known.TORCH] or "+xpu" in facts[Known.TORCH]:
        yield skipped("torch's CUDA", "this torch is not built for NVIDIA GPUs; other GPUs are not checked")
        return
    yield build(cuda, has_driver=around.has_driver)
    if cuda == "none":
        return
    yield Finding("NCCL", facts.get(Known.NCCL, "within torch"))
    if not around.has_driver:
        return
    try:
        banner = around.nvidia_smi()
    except NoAnswer:
        banner = ""
    yield driver(cuda, facts.get(Known.DRIVER), _DRIVERS_CUDA.search(banner))


def build(cuda: str, *, has_driver: bool) -> Finding:
    """A torch without CUDA beside a driver uses no GPU; one with CUDA and no driver works on CPUs."""
    if cuda == "none" and has_driver:
        helps = "pip install torch   # from https://pytorch.org/get-started/locally/, for your CUDA"
        return failed("torch's CUDA", "none", "there is an NVIDIA driver here, and this torch cannot use GPUs", helps)
    if cuda != "none" and not has_driver:
        return warned("torch's CUDA", cuda, "no NVIDIA driver here: only gloo on CPUs works", "nvidia-smi")
    return Finding("torch's CUDA", cuda)


def driver(cuda: str, version: str | None, newest: re.Match[str] | None) -> Finding:
    """Whether the driver runs this CUDA. `newest`: the CUDA version that nvidia-smi's banner says it supports."""
    if version is None:
        return skipped("NVIDIA driver", "its version is not shown here")
    major = int(cuda.partition(".")[0])
    least = _LEAST_DRIVER.get(major)
    shown = f"{version}, for CUDA {newest[1]}.{newest[2]}" if newest is not None else version
    helps = ("update the driver, or install a torch for an older CUDA (pytorch.org/get-started/previous-versions)",)
    if least is not None and tuple(map(int, version.split("."))) < least:
        return failed("NVIDIA driver", shown, f"CUDA {cuda} needs {'.'.join(map(str, least))} or newer", *helps)
    if newest is not None and int(newest[1]) < major:
        return failed("NVIDIA driver", shown, f"torch needs CUDA {cuda}", *helps)
    return Finding("NVIDIA driver", shown, against=f"torch needs CUDA {cuda}")


CHECK = Check(
    "torch_build",
    Group.HOST,
    "torch, its CUDA and NCCL, read without importing it, against the driver; fails if torch is missing, has no CUDA"
    " beside a driver, or needs a newer driver.",
    _look,
    place=2,
)
