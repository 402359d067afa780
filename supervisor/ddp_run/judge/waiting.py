"""Finds the rank that the others waited for if only the waiting ranks print something. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign
from ddp_run.record.events import Rank


def silent(attempt: Evidence, waiting: Sequence[Sign]) -> Rank | None:
    """Return the only rank that ended without a message while all others say that they waited; None if unsure.

    Lines without a rank may be anyone's, so this answers only if each rank has its own log.
    """
    if attempt.logs_only or attempt.world_size is None or len(attempt.deaths) < attempt.world_size:
        return None
    mute = [death for death in attempt.deaths if not _says(death, waiting)]
    if len(mute) != 1 or not mute[0].obeyed or len(attempt.deaths) < 2:
        return None
    return mute[0].rank


def dump_stacks(attempt: Evidence) -> str:
    """Return the command that shows what each rank on a host is doing while the job hangs."""
    if attempt.script is None:
        return "py-spy dump --pid PID"
    return f"for pid in $(pgrep -f {shlex.quote(attempt.script.rpartition('/')[2])}); do py-spy dump --pid $pid; done"


def _says(death: Death, signs: Sequence[Sign]) -> bool:
    said = death.exception.message if death.exception is not None else ""
    return any(sign.search(said) or any(sign.search(line) for line in death.stderr.lines) for sign in signs)
