"""What a run tells at its end: verdict.json, the block for people, the line for scripts.

The exit code is known by then; a file that cannot be written or a text that cannot be shown must not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import Event
from ddp_run.record.journal import clock
from ddp_run.record.run_folder import RunFolder
from ddp_run.tell import verdict_file, verdict_text
from ddp_run.tell.output import Output
from ddp_run.values import terminal


@final
@dataclass(frozen=True, slots=True)
class Teller:
    """Tells of a run of so many attempts. `line_always`: the line for scripts is shown of a success as well."""

    folder: RunFolder
    events: Sequence[Event]
    output: Output
    attempts: int
    line_always: bool = False
    whole: tuple[str, str] | None = None
    """Host and folder where the whole verdict is; null where it is here."""

    def write(self, verdict: Verdict, reason: str) -> Mapping[str, object]:
        """Write verdict.json; gives its object, empty where it cannot be written. `reason`: why there is no retry."""
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
        """Show it on the console, but for the last line; `document` is what `write` gave."""
        try:
            self._show(verdict, reason, document)
        except Exception as error:
            self.output.show(f"ddp-run: cannot show the verdict ({type(error).__name__}): {self.folder.verdict}")

    def show_line(self, verdict: Verdict) -> None:
        """The line for scripts, which is the last."""
        if verdict.outcome == "succeeded" and not self.output.json and not self.line_always:
            return
        try:
            self.output.show(verdict_text.verdict_line(verdict, attempts=self.attempts, folder=self.folder.path))
        except Exception as error:
            self.output.show(f"ddp-run: cannot show the last line ({type(error).__name__}): {self.folder.verdict}")

    def retrying(self, verdict: Verdict, reason: str, *, delay_s: float, attempt: int, of: int) -> None:
        """An attempt is over and another one follows, `attempt` (from 1) of at most `of` that count."""
        if self.output.json:
            level, delay_s = "warning", round(delay_s, 3)
            self.output.say("retrying", level=level, cause=verdict.cause, reason=reason, delay_s=delay_s)
        else:
            line = verdict_text.retry_line(verdict, delay_s=delay_s, attempt=attempt, attempts=of, reason=reason)
            self.output.show(line)

    def repeated(self, verdict: Verdict, decision: Decision) -> None:
        """An attempt is made again and does not count."""
        if decision.backend is None:
            self.output.say(decision.reason)
            return
        self.output.show(verdict_text.attempt_line(verdict))
        self.output.say(decision.reason, level="warning")

    def _show(self, verdict: Verdict, reason: str, document: Mapping[str, object]) -> None:
        failed = verdict.outcome != "succeeded"
        if self.output.json:
            self.output.say("verdict", level="error" if failed else "info", **document)
        elif failed and self.whole is not None:
            host, folder = self.whole
            self.output.show(
                verdict_text.two_lines(
                    verdict, host=host, folder=folder, colour=self.output.colour, wrap=terminal.width_of(2)
                )
            )
        elif failed:
            self.output.show(
                verdict_text.verdict_block(
                    verdict,
                    colour=self.output.colour,
                    width=terminal.columns(),
                    wrap=terminal.width_of(2),
                    folder=self.folder.path,
                    attempts=self.attempts,
                    decision=f"not retried: {reason}",
                )
            )
        for note in verdict.notes if not failed and not self.output.json else ():
            self.output.say(f"note: {note}")
