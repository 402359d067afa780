"""Which exceptions are a launcher's own, or only say that a program failed which prints its own message. Pure."""

from __future__ import annotations

import re

from ddp_run.record.events import ExceptionInfo

_AGENTS = frozenset({"ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException"})
AGENT_FRAME = re.compile(r"torch/distributed/(?:run|launch)\.py|torch/distributed/(?:launcher|elastic/agent)/")
LAUNCHERS_FILES = r"accelerate[/\\]commands[/\\]|deepspeed/launcher/|torch/multiprocessing/spawn\.py"
_LAUNCHER = re.compile(LAUNCHERS_FILES)
_LAUNCHERS_WORDS = re.compile(
    r"Unsupported nproc_per_node value|See root cause above|See stack trace[^.]{0,20} for (?:the )?root cause"
    r"|Please inspect the previous error messages for a cause"
    r"|Horovod detected that one or more processes exited with non-zero status"
    r"|^\s*-- Process \d{1,6} terminated with the following error:"
    r"|Engine (?:core|process) (?:initialization )?failed|Deployment '[^'\n]{1,80}' failed, deleting it"
)
"""torchrun's for its own options; Ray Train's and servers' (vLLM, Ray Serve) for a process that prints its own
exception."""
_NOTEBOOKS = frozenset({"PapermillExecutionError", "CellExecutionError"})
"""papermill's and nbclient's, for a notebook cell whose exception they print."""
_QUOTES_A_PROGRAM = "ExecuteUserScriptError"
"""SageMaker's report of a job, which quotes the program's exception."""
_STARTED = re.compile(r"Command '[^\n]{0,200}?\b(?:torchrun|accelerate|deepspeed|srun|mpirun|ddp-run|python[\d.]*)\b")
_PROGRAM_ENDED = re.compile(
    r"^Command .{1,4000} (?:returned non-zero exit status \d{1,3}|died with <Signals)"
    r"|but all those workers died while running it\."
    r"|\b(?:failed|exited|died|ended|terminated) with (?:non-zero )?(?:exit|return) (?:code|status)\b",
    re.DOTALL,
)
"""Words of subprocess.CalledProcessError, of Dask's KilledWorker, and of programs that start others."""


def is_launchers(info: ExceptionInfo) -> bool:
    """Whether a launcher raised it, or one that runs parts of it."""
    if is_agents(info.type) or says_a_launcher(info.message):
        return True
    if _of_subprocess(info) and _LAUNCHER.search(info.traceback):
        return True
    return bool(AGENT_FRAME.search(info.traceback))


def is_agents(type_: str) -> bool:
    """Whether torch's agent raises this class, and not one of the program with its name."""
    name = type_.rpartition(".")[2]
    return name in _AGENTS and (name == type_ or type_.startswith("torch."))


def says_a_launcher(text: str) -> bool:
    """Whether it only refers to another process' exception."""
    return _LAUNCHERS_WORDS.search(text) is not None


def starts_a_launcher(info: ExceptionInfo) -> bool:
    """Whether it only says that a program which it had started failed: that program's own message is above it."""
    if info.type.rpartition(".")[2] in _NOTEBOOKS or _QUOTES_A_PROGRAM in info.message:
        return True
    return started_python(info) if _of_subprocess(info) else tells_of_a_program(info)


def started_python(info: ExceptionInfo) -> bool:
    """Whether it says that a Python program or a launcher failed, which it had started: how, is in that one's words."""
    return _of_subprocess(info) and _STARTED.search(info.message) is not None


def _of_subprocess(info: ExceptionInfo) -> bool:
    return info.type.rpartition(".")[2] == "CalledProcessError"


def tells_of_a_program(exception: ExceptionInfo) -> bool:
    """Whether it only says that a program which it had started failed: that program's own message is the reason."""
    return _PROGRAM_ENDED.search(exception.message) is not None
