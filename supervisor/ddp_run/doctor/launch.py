"""Start the doctor's ranks by a launch of ddp-run with the same node options, as `ddp_run.launch` does."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_run.api import child
from ddp_run.api.child import Said
from ddp_run.doctor.check import Level, Surroundings
from ddp_run.doctor.reports import Launched, Reports, read_lines
from ddp_run.observe.memory import host_memory
from ddp_run.plan import node_facts
from ddp_run.record import file_names
from ddp_run.record.events import NodesCompared
from ddp_run.record.journal import read
from ddp_run.settings.options import Options

RANK_PROGRAM = Path(__file__).parents[1] / "doctor_ranks" / "__main__.py"
_UNSET = ("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "DDP_RUN_VERDICT_LINE")
_FOLDER = "DDP_RUN_DOCTOR"
"""Not an argument: nodes are compared by arguments, and each node has its own folder."""
_MOST_SILENT_S = 180.0
"""A rank that reports no step for this long hangs: each collective has a timeout of 60 s."""
_HUNG = 124
_COMPARED = "nodes differ in "
"""The launch's messages about nodes start with this; the doctor shows them as findings."""


def run_ranks(around: Surroundings, bad: Sequence[str]) -> Reports:
    """Run the ranks and return what they reported. `bad`: what failed on this node already.

    The run's folder lies in --log-dir. Without --log-dir it lies in a temporary folder, which is kept if the launch
    failed. Raises OSError or LaunchRefused if nothing can be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="ddp-run-doctor-"))
    has_place = "log_dir" in around.options.given
    logs = around.log_dir if has_place else folder / "ddp-run-logs"
    keep = False
    try:
        (folder / "order.json").write_text(json.dumps(_order(around, bad)), encoding="utf-8")
        options = ["--log-format=json", "--console=none", "--retry=never", f"--log-dir={logs}"]
        words = [*options, *around.words, *_without_hooks(around.options), str(RANK_PROGRAM)]
        environ = {name: value for name, value in around.environ.items() if name not in _UNSET}
        began = time.monotonic()
        ranks = _Ranks(around, folder)
        try:
            said = child.run(words, {**environ, _FOLDER: str(folder)}, None, streams=(None, ranks), look=ranks.look)
            verdict = _verdict(said.folder) if said.folder is not None else None
        except _Hung:
            said, verdict = Said(logs / file_names.LATEST, exit_code=_HUNG), None
        run = said.folder if said.folder is not None and said.folder.exists() else None
        keep = said.exit_code != 0 and not has_place and run is not None
        launched = Launched(
            exit_code=1 if said.exit_code is None else said.exit_code,
            seconds=time.monotonic() - began,
            verdict=verdict,
            folder=str(run) if run is not None and (keep or has_place) else "",
            said=tuple(ranks.warnings),
            compared=_compared(run / file_names.EVENTS) if run is not None else None,
            refused=said.refused or "\n".join(ranks.plain),
        )
        return Reports(launched, _reported(folder))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _without_hooks(options: Options) -> list[str]:
    """Override the user's hooks: what follows a training (perhaps the end of a rented machine) must not run here."""
    hooks = {"on-success": options.on_success, "on-failure": options.on_failure, "on-end": options.on_end}
    return [f"--{name}=:" for name, command in hooks.items() if command]  # ":" does nothing in a shell


def _verdict(run: Path) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = json.loads((run / file_names.VERDICT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _compared(journal: Path) -> NodesCompared | None:
    try:
        return next((event for event in read(journal) if isinstance(event, NodesCompared)), None)
    except OSError:
        return None


def _order(around: Surroundings, bad: Sequence[str]) -> dict[str, Any]:
    master = around.known_master()
    facts = node_facts.collect(around.options, around.environ, master.ip if master is not None else "127.0.0.1").facts
    return {
        "full": around.level is Level.FULL,
        "host": around.host,
        "facts": [[fact.name, fact.value] for fact in facts],
        "failed": list(bad),
        "data_paths": [str(path) for path in around.data_paths],
        "free_memory": host_memory()[0] or 0,
    }


class _Hung(Exception):
    """The ranks have stopped reporting steps."""


class _Ranks(io.StringIO):
    """Takes what the launch writes to stderr, and follows the ranks' steps."""

    def __init__(self, around: Surroundings, folder: Path) -> None:
        super().__init__()
        self.warnings: list[str] = []
        self.plain: list[str] = []
        """Lines that aren't log messages, as of an internal error."""
        self._around, self._folder = around, folder
        self._begun_line = ""
        self._reports, self._reported_at = 0, time.monotonic()

    def write(self, text: str, /) -> int:
        """Takes all of it."""
        *lines, self._begun_line = (self._begun_line + text).split("\n")
        for line in lines:
            self._hear(line)
        return len(text)

    def _hear(self, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            if not line.startswith("ddp-run: verdict "):
                self.plain.append(line)
            return
        if message.get("event") == "verdict" or "outcome" in message:
            return
        text = str(message.get("event", line))
        if message.get("level") == "warning":
            self.warnings.append(text)
        if not text.startswith(_COMPARED):
            self._around.say(text)

    def look(self) -> None:
        """Show what the ranks are doing. Raises _Hung."""
        by_rank = _reported(self._folder)
        reports = sum(map(len, by_rank.values()))
        if reports != self._reports or not reports:
            self._reports, self._reported_at = reports, time.monotonic()
        if step := Reports(by_rank=by_rank).one("doing"):
            self._around.doing(f"ranks: {step['what']}")
        if time.monotonic() - self._reported_at > _MOST_SILENT_S:
            self._reported_at = time.monotonic()  # the launch gets as long to end
            raise _Hung


def _reported(folder: Path) -> dict[int, list[Mapping[str, Any]]]:
    found = {}
    for path in folder.glob("rank_*.jsonl"):
        rank = int(path.stem.partition("_")[2])
        found[rank] = read_lines(path.read_text(encoding="utf-8", errors="replace"), rank)
    return found
