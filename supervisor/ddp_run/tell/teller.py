"""What a run shows besides the ranks' lines: restarts, retries, and the verdict at its end.

The exit code is known by then: a file that can't be written, or a text that can't be shown, must not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ddp_run.judge import judging
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import AttemptStarted, Event, RankStarted
from ddp_run.record.journal import clock
from ddp_run.record.run_folder import RunFolder
from ddp_run.tell import verdict_file, verdict_text
from ddp_run.tell.output import Output
from ddp_run.values import terminal


@final
@dataclass(frozen=True, slots=True)
class Teller:
    """Shows how a run's attempts went. `line_always`: show the line for scripts after a success too."""

    folder: RunFolder
    events: Sequence[Event]
    output: Output
    attempts: int
    line_always: bool = False
    whole: tuple[str, str] | None = None
    """The host and folder that have the whole verdict; None: it is shown here."""

    def write(self, verdict: Verdict, reason: str) -> Mapping[str, object]:
        """Write verdict.json; returns its object, empty if it can't be written. `reason`: why there's no retry."""
        try:
            document = verdict_file.as_json(
                verdict,
                run_id=self.folder.run_id,
                attempts=self.attempts,
                folder=str(self.folder.path),
                decision="stop",
                decision_reason=reason,
                wall_at=clock(self.events),
            )
            verdict_file.write(self.folder.verdict, document)
        except Exception as error:
            self.output.say(f"cannot write verdict.json: {error}")
            return {}
        return document

    def show(self, verdict: Verdict, reason: str, document: Mapping[str, object]) -> None:
        """Show the verdict on the console, without the last line. `document` is what `write` returned."""
        try:
            self._show(verdict, reason, document)
        except Exception as error:
            self.output.show(f"ddp-run: cannot show the verdict ({type(error).__name__}); see {self.folder.verdict}")

    def _show(self, verdict: Verdict, reason: str, document: Mapping[str, object]) -> None:
        failed = verdict.outcome != "succeeded"
        colour, wrap = self.output.colour, terminal.width_of(2)
        if self.output.json:
            self.output.say("verdict", level="error" if failed else "info", **document)
        elif failed and self.whole is not None:
            host, folder = self.whole
            self.output.show(verdict_text.two_lines(verdict, host=host, folder=folder, colour=colour, wrap=wrap))
        elif failed:
            self.output.show(
                verdict_text.verdict_block(
                    verdict,
                    folder=self.folder.path,
                    attempts=self.attempts,
                    decision=f"not retried: {reason}",
                    colour=colour,
                    width=terminal.columns(),
                    wrap=wrap,
                )
            )
        else:
            for note in verdict.notes:
                self.output.say(f"note: {note}")

    def show_line(self, verdict: Verdict) -> None:
        """Show the last line, which is for scripts."""
        if verdict.outcome == "succeeded" and not self.output.json and not self.line_always:
            return
        try:
            self.output.show(verdict_file.verdict_line(verdict, attempts=self.attempts, folder=self.folder.path))
        except Exception as error:
            self.output.show(f"ddp-run: cannot show the last line ({type(error).__name__}); see {self.folder.verdict}")

    def retrying(self, verdict: Verdict, reason: str, *, delay_s: float, attempt: int, of: int) -> None:
        """Announce another attempt: number `attempt` (from 1) of at most `of` that count."""
        if self.output.json:
            level, delay_s = "warning", round(delay_s, 3)
            self.output.say("retrying", level=level, cause=verdict.cause, reason=reason, delay_s=delay_s)
        else:
            line = verdict_text.retry_line(verdict, delay_s=delay_s, attempt=attempt, attempts=of, reason=reason)
            self.output.show(line)

    def repeated(self, verdict: Verdict, decision: Decision) -> None:
        """Announce that an attempt that doesn't count is repeated."""
        if decision.backend is None:
            self.output.say(decision.reason)
            return
        self.output.show(verdict_text.attempt_line(verdict))
        self.output.say(decision.reason, level="warning")


@final
class Restarts:
    """A sink of events: says why torch's agent restarts the ranks within an attempt (--max-restarts).

    `events` are the journal's, including those that `tell` gets. The ranks' logs may be long, so they aren't read.
    """

    def __init__(self, folder: Path, events: Sequence[Event], output: Output) -> None:
        self._folder = folder
        self._events = events
        self._output = output
        self._attempt = self._restart = 0

    def tell(self, event: Event) -> None:
        """Say a line when the first restarted rank reports: by then it's known how the ranks before it ended."""
        match event:
            case AttemptStarted():
                self._attempt, self._restart = event.attempt, 0
            case RankStarted() if event.restart > self._restart:
                self._restart = event.restart
                try:
                    line = judging.restarted(self._folder, self._events, self._attempt, event.restart, rank_files=False)
                except Exception as error:  # a broken rule must not end a running job
                    line = f"torch's agent restarted all ranks ({type(error).__name__} while looking for the reason)"
                self._output.say(line, level="warning")
            case _:
                pass
