"""When a run is followed of which nobody can see from here whether it still runs: what is said if nothing comes. Pure.

Its ddp-run is on another host, or in another container. It may have been killed with its host, or wait for hours: only
people can know, so following goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddp_run.record.events import RunStarted
from ddp_run.record.recorded_runs import RecordedRun
from ddp_run.values.lines import neutral
from ddp_run.values.words import duration_in_words

SILENT_S = 150.0
"""While ranks run, the journal gets a line a minute, and a file server may show it a minute later."""
_CLOCKS_APART_S = 900.0
"""By so much a file's date may differ from this host's clock without a meaning."""


@dataclass
class Silence:
    """How long nothing has been written. `now` is in seconds of one clock that never goes back."""

    _written_ns: int | None = None
    _since: float = 0.0
    _said: bool = False

    def to_tell_s(self, written_ns: int, wall_ns: int, now: float) -> float | None:
        """Seconds without a write, the first time that they are many; else null. `written_ns`: the date of the last
        write, `wall_ns`: this host's date; nanoseconds since the epoch.
        """
        if written_ns != self._written_ns:
            age_s = (wall_ns - written_ns) / 1e9
            old = self._written_ns is None and age_s > _CLOCKS_APART_S
            self._written_ns, self._since, self._said = written_ns, now - age_s if old else now, False
        silent_s = now - self._since
        if self._said or silent_s < SILENT_S:
            return None
        self._said = True
        return silent_s


def said(run: RecordedRun, silent_s: float, here: str) -> str:
    """The line about it, without its end; `here` is this host's name."""
    return (
        f"ddp-run: nothing has been written for {duration_in_words(silent_s)}; {_of(run.started, here)}, and whether "
        "it still runs cannot be seen from here; still following, Ctrl-C ends that"
    )


def _of(started: RunStarted | None, here: str) -> str:
    """Why it cannot be seen."""
    if started is not None and started.host != here:
        return f"the run belongs to host {neutral(started.host)}"
    if started is None or started.process is None:
        return "the journal does not name the process that writes it"
    return f"the run belongs to another container or an earlier boot of {neutral(here)}"
