"""The options of `ddp_run.launch`, for type checkers and editors: the command line's, with underscores."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypedDict


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
    nccl_debug: Literal["off", "warn", "info", "trace"] | None
    hang_timeout: float | None
    ddp_debug: bool
    backend: str | None
    fallback_backend: str | None
    preflight: Literal["auto", "off", "strict"] | None
    console: Literal["all", "rank0", "failed", "none", "raw"] | None
    config: str | Path | None
    on_success: str | None
    on_failure: str | None
    on_end: str | None
    log_format: Literal["console", "json"] | None
    control_port: int | None
    shutdown_timeout: int | None
