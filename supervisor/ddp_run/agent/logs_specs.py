"""Makes the agent put each rank's files into the run's folder, from the rank's first byte on. Runs in the agent.

This is torchrun's own extension point: the entry point `ddp-run` in the group `torchrun.logs_specs`, chosen by
`--logs-specs=ddp-run`. Two variables carry ddp-run's settings: DDP_RUN_AGENT to this class, DDP_RUN_BOOT from here to
each rank's bootstrap (`ddp_run/rank/`). Written for torch 2.4 to 2.15.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, final

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, Std, to_map

VARIABLE = "DDP_RUN_AGENT"
BOOT_VARIABLE = "DDP_RUN_BOOT"
_GROUP = "torchrun.logs_specs"
_CONSOLE = ""
"""How the agent marks a stream that isn't redirected."""


@final
class RankFolders(LogsSpecs):  # type: ignore[misc]  # Any for mypy: pyproject.toml
    """Redirects every rank's stdout and stderr to its own folder, and tells its bootstrap where that is.

    DDP_RUN_AGENT (JSON): `run_folder`, `attempt`, `socket` (of ddp-run's inbox), `nccl_debug` (whether NCCL's messages
    get a file per rank), `restore` (variables that the ranks get back; null: unset), `watch` (settings of the hooks in
    torch: `backend`, `timeout_s`, `debug`; null: no hooks), `logs_specs` (entry point of the user's own class, which
    then chooses files). Without the variable, files go to `log_dir`.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
        **newer: Any,
    ) -> None:
        super().__init__(log_dir, redirects, tee, local_ranks_filter, **newer)
        # The agent has loaded all of torch by now, and keeps it. Looking through it once more at exit takes 0.2 s.
        gc.freeze()
        wishes: dict[str, Any] = json.loads(os.environ.pop(VARIABLE, "{}"))
        folder = wishes.get("run_folder") or log_dir or tempfile.mkdtemp(prefix="ddp-run-")
        self._run_folder = Path(folder).absolute()
        self._attempt = f"attempt_{int(wishes.get('attempt', 0))}"
        self._socket: str = wishes.get("socket") or ""
        self._nccl_debug = bool(wishes.get("nccl_debug"))
        self._restore: dict[str, str | None] = wishes.get("restore") or {}
        self._watch: dict[str, Any] | None = wishes.get("watch")
        self._starts = 0
        self._users: LogsSpecs | None = None
        if wishes.get("logs_specs"):
            users_class = _load(wishes["logs_specs"])
            self._users = users_class(
                log_dir=log_dir, redirects=redirects, tee=tee, local_ranks_filter=local_ranks_filter, **newer
            )

    @property
    def root_log_dir(self) -> str:
        """The run's folder, for the agent's events."""
        return str(self._run_folder) if self._users is None else self._users.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the folders for one start of the ranks, and add what they need to know to `envs` (by local rank).

        The agent calls this once per start. Starts are counted here: a rendezvous whose members change starts the ranks
        again without raising TORCHELASTIC_RESTART_COUNT, and must not overwrite the first start's files.
        """
        restart, self._starts = self._starts, self._starts + 1
        parent = self._attempt if restart == 0 else f"{self._attempt}/restart_{restart}"
        _make_folder(self._run_folder / self._attempt)
        _make_folder(self._run_folder / parent)
        files = _empty(self._run_folder / self._attempt) if self._users is None else self._users.reify(envs)
        for local_rank, env in envs.items():
            relative = f"{parent}/rank_{env['RANK']}"
            folder = self._run_folder / relative
            _make_folder(folder)
            links = self._place(files, local_rank, folder)
            env.setdefault("TORCHELASTIC_ERROR_FILE", files.error_files[local_rank])
            env[BOOT_VARIABLE] = json.dumps({**self._boot(local_rank, restart, folder, relative), "links": links})
        if self._users is None and _copies_asked_for():
            self._tee_for_copies(files, len(envs))
        return files

    def _place(self, files: LogsDest, local_rank: int, folder: Path) -> list[str]:
        """Give one rank its files, or links to those that the user's class chose. Returns where the links lead."""
        links = []
        for chosen, name in (
            (files.stdouts, "stdout.log"),
            (files.stderrs, "stderr.log"),
            (files.error_files, "error.json"),
        ):
            users = chosen.get(local_rank, _CONSOLE)
            if users == _CONSOLE:
                chosen[local_rank] = str(folder / name)
            else:
                links.append(str(Path(users).absolute()))
                (folder / name).symlink_to(links[-1])
        return links

    def _boot(self, local_rank: int, restart: int, folder: Path, relative: str) -> dict[str, Any]:
        nccl_file = str(folder / "nccl.log").replace("%", "%%")  # NCCL expands %h and %p in this name
        return {
            "socket": self._socket,
            "folder": str(folder),
            "relative": relative,
            "local_rank": local_rank,
            "restart": restart,
            "agent": os.getpid(),
            "nccl_debug_file": nccl_file if self._nccl_debug else None,
            "restore": self._restore,
            "watch": self._watch,
        }

    def _tee_for_copies(self, files: LogsDest, ranks: int) -> None:
        # The agent copies filtered lines only from streams that it tees. ddp-run itself writes to the console.
        for local_rank, streams in to_map(self._tee, ranks).items():
            if self._local_ranks_filter and local_rank not in self._local_ranks_filter:
                continue
            if streams & Std.OUT == Std.OUT:
                files.tee_stdouts[local_rank] = files.stdouts[local_rank]
            if streams & Std.ERR == Std.ERR:
                files.tee_stderrs[local_rank] = files.stderrs[local_rank]


def _load(name: str) -> type[LogsSpecs]:
    """The class behind the user's `--logs-specs NAME`. Raises ValueError with the agent's own text if there's none."""
    found = entry_points(group=_GROUP, name=name)
    if not found:
        raise ValueError(f"Could not find entrypoint under '{_GROUP}[{name}]' key")
    loaded: type[LogsSpecs] = next(iter(found)).load()
    return loaded


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _empty(folder: Path) -> LogsDest:
    """A LogsDest without redirects. Older releases of torch have no filtered files."""
    known = {field.name for field in dataclasses.fields(LogsDest)}
    filtered = {name: str(folder / f"{name}.log") for name in ("filtered_stdout", "filtered_stderr")}
    fields: dict[str, Any] = {name: path for name, path in filtered.items() if name in known}
    return LogsDest(**fields)


def _copies_asked_for() -> bool:
    """Whether --duplicate-stdout-filters or --duplicate-stderr-filters was given."""
    words = any(word.startswith("--duplicate") for word in sys.argv)
    return words or any(name.startswith("PET_DUPLICATE") for name in os.environ)
