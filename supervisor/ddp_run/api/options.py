"""The arguments of `ddp_run.launch`: the command line's options with underscores, and the words they make. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Literal, TypedDict

_STARTS_NOTHING = ("dry_run", "help", "version")


class LaunchOptions(TypedDict, total=False):
    """Options of torchrun (torch 2.4 to 2.13) and of ddp-run; `ddp-run --help` describes each of them.

    The installed torch decides: an option that it doesn't have is refused, and a newer torch's option is accepted even
    if it isn't listed here. None and False mean that the option isn't given.
    """

    nnodes: int | str | None
    nproc_per_node: int | str | None
    rdzv_backend: str | None
    rdzv_endpoint: str | None
    rdzv_id: int | str | None
    rdzv_conf: str | None
    standalone: bool
    max_restarts: int | None
    monitor_interval: float | None
    start_method: Literal["spawn", "fork", "forkserver"] | None
    event_log_handler: str | None
    role: str | None
    module: bool
    no_python: bool
    run_path: bool
    log_dir: str | Path | None
    redirects: int | str | None
    tee: int | str | None
    local_ranks_filter: int | str | None
    duplicate_stdout_filters: str | None
    duplicate_stderr_filters: str | None
    node_rank: int | None
    master_addr: str | None
    master_port: int | None
    local_addr: str | None
    logs_specs: str | None
    numa_binding: str | None
    signals_to_handle: str | None
    virtual_local_rank: bool

    max_retries: int | None
    retry: Literal["by-cause", "always", "never"] | None
    spare_nodes: int | None
    nccl_debug: Literal["off", "warn", "info", "trace"] | None
    hang_timeout: float | None
    checkpoint_dir: str | Path | None
    ddp_debug: bool
    warm: bool
    backend: str | None
    fallback_backend: str | None
    preflight: Literal["auto", "off", "strict"] | None
    console: Literal["all", "rank0", "failed", "none", "raw"] | None
    status: bool
    config: str | Path | None
    on_success: str | None
    on_failure: str | None
    on_end: str | None
    metrics: str | Path | None
    log_size_cap: int | str | None
    report: Literal["off", "failed", "always"] | None
    log_format: Literal["console", "json"] | None
    control_port: int | None
    shutdown_timeout: int | None


def words(
    script: str | Path, args: Iterable[str | int | float | Path], options: Mapping[str, object]
) -> tuple[str, ...]:
    """What to type after `ddp-run`. Raises TypeError for what no command line can say.

    Whether an option exists and what its value may be is checked where command lines are parsed.
    """
    if isinstance(args, str | bytes):
        raise TypeError(f"args is a string, not a list of words: {args!r}; shlex.split makes a list")
    return (*_option_words(options), _text("script", script), *(_text("args", each) for each in args))


def _option_words(options: Mapping[str, object]) -> list[str]:
    switches, valued = [], []
    for name, value in options.items():
        if name in _STARTS_NOTHING:
            raise TypeError(f"{name} doesn't start a job: use it on the command line")
        # A command line may shorten an option to what is unambiguous today; a program lasts longer.
        longer = [each for each in (*LaunchOptions.__annotations__, *_STARTS_NOTHING) if each.startswith(name)]
        if longer and name not in longer:
            raise TypeError(f"{name} is not an option: expected {' or '.join(longer)}")
        option = f"--{name.replace('_', '-')}"
        if value is True:
            switches.append(option)
        elif value is not None and value is not False:
            valued.append(f"{option}={_text(name, value)}")
    # First, so that an option that needs a value doesn't take the script for it.
    return [*switches, *valued]


def _text(name: str, value: object) -> str:
    match value:
        case str():
            text = value
        case PurePath() | int() | float():
            text = str(value)
        case _:
            raise TypeError(f"{name}: {type(value).__name__} can't be a word of a command line: {value!r}")
    if "\0" in text:
        raise TypeError(f"{name}: a word of a command line can't contain a null character")
    return text
