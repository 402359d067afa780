"""How tests wait: for a state, never for a time. Limits only catch what never comes, so they are generous.

`DDP_RUN_TEST_PATIENCE=3` makes every limit three times as long, for a machine that is busy or slow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = float(os.environ.get("DDP_RUN_TEST_PATIENCE", "1"))


def limit(seconds: float) -> float:
    """So many seconds on an idle machine, and as many times more as this one needs."""
    return seconds * PATIENCE


def wait_until(condition: Callable[[], T | None], what: str | Callable[[], str], within_s: float = 120.0) -> T:
    """What the condition gives once it is true; fails the test where that does not come. `what`: words for it."""
    deadline = time.monotonic() + limit(within_s)
    while not (found := condition()):
        if time.monotonic() >= deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {limit(within_s):.0f} s in vain for {said}")
        time.sleep(0.05)
    return found
