"""Interprets a traceback without its last line: by the `raise` at its end, else by the frames' packages. Pure.

Pasted logs are often cut there. Python prints each frame's source line below it. If that is a `raise`, it names the
class and often the message. Otherwise the frames of some libraries still show the operation.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddp_run.evidence.launcher_exceptions import LAUNCHERS_FILES
from ddp_run.evidence.model import LogText, Quote
from ddp_run.evidence.traceback_text import PLACE, is_library
from ddp_run.record.events import ExceptionInfo

_RAISE = re.compile(
    r"\braise (?:[\w.]{1,80}\()?(?P<type>[A-Za-z_][\w.]{0,80}(?:Error|Exception|Exit|Interrupt|Timeout))\b"
)
_LITERAL = re.compile(r"[\"'](?P<said>[^\"'\n]{4,300})[\"']?")
_LAUNCHERS = re.compile(
    r"torch/distributed/(?:run|launch)\.py|torch/distributed/(?:launcher|elastic)/|/bin/(?:torchrun|accelerate|deepspeed)"
    rf"|<frozen runpy>|/runpy\.py|{LAUNCHERS_FILES}"
)
_FEWEST = 2
"""The fewest frames that make a traceback; a single one may belong to a warning."""
_NEAR = 6
"""The number of frames, from the innermost one outwards, that show the operation."""


@dataclass(frozen=True, slots=True)
class TornFrames:
    """`exception`: as named in the last `raise`, else with type "" and only its place; `places`: the innermost frames'
    files and functions, from the inside out.
    """

    exception: ExceptionInfo
    places: tuple[str, ...]
    quote: Quote


def read(log: LogText) -> TornFrames | None:
    """Return the last traceback of the text that does not end with an exception; None if there are no frames."""
    found = [(index, hit) for index, line in enumerate(log.lines) if (hit := PLACE.search(line)) is not None]
    frames = [(index, hit) for index, hit in found if not _LAUNCHERS.search(hit["file"])]
    if not frames or frames[-1][0] != found[-1][0]:
        return None
    last = frames[-1][0]
    place = next((hit for _index, hit in reversed(frames) if not is_library(hit["file"])), frames[-1][1])
    named = _raised(log.lines[last + 1 : last + 4], own=not is_library(frames[-1][1]["file"]))
    if named is None and len(frames) < _FEWEST:
        return None
    places = tuple(f"{hit['file']} {hit['function'] or ''}" for _index, hit in reversed(frames[-_NEAR:]))
    type_, message = named if named is not None else ("", "")
    shown = "\n".join(log.lines[frames[0][0] : last + 4])
    info = ExceptionInfo(type_, message, place["file"], int(place["line"]), place["function"], shown)
    return TornFrames(info, places, log.quote(last))


def _raised(lines: Sequence[str], *, own: bool) -> tuple[str, str] | None:
    """Return the class that a source line raises, and the literal part of its message.

    In the user's own code a bare name other than Python's may be a class of the user's, whatever it is called.
    """
    for index, line in enumerate(lines):
        hit = _RAISE.search(line)
        if hit is not None and not (own and "." not in hit["type"] and not hasattr(builtins, hit["type"])):
            said = _LITERAL.search(" ".join([line[hit.end() :], *lines[index + 1 :]]))
            return hit["type"], said["said"] if said else ""
    return None
