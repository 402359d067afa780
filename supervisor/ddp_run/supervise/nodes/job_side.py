"""The agreement as a run uses it: whatever goes wrong there, this node's own verdict stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

from ddp_run.judge.of_nodes import ends_of
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.plan.launch_plan import LaunchPlan
from ddp_run.record.events import Event, Noted
from ddp_run.record.journal import Journal, now
from ddp_run.record.run_folder import RunFolder
from ddp_run.supervise.nodes.agreement import Agreement, Decide, Ears
from ddp_run.supervise.nodes.join import join
from ddp_run.tell.selection import last_lines


@final
@dataclass(slots=True)
class JobSide:
    """With the other nodes of the job."""

    agreement: Agreement
    folder: RunFolder
    journal: Journal

    @classmethod
    def join(
        cls, plan: LaunchPlan, environ: Mapping[str, str], folder: RunFolder, journal: Journal, ears: Ears
    ) -> JobSide | None:
        """Meet the others; null where this node judges alone."""
        try:
            agreement = join(plan, environ, folder, ears)
        except Exception as error:
            ears.emit(Noted(now(), f"each node judges for itself: {type(error).__name__}: {error}"))
            return None
        return cls(agreement, folder, journal) if agreement is not None else None

    def hear(self, event: Event) -> None:
        """A sink of events."""
        self.agreement.hear(event)

    def agree(self, verdict: Verdict, attempt: int, decide: Decide) -> tuple[Verdict, Decision]:
        """The verdict of all nodes on an attempt, from this node's own, and what follows."""
        events = self.journal.events
        try:
            lines = last_lines(verdict, events, self.folder.path)
            return self.agreement.agree(attempt, verdict, ends_of(events, attempt), lines, decide)
        except Exception as error:
            note = f"no agreement with other nodes: {type(error).__name__}: {error}"
            return replace(verdict, notes=(*verdict.notes, note)), Decision(False, note)

    def where(self) -> tuple[str, str] | None:
        """Host and folder of the whole verdict, where that is on another node."""
        return self.agreement.where()

    def close(self) -> None:
        """This node leaves."""
        self.agreement.close()
