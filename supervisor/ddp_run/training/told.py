"""Errors that say what was found, with evidence and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class Told(RuntimeError):
    """An error with its evidence and what to do, shown as a block: a self-contained line, then the rest."""

    def __init__(self, title: str, evidence: Sequence[str] = (), helps: Sequence[str] = ()) -> None:
        super().__init__(title, tuple(evidence), tuple(helps))
        self.title, self.evidence, self.helps = title, tuple(evidence), tuple(helps)

    def __str__(self) -> str:
        return block(self.title, self.evidence, self.helps)


class SetupError(Told):
    """`setup_distributed` found something that can't work, or torch failed; torch's own error is the `__cause__`."""


class StepCountError(Told):
    """The ranks did different numbers of steps, or not all reached the check in time.

    `counts` maps each known rank to its steps; `absent` are the ranks that didn't reach the check.
    """

    counts: Mapping[int, int]
    absent: tuple[int, ...]


def block(title: str, evidence: Iterable[str], helps: Iterable[str]) -> str:
    """The self-contained line, what was found, and what to do."""
    return "\n".join([title, *(f"  --> {line}" for line in evidence), *(f"help: {line}" for line in helps)])
