"""Whether the values of a launch's options can be meant: each for itself, then together. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ddp_run.settings import values
from ddp_run.settings.options import Options, Setting, Source
from ddp_run.settings.shell_slips import slip_in
from ddp_run.settings.table import Row
from ddp_run.values.problem import Problem, nearest

_CHECKS: Mapping[str, Callable[..., object]] = {
    "nnodes": values.read_nnodes,
    "nproc_per_node": values.read_nproc,
    "master_addr": values.read_host,
    "master_port": values.read_port,
    "control_port": values.read_port,
    "rdzv_endpoint": values.read_endpoint,
    "rdzv_conf": values.read_rdzv_conf,
    "redirects": values.read_streams,
    "tee": values.read_streams,
    "local_ranks_filter": values.read_ranks,
    "max_restarts": values.read_count,
    "max_retries": values.read_count,
    "shutdown_timeout": values.read_count,
    "monitor_interval": values.read_interval,
    "hang_timeout": values.read_deadline,
}

_HELPS: Mapping[str, tuple[str, ...]] = {
    "nnodes": ("--nnodes=2 for two nodes, --nnodes=1:4 for an elastic job",),
    "nproc_per_node": ("--nproc-per-node=2 for two ranks on this node, --nproc-per-node=gpu for one per GPU",),
    "rdzv_conf": ("--rdzv-conf=timeout=900,join_timeout=600",),
    "redirects": ("--redirects=3 for both streams of all ranks, --redirects=0:1,1:3 by local rank",),
    "tee": ("--tee=3 for both streams of all ranks, --tee=0:1,1:3 by local rank",),
    "local_ranks_filter": ("--local-ranks-filter=0,1",),
}


def check_one(dest: str, value: object) -> None:
    """Raises `ValueError` for a value that torchrun would reject later."""
    check = _CHECKS.get(dest)
    nothing_given = value is None or (dest == "rdzv_endpoint" and value == "")
    if check is not None and not nothing_given:
        check(value)


def check_values(options: Options) -> list[Problem]:
    """Problems of the values, each for itself."""
    problems = []
    for row in options.rows:
        setting = options.settings[row.dest]
        if setting.source is Source.DEFAULT or (row.dest in _RENDEZVOUS and not _counts(options, row.dest)):
            continue
        try:
            check_one(row.dest, setting.value)
        except ValueError as error:
            problems.append(bad_value(row, setting, str(error)))
    return problems


_RENDEZVOUS = ("master_addr", "master_port", "rdzv_endpoint")


def _counts(options: Options, dest: str) -> bool:
    """Whether torchrun would look at this part of the rendezvous; what it ignores may be anything."""
    if options.standalone:
        return False
    if dest == "rdzv_endpoint":
        return options.rdzv_backend in ("static", "c10d")
    if dest == "master_addr":
        try:
            return options.is_static and not options.rdzv_endpoint
        except ValueError:  # --nnodes is wrong, which is told of
            return False
    return options.rdzv_backend == "static" and not options.rdzv_endpoint


def check_together(options: Options) -> list[Problem]:
    """Problems of values that are each right; to be asked where `check_values` found none."""
    checks = (
        _module_or_program,
        _standalone_nodes,
        _node_rank,
        _endpoint_port,
        _retries_of_changing_nodes,
        _start_method,
    )
    return [problem for check in checks for problem in check(options)]


def _module_or_program(options: Options) -> list[Problem]:
    # --run-path takes precedence over both.
    if not (options.module and options.no_python) or options.run_path:
        return []
    helps = ("-m is for Python modules, --no-python for other programs: use only one of them",)
    return [_about(options, "module", "-m and --no-python cannot be used together", helps=helps)]


def _standalone_nodes(options: Options) -> list[Problem]:
    if not options.standalone or options.min_nodes == 1:
        return []
    title = f"--standalone is for one node, but {options.min_nodes} nodes were requested"
    return [_about(options, "nnodes", title, helps=("remove --standalone and add --master-addr",))]


def _node_rank(options: Options) -> list[Problem]:
    if not options.is_static or 0 <= options.node_rank < options.max_nodes:
        return []
    title = f"node rank {options.node_rank} is out of range for {options.max_nodes} nodes: 0 to {options.max_nodes - 1}"
    return [_about(options, "node_rank", title)]


def _endpoint_port(options: Options) -> list[Problem]:
    if not options.is_static or not options.rdzv_endpoint or (options.master or ("", None))[1] is not None:
        return []
    helps = (f"--rdzv-endpoint={options.rdzv_endpoint}:29500",)
    return [_about(options, "rdzv_endpoint", "a static rendezvous needs a port in its endpoint", helps=helps)]


def _retries_of_changing_nodes(options: Options) -> list[Problem]:
    if options.max_retries == 0 or options.max_nodes == 1 or options.retry == "never" or options.has_fixed_nodes:
        return []
    notes = ("nodes agree on a retry and its port only where each knows its number: --nnodes N --node-rank K",)
    title = "--max-retries needs a fixed number of nodes and a static rendezvous"
    helps = ("--max-retries=0 --max-restarts=N: torch's own restarts, on the same port",)
    return [_about(options, "max_retries", title, notes=notes, helps=helps)]


def _start_method(options: Options) -> list[Problem]:
    setting = options.settings.get("start_method")
    if not options.run_path or setting is None or setting.value in ("spawn", "fork", "forkserver"):
        return []
    return [
        _about(options, "start_method", f"unknown start method {setting.value}: expected spawn, fork or forkserver")
    ]


def bad_value(row: Row, setting: Setting, reason: str) -> Problem:
    """The problem of an option whose value cannot be used."""
    shown = row.name if setting.source is Source.OPTION else setting.origin.rpartition("/")[2]
    helps: tuple[str, ...] = _HELPS.get(row.dest, ())
    text = setting.text or ""
    slip = slip_in(text)
    notes: tuple[str, ...] = ()
    if row.choices and text:
        helps = tuple(f"{row.name}={name}" for name in nearest(text, row.choices, 1))
    elif setting.text is not None and not text.strip():
        reason = "the value is empty"
        notes = ("is a variable unset? scheduler variables (SLURM_NNODES, …) are set only inside a job",)
    elif slip is not None:
        notes, helps = (f"{text!r} has {slip.says}",), (slip.help,)
    elif row.dest in ("master_addr", "rdzv_endpoint"):
        helps = _address_helps(row, text)
    label = "" if setting.word is None else "this value"
    if setting.source is Source.CONFIG:
        shown = row.key
    elif setting.word is None and text.startswith("tcp://"):
        notes = ("this is probably Kubernetes' variable for a service called master, not meant for this job",)
    return Problem("DDP101", f"{shown}: {reason}", setting.word, label, setting.place, notes, helps)


def _address_helps(row: Row, text: str) -> tuple[str, ...]:
    """The option with the host, and the port, that a URL or the like holds."""
    found = re.fullmatch(r"\s*(?:\w+://)?(?P<host>\[[^\]]*\]|[^/:\s\[\]]*)(?::(?P<port>\d*))?(?:/.*)?\s*", text)
    host = found["host"] if found and found["host"] else "10.0.0.1"
    port = found["port"] if found else None
    try:
        values.read_host(host)
    except ValueError:
        host = "10.0.0.1"
    if row.dest == "rdzv_endpoint":
        return (f"{row.name}={host}:{port or 29500}",)
    return (f"{row.name}={host}" + (f" --master-port={port}" if port else ""),)


def _about(
    options: Options, dest: str, title: str, *, notes: tuple[str, ...] = (), helps: tuple[str, ...] = ()
) -> Problem:
    setting = options.settings[dest]
    return Problem("DDP101", title, setting.word, "", setting.place, notes, helps)
