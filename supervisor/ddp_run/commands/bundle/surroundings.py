"""What a bundle says about the machine: versions, variables, and the output of other programs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata

from ddp_run import __version__
from ddp_run.values.redaction import redact_mapping

_PACKAGES = re.compile(
    r"""
    torch | torchvision | torchaudio | triton | numpy | lightning | pytorch-lightning | accelerate | deepspeed
    | transformers | datasets | huggingface-hub | tokenizers | safetensors | webdataset | wandb | flash-attn | xformers
    | bitsandbytes | apex | megatron-core | torchft | torchtitan | torchrunx | click | psutil | tenacity | structlog
    | rich | nvidia-ml-py | py-spy | hyperscan | mosaicml | ray | hydra-core
    | (?:nvidia- | intel- | oneccl | rocm | amd-).*
    """,
    re.VERBOSE,
)
_VALUES_OF = re.compile(
    r"""
    NCCL_ | TORCH | PYTORCH_ | CUDA_ | NVIDIA_ | GLOO_ | UCX_ | FI_ | MPI_ | OMPI_ | PMI | HIP_ | ROCR_ | SLURM_ | PET_
    | DDP_ | MASTER_ | OMP_ | MKL_ | KMP_ | OPENBLAS_ | PYTHON | LD_ | KUBERNETES_ | JOB_ | NNODES | NODE_RANK | NPROC
    | RANK | WORLD_SIZE | LOCAL_ | MAX_RETRIES | VIRTUAL_ENV | CONDA_ | TMPDIR | PATH | LANG | LC_ | HF_ | TRANSFORMERS_
    | TOKENIZERS_ | WANDB_ | TRITON_ | XDG_ | LOGLEVEL | LIBRARY_
    """,
    re.VERBOSE,
)
"""Prefixes of variables that matter to a training. Others are listed by name only: any value may be a secret, even if
neither its name nor its form shows it."""


def versions() -> str:
    """The versions of ddp-run, Python, the system, and the installed packages that trainings use."""
    lines = [
        f"ddp-run {__version__}",
        f"python {platform.python_version()} ({sys.executable})",
        f"system {platform.platform()}, {os.cpu_count()} CPUs",
    ]
    found: dict[str, str] = {}
    for each in metadata.distributions():
        name = (each.metadata["Name"] or "").lower().replace("_", "-")
        if _PACKAGES.fullmatch(name):
            found.setdefault(name, each.version)
    return "\n".join([*lines, *(f"{name} {version}" for name, version in sorted(found.items()))]) + "\n"


def environment(environ: Mapping[str, str]) -> str:
    """The variables of this shell, by name."""
    cleaned = redact_mapping(environ)
    shown = [f"{name}={cleaned[name]}\n" for name in sorted(environ) if _VALUES_OF.match(name)]
    names = [f"{name}\n" for name in sorted(environ) if not _VALUES_OF.match(name)]
    head = "# variables where `ddp-run bundle` ran; plan.json has what ddp-run set for the ranks\n"
    return head + "".join(shown) + "# others, without their values\n" + "".join(names)


_OURS = (sys.executable, "-P", "-c", "from ddp_run.cli import main; main()")
PROGRAMS = (
    ("nvidia-smi.txt", ("nvidia-smi",), 15.0),
    ("nvidia-smi-topo.txt", ("nvidia-smi", "topo", "-m"), 15.0),
    ("doctor.json", (*_OURS, "doctor", "--quick", "--json"), 60.0),
)
"""Programs to ask: the file for what each says, its words, and the seconds to wait for that."""


class NoAnswer(Exception):
    """A program said nothing; the message says why."""


def said_by(words: Sequence[str], within_s: float, environ: Mapping[str, str]) -> str:
    """Run a program and return its output. Raises NoAnswer. If even SIGKILL doesn't end it, it is left behind."""
    name = words[0]
    if shutil.which(name, path=environ.get("PATH")) is None:
        raise NoAnswer(f"{name} is not installed here")
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswer(f"{name} could not be started: {error.strerror}") from error
    try:
        said, _none = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)  # not reaped, so the pid is still its own
        raise NoAnswer(f"{name} gave no answer within {within_s:g} s") from error
    return said.decode("utf-8", "replace") or f"[no output, exit code {process.returncode}]\n"
