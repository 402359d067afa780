"""Whether the host's clock is kept by NTP: logs and files of nodes are compared by their times."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, skipped, warned

_TIMEX_BYTES = 256
"""More than struct timex has on any architecture."""
_MAXERROR = 3
"""Its place among the longs: modes, offset, freq, maxerror (bits/timex.h)."""
_ERROR = 5
"""TIME_ERROR of adjtimex(2): the clock is not synchronised."""


def _look(_around: Surroundings) -> Iterator[Finding]:
    longs = (ctypes.c_long * (_TIMEX_BYTES // ctypes.sizeof(ctypes.c_long)))()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(longs))
    yield judged(state, longs[_MAXERROR])


def judged(state: int, most_error_us: int) -> Finding:
    """`state`: what adjtimex(2) returned; `most_error_us`: microseconds by which the clock may be wrong."""
    if state < 0:
        return skipped("clock", "the kernel does not tell (adjtimex is not allowed here)")
    if state == _ERROR:
        advice = "timedatectl status; systemctl enable --now chronyd   # or timesyncd; on the host, not in a container"
        against = "the kernel says that nothing synchronises it: times in logs of several nodes may not agree"
        return warned("clock", "not synchronised", against, advice)
    return Finding("clock", f"synchronised, at most {most_error_us / 1000:.0f} ms wrong")


CHECK = Check("clock", Group.HOST, "Whether the kernel's clock is synchronised (adjtimex); warns if not.", _look)
