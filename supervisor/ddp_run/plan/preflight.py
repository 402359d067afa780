"""What can be known to go wrong before anything is started: checks of milliseconds that need no torch.

A problem refuses the launch; a warning does not. Whether torch, the script and the log folder are there is always
checked, since nothing can start without them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from ddp_run.plan.launch_plan import dist_timeout_s, log_dir
from ddp_run.plan.plug_ins import check_plug_ins
from ddp_run.plan.script_check import check_script
from ddp_run.settings.likely_mistakes import likely_mistakes
from ddp_run.settings.options import Options, Setting, Source
from ddp_run.settings.table import Row, TableUnreadable, read_torch_table, rows_of_actions
from ddp_run.values import private_files
from ddp_run.values.problem import Problem, Refused

_ONE_NODE_S = 5.0
_SEVERAL_NODES_S = 120.0
"""How long DNS may take to be ready: pods and instances of one job start minutes apart."""
_DRY_RUN_S = 1.0
"""A plan is shown at once: on a login node the job's names may mean nothing."""
_LEAST_FREE_BYTES = 1 << 20

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


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer. `options` is what to launch: variables that this machine contradicts are dropped, with a note."""

    options: Options
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    master: str | None = None
    """IP address of the static rendezvous' host; null where none was given or torch is to take its default."""
    exit_code: int = 2


def check(
    options: Options,
    environ: Mapping[str, str],
    cwd: Path,
    *,
    say: Callable[[str], None] | None = None,
) -> Checked:
    """Look at this machine. `say` gets a line while a name is waited for (default: stderr).

    A check that itself fails is a warning: it must not keep a job from starting.
    """
    warnings: list[str] = []
    problems = list(_tried("the script", lambda: check_script(options, environ, cwd), (), warnings))
    torch_run = find_torch_run([entry for entry in sys.path if entry])
    problems += _tried("plug-ins", lambda: check_plug_ins(options, torch_run), [], warnings)
    options, found, more = _tried(
        "the log folder", lambda: _check_log_folder(options, cwd), (options, [], []), warnings
    )
    problems += found
    warnings += more
    warnings += _without_effect(options, environ)
    if options.preflight == "off":
        return Checked(options, tuple(problems), tuple(warnings))
    warnings += _tried("the words", lambda: likely_mistakes(options, environ), [], warnings)
    found, more = _tried("the devices", lambda: _check_devices(options, environ), ([], []), warnings)
    problems += found
    warnings += more
    # A name may take a minute to appear: what is wrong anyway is told at once.
    if problems:
        return Checked(options, tuple(problems), tuple(warnings))
    options, found, more, master = _tried(
        "the master", lambda: _check_master(options, say or _say), (options, [], [], None), warnings
    )
    return Checked(options, tuple(found), (*warnings, *more), master)


_T = TypeVar("_T")


def _tried(what: str, check: Callable[[], _T], unknown: Any, warnings: list[str]) -> _T:
    """The check's answer; `unknown` (of the same form), and a warning, where the check itself fails."""
    try:
        return check()
    except Exception as error:
        warnings.append(f"check of {what} skipped: {type(error).__name__}: {error}")
        return cast(_T, unknown)


def _without_effect(options: Options, environ: Mapping[str, str]) -> list[str]:
    """What was asked for and needs the hooks in torch, where a rank is a program of its own."""
    if not options.no_python:
        return []
    asked = {
        "--hang-timeout": options.hang_timeout_s is not None,
        "--backend": options.backend is not None,
        "--fallback-backend": options.fallback_backend is not None,
        "--ddp-debug": options.ddp_debug,
        "TORCH_DIST_TIMEOUT": dist_timeout_s(environ) is not None,
    }
    named = [name for name, given in asked.items() if given]
    have = "has" if len(named) == 1 else "have"
    why = "ddp-run does not look into the program"
    return [f"{', '.join(named)} {have} no effect with --no-python: {why}"] if named else []


def _say(line: str) -> None:
    sys.stderr.write(f"ddp-run: {line}\n")
    sys.stderr.flush()


# ------------------------------------------------------------------------------------------------ torch


def find_torch_run(search_path: Sequence[str]) -> Path | None:
    """torch/distributed/run.py of the torch that `python -m` would take; torch itself is not imported."""
    for entry in search_path:
        if (Path(entry) / "torch" / "__init__.py").is_file():
            path = Path(entry) / "torch" / "distributed" / "run.py"
            return path if path.is_file() else None
    # An editable build is not on the path but has a finder of its own.
    from importlib.util import find_spec

    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / "distributed" / "run.py"
        if path.is_file():
            return path
    return None


def torch_rows() -> tuple[Row, ...]:
    """The installed torch's options. Raises `Refused` where torch is missing or its parser cannot be read."""
    path = find_torch_run([entry for entry in sys.path if entry])
    if path is None:
        helps = (f"{sys.executable} -m pip install torch",)
        title = "torch is not installed for this Python"
        raise Refused((Problem("DDP601", title, origin=sys.executable, helps=helps),))
    try:
        return read_torch_table(path.read_text(encoding="utf-8"))
    except (TableUnreadable, OSError, ValueError):
        return ask_torch_parser(sys.executable)


def ask_torch_parser(python: str) -> tuple[Row, ...]:
    """The rows as torch's parser itself tells them, in a process that imports torch (seconds). Raises `Refused`."""
    import json
    import subprocess

    environ = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    try:
        done = subprocess.run(
            [python, "-c", _PRINT_ACTIONS], env=environ, capture_output=True, text=True, timeout=120, check=True
        )
        return rows_of_actions(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, OSError, ValueError, IndexError, TableUnreadable) as error:
        text = getattr(error, "stderr", None) or str(error)
        notes = tuple(str(text).strip().splitlines()[-1:])
        problem = Problem("DDP601", "the installed torch's options cannot be read", origin=python, notes=notes)
        raise Refused((problem,)) from error


# ------------------------------------------------------------------------------------------- log folder


def _check_log_folder(options: Options, cwd: Path) -> tuple[Options, list[Problem], list[str]]:
    folder = cwd / log_dir(options)
    problem = _folder_problem(options, folder)
    planted = options.log_dir is None and private_files.is_planted(folder)
    if problem is None and not planted:
        return options, [], []
    if options.log_dir is not None:
        return options, [problem] if problem is not None else [], []
    # torchrun runs in a folder that cannot be written to, so ddp-run does too.
    import tempfile

    other = str(private_files.fallback(Path(tempfile.gettempdir())))
    why = f"{folder} belongs to another user" if planted else f"{folder.parent} takes no files"
    moved = Setting(other, Source.DEFAULT, "default, as the working directory takes no files")
    options = replace(options, settings={**options.settings, "log_dir": moved})
    problem = _folder_problem(options, Path(other))
    return options, [problem] if problem else [], [f"logs go to {other}: {why}"]


def _folder_problem(options: Options, folder: Path) -> Problem | None:
    existing = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), Path("/"))
    setting = options.settings["log_dir"]
    place = None if setting.word is not None or setting.source is Source.DEFAULT else setting.origin

    def problem(code: str, title: str, label: str) -> Problem:
        helps = ("--log-dir=FOLDER on a disk with room that you may write to",)
        return Problem(code, title, setting.word, label, place or str(folder), helps=helps)

    if not existing.is_dir():
        return problem("DDP904", f"{existing} is not a folder, so no logs can go to {folder}", "not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        title = f"no permission to write logs to {folder}"
        return problem("DDP904", title, f"{existing} is not writable")
    return _no_room(existing, problem)


def _no_room(folder: Path, problem: Callable[[str, str, str], Problem]) -> Problem | None:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    free = (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
    if disk.f_blocks and free < _LEAST_FREE_BYTES:  # file systems without a size say 0
        return problem("DDP905", f"the disk of {folder} is full: {free // 1024} KiB free", "no room for logs")
    if disk.f_files and not disk.f_ffree:
        return problem("DDP905", f"the disk of {folder} has no free inode", "no room for logs")
    return None


# ---------------------------------------------------------------------------------------------- devices


def _check_devices(options: Options, environ: Mapping[str, str]) -> tuple[list[Problem], list[str]]:
    """More ranks than GPUs is only suspicious (gloo jobs do that); `--preflight strict` refuses it."""
    setting = options.settings["nproc_per_node"]
    if options.nproc == "gpu" and not _any_gpu_device():
        helps = ("--nproc-per-node=cpu, or --nproc-per-node=N with a number",)
        title = "--nproc-per-node=gpu, and this machine has no GPU"
        return [Problem("DDP302", title, setting.word, "no GPU device", _origin(setting), helps=helps)], []
    gpus, ranks = visible_gpus(environ), options.nproc_count
    if not gpus or ranks is None or ranks <= gpus:
        return [], []
    title = f"{ranks} ranks and {gpus} GPU{'s' if gpus > 1 else ''} on this node"
    if options.preflight != "strict":
        return [], [f"{title}: ranks that use GPUs would share them"]
    helps = (f"--nproc-per-node={gpus}",)
    return [Problem("DDP302", title, setting.word, "more ranks than GPUs", _origin(setting), helps=helps)], []


def visible_gpus(environ: Mapping[str, str], proc: Path = Path("/proc/driver/nvidia/gpus")) -> int | None:
    """NVIDIA GPUs that a rank would see; null where the driver is not loaded."""
    try:
        present = len(list(proc.iterdir()))
    except OSError:
        return None
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    # CUDA takes the list up to its first invalid entry.
    count = 0
    for entry in chosen.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        count += 1
    return count


_GPU_DEVICES = ("nvidia[0-9]*", "nvidiactl", "kfd", "dxg", "nvhost-*", "nvmap", "dri/renderD*")


def _any_gpu_device() -> bool:
    return any(next(Path("/dev").glob(pattern), None) is not None for pattern in _GPU_DEVICES)


# ----------------------------------------------------------------------------------------------- master


def _check_master(options: Options, say: Callable[[str], None]) -> tuple[Options, list[Problem], list[str], str | None]:
    """The master's address, and whether its port is free where this host is the master."""
    c10d = options.rdzv_backend == "c10d" and not options.standalone and bool(options.rdzv_endpoint)
    if not options.is_static and not c10d:
        return options, [], [], None
    from ddp_run.plan import net
    from ddp_run.values.addresses import is_local

    options = _drop_foreign_variables(options, is_local, net.port_is_free)
    if not (options.is_static or c10d) or options.master is None:
        return options, [], [], None
    host, port = options.master
    several = options.max_nodes > 1
    deadline_s = _DRY_RUN_S if options.dry_run else _SEVERAL_NODES_S if several else _ONE_NODE_S
    quiet = say if not options.dry_run else lambda _line: None
    try:
        # Each c10d agent asks whether the host is its own, so a name of this host may be a loopback address there.
        found = net.resolve(host, port or 0, deadline_s, several_nodes=several, loopback_allowed=c10d, say=quiet)
    except net.Unresolvable as error:
        if options.dry_run:
            return options, [], [f"the master, {host}, does not resolve here: {error.reason}"], None
        return options, [_about_host(options, error.reason, error.helps)], [], None
    if c10d:
        return options, [], [], None
    master = None if options.rdzv_endpoint or "master_addr" not in options.given else found.ip
    local = is_local(found.ip)
    if port and local and options.node_rank == 0 and not net.port_is_free(port, found.ip):
        return options, [_port_taken(options, port)], [], None
    # Not refused: behind address translation a host's public address is none of its interfaces'.
    stranger = options.node_rank == 0 and not local
    warnings = [f"the master, {host}, is not an address of this machine, which is node 0"] if stranger else []
    return options, [], warnings, master


def _drop_foreign_variables(
    options: Options, is_local: Callable[[str], bool], port_is_free: Callable[[int], bool]
) -> Options:
    """One node needs neither MASTER_ADDR nor MASTER_PORT: where they do not fit, they were meant for another job."""
    if options.max_nodes > 1:
        return options
    port = options.settings["master_port"]
    address = options.settings["master_addr"]
    if address.source is Source.VARIABLE and not _names_this_host(options.master_addr, is_local):
        dests = ["master_addr"] + (["master_port"] if port.source is Source.VARIABLE else [])
        return options.without(dests, f"{options.master_addr} is not this machine, and the job has one node")
    if port.source is Source.VARIABLE and options.master_port and not port_is_free(options.master_port):
        return options.without(
            ["master_port"], f"port {options.master_port} is taken, and one node needs no fixed port"
        )
    return options


def _names_this_host(name: str, is_local: Callable[[str], bool]) -> bool:
    import socket

    from ddp_run.plan import net

    if name in ("localhost", socket.gethostname()):
        return True
    try:
        return is_local(net.resolve(name, 0, 1.0).ip)
    except net.Unresolvable:
        return False


def _about_host(options: Options, title: str, helps: tuple[str, ...]) -> Problem:
    setting = options.settings["rdzv_endpoint" if options.rdzv_endpoint else "master_addr"]
    return Problem("DDP203", title, setting.word, "the master", _origin(setting), helps=helps)


def _port_taken(options: Options, port: int) -> Problem:
    from ddp_run.plan import net

    setting = options.settings["rdzv_endpoint" if options.rdzv_endpoint else "master_port"]
    holder = net.port_holder(port)
    notes: tuple[str, ...] = ()
    if holder is not None and holder.pid is not None:
        command = (holder.command or holder.name or "")[:120]
        notes = (f"pid {holder.pid} listens there: {command}",)
    elif holder is not None:
        notes = ("another user's process listens there",)
    helps = [f"--master-port={net.free_port()}" if not options.rdzv_endpoint else "another port in --rdzv-endpoint"]
    if options.max_nodes == 1:
        helps.append("leave --master-port out: one node takes a free port by itself")
    title = f"port {port} is already taken on this host"
    return Problem("DDP201", title, setting.word, "taken", _origin(setting), notes, tuple(helps))


def _origin(setting: Setting) -> str | None:
    return None if setting.word is not None else setting.place or setting.origin
