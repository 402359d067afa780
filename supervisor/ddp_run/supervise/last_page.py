"""report.html at a run's end. A fork makes it, which gets ready while a failed attempt ends and is judged.

It knows all events, so nothing is read again, and libraries that only the page needs aren't loaded in ddp-run. It hears
the verdict, and what happened since, through a pipe; without a word it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import final

from ddp_run.judge.verdict import Verdict
from ddp_run.record import file_names, journal
from ddp_run.record.events import Event
from ddp_run.supervise.run import Run
from ddp_run.values import helper_process, private_files, typed_fields

_DELAY_S = 0.3
"""How long the page may delay the run's end."""
_READY_S = 3600.0
"""The nodes of a job may take their time to agree on a verdict."""
_PIPE_BYTES = 1 << 20


def begin(run: Run) -> PageMaker | None:
    """An attempt has failed: another may follow, or its page will be wanted soon."""
    try:
        return None if run.plan.options.report == "off" else PageMaker(run)
    except OSError:
        return None


def finish(run: Run, begun: PageMaker | None, verdict: Verdict, attempts: int, decision: str) -> None:
    """Before the user's commands, which may want the page. With several nodes, node 0 leaves one.

    If it takes too long none is left, nor a part of one: `ddp-run report` makes it then.
    """
    wanted = run.plan.options.report == "always" or verdict.outcome != "succeeded"
    if not wanted or (run.nodes is not None and run.nodes.where() is not None):
        if begun is not None:
            begun.give_up()
        return
    maker = begun if begun is not None and not begun.is_over else begin(run)
    if maker is not None:
        maker.finish(verdict, attempts, decision)


@final
class PageMaker:
    """The fork."""

    def __init__(self, run: Run) -> None:
        """Start it. Raises OSError."""
        self._run = run
        self._path = run.folder.path / file_names.REPORT
        self.is_over = False
        self._since: list[Event] = []
        reading, self._pipe = os.pipe()
        known = tuple(run.journal.events)
        try:
            self._process = helper_process.fork(
                lambda _fd: _make(reading, self._path, known), _READY_S, keep=(reading,)
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)
        run.helpers.add(self._process)
        run.sinks.append(self._since.append)

    def finish(self, verdict: Verdict, attempts: int, decision: str) -> None:
        """Have the page written, if that doesn't take too long: else none is left, nor a part of one."""
        self._leave_run()
        events = [journal.encode(event, "") for event in self._since]
        said = {"verdict": asdict(verdict), "attempts": attempts, "decision": decision, "events": events}
        if self._tell(json.dumps(said).encode()) and not self._process.reaped:
            self._process.reaped = helper_process.reap(self._process.pid, _DELAY_S)
        self._process.end()
        if not self._process.reaped:
            with suppress(OSError):
                private_files.unfinished(self._path).unlink(missing_ok=True)

    def give_up(self) -> None:
        """There is another attempt, or no page is wanted."""
        if self.is_over:
            return
        self._leave_run()
        os.close(self._pipe)
        self._process.end()

    def _leave_run(self) -> None:
        self.is_over = True
        self._run.sinks.remove(self._since.append)

    def _tell(self, said: bytes) -> bool:
        """Tell it without waiting; False if it is too much."""
        try:
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            os.set_blocking(self._pipe, False)
            return os.write(self._pipe, said) == len(said)
        except OSError:
            return False
        finally:
            os.close(self._pipe)


def _make(pipe: int, path: Path, events: Sequence[Event]) -> None:
    """Runs after a fork."""
    from ddp_run.tell.page import files, page, rendering  # noqa: F401  # loaded while there's time

    rendering.load()
    with open(pipe, "rb") as file:
        told = file.read()
    if told:
        said = json.loads(told)
        since = [event for event in map(journal.decode, said["events"]) if event is not None]
        verdict = typed_fields.read(Verdict, said["verdict"])
        write_page(path, verdict, said["attempts"], said["decision"], (*events, *since))


def write_page(path: Path, verdict: Verdict, attempts: int, decision: str, events: Sequence[Event]) -> None:
    """Write the page of a run, whose folder it goes into. Raises OSError."""
    from ddp_run.tell.page import files
    from ddp_run.tell.page.page import page_of
    from ddp_run.tell.page.rendering import rendered

    known = files.known(verdict, attempts, decision, path.parent, [(path.parent, events)])
    private_files.write_whole(path, rendered(page_of(known), links=True), durable=False)
