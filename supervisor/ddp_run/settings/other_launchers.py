"""Command lines of other launchers (accelerate, deepspeed, mpirun, torch.distributed.launch) in ddp-run's words. Pure.

Their options, and how many values each takes, as their own `--help` has them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_run.settings.table import Row

PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?")
PYTHON_SWITCHES = re.compile(r"-[bBdEiIOPqsSuv]+")
TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
SAME_WORDS = ("torchrun", "ddp-run")
"""Launchers whose options are ddp-run's own."""
OTHERS = ("accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun")
PER_NODE = ("srun",)
"""Launchers that start ddp-run itself, once per node."""

_INSTEAD = {
    "accelerate": "pass it to Accelerator() in the script",
    "deepspeed": "choose GPUs with CUDA_VISIBLE_DEVICES, nodes with --nnodes and --node-rank",
    "mpirun": "start ddp-run on each node, with --nnodes, --node-rank and --master-addr",
}
_NPROC, _NNODES, _ADDR, _PORT = "--nproc-per-node", "--nnodes", "--master-addr", "--master-port"


@dataclass(frozen=True, slots=True)
class _Foreign:
    """An option of another launcher: whose it is, its values, what it is here (null: nothing)."""

    owner: str
    values: int = 1
    ours: str | None = None


def _foreign() -> dict[str, _Foreign]:
    found = {
        "--use-env": _Foreign("torch.distributed.launch", 0),
        "--num-processes": _Foreign("accelerate", 1, _NPROC),
        "--num-machines": _Foreign("accelerate", 1, _NNODES),
        "--machine-rank": _Foreign("accelerate", 1, "--node-rank"),
        "--main-process-ip": _Foreign("accelerate", 1, _ADDR),
        "--main-process-port": _Foreign("accelerate", 1, _PORT),
        "--num-gpus": _Foreign("deepspeed", 1, _NPROC),
        "--num-nodes": _Foreign("deepspeed", 1, _NNODES),
        "-np": _Foreign("mpirun", 1, _NPROC),
        "-n": _Foreign("mpirun", 1, _NPROC),
        "--np": _Foreign("mpirun", 1, _NPROC),
        "-mca": _Foreign("mpirun", 2),
        "--mca": _Foreign("mpirun", 2),
        "-H": _Foreign("mpirun"),
        "-x": _Foreign("mpirun"),
    }
    flags = "--multi-gpu --cpu --use-cpu --mps --tpu --use-deepspeed --use-fsdp --use-megatron-lm --same-network"
    found |= {name: _Foreign("accelerate", 0) for name in flags.split()}
    valued = "--config-file --mixed-precision --gradient-accumulation-steps --gradient-clipping --dynamo-backend"
    valued += " --num-cpu-threads-per-process --gpu-ids --deepspeed-config-file --zero-stage"
    found |= {name: _Foreign("accelerate") for name in valued.split()}
    found |= {name: _Foreign("deepspeed") for name in ("--include", "--exclude", "--launcher", "--launcher-args")}
    found |= {name: _Foreign("mpirun") for name in ("--hostfile", "-hostfile", "--host", "-host")}
    found |= {name: _Foreign("mpirun", 0) for name in ("--allow-run-as-root", "--oversubscribe", "--bind-to-none")}
    return found


_FOREIGN: Mapping[str, _Foreign] = _foreign()


@dataclass(frozen=True, slots=True)
class Translation:
    """A command line of another launcher in ddp-run's words. `dropped`: what has no counterpart."""

    command: str
    owner: str
    dropped: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What became of the options that have no counterpart."""
        if not self.dropped:
            return ()
        instead = _INSTEAD.get(self.owner)
        return (f"left out: {', '.join(self.dropped)}" + (f" ({instead})" if instead else ""),)


def foreign_option(word: str) -> str | None:
    """Whose option this is, if no option of ddp-run's is called so."""
    found = _FOREIGN.get(_name(word))
    return found.owner if found else None


def translate_options(argv: Sequence[str], rows: Sequence[Row]) -> Translation:
    """ddp-run's command line in which options of other launchers stand, with its own in their place."""
    return _Translator(rows).translate(argv)


def move_behind_script(argv: Sequence[str], unknown: Sequence[str], rows: Sequence[Row]) -> str | None:
    """The command line with unknown options, and their values, behind the script; null where none can be seen."""
    parts = _Translator(rows).split(argv, frozenset(unknown))
    if parts.script is None:
        return None
    return shlex.join(["ddp-run", *parts.kept, *parts.script, *parts.moved])


def translate_launcher(words: Sequence[str], before: Sequence[str], rows: Sequence[Row]) -> Translation:
    """`words` begin with another launcher (`accelerate launch …`); `before` are ddp-run's words in front of it."""
    name, *rest = words
    if name in PER_NODE:
        # srun's own options cannot be told from the program: only the program's words are certain.
        start = next((index for index, word in enumerate(rest) if PYTHON.fullmatch(_base(word))), None)
        if start is None:
            start = next((index for index, word in enumerate(rest) if not word.startswith("-")), len(rest))
        inner = shlex.join(["ddp-run", *before, *without_python(rest[start:])])
        return Translation(f"{shlex.join([name, '--ntasks-per-node=1', *_but_tasks(rest[:start])])} {inner}", name)
    if name == "accelerate" and rest[:1] == ["launch"]:
        rest = rest[1:]
    found = _Translator(rows).translate([*before, *rest])
    return Translation(found.command, name, found.dropped)


def _but_tasks(options: Sequence[str]) -> list[str]:
    return [word for word in options if not word.startswith(("--ntasks-per-node", "--ntasks=", "-n"))]


def without_python(words: Sequence[str]) -> list[str]:
    """`python -u train.py x` without what ddp-run does itself; `-m` stays."""
    rest = list(words)
    while rest and (PYTHON.fullmatch(_base(rest[0])) or _base(rest[0]) in SAME_WORDS):
        is_python = _base(rest.pop(0)) not in SAME_WORDS
        while is_python and rest and rest[0] != "-m" and PYTHON_SWITCHES.fullmatch(rest[0]):
            rest.pop(0)
        if is_python and rest[:1] == ["-m"] and rest[1:2] and rest[1] in TORCHRUN_MODULES:
            del rest[:2]
    return rest


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _name(word: str) -> str:
    """An option's name as the table has it."""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


@dataclass(slots=True)
class _Parts:
    kept: list[str]
    moved: list[str]
    script: list[str] | None


class _Translator:
    def __init__(self, rows: Sequence[Row]) -> None:
        self._values = {_name(flag): int(row.takes_value) for row in rows for flag in row.flags}
        self._given: dict[str, str] = {}
        self._ours: list[str] = []
        self._dropped: list[str] = []
        self._owner = ""

    def translate(self, argv: Sequence[str]) -> Translation:
        words = list(argv)
        multi_gpu = False
        while words and words[0].startswith("-") and len(words[0]) > 1:
            name = _name(words[0])
            foreign = None if name in self._values else _FOREIGN.get(name)
            if foreign is None:
                taken = _take(words, self._values.get(name, 0))
                self._ours += taken
                continue
            taken = _take(words, foreign.values)
            self._owner = self._owner or foreign.owner
            multi_gpu = multi_gpu or name == "--multi-gpu"
            value = taken[-1].partition("=")[2] if len(taken) == 1 else taken[-1]
            if foreign.ours is not None:
                self._given[foreign.ours] = value
            elif name not in ("--use-env", "--multi-gpu"):
                self._dropped.append(shlex.join(taken))
        if multi_gpu and not any(_name(word) == _NPROC for word in (*self._ours, *self._given)):
            self._given[_NPROC] = "gpu"
        self._share_processes()
        options = [f"{name}={value}" for name, value in self._given.items()]
        command = shlex.join(["ddp-run", *self._ours, *options, *without_python(words)])
        return Translation(command, self._owner, tuple(self._dropped))

    def _share_processes(self) -> None:
        """accelerate and mpirun count processes of all nodes."""
        total, nodes = self._given.get(_NPROC, ""), self._given.get(_NNODES, "1")
        if self._owner != "deepspeed" and total.isdigit() and nodes.isdigit() and int(nodes) > 1:
            self._given[_NPROC] = str(max(1, int(total) // int(nodes)))

    def split(self, argv: Sequence[str], unknown: frozenset[str]) -> _Parts:
        words, parts = list(argv), _Parts([], [], None)
        while words:
            word = words[0]
            if word in unknown:
                has_value = "=" not in word and len(words) > 1 and not _is_option_or_script(words[1])
                parts.moved += _take(words, int(has_value))
            elif word.startswith("-") and len(word) > 1:
                parts.kept += _take(words, self._values.get(_name(word), 0))
            else:
                parts.script = words
                break
        return parts


def _is_option_or_script(word: str) -> bool:
    return (word.startswith("-") and not re.fullmatch(r"-\.?\d.*", word)) or word.endswith(".py")


def _take(words: list[str], values: int) -> list[str]:
    """The first word and its values, taken off."""
    count = 1 if "=" in words[0] else 1 + values
    taken, words[:] = words[:count], words[count:]
    return taken
