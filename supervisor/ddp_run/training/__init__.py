"""Optional, for training scripts: set-up with clear errors, and checks of what ranks must agree on.

Runs in the user's process, under any launcher or none; ddp-run itself doesn't use it. Imports torch, and the one module
of ddp_run that it shares with ranks (`rank.reducer`), only inside the calls.

    from ddp_run.training import cleanup, check_step_counts, report_unused_parameters, setup_distributed
"""

from __future__ import annotations

from ddp_run.training.placement import Placement, cleanup, setup_distributed
from ddp_run.training.step_counts import check_step_counts
from ddp_run.training.told import SetupError, StepCountError
from ddp_run.training.unused_parameters import report_unused_parameters

__all__ = [
    "Placement",
    "SetupError",
    "StepCountError",
    "check_step_counts",
    "cleanup",
    "report_unused_parameters",
    "setup_distributed",
]

for _error in (SetupError, StepCountError):
    _error.__module__ = __name__  # a traceback names what users import
