"""How a launch from Python ended: a value, or an exception that says why nothing was started."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ddp_run.judge.verdict import Outcome, Verdict
from ddp_run.record import file_names
from ddp_run.record.run_folder import open_run_file
from ddp_run.values import typed_fields


class LaunchRefused(Exception):
    """Nothing was started. Its text is what `ddp-run` prints for the same options."""


@final
@dataclass(frozen=True, slots=True)
class Result:
    """How a job ended."""

    exit_code: int
    """What `ddp-run` exited with: 0 to 255, see the README."""
    folder: Path
    """The run's folder, absolute: events.jsonl, the ranks' files."""
    verdict: Verdict | None
    """What verdict.json says, without times and `retry`; None if ddp-run was killed before it could write one."""
    attempts: int | None
    """How many attempts were made; None without a verdict."""

    @property
    def outcome(self) -> Outcome | None:
        """succeeded, failed, hung, interrupted, refused; None without a verdict."""
        return None if self.verdict is None else self.verdict.outcome

    @property
    def ok(self) -> bool:
        """Whether the job succeeded."""
        return self.exit_code == 0

    def raise_for_failure(self) -> None:
        """Raise `LaunchFailed` unless the job succeeded."""
        if not self.ok:
            raise LaunchFailed(self)


@final
class LaunchFailed(Exception):
    """A job that didn't succeed; `result` has the details."""

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        verdict = self.result.verdict
        title = verdict.title if verdict is not None else None
        code = f"[{verdict.code}]" if verdict is not None and verdict.code else ""
        said = f"{title or 'the job did not succeed'} {code}".rstrip()
        return f"{said} (exit code {self.result.exit_code}); its files: {self.result.folder}"


def read_result(exit_code: int, folder: Path) -> Result:
    """The result of a run that has ended, from its folder."""
    try:
        with open_run_file(folder, file_names.VERDICT) as file:
            document = json.load(file)
        # `retry` there is the decision, not a rule's policy.
        verdict = typed_fields.read(Verdict, {**document, "retry": None})
        attempts = document.get("attempts")
    except (OSError, ValueError, TypeError):
        return Result(exit_code, folder, None, None)
    return Result(exit_code, folder, verdict, attempts if isinstance(attempts, int) else None)
