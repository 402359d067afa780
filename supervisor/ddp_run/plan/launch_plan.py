"""Make a launch plan from options and host facts: the agent's command and environment, with origins. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from signal import Signals

from ddp_run.settings.options import Options, Source, Variable
from ddp_run.values.signals import STOP_SIGNALS

RANK_PROGRAM = Path(__file__).parents[1] / "rank" / "__main__.py"
"""What the agent starts instead of the user's script; it runs that script."""
DEFAULT_LOG_DIR = "ddp-run-logs"
_ENTRY_POINT = "ddp-run"
"""Our class among torchrun's `torchrun.logs_specs` entry points (pyproject.toml)."""
_AGENT_MODULE = "torch.distributed.run"
_POLL_S = "0.03"
"""How often the agent polls its ranks. Costs a waitpid per rank; torchrun's default of 0.1 s notices exits later."""
# ddp-run handles these itself (files, console, bootstrap), so the agent gets other values.
_TAKEN_OVER = frozenset({"log-dir", "redirects", "local-ranks-filter", "module", "no-python", "logs-specs"})


class AgentNeeded(Enum):
    """Until when the job needs the agent. Stopping it there saves its teardown (0.7 s)."""

    FOR_ITS_RANKS = auto()
    FOR_OTHER_AGENTS = auto()
    """If the job succeeds, until the ranks of all nodes have ended: the agents meet in a barrier. Otherwise as
    FOR_ITS_RANKS, since that barrier can't complete."""
    FOR_ALL_RANKS = auto()
    """Until the ranks of all nodes have ended, even if some failed: all use the store of node 0's agent."""
    TO_ITS_END = auto()


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that is decided before the agent starts."""

    options: Options
    python: str
    master: str | None
    """IP address of the rendezvous' host; None for torch's default, this host."""
    has_store: bool
    """This node may have the rendezvous' store: node 0 does, or a host that a c10d endpoint names."""
    environment: tuple[Variable, ...]
    """Added to ddp-run's environment for the agent and the ranks."""
    restore: Mapping[str, str]
    """Variables changed only for the agent; the ranks get these values back."""
    by_torch: tuple[Variable, ...]
    """Variables that the agent sets. They are shown because the agent only logs them."""
    nccl_log: bool
    """Whether NCCL logs to a file per rank; False if the user configured NCCL's log."""

    @property
    def chosen_port(self) -> int | None:
        """The rendezvous port that the user chose; None if torch picks a free one each time."""
        master = self.options.master
        return (master[1] or None) if master is not None else None

    @property
    def may_change_port(self) -> bool:
        """Whether the port may change without a message: one node, and the port comes from MASTER_PORT.

        torchrun ignores that variable.
        """
        return self.options.max_nodes == 1 and self.options.settings["master_port"].source is Source.VARIABLE

    @property
    def agent_signals(self) -> frozenset[int]:
        """Signals that the agent handles and forwards to the ranks (`--signals-to-handle`, torch 2.13 and newer)."""
        setting = self.options.settings.get("signals_to_handle")
        if setting is None or not isinstance(setting.value, str):
            return STOP_SIGNALS
        names = {name.strip() for name in setting.value.split(",")}
        return frozenset(each for each in Signals if each.name in names)


def agent_needed(plan: LaunchPlan) -> AgentNeeded:
    """Say until when the job needs the agent: to its end with the user's own handlers, or if it may restart ranks."""
    options = plan.options
    if options.given & {"event_log_handler", "logs_specs", "duplicate_stdout_filters", "duplicate_stderr_filters"}:
        return AgentNeeded.TO_ITS_END
    if options.max_nodes == 1:
        return AgentNeeded.FOR_ITS_RANKS
    if not options.has_fixed_nodes or options.restarts:
        return AgentNeeded.TO_ITS_END
    return AgentNeeded.FOR_ALL_RANKS if plan.has_store else AgentNeeded.FOR_OTHER_AGENTS


def local_restarts(options: Options) -> int | None:
    """How often this node's agent may restart its ranks; None if the nodes' agents decide together."""
    together = options.max_nodes > 1 and (options.restarts > 0 or options.is_elastic)
    return None if together else options.restarts


def log_dir(options: Options) -> Path:
    """The folder of all runs; may be relative to the working directory."""
    return Path(options.log_dir or DEFAULT_LOG_DIR)


def make_plan(
    options: Options,
    environ: Mapping[str, str],
    *,
    python: str,
    master: str | None,
    master_is_here: bool = False,
    interface: str | None = None,
) -> LaunchPlan:
    """Decide everything that is the same in all attempts.

    `master`: the resolved address, if one was given; `master_is_here`: it is one of this host's. `interface`: with
    several nodes, the one that leads there.
    """
    environ = {**environ, **{each.name: each.value for each in options.rank_variables}}
    preset, nccl_log = _nccl_preset(options.nccl_debug, environ)
    environment = [*options.rank_variables, *preset]
    if (options.restarts or options.is_elastic) and "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in environ:
        # Without it the agent restarts ranks on the same port and store, where they find the last attempt's
        # addresses (measured: 16 of 18 gloo restarts failed on torch 2.13).
        environment.append(Variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", "ranks may be started again"))
    if interface is not None and "GLOO_SOCKET_IFNAME" not in environ:
        # Gloo's default is the address of this host's name: on many hosts 127.0.1.1 or a container bridge. NCCL skips
        # those, and uses every other interface for speed.
        environment.append(Variable("GLOO_SOCKET_IFNAME", interface, "the route to the master"))
    restore: dict[str, str] = {name: environ[name] for name in ("PET_MODULE", "PET_NO_PYTHON") if name in environ}
    by_torch = _threads_per_rank(options, environ)
    if options.is_static:
        has_store = options.node_rank == 0
    else:
        has_store = master is None or master_is_here if options.hosts_store is None else options.hosts_store
    return LaunchPlan(options, python, master, has_store, tuple(environment), restore, by_torch, nccl_log)


def _threads_per_rank(options: Options, environ: Mapping[str, str]) -> tuple[Variable, ...]:
    """torch/distributed/run.py, config_from_args: one thread per rank if there are several and it is unset."""
    if "OMP_NUM_THREADS" in environ or (options.nproc_count or 0) < 2:
        return ()
    return (Variable("OMP_NUM_THREADS", "1", "torchrun's default for several ranks; tune it for your CPUs"),)


def _nccl_preset(preset: str, environ: Mapping[str, str]) -> tuple[tuple[Variable, ...], bool]:
    # No preset sets TORCH_DISTRIBUTED_DEBUG=DETAIL: on torch 2.13 it crashes every gloo DDP job (SIGSEGV).
    wanted = {
        "off": {},
        "warn": {"NCCL_DEBUG": "WARN"},
        "info": {"NCCL_DEBUG": "INFO"},
        "trace": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL", "TORCH_DISTRIBUTED_DEBUG": "INFO"},
    }[preset]
    planned = tuple(
        Variable(name, value, f"--nccl-debug {preset}") for name, value in wanted.items() if name not in environ
    )
    ours = any(each.name == "NCCL_DEBUG" for each in planned)
    return planned, ours and "NCCL_DEBUG_FILE" not in environ


def agent_environment(plan: LaunchPlan, environ: Mapping[str, str], run_id: str) -> dict[str, str]:
    """The agent's environment, without what each attempt adds."""
    result = dict(environ)
    result.update((each.name, each.value) for each in plan.environment)
    for name in plan.restore:
        result[name] = "0"
    result["DDP_RUN_ID"] = run_id
    return result


def agent_argv(plan: LaunchPlan, *, folder: Path, port: int | None) -> list[str]:
    """The agent's command line. `folder`: the attempt's. `port`: replaces the user's, if not None."""
    options = plan.options
    # Without -P, `-m` would put the working directory first on the agent's path, and a user's logging.py would shadow
    # Python's. Not with --run-path: its children would inherit the flag.
    words = [plan.python, *([] if options.run_path else ["-P"]), "-m", _AGENT_MODULE]
    replaced = _replaced(plan, port)
    ours = _TAKEN_OVER | {_name(word) for word in replaced}
    words += [word for word in options.torch_arguments() if _name(word) not in ours]
    words += replaced
    words += [f"--logs-specs={_ENTRY_POINT}", f"--log-dir={folder}", "--redirects=3", "--local-ranks-filter="]
    if not options.given & {"duplicate_stdout_filters", "duplicate_stderr_filters"}:
        words.append("--tee=0")  # the agent filters only streams that it tees
    if options.needs_port:
        words.append("--master-addr=127.0.0.1")  # newer releases ignore it for one node
    if "monitor_interval" not in options.given:
        words.append(f"--monitor-interval={_POLL_S}")
    return [*words, *_rank_words(plan)]


def _replaced(plan: LaunchPlan, port: int | None) -> list[str]:
    """Words that replace the user's: the resolved address, and another port."""
    words, endpoint = [], plan.options.rdzv_endpoint
    if plan.master is not None and not endpoint:
        words.append(f"--master-addr={f'[{plan.master}]' if ':' in plan.master else plan.master}")
    if port is not None and endpoint:
        words.append(f"--rdzv-endpoint={endpoint.rpartition(':')[0] or endpoint}:{port}")
    elif port is not None:
        words.append(f"--master-port={port}")
    return words


def _name(word: str) -> str:
    return word.removeprefix("--").partition("=")[0].replace("_", "-")


def _rank_words(plan: LaunchPlan) -> list[str]:
    options = plan.options
    users = [options.script, *options.script_args]
    if options.no_python and not options.run_path:
        # As an option, since PET_NO_PYTHON is hidden from the agent (see `restore`).
        return ["--no-python", plan.python, "-I", "-S", "-u", str(RANK_PROGRAM), "exec", *users]
    mode = "run-path" if options.run_path else "module" if options.module else "script"
    return [str(RANK_PROGRAM), mode, *users]


def dist_timeout_s(environ: Mapping[str, str]) -> float | None:
    """TORCH_DIST_TIMEOUT (minutes) in seconds; None if it is unset or isn't a positive number.

    It applies to process groups that the program creates without a timeout.
    """
    try:
        minutes = float(environ.get("TORCH_DIST_TIMEOUT", ""))
    except ValueError:
        return None
    return 60 * minutes if 0 < minutes < 1e6 else None
