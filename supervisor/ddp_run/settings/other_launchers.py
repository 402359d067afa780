"""Command lines of other launchers (accelerate, deepspeed, mpirun, torch.distributed.launch) in ddp-run's words. Pure.

Their options, and how many values each takes, are from their own `--help`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_run.settings.table import Row

PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?")
_PYTHON_SWITCHES = re.compile(r"-[bBdEiIOPqsSuv]+")
TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
SAME_WORDS = ("torchrun", "ddp-run")
"""Launchers with ddp-run's own options."""
OTHERS = ("accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun")
PER_NODE = ("srun",)
"""Launchers that start ddp-run itself, once per node."""

_INSTEAD = {
    "accelerate": "pass it to Accelerator() in the script",
    "deepspeed": "choose GPUs with CUDA_VISIBLE_DEVICES, nodes with --nnodes and --node-rank",
    "mpirun": "start ddp-run on each node, with --nnodes, --node-rank and --master-addr",
}
_NPROC, _NNODES = "--nproc-per-node", "--nnodes"
_TRANSLATED = {
    "accelerate": {
        "--num-processes": _NPROC,
        "--num-machines": _NNODES,
        "--machine-rank": "--node-rank",
        "--main-process-ip": "--master-addr",
        "--main-process-port": "--master-port",
    },
    "deepspeed": {"--num-gpus": _NPROC, "--num-nodes": _NNODES},
    "mpirun": {"-np": _NPROC, "-n": _NPROC, "--np": _NPROC},
}
"""Each launcher's options that take one value, by ddp-run's option of the same meaning."""
_WITHOUT_COUNTERPART = {
    ("torch.distributed.launch", 0): "--use-env",
    ("accelerate", 0): "--multi-gpu --cpu --use-cpu --mps --tpu --use-deepspeed --use-fsdp --use-megatron-lm"
    " --same-network",
    ("accelerate", 1): "--config-file --mixed-precision --gradient-accumulation-steps --gradient-clipping"
    " --dynamo-backend --num-cpu-threads-per-process --gpu-ids --deepspeed-config-file --zero-stage",
    ("deepspeed", 1): "--include --exclude --launcher --launcher-args",
    ("mpirun", 0): "--allow-run-as-root --oversubscribe --bind-to-none",
    ("mpirun", 1): "-H -x --hostfile -hostfile --host -host",
    ("mpirun", 2): "-mca --mca",
}
"""Their other options, by launcher and number of values."""
_FOREIGN: Mapping[str, tuple[str, int, str]] = {
    **{name: (launcher, 1, ours) for launcher, names in _TRANSLATED.items() for name, ours in names.items()},
    **{name: (*key, "") for key, names in _WITHOUT_COUNTERPART.items() for name in names.split()},
}
"""By option: its launcher, how many values it takes, and ddp-run's option of the same meaning, if any."""


@dataclass(frozen=True, slots=True)
class Translation:
    """A command line of another launcher in ddp-run's words. `notes`: which options have no counterpart."""

    command: str
    notes: tuple[str, ...] = ()


def foreign_option(word: str) -> str | None:
    """The launcher whose option this is; for options that ddp-run does not have."""
    return _FOREIGN[_name(word)][0] if _name(word) in _FOREIGN else None


def translate_options(argv: Sequence[str], rows: Sequence[Row]) -> Translation:
    """Replace other launchers' options on a command line of ddp-run by ddp-run's."""
    values = _values(rows)
    words, ours, owner = list(argv), list[str](), ""
    given: dict[str, str] = {}
    dropped: list[str] = []
    multi_gpu = False
    while words and words[0].startswith("-") and len(words[0]) > 1:
        name = _name(words[0])
        if name in values or name not in _FOREIGN:
            ours += _take(words, values.get(name, 0))
            continue
        launcher, count, option = _FOREIGN[name]
        owner = owner or launcher
        taken = _take(words, count)
        if option:
            given[option] = taken[-1].partition("=")[2] if len(taken) == 1 else taken[-1]
        elif name == "--multi-gpu":
            multi_gpu = True
        elif name != "--use-env":
            dropped.append(shlex.join(taken))
    if multi_gpu and not any(_name(word) == _NPROC for word in (*ours, *given)):
        given[_NPROC] = "gpu"
    total, nodes = given.get(_NPROC, ""), given.get(_NNODES, "1")
    if owner != "deepspeed" and total.isdigit() and nodes.isdigit() and int(nodes) > 1:
        given[_NPROC] = str(max(1, int(total) // int(nodes)))  # the others count processes of all nodes
    options = [f"{name}={value}" for name, value in given.items()]
    left_out = f"left out: {', '.join(dropped)}" + (f" ({_INSTEAD[owner]})" if owner in _INSTEAD else "")
    command = shlex.join(["ddp-run", *ours, *options, *without_python(words)])
    return Translation(command, (left_out,) if dropped else ())


def move_behind_script(argv: Sequence[str], unknown: Sequence[str], rows: Sequence[Row]) -> str | None:
    """The command line with unknown options, and their values, after the script; None if there is no script."""
    values = _values(rows)
    words, kept, moved = list(argv), list[str](), list[str]()
    while words:
        word = words[0]
        if word in unknown:
            has_value = "=" not in word and len(words) > 1 and not _is_option_or_script(words[1])
            moved += _take(words, int(has_value))
        elif word.startswith("-") and len(word) > 1:
            kept += _take(words, values.get(_name(word), 0))
        else:
            return shlex.join(["ddp-run", *kept, *words, *moved])
    return None


def translate_launcher(words: Sequence[str], before: Sequence[str], rows: Sequence[Row]) -> Translation:
    """Translate `words`, which begin with another launcher (`accelerate launch …`); `before`: ddp-run's words."""
    name, *rest = words
    if name in PER_NODE:
        # srun's own options look like the program's: only the program's words are certain.
        start = next((index for index, word in enumerate(rest) if PYTHON.fullmatch(_base(word))), None)
        if start is None:
            start = next((index for index, word in enumerate(rest) if not word.startswith("-")), len(rest))
        options = [word for word in rest[:start] if not word.startswith(("--ntasks-per-node", "--ntasks=", "-n"))]
        inner = shlex.join(["ddp-run", *before, *without_python(rest[start:])])
        return Translation(f"{shlex.join([name, '--ntasks-per-node=1', *options])} {inner}")
    if name == "accelerate" and rest[:1] == ["launch"]:
        rest = rest[1:]
    return translate_options([*before, *rest], rows)


def without_python(words: Sequence[str]) -> list[str]:
    """`python -u train.py x` without what ddp-run does itself; `-m` stays."""
    rest = list(words)
    while rest and (PYTHON.fullmatch(_base(rest[0])) or _base(rest[0]) in SAME_WORDS):
        is_python = _base(rest.pop(0)) not in SAME_WORDS
        while is_python and rest and rest[0] != "-m" and _PYTHON_SWITCHES.fullmatch(rest[0]):
            rest.pop(0)
        if is_python and rest[:1] == ["-m"] and rest[1:2] and rest[1] in TORCHRUN_MODULES:
            del rest[:2]
    return rest


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _name(word: str) -> str:
    """An option's name as the tables have it."""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _values(rows: Sequence[Row]) -> dict[str, int]:
    """How many values each of ddp-run's options takes."""
    return {_name(flag): int(row.takes_value) for row in rows for flag in row.flags}


def _is_option_or_script(word: str) -> bool:
    return (word.startswith("-") and not re.fullmatch(r"-\.?\d.*", word)) or word.endswith(".py")


def _take(words: list[str], values: int) -> list[str]:
    """The first word and its values, taken off."""
    count = 1 if "=" in words[0] else 1 + values
    taken, words[:] = words[:count], words[count:]
    return taken
