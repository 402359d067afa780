"""What a text itself says is over: failures before workers were started again, or within tests that passed. Pure.

Sources: torch/distributed/elastic/agent/server/api.py (`Worker group FAILED. 2/3 attempts left; will restart worker
group`), pytest's last line (`=== 3 passed in 0.10s ===`).
"""

from __future__ import annotations

import re

from ddp_run.evidence.pasted.raised import WentOn
from ddp_run.evidence.pasted.spoken_text import SpokenText

_RESTART = "; will restart worker group"
_TESTS = " passed"
_PASSED = re.compile(
    r"(?<!=)={3,200} (?:[1-9]\d{0,6} passed)(?:, \d{1,6} (?:skipped|deselected|warnings?|xfailed|xpassed))* in \d"
)
_TRYING = re.compile(r"\b[Tt]rying (?:port|another|again|the next)\b")


def until(spoken: SpokenText) -> int:
    """The index behind the last line that says so; 0 where none does."""
    passed = [index for index, line in enumerate(spoken.lines) if _TESTS in line and _PASSED.search(line)]
    return max([_restarted(spoken), *(index + 1 for index in passed)])


def is_answered(line: str) -> bool:
    """Whether the line that tells of an error also says what is done instead."""
    return "rying " in line and _TRYING.search(line) is not None


def _restarted(spoken: SpokenText) -> int:
    """Behind the last start of new workers, unless the text ends with what the old ones still wrote."""
    last = max((index for index, line in enumerate(spoken.lines) if _RESTART in line), default=-1)
    if last < 0:
        return 0
    others = [index for index, each in enumerate(spoken.by) if not each.agent]
    place = sum(1 for index in others if index <= last)
    lines = [spoken.lines[index] for index in others]
    return last + 1 if WentOn.of(lines).after(0, place - 1, place) else 0
