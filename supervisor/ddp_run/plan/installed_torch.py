"""The installed torch, without importing it: where it is, its version, and its launcher's options."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_run.settings.table import Row, TableUnreadable, read_torch_table, rows_of_actions
from ddp_run.values.problem import Problem, Refused

_PRINT_ACTIONS = """
import json
from torch.distributed.run import get_args_parser
def row(action):
    kind = type(action).__name__
    names = {"_StoreAction": "store", "_StoreTrueAction": "store_true", "_HelpAction": "help"}
    return {
        "flags": action.option_strings,
        "dest": action.dest,
        "action": names.get(kind, kind),
        "type": getattr(action.type, "__name__", "str") if action.type else "str",
        "default": action.default,
        "choices": None if action.choices is None else list(action.choices),
        "nargs": action.nargs,
        "help": action.help or "",
    }
print(json.dumps([row(action) for action in get_args_parser()._actions if action.option_strings], default=str))
"""


def find_torch_run(search_path: Sequence[str] | None = None) -> Path | None:
    """torch/distributed/run.py of the torch that `python -m` would use (default path: sys.path); None without torch."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    # Not on the path: an editable build, which has its own finder.
    spec = PathFinder.find_spec("torch", search_path or [each for each in sys.path if each]) or find_spec("torch")
    found = (Path(folder, "distributed", "run.py") for folder in (spec and spec.submodule_search_locations) or ())
    return next((path for path in found if path.is_file()), None)


def torch_versions() -> tuple[str | None, str | None]:
    """Versions of the installed torch and of its CUDA ("none" in a build without); None if unknown.

    From torch/version.py, which torch's build writes: `__version__ = '2.13.0+cu128'`, `cuda: Optional[str] = '12.8'`.
    """
    torch_run = find_torch_run()
    if torch_run is None:
        return None, None
    try:
        text = torch_run.parents[1].joinpath("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None, None
    version = re.search(r"^__version__\b[^=\n]*= *['\"]([^'\"\n]+)", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=\n]*= *(?:['\"]([^'\"\n]+)|None)", text, re.MULTILINE)
    return (version[1] if version else None), (cuda[1] or "none" if cuda else None)


def torch_rows() -> tuple[Row, ...]:
    """The installed torch's options. Raises `Refused` if torch is missing or its parser cannot be read."""
    path = find_torch_run()
    if path is None:
        helps = (f"{sys.executable} -m pip install torch",)
        raise Refused(
            (Problem("DDP601", "torch is not installed for this Python", origin=sys.executable, helps=helps),)
        )
    try:
        return read_torch_table(path.read_text(encoding="utf-8"))
    except (TableUnreadable, OSError, ValueError):
        return ask_torch_parser()


def ask_torch_parser() -> tuple[Row, ...]:
    """Ask torch's parser itself for its options, in a process that imports torch (seconds). Raises `Refused`."""
    import json
    import subprocess

    environ = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PRINT_ACTIONS], env=environ, capture_output=True, text=True, timeout=120, check=True
        )
        return rows_of_actions(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, OSError, ValueError, IndexError, TableUnreadable) as error:
        text = getattr(error, "stderr", None) or str(error)
        notes = tuple(str(text).strip().splitlines()[-1:])
        problem = Problem("DDP601", "cannot read the installed torch's options", origin=sys.executable, notes=notes)
        raise Refused((problem,)) from error
