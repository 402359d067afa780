"""The `[DDP-DEBUG]` lines around init_process_group (`--ddp-debug`): variables, versions, devices. Loaded only then."""

import os
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

    Say = Callable[[str, str], None]

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


def before_init(say: "Say", args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> None:
    """What init_process_group is about to be called with, and in which surroundings."""
    try:
        for name in NAMED:
            say("DEBUG", "%s=%s" % (name, os.environ.get(name, "(not set)")))
        torch: "Any" = sys.modules["torch"]
        say("DEBUG", "torch %s, CUDA %s, Python %s" % (torch.__version__, torch.version.cuda, sys.version.split()[0]))
        if torch.cuda.is_available():
            say("DEBUG", "%d GPUs, NCCL %s" % (torch.cuda.device_count(), _nccl(torch)))
            say("DEBUG", "current device %d" % torch.cuda.current_device())
        else:
            say("DEBUG", "no GPU to be used")
        given = [repr(arg) for arg in args] + ["%s=%r" % pair for pair in sorted(kwargs.items())]
        say("DEBUG", "before init_process_group(%s)" % ", ".join(given))
    except Exception as error:
        say("WARNING", "cannot describe the surroundings: %s" % error)


def after_init(say: "Say", module: "ModuleType") -> None:
    """What came of it."""
    try:
        dist: "Any" = module
        say(
            "INFO",
            "after init_process_group: backend %s, rank %d of %d"
            % (dist.get_backend(), dist.get_rank(), dist.get_world_size()),
        )
    except Exception as error:
        say("WARNING", "cannot describe the process group: %s" % error)


def init_failed(say: "Say", error: BaseException) -> None:
    """The traceback and all variables that NCCL, CUDA and torch read."""
    try:
        say("ERROR", "init_process_group failed: %s: %s" % (type(error).__name__, error))
        for line in "".join(
            traceback.format_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        ).splitlines():
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
