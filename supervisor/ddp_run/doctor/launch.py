"""Start the doctor's ranks by a launch of ddp-run with the same node options, and wait for its end.

The launch is its own process: it becomes a subreaper and takes signals like any launch. It also has its own session, so
a Ctrl-C reaches the doctor alone, which passes it on once.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_run.doctor.check import Level, Surroundings
from ddp_run.doctor.reports import Launched, Reports, read_lines
from ddp_run.observe.memory import host_memory
from ddp_run.plan import node_facts
from ddp_run.record import file_names
from ddp_run.record.events import NodesCompared
from ddp_run.record.journal import read
from ddp_run.settings.options import Options
from ddp_run.values.helper_process import die_with_parent

RANK_PROGRAM = Path(__file__).parents[1] / "doctor_ranks" / "__main__.py"
_UNSET = ("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "DDP_RUN_VERDICT_LINE")
_FOLDER = "DDP_RUN_DOCTOR"
"""Not an argument: nodes are compared by arguments, and each node has its own folder."""
_POLL_S = 0.2
_MOST_SILENT_S = 180.0
"""A rank that reports no step for this long hangs: each collective has a timeout of 60 s."""
_HUNG = 124
_COMPARED = "nodes differ in "
"""The launch's messages about nodes start with this; the doctor shows them as findings."""


def run_ranks(around: Surroundings, bad: Sequence[str]) -> Reports:
    """Run the ranks and return what they reported. `bad`: what failed on this node already.

    The run's folder lies in --log-dir. Without --log-dir it lies in a temporary folder, which is kept if the launch
    failed. Raises OSError if nothing can be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="ddp-run-doctor-"))
    has_place = "log_dir" in around.options.given
    logs = around.log_dir if has_place else folder / "ddp-run-logs"
    keep = False
    try:
        (folder / "order.json").write_text(json.dumps(_order(around, bad)), encoding="utf-8")
        options = ["--log-format=json", "--console=none", "--retry=never", f"--log-dir={logs}"]
        words = [*options, *around.words, *_without_hooks(around.options), str(RANK_PROGRAM)]
        began = time.monotonic()
        listener = _Listener(around, folder)
        code = _launch(words, listener)
        run = Path((listener.verdict or {}).get("folder") or logs / file_names.LATEST)
        keep = code != 0 and not has_place and run.exists()
        launched = Launched(
            exit_code=code,
            seconds=time.monotonic() - began,
            verdict=listener.verdict,
            folder=str(run) if keep or (has_place and run.exists()) else "",
            said=tuple(listener.warnings),
            compared=_compared(run / file_names.EVENTS),
            refused="\n".join(listener.plain),
        )
        return Reports(launched, _reported(folder))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _without_hooks(options: Options) -> list[str]:
    """Override the user's hooks: what follows a training (perhaps the end of a rented machine) must not run here."""
    hooks = {"on-success": options.on_success, "on-failure": options.on_failure, "on-end": options.on_end}
    return [f"--{name}=:" for name, command in hooks.items() if command]  # ":" does nothing in a shell


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


def _launch(words: Sequence[str], listener: _Listener) -> int:
    """Launch, listen until the end, and return the exit code."""
    environ = {name: value for name, value in listener.around.environ.items() if name not in _UNSET}
    environ[_FOLDER] = str(listener.folder)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ddp_run", *words],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent(),  # noqa: PLW1509 - this process has one thread
    )
    code = None
    try:
        if listener.listen(process):
            code = process.wait()
    finally:
        if code is None:  # hung, or interrupted
            _end(process)
    if code is None:
        return _HUNG
    return code if code >= 0 else 128 - code


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launch as Ctrl-C does: it ends its ranks. A second Ctrl-C ends them at once."""
    for signum in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(signum)
            try:
                process.communicate(timeout=40)
            except (KeyboardInterrupt, subprocess.TimeoutExpired):
                continue
    process.wait()


class _Listener:
    """Reads the launch's stderr, and follows the ranks' steps."""

    def __init__(self, around: Surroundings, folder: Path) -> None:
        self.verdict: Mapping[str, Any] | None = None
        self.warnings: list[str] = []
        self.plain: list[str] = []
        """Lines that aren't log messages: a refusal, an internal error."""
        self.around, self.folder = around, folder
        self._reports, self._reported_at = 0, time.monotonic()

    def listen(self, process: subprocess.Popen[bytes]) -> bool:
        """Listen until the launch closes its stderr. Returns False if the ranks have stopped reporting steps."""
        assert process.stderr is not None
        fd = process.stderr.fileno()
        os.set_blocking(fd, False)
        held = b""
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while True:
                if not selector.select(_POLL_S):
                    if not self._ranks_go_on():
                        return False
                    continue
                got = os.read(fd, 65536)
                *lines, held = (held + got).split(b"\n")
                for line in lines:
                    self._hear(line.decode(errors="replace"))
                if not got:
                    return True

    def _hear(self, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            if not line.startswith("ddp-run: verdict "):
                self.plain.append(line)
            return
        if message.get("event") == "verdict" or "outcome" in message:
            self.verdict = message
            return
        text = str(message.get("event", line))
        if message.get("level") == "warning":
            self.warnings.append(text)
        if not text.startswith(_COMPARED):
            self.around.say(text)

    def _ranks_go_on(self) -> bool:
        by_rank = _reported(self.folder)
        reports = sum(map(len, by_rank.values()))
        if reports != self._reports or not reports:
            self._reports, self._reported_at = reports, time.monotonic()
        if step := Reports(by_rank=by_rank).one("doing"):
            self.around.doing(f"ranks: {step['what']}")
        return time.monotonic() - self._reported_at <= _MOST_SILENT_S


def _reported(folder: Path) -> dict[int, list[Mapping[str, Any]]]:
    found = {}
    for path in folder.glob("rank_*.jsonl"):
        rank = int(path.stem.partition("_")[2])
        found[rank] = read_lines(path.read_text(encoding="utf-8", errors="replace"), rank)
    return found
