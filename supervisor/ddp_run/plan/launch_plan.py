"""Options and host facts to a launch plan: the agent's command line and environment, with origins. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from signal import Signals

from ddp_run.settings.options import Options, Source
from ddp_run.values.signals import STOP_SIGNALS

RANK_PROGRAM = Path(__file__).parents[1] / "rank" / "__main__.py"
"""What the agent starts instead of the user's script; it runs that script."""
DEFAULT_LOG_DIR = "ddp-run-logs"
_ENTRY_POINT = "ddp-run"
"""Our class among torchrun's `torchrun.logs_specs` entry points (pyproject.toml)."""
_AGENT_MODULE = "torch.distributed.run"
_POLL_S = "0.03"
"""The agent's poll of its ranks (torchrun's default: 0.1 s): it costs a waitpid per rank and notices ends sooner."""
# What becomes of these is ddp-run's business (files, console, bootstrap); their values reach the agent changed.
_TAKEN_OVER = frozenset({"log-dir", "redirects", "local-ranks-filter", "module", "no-python", "logs-specs"})


@dataclass(frozen=True, slots=True)
class Planned:
    """A value that ddp-run sets, and why or from where."""

    name: str
    value: str
    origin: str


class AgentNeeded(Enum):
    """How long an agent has anything to do for the user; its own teardown takes 0.7 s."""

    FOR_ITS_RANKS = auto()
    FOR_OTHER_AGENTS = auto()
    """Where the job goes well, until the ranks of all nodes have ended: agents wait for each other in a barrier. Else
    for its ranks: that barrier is not completed then."""
    FOR_ALL_RANKS = auto()
    """Until those of all nodes have ended, well or not: agents and ranks use the store of node 0's agent."""
    TO_ITS_END = auto()


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All that is decided before anything starts."""

    options: Options
    python: str
    master: str | None
    """IP address of the master, null where torch's own default (this host) holds."""
    environment: tuple[Planned, ...]
    """What the agent and so the ranks get beyond ddp-run's own environment."""
    restore: Mapping[str, str | None]
    """Variables changed for the agent alone; the ranks get these values back (null: unset)."""
    by_torch: tuple[Planned, ...]
    """What the agent itself sets, to be shown: it tells only its own log."""
    nccl_log: bool
    """Whether NCCL's messages go to a file per rank: never where the user asked NCCL for messages himself."""

    @property
    def chosen_port(self) -> int | None:
        """The port that the user fixed for the rendezvous; null where torch takes a free one each time."""
        master = self.options.master
        return (master[1] or None) if master is not None else None

    @property
    def may_change_port(self) -> bool:
        """Whether another port is nothing to speak of: one node, and a MASTER_PORT that is only exported, at which
        torchrun does not look."""
        return self.options.max_nodes == 1 and self.options.settings["master_port"].source is Source.VARIABLE

    @property
    def agent_signals(self) -> frozenset[int]:
        """Signals that the agent takes and hands to the ranks (`--signals-to-handle`, torch 2.13 and newer)."""
        setting = self.options.settings.get("signals_to_handle")
        if setting is None or not isinstance(setting.value, str):
            return STOP_SIGNALS
        names = {name.strip() for name in setting.value.split(",")}
        return frozenset(each for each in Signals if each.name in names)


def agent_needed(options: Options) -> AgentNeeded:
    """For how long: to its end where the user gave it a handler or a layout of his own, or it may start ranks anew."""
    if options.given & {"event_log_handler", "logs_specs", "duplicate_stdout_filters", "duplicate_stderr_filters"}:
        return AgentNeeded.TO_ITS_END
    if options.max_nodes == 1:
        return AgentNeeded.FOR_ITS_RANKS
    if not options.has_fixed_nodes or options.restarts:
        return AgentNeeded.TO_ITS_END
    return AgentNeeded.FOR_ALL_RANKS if options.node_rank == 0 else AgentNeeded.FOR_OTHER_AGENTS


def local_restarts(options: Options) -> int | None:
    """How often this node's agent alone starts its ranks again; null where the nodes' agents decide together."""
    together = options.max_nodes > 1 and (options.restarts > 0 or options.min_nodes < options.max_nodes)
    return None if together else options.restarts


def log_dir(options: Options) -> Path:
    """The folder of all runs; relative to the working directory where it is not absolute."""
    return Path(options.log_dir or DEFAULT_LOG_DIR)


def make_plan(
    options: Options, environ: Mapping[str, str], *, python: str, master: str | None, interface: str | None = None
) -> LaunchPlan:
    """Decide everything but what differs between attempts.

    `master` is the resolved address, where one was given; `interface` leads there from here, with several nodes.
    """
    environ = {**environ, **{each.name: each.value for each in options.rank_variables}}
    preset, nccl_log = _nccl_preset(options.nccl_debug, environ)
    environment = [*(Planned(each.name, each.value, each.origin) for each in options.rank_variables), *preset]
    if options.restarts and "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in environ:
        # Without it the agent restarts ranks on the same port and store, where they find the last attempt's
        # addresses (measured: 16 of 18 gloo restarts failed on torch 2.13).
        environment.append(Planned("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", "needed by --max-restarts"))
    if interface is not None and "GLOO_SOCKET_IFNAME" not in environ:
        # Gloo by itself takes what this host's name resolves to: 127.0.1.1, or a bridge of containers, on many hosts.
        # NCCL uses every interface that fits, for speed, and passes over those.
        environment.append(Planned("GLOO_SOCKET_IFNAME", interface, "the route to the master"))
    taken: tuple[str, ...] = ("PET_MODULE", "PET_NO_PYTHON")
    restore = {name: environ[name] for name in taken if name in environ}
    by_torch = _threads_per_rank(options, environ)
    return LaunchPlan(options, python, master, tuple(environment), restore, by_torch, nccl_log)


def _threads_per_rank(options: Options, environ: Mapping[str, str]) -> tuple[Planned, ...]:
    """torch/distributed/run.py, config_from_args: one thread per rank where there are several and nobody chose."""
    if "OMP_NUM_THREADS" in environ or (options.nproc_count or 0) < 2:
        return ()
    return (Planned("OMP_NUM_THREADS", "1", "torchrun's own: several ranks, not set; tune it for your CPUs"),)


def _nccl_preset(preset: str, environ: Mapping[str, str]) -> tuple[tuple[Planned, ...], bool]:
    # TORCH_DISTRIBUTED_DEBUG=DETAIL is in none: on torch 2.13 it ends every gloo DDP job with SIGSEGV.
    wanted = {
        "off": {},
        "warn": {"NCCL_DEBUG": "WARN"},
        "info": {"NCCL_DEBUG": "INFO"},
        "trace": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL", "TORCH_DISTRIBUTED_DEBUG": "INFO"},
    }[preset]
    planned = tuple(
        Planned(name, value, f"--nccl-debug {preset}") for name, value in wanted.items() if name not in environ
    )
    ours = any(each.name == "NCCL_DEBUG" for each in planned)
    return planned, ours and "NCCL_DEBUG_FILE" not in environ


def agent_environment(plan: LaunchPlan, environ: Mapping[str, str], run_id: str) -> dict[str, str]:
    """The agent's environment but for what an attempt adds."""
    result = dict(environ)
    result.update((each.name, each.value) for each in plan.environment)
    for name in plan.restore:
        result[name] = "0"
    result["DDP_RUN_ID"] = run_id
    return result


def agent_argv(plan: LaunchPlan, *, folder: Path, rank_program: Path, port: int | None) -> list[str]:
    """The agent's command line. `folder`: the attempt's. `port`: instead of the one the user fixed, or null."""
    options = plan.options
    # Without -P, `-m` would put the working directory first on the agent's path, where a file such as logging.py of
    # the user's takes the place of Python's own. Children of --run-path inherit the flag, so not for those.
    words = [plan.python, *([] if options.run_path else ["-P"]), "-m", _AGENT_MODULE]
    replaced = _replaced(plan, port)
    ours = _TAKEN_OVER | {_name(word) for word in replaced}
    words += [word for word in options.torch_arguments() if _name(word) not in ours]
    words += replaced
    words += [f"--logs-specs={_ENTRY_POINT}", f"--log-dir={folder}", "--redirects=3", "--local-ranks-filter="]
    if not _duplicates(options):
        words.append("--tee=0")
    if options.needs_port:
        words.append("--master-addr=127.0.0.1")  # newer releases do not look at the address of one node either
    if "monitor_interval" not in options.given:
        words.append(f"--monitor-interval={_POLL_S}")
    return [*words, *_rank_words(plan, rank_program)]


def _duplicates(options: Options) -> bool:
    """Whether the agent is to copy lines that match a filter; it does so for teed streams only."""
    return bool({"duplicate_stdout_filters", "duplicate_stderr_filters"} & options.given)


def _replaced(plan: LaunchPlan, port: int | None) -> list[str]:
    """What stands in the place of the user's words: the address for a name, and a fresh port."""
    words = []
    if plan.master is not None:
        words.append(f"--master-addr={f'[{plan.master}]' if ':' in plan.master else plan.master}")
    if port is not None:
        words.append(_port_argument(plan.options, port))
    return words


def _name(word: str) -> str:
    return word.removeprefix("--").partition("=")[0].replace("_", "-")


def _port_argument(options: Options, port: int) -> str:
    if options.rdzv_endpoint:
        host, _colon, _port = options.rdzv_endpoint.rpartition(":")
        return f"--rdzv-endpoint={host or options.rdzv_endpoint}:{port}"
    return f"--master-port={port}"


def _rank_words(plan: LaunchPlan, rank_program: Path) -> list[str]:
    options = plan.options
    users = [options.script, *options.script_args]
    if options.no_python and not options.run_path:
        # As an option: what PET_NO_PYTHON said is taken from the agent (see `restore`).
        return ["--no-python", plan.python, "-I", "-S", "-u", str(rank_program), "exec", *users]
    mode = "run-path" if options.run_path else "module" if options.module else "script"
    return [str(rank_program), mode, *users]


def dist_timeout_s(environ: Mapping[str, str]) -> float | None:
    """TORCH_DIST_TIMEOUT in seconds (it is given in minutes), null where it is absent or no positive number.

    It reaches the process groups that the program makes without a time-out of its own.
    """
    try:
        minutes = float(environ.get("TORCH_DIST_TIMEOUT", ""))
    except ValueError:
        return None
    return 60 * minutes if 0 < minutes < 1e6 else None
