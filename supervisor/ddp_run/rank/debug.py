"""The `[DDP-…]` lines (`--ddp-debug`): variables, versions, devices, and what failed. Loaded only for them."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

NAMED = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
)
PREFIXES = ("NCCL_", "CUDA_", "TORCH_", "TORCHELASTIC_", "GLOO_", "UCX_", "HIP_", "ROCR_", "HSA_", "PYTORCH_")
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY", "CREDENTIAL")


def say(kind: str, text: str) -> None:
    """One `[DDP-…]` line on stderr, at once."""
    try:
        sys.stderr.write("[DDP-%s] %s\n" % (kind, text))
        sys.stderr.flush()
    except Exception:
        pass


def before_init(args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> None:
    """Describe the environment and the arguments of init_process_group before it is called."""
    try:
        for name in NAMED:
            say("DEBUG", "%s=%s" % (name, os.environ.get(name, "(not set)")))
        torch: "Any" = sys.modules["torch"]
        say("DEBUG", "torch %s, CUDA %s, Python %s" % (torch.__version__, torch.version.cuda, sys.version.split()[0]))
        count = torch.cuda.device_count()  # asks NVML first; `is_available` starts CUDA, which no child survives a fork
        if count:
            say("DEBUG", "%d GPUs, NCCL %s" % (count, _nccl(torch)))
        else:
            say("DEBUG", "no usable GPU")
        if torch.cuda.is_initialized():
            say("DEBUG", "current device %d" % torch.cuda.current_device())
        given = [repr(arg) for arg in args] + ["%s=%r" % pair for pair in sorted(kwargs.items())]
        say("DEBUG", "before init_process_group(%s)" % ", ".join(given))
    except Exception as error:
        say("WARNING", "cannot describe the environment: %s" % error)


def after_init(module: "ModuleType") -> None:
    """Describe the process group that init_process_group has made."""
    try:
        dist: "Any" = module
        made = (dist.get_backend(), dist.get_rank(), dist.get_world_size())
        say("INFO", "after init_process_group: backend %s, rank %d of %d" % made)
    except Exception as error:
        say("WARNING", "cannot describe the process group: %s" % error)


def failed(what: str, error: BaseException, with_traceback: bool) -> None:
    """Show the error, and all variables that NCCL, CUDA and torch read.

    `with_traceback`: of a call, as the program may never show it; if the program itself failed, Python does.
    """
    try:
        from traceback import format_exception

        say("ERROR", "%s failed: %s: %s" % (what, type(error).__name__, error))
        trace = error.__traceback__ and error.__traceback__.tb_next
        for line in "".join(format_exception(type(error), error, trace)).splitlines() if with_traceback else ():
            if line.strip():
                say("ERROR", line)
        for name, value in sorted(os.environ.items()):
            if name.startswith(PREFIXES) or name in NAMED:
                say("ERROR", "%s=%s" % (name, "(removed)" if any(word in name for word in _SECRET) else value))
    except Exception as failure:
        say("WARNING", "cannot describe the failure: %s" % failure)


def _nccl(torch: "Any") -> str:
    try:
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    except Exception:
        return "unknown"
