"""What works under torchrun too, and is likely not meant."""

from __future__ import annotations

from ddp_run.plan.check import Answer, Check, Launch
from ddp_run.settings.likely_mistakes import likely_mistakes


def _check(launch: Launch) -> Answer:
    return Answer(warnings=tuple(likely_mistakes(launch.options, launch.environ)))


CHECK = Check("the words", _check)
