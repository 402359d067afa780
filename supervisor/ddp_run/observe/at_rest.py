"""Whether anybody in a rank can be running Python just now: if not, a signal may have faulthandler write its stacks.

Its handler reads the frames of a thread wherever the signal meets it. Where that is amid a call of Python's it follows
pointers that are not set yet, and ends the process: after 12 to 400 signals in `all(iter(lambda: …, False))` (CPython
3.11.7, 3.12.1, 3.13.0), after 8000 in a plain loop (3.13.0); `all_threads=False` makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_run.values import kernel_text
from ddp_run.values.kernel_text import WITHOUT_PYTHON

_TRIES = 20


@dataclass(frozen=True, slots=True)
class ThreadLook:
    """A thread at one moment. `switches`: how often it has been taken off a processor, willing or not."""

    asleep: bool
    stopped: bool
    switches: int


def threads(pid: int) -> dict[int, ThreadLook]:
    """The threads of a process that may run Python, by their ids; none where it is gone."""
    found = {}
    try:
        for entry in Path(f"/proc/{pid}/task").iterdir():
            fields = dict(line.split(":\t", 1) for line in kernel_text.lines(entry / "status") if ":\t" in line)
            if not WITHOUT_PYTHON.match(fields["Name"]):
                state = fields["State"][0]
                switches = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
                found[int(entry.name)] = ThreadLook(state in "SDI", state in "Tt", switches)
    except (OSError, KeyError, ValueError, IndexError):
        return {}
    return found


def at_rest(before: Mapping[int, ThreadLook], now: Mapping[int, ThreadLook], sampler: int) -> bool:
    """Whether no Python ran between two looks half a second apart, nor can now. `sampler`: ddp-run's own thread there.

    Either no thread ran at all. Or the sampling thread did, again and again, and still could not get the interpreter's
    lock, as the caller knows: CPython asks for it every 5 ms and whoever runs Python then gives it up (ceval_gil.c), so
    who holds it is in C. A stopped process may be anywhere, and take the signal when it goes on.
    """
    others = now.keys() - {sampler}
    if not others or any(look.stopped for look in now.values()):
        return False
    if before.keys() - {sampler} == others and all(now[one].asleep and now[one] == before[one] for one in others):
        return True
    return sampler in now and sampler in before and now[sampler].switches - before[sampler].switches >= _TRIES
