"""What a bundle says of the machine: versions, variables, and what other programs say within a time limit."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from ddp_run import __version__, commands
from ddp_run.values.redaction import redact_mapping

_PACKAGES = (
    *("torch", "torchvision", "torchaudio", "triton", "numpy", "lightning", "pytorch-lightning", "accelerate"),
    *("deepspeed", "transformers", "datasets", "huggingface-hub", "tokenizers", "safetensors", "webdataset", "wandb"),
    *("flash-attn", "xformers", "bitsandbytes", "apex", "megatron-core", "torchft", "torchtitan", "torchrunx"),
    *(
        "click",
        "psutil",
        "tenacity",
        "structlog",
        "nvidia-ml-py",
        "py-spy",
        "hyperscan",
        "mosaicml",
        "ray",
        "hydra-core",
    ),
)
_FAMILIES = ("nvidia-", "intel-", "oneccl", "rocm", "amd-")
_VALUES_OF = (
    *(
        "NCCL_",
        "TORCH",
        "PYTORCH_",
        "CUDA_",
        "NVIDIA_",
        "GLOO_",
        "UCX_",
        "FI_",
        "MPI_",
        "OMPI_",
        "PMI",
        "HIP_",
        "ROCR_",
    ),
    *("SLURM_", "PET_", "DDP_", "MASTER_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "PYTHON", "LD_", "KUBERNETES_", "JOB_"),
    *("NNODES", "NODE_RANK", "NPROC", "RANK", "WORLD_SIZE", "LOCAL_", "MAX_RETRIES", "VIRTUAL_ENV", "CONDA_", "TMPDIR"),
    *(
        "PATH",
        "LANG",
        "LC_",
        "HF_",
        "TRANSFORMERS_",
        "TOKENIZERS_",
        "WANDB_",
        "TRITON_",
        "XDG_",
        "LOGLEVEL",
        "LIBRARY_",
    ),
)
"""Beginnings of the names whose values matter to a training. Of others the names alone are told: a value that says
neither by its name nor by its form that it is a secret may be one."""


def versions() -> str:
    """Of ddp-run, Python, the system, and of the installed packages that trainings use."""
    lines = [
        f"ddp-run {__version__}",
        f"python {platform.python_version()} ({sys.executable})",
        f"system {platform.platform()}, {os.cpu_count()} CPUs",
    ]
    found: dict[str, str] = {}
    for each in metadata.distributions():
        name = (each.metadata["Name"] or "").lower().replace("_", "-")
        if name in _PACKAGES or name.startswith(_FAMILIES):
            found.setdefault(name, each.version)
    return "\n".join([*lines, *(f"{name} {version}" for name, version in sorted(found.items()))]) + "\n"


def environment(environ: Mapping[str, str]) -> str:
    """The variables of this shell, by name."""
    cleaned = redact_mapping(environ)
    shown = [f"{name}={cleaned[name]}\n" for name in sorted(environ) if name.startswith(_VALUES_OF)]
    names = [f"{name}\n" for name in sorted(environ) if not name.startswith(_VALUES_OF)]
    head = "# variables where `ddp-run bundle` ran; what ddp-run set for the ranks is in plan.json\n"
    return head + "".join(shown) + "# others, without their values\n" + "".join(names)


# ---------------------------------------------------------------------------------------- other programs


@dataclass(frozen=True, slots=True)
class Program:
    """One that is asked, by its words; `within_s` seconds are waited for its answer."""

    file: str
    words: tuple[str, ...]
    within_s: float


@dataclass(frozen=True, slots=True)
class Said:
    """What a program printed."""

    text: str


@dataclass(frozen=True, slots=True)
class NotAsked:
    """Why nothing is known from a program."""

    why: str


_OURS = (sys.executable, "-P", "-c", "from ddp_run.cli import main; main()")
PROGRAMS = (
    Program("nvidia-smi.txt", ("nvidia-smi",), 15.0),
    Program("nvidia-smi-topo.txt", ("nvidia-smi", "topo", "-m"), 15.0),
    Program("doctor.json", (*_OURS, "doctor", "--quick", "--json"), 60.0),
)


def said_by(program: Program, environ: Mapping[str, str]) -> Said | NotAsked:
    """Start it and wait for its end. One that waits in the kernel and cannot be killed is left behind."""
    if program.words[: len(_OURS)] == _OURS and program.words[len(_OURS)] not in commands.names():
        return NotAsked(f"this ddp-run has no command `{program.words[len(_OURS)]}`")
    if shutil.which(program.words[0], path=environ.get("PATH")) is None:
        return NotAsked(f"{program.words[0]} is not installed here")
    try:
        process = subprocess.Popen(
            program.words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        return NotAsked(f"{program.words[0]} could not be started: {error.strerror}")
    try:
        said, _none = process.communicate(timeout=program.within_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # nobody has waited for it: the number is still its own
        return NotAsked(f"{program.words[0]} gave no answer within {program.within_s:g} s")
    return Said(said.decode("utf-8", "replace") or f"[no output, exit code {process.returncode}]\n")
