"""One rented instance from its creation to the training's exit code: wait, follow its log, end it as was decided."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vast_launcher.client import Client, ClientError, Instance
from vast_launcher.remote_log import Finished, find_finished, new_lines

_BEFORE = frozenset({None, "created", "loading"})
_OVER = frozenset({"exited", "stopped"})
_SILENT_S = 600.0
"""No answer from Vast.ai for so long: no longer asked. The instance goes on without us."""
_ENDING_S = 60.0


@dataclass(frozen=True, slots=True)
class NeverRan:
    """It did not come to run in time. `untouched`: Vast.ai says that it is still being prepared, so nothing is lost."""

    why: str
    untouched: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """How the run ended will not be known; and what became of the instance, as far as that is known."""

    why: str
    left: Literal["goes on", "stopped", "gone"]


@dataclass
class Watch:
    """`tell` shows a line of ours, `show` one of the log. Waits `poll_s` seconds between two questions."""

    client: Client
    id: int
    launch_id: str
    poll_s: float
    tell: Callable[[str], None]
    show: Callable[[str], None]
    silent_s: float = _SILENT_S
    _seen: Sequence[str] = ()
    _answered_at: float = field(default_factory=time.monotonic)
    _told: str = ""

    def until_running(self, within_s: float) -> NeverRan | None:
        """Wait for the container; null when it runs, or did: then its log knows more."""
        deadline = time.monotonic() + within_s
        while True:
            here = self._look()
            state = _state(here) if here is not None else "nothing is known of it"
            if here is not None:
                self._tell_once(f"instance {self.id}: {state}")
                if here.status == "running" or here.status in _OVER:
                    return None
            if time.monotonic() >= deadline:
                untouched = here is not None and here.status in _BEFORE
                return NeverRan(f"it does not run after {within_s:g} s: {state}", untouched)
            time.sleep(self.poll_s)

    def until_finished(self) -> Finished | Unknown:
        """Show its log as it grows; the end of the run, or why that will not be known."""
        while True:
            over = None
            try:
                here = self.client.show(self.id)
                self._answered_at = time.monotonic()
                over = _why_over(here)
            except ClientError as error:
                self._tell_once(str(error))
            finished = self._read_log()
            if finished is not None:
                return finished
            if over is not None:
                return over
            if time.monotonic() - self._answered_at > self.silent_s:
                return Unknown(f"no answer from Vast.ai for {self.silent_s:.0f} s", "goes on")
            time.sleep(self.poll_s)

    def end(self, how: str) -> bool:
        """Stop or destroy it; whether that is seen to be so. The instance does it by itself, too, after a while."""
        act = self.client.destroy if how == "destroy" else self.client.stop
        deadline = time.monotonic() + _ENDING_S
        while time.monotonic() < deadline:
            try:
                act(self.id)
                here = self.client.show(self.id)
                if here is None or (how == "stop" and "stopped" in (here.wanted, here.status)):
                    return True
            except ClientError as error:
                self._tell_once(str(error))
            time.sleep(self.poll_s)
        return False

    def _look(self) -> Instance | None:
        try:
            return self.client.show(self.id)
        except ClientError as error:
            self._tell_once(str(error))
            return None

    def _read_log(self) -> Finished | None:
        try:
            lines = self.client.logs(self.id)
        except ClientError:  # there is none yet, or it is on its way: it is asked for again
            return None
        fresh, gap = new_lines(self._seen, lines)
        if gap:
            self.tell("(lines are missing here: the log grew faster than it was read)")
        for line in fresh:
            self.show(line)
        self._seen = lines
        return find_finished(lines, self.launch_id)

    def _tell_once(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self.tell(text)


def _why_over(here: Instance | None) -> Unknown | None:
    if here is None:
        return Unknown("it does not exist any more", "gone")
    return Unknown(f"it is {_state(here)}", "stopped") if here.status in _OVER else None


def _state(here: Instance) -> str:
    return f"{here.status or 'being prepared'}{f' ({here.message})' if here.message else ''}"
