"""Finds the Python line at which a rank crashed, or left, in faulthandler's output, in its file or in a log. Pure.

Form (CPython, Modules/faulthandler.c and Python/traceback.c): `Fatal Python error: Segmentation fault`, then each
thread with its frames, innermost first. `Current thread` is the one that crashed. If that one runs no Python code it is
not shown, and the other threads' frames do not explain the crash.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from ddp_run.evidence.model import Death, LogText, Quote
from ddp_run.evidence.traceback_text import is_library
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.record.events import ExceptionInfo
from ddp_run.values.typed_fields import frozen

_FATAL_WORDS = "Fatal Python error: "
_FATAL = re.compile(r"Fatal Python error: (?P<what>[^\n]{0,400})")
_FRAME = re.compile(
    r'^(?:\S{1,40}: ?)?\s{0,40}File "(?P<file>[^"]{1,4096})", line (?P<line>\d{1,9}) in (?P<function>\S{1,400})\s{0,9}$'
)
_ABORTED = f"{_FATAL_WORDS}Aborted"
_THREAD = "(most recent call first):"
_CRASHED = ("Current thread 0x", "Stack (most recent call first):")
"""Above the frames of the crashed thread: of all threads, or if only its own are shown."""
_CUT = re.compile(r"[^\n]Fatal Python error: Segmentation fault")
_Frame = tuple[int, re.Match[str]]


@frozen
class Crash:
    """The position of a crash. `quotes`: faulthandler's message, then the frame."""

    what: str
    file: str | None
    line: int | None
    function: str | None
    quotes: tuple[Quote, ...]

    @property
    def where(self) -> str:
        """` in step (train.py:12)`, to append to a message; empty if no frame is known."""
        return f" in {self.function} ({self.file.rpartition('/')[2]}:{self.line})" if self.file else ""

    @property
    def exception(self) -> ExceptionInfo:
        """The crash as the exception that ended a rank, for verdicts."""
        return ExceptionInfo("Fatal Python error", self.what, self.file, self.line, self.function)


def code_before_the_dump(code: int | None, stack: LogText) -> int | None:
    """The exit code that a rank would have had without faulthandler's file. None: unknown.

    On SIGABRT faulthandler reads the stacks of all threads, also of those that still run. Reading a frame that has just
    gone raises SIGSEGV in the middle of a line (seen with Python 3.12, when NCCL's watchdog aborted a process).
    """
    if code != -signal.SIGSEGV or _ABORTED not in stack.lines:
        return code
    after = "\n".join(stack.lines[stack.lines.index(_ABORTED) :])
    return -signal.SIGABRT if _CUT.search(after) else code


def crash_of(death: Death) -> Crash | None:
    """Return where a rank crashed if a signal ended it; None if faulthandler wrote nothing."""
    if (death.code or 0) >= 0:
        return None
    return _read(death.stack) or _read(death.stderr.ending(LAST_WORDS))


def stacks_at_the_end(log: LogText) -> Crash | None:
    """Return where the main thread was if a log ends with the stacks of all threads, as a watchdog dumps them before it
    ends its process; None if it doesn't. The first quote is the line above them."""
    lines = log.lines
    begin = len(lines)
    while begin and (not lines[begin - 1].strip() or _THREAD in lines[begin - 1] or _FRAME.search(lines[begin - 1])):
        begin -= 1
    last = next((k for k in range(len(lines) - 1, begin - 1, -1) if _THREAD in lines[k]), len(lines))
    frames = _frames(log, last)
    own = _of_program(frames)
    if own is None or frames[-1][1]["function"] != "<module>":
        return None
    above = [log.quote(begin - 1)] if begin else []
    return _at(lines[begin - 1].strip() if begin else "", own, [*above, log.quote(own[0])])


def _read(log: LogText) -> Crash | None:
    fatal = next((k for k in range(len(log.lines) - 1, -1, -1) if _FATAL_WORDS in log.lines[k]), None)
    said = _FATAL.search(log.lines[fatal]) if fatal is not None else None
    if fatal is None or said is None:
        return None
    below = range(fatal, len(log.lines))
    start = next((k for k in below if any(words in log.lines[k] for words in _CRASHED)), len(log.lines))
    frames = _frames(log, start)
    chosen = _of_program(frames) or (frames[0] if frames else None)
    if chosen is None:
        return Crash(said["what"].rstrip(), None, None, None, (log.quote(fatal),))
    return _at(said["what"].rstrip(), chosen, [log.quote(fatal), log.quote(chosen[0])])


def _of_program(frames: Sequence[_Frame]) -> _Frame | None:
    """Return the innermost frame of the program's own code."""
    return next((each for each in frames if not is_library(each[1]["file"])), None)


def _at(what: str, chosen: _Frame, quotes: Sequence[Quote]) -> Crash:
    frame = chosen[1]
    return Crash(what, frame["file"], int(frame["line"]), frame["function"], tuple(quotes))


def _frames(log: LogText, start: int) -> list[_Frame]:
    """Return the frames below the line that names their thread, innermost first, with their line indexes."""
    frames: list[_Frame] = []
    for index in range(start + 1, len(log.lines)):
        frame = _FRAME.search(log.lines[index])
        if frame is None:
            break
        frames.append((index, frame))
    return frames
