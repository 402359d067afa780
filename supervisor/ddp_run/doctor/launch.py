"""Starts the doctor's ranks: a launch by ddp-run itself with the same node options, whose end the doctor waits for.

A process of its own: it becomes subreaper, takes signals and says what it says like any launch. It has its own session,
so a Ctrl-C reaches the doctor alone, which hands it on once.
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
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ddp_run.doctor.reports import Launched, Reports, read_lines
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.observe.memory import host_memory
from ddp_run.plan import net, node_facts
from ddp_run.record import file_names
from ddp_run.record.events import NodesCompared
from ddp_run.record.journal import read
from ddp_run.settings.options import Options
from ddp_run.values.helper_process import die_with_parent

RANK_PROGRAM = Path(__file__).parents[1] / "doctor_ranks" / "__main__.py"
_NOT_FOR_IT = ("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "DDP_RUN_VERDICT_LINE")
_FOLDER = "DDP_RUN_DOCTOR"
"""Not an argument of the program: nodes are compared by those, and each has a folder of its own."""
_POLL_S = 0.2
_MOST_SILENT_S = 180.0
"""A rank that reports no further step for so long hangs: every collective has a time-out of its own, of 60 s."""
_HUNG = 124
_COMPARED = "nodes differ in "
"""What the launch's own comparison of nodes begins with; the doctor has it as findings."""


class Listener(Protocol):
    """Who is told while the ranks run."""

    def say(self, line: str) -> None:
        """What the launch tells its user."""

    def doing(self, what: str) -> None:
        """How far the ranks are."""


def run_ranks(words: Sequence[str], around: Surroundings, bad: Sequence[str], listener: Listener) -> Reports:
    """Launch and wait; what the ranks reported. `words`: the launch's options. `bad`: what failed on this node already.

    The launch's run lies in --log-dir; without, in a temporary folder that stays where the launch failed. Raises
    OSError where nothing can be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="ddp-run-doctor-"))
    has_place = "log_dir" in around.options.given
    logs = around.log_dir if has_place else folder / "ddp-run-logs"
    stays = False
    try:
        (folder / "order.json").write_text(json.dumps(_order(around, bad)), encoding="utf-8")
        options = ["--log-format=json", "--console=none", "--retry=never", f"--log-dir={logs}"]
        launched = _launch(
            [*options, *words, *_without_hooks(around.options), str(RANK_PROGRAM)], around, folder, listener
        )
        run = Path(launched.folder or logs / file_names.LATEST)
        stays = launched.exit_code != 0 and not has_place and run.exists()
        launched = replace(
            launched,
            folder=str(run) if stays or (has_place and run.exists()) else "",
            compared=_compared(run / file_names.EVENTS),
        )
        return Reports(launched, _read(folder))
    finally:
        if not stays:
            shutil.rmtree(folder, ignore_errors=True)


def _without_hooks(options: Options) -> list[str]:
    """Behind the user's words: what is to follow his training, perhaps the end of a rented machine, is not for this."""
    hooks = {"on-success": options.on_success, "on-failure": options.on_failure, "on-end": options.on_end}
    return [f"--{name}=:" for name, command in hooks.items() if command]  # the shell's command that does nothing


def _compared(journal: Path) -> NodesCompared | None:
    try:
        return next((event for event in read(journal) if isinstance(event, NodesCompared)), None)
    except OSError:
        return None


def _order(around: Surroundings, bad: Sequence[str]) -> dict[str, Any]:
    try:
        master = around.master()
    except net.Unresolvable:  # told by its check
        master = None
    address = master.ip if master is not None else "127.0.0.1"
    facts = node_facts.collect(around.options, around.environ, address).facts
    return {
        "full": around.full,
        "host": around.host,
        "facts": [[fact.name, fact.value] for fact in facts],
        "failed": list(bad),
        "data_paths": [str(path) for path in around.data_paths],
        "free_memory": host_memory()[0] or 0,
    }


def _launch(words: Sequence[str], around: Surroundings, folder: Path, listener: Listener) -> Launched:
    command = [sys.executable, "-P", "-m", "ddp_run", *words]
    environ = {name: value for name, value in around.environ.items() if name not in _NOT_FOR_IT}
    environ[_FOLDER] = str(folder)
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent(),  # noqa: PLW1509 - this process has one thread
    )
    hearing = _Hearing(folder, listener)
    try:
        hearing.listen(process)
        code = process.wait()
    except _Silent:
        _end(process)
        code = _HUNG
    except BaseException:
        _end(process)
        raise
    return Launched(
        code if code >= 0 else 128 - code,
        time.monotonic() - began,
        hearing.verdict,
        str((hearing.verdict or {}).get("folder") or ""),
        tuple(hearing.said),
        refused="\n".join(hearing.plain),
    )


class _Silent(Exception):
    """The ranks have begun and come no further."""


def _end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C ends a launch: it ends its ranks. A second Ctrl-C ends them at once."""
    for signum in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(signum)
            try:
                process.communicate(timeout=40)
            except (KeyboardInterrupt, subprocess.TimeoutExpired):
                continue
    process.wait()


class _Hearing:
    """What the launch says on stderr, and how far the ranks are."""

    def __init__(self, folder: Path, listener: Listener) -> None:
        self.verdict: Mapping[str, Any] | None = None
        self.said: list[str] = []
        self.plain: list[str] = []
        """Lines that are not its messages: a refusal, an internal error."""
        self._folder, self._listener = folder, listener
        self._told, self._told_at = 0, time.monotonic()

    def listen(self, process: subprocess.Popen[bytes]) -> None:
        """Until it closes its stderr. Raises _Silent."""
        assert process.stderr is not None
        fd = process.stderr.fileno()
        os.set_blocking(fd, False)
        held = b""
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while True:
                if not selector.select(_POLL_S):
                    self._tell_step()
                    continue
                got = os.read(fd, 65536)
                *lines, held = (held + got).split(b"\n")
                for line in lines:
                    self._hear(line.decode(errors="replace"))
                if not got:
                    return

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
            self.said.append(text)
        if not text.startswith(_COMPARED):
            self._listener.say(text)

    def _tell_step(self) -> None:
        by_rank = _read(self._folder)
        told = sum(map(len, by_rank.values()))
        if told != self._told or not told:
            self._told, self._told_at = told, time.monotonic()
        elif time.monotonic() - self._told_at > _MOST_SILENT_S:
            raise _Silent
        lines = next(iter(by_rank.values()), [])
        step = next((line["what"] for line in reversed(lines) if line["report"] == "doing"), "")
        if step:
            self._listener.doing(f"ranks: {step}")


def _read(folder: Path) -> dict[int, list[Mapping[str, Any]]]:
    found = {}
    for path in folder.glob("rank_*.jsonl"):
        rank = int(path.stem.partition("_")[2])
        found[rank] = read_lines(path.read_text(encoding="utf-8", errors="replace"), rank)
    return dict(sorted(found.items()))
