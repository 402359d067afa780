"""Finds the exceptions in a text by several processes, and whether a program went on after one. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from ddp_run.evidence import childfailed, exception_chain, exception_frames, traceback_text
from ddp_run.evidence.at_once import once
from ddp_run.evidence.exception_chain import words_of
from ddp_run.evidence.launcher_exceptions import is_agents, is_launchers, says_a_launcher, starts_a_launcher
from ddp_run.evidence.lines_with import lines_with
from ddp_run.evidence.pasted import whose
from ddp_run.evidence.pasted.spoken_text import SpokenText
from ddp_run.evidence.traceback_text import PLACE, Printed
from ddp_run.evidence.went_on import WentOn, is_news
from ddp_run.record.events import ExceptionInfo, Rank

IsConsequence = Callable[[ExceptionInfo], bool]


class Shows(Enum):
    """What the catalogue makes of an exception."""

    A_LOSS = auto()
    """Another rank failed."""
    A_WAIT = auto()
    """It waited for other ranks in vain."""
    A_CAUSE = auto()
    NO_CAUSE = auto()
    """Only that it was raised."""


class Shown(NamedTuple):
    """What the catalogue makes of an exception, and the rank for which it waited, if it names one."""

    what: Shows
    awaited: Rank | None = None


OfException = Callable[[ExceptionInfo], Shown]

_CANCELLED = ("asyncio.exceptions.CancelledError", "concurrent.futures._base.CancelledError")
"""A task only obeys the program that ends it: servers print this when they shut down."""
_MESSAGE_LINES = 20
_BEFORE = 60
"""The frames of a torn exception are at most this far above its last line."""
_MOST_ORPHANS = 2000
_ORPHAN = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)|Exception|(?:[a-z_]\w*\.)+(?:Error|[A-Z]\w*Failed))"
    r"(?::(?: (?P<message>.*))?)?$"
)
_OF_A_SIGNAL = re.compile(r"FatalError: `[^`\n]{1,80}` is detected by the operating system\.")
"""Paddle's words for a signal that ends the process (paddle/fluid/platform/init.cc)."""
_PYTESTS = re.compile(r"^(?:E {3,40}|(?P<file>[\w./\-]{1,400}\.py):(?P<line>\d{1,9}): (?=\w{1,80}$))")
"""Before what a test raised, and where."""
_IN_JSON = re.compile(r'"message": "((?:[^"\\]|\\(?!n).)*)')
"""torch writes the error of a rank so (elastic/multiprocessing/errors/error_handler.py)."""
_FRAME = '  File "'
_RAISED = " raised:"
"""Before the words of the exception that torch.compile's backend raised (torch/_dynamo/exc.py)."""
_FRAME_LINES = 3
OF_A_THREAD = ", in _bootstrap_inner"
"""From threading.Thread: an exception there ends only the thread."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception in the text.

    `ranks`: the ranks that print it, empty if none is named. `final`: nothing went on after it. `lines` are the indexes
    of its lines.
    """

    info: ExceptionInfo
    index: int
    ranks: tuple[Rank, ...]
    final: bool
    lines: frozenset[int]
    elsewhere: bool = False
    """Whether others raise it for these ranks."""


class Exceptions:
    """The exceptions in a text, read once.

    `found`: every one that may have ended a rank, in order. The lines of others: of those that ended a launcher
    (`launchers`), and of those that are quoted or that Python says it ignored (`ignored`): in a destructor, at its
    exit, in logging. `boxes`: the lines in which torch's agent reports failed ranks. `shows` asks the catalogue about
    one.
    """

    def __init__(self, spoken: SpokenText, shows: OfException) -> None:
        self.launchers: set[int] = set()
        self.ignored: set[int] = set()
        self._of_threads: list[Raised] = []
        self._spoken = spoken
        self._whose = whose.Namer(spoken)
        self._said = [index for index, each in enumerate(spoken.by) if not each.agent]
        self._taken: set[int] = set()
        self._survived: set[tuple[str, str]] = set()
        self._silenced: set[tuple[str, str]] = set()
        found: dict[int, Raised] = {}
        self.boxes = childfailed.boxes(spoken.lines)
        for indexes in [*spoken.index.own_lists(), *spoken.index.by_place.values()]:
            lines = [spoken.lines[index] for index in indexes]
            shown = traceback_text.find(lines)
            silent = {k for k, index in enumerate(indexes) if index in self.boxes} if self.boxes else frozenset[int]()
            went_on = WentOn(lines if shown else (), shown, silent)
            ended: Printed | None = None  # the one that ended the program, unless another rank's failure did
            for printed in reversed(shown):
                raised = self._read(printed, indexes, went_on)
                if raised is None:
                    continue
                if ended is not None and _is_quoted(printed, ended, lines):
                    self.ignored.update(raised.lines)
                    continue
                if ended is not None and _got_past(printed, ended, went_on):
                    raised = replace(raised, final=False)
                elif raised.final and printed is not shown[0] and shows(raised.info).what is not Shows.A_LOSS:
                    ended = printed
                found.setdefault(raised.index, raised)
        children = [each for each in found.values() if exception_frames.lost_its_parent(each.info)]
        for child in children if len(children) < len(found) else ():
            self.launchers |= found.pop(child.index).lines
        headers = (index for index in self._said if traceback_text.HEADER in spoken.lines[index])
        torn = not found or any(index not in self._taken for index in headers)
        whole = {rank for each in found.values() for rank in each.ranks}
        for orphan in _orphans(spoken, self._said, self._taken):
            alone = bool(orphan.ranks) and whole.isdisjoint(orphan.ranks)
            if words_of(orphan.info) in self._survived:
                continue
            if torn or (alone and shows(orphan.info).what is Shows.A_CAUSE):
                found[orphan.index] = orphan
        self.found = [found[index] for index in sorted(found)]

    def _read(self, printed: Printed, indexes: Sequence[int], went_on: WentOn) -> Raised | None:
        """Return the exception if it may have ended a rank; else note what it was."""
        own = indexes[printed.start : printed.end]
        self._taken.update(own)
        runs_on = exception_frames.runs_on(printed.info)
        over = went_on.after(printed.start, printed.index, printed.end, runs_on=runs_on)
        ignored = printed.ignored or exception_frames.of_given_code(printed.info)
        if ignored:
            self.ignored.update(own)
            self._silenced.add(words_of(printed.info))
        if not printed.final or ignored or printed.info.type in _CANCELLED:
            self._survived.add(words_of(printed.info))
            own_thread = not (printed.final or ignored or traceback_text.is_library(printed.info.file or "<"))
            if own_thread and not over:
                self._of_threads.append(Raised(printed.info, indexes[printed.index], (), True, frozenset(own)))
            return None
        shown = printed.info.traceback
        links = exception_chain.chain(printed.info)[1:] if says_a_launcher(printed.info.message) else ()
        if links and traceback_text.CHAIN.search(shown):
            *_, last = traceback_text.CHAIN.finditer(shown)  # it was raised from what it tells of
            printed = replace(printed, info=replace(links[0], traceback=shown[: last.start()].rstrip()))
        if is_launchers(printed.info):
            if not (over and says_a_launcher(printed.info.message)):
                self.launchers.update(indexes[printed.start : printed.index + 1])
            return None
        where = indexes[printed.index]
        failed = exception_chain.failed_ranks(printed.info)
        ranks = failed or self._spoken.by[where].ranks
        ranks = ranks or self._whose.of(own[0], printed.info, shown)
        over = over or not (ranks or self._spoken.index.one_by_one or self._spoken.running_at() <= where)
        info = exception_chain.interrupted(printed.info) or printed.info
        return Raised(info, where, ranks, not over, frozenset(own), bool(failed))

    def without_rank(self) -> list[Raised]:
        """Return those that name no rank, and after which nothing went on; of the program's threads, too."""
        nobodys = [each for each in self.all() if each.final and not each.ranks and not starts_a_launcher(each.info)]
        return sorted([*nobodys, *self._of_threads], key=lambda each: each.index)

    def all(self) -> list[Raised]:
        """Return every exception, including torn and survived ones: only launchers' and ignored ones are left out."""
        taken = {index for each in self.found for index in each.lines} | self.launchers | self.ignored
        orphans = _orphans(self._spoken, self._said, taken)  # of an ignored one, maybe only its end is shown
        torn = [each for each in orphans if words_of(each.info) not in self._silenced]
        return sorted([*self.found, *torn], key=lambda each: each.index)


def _is_quoted(printed: Printed, later: Printed, lines: Sequence[str]) -> bool:
    """Whether a program quotes it: indented, unlike a later one."""
    return lines[printed.start][:1].isspace() and not lines[later.start][:1].isspace()


def _got_past(printed: Printed, later: Printed, went_on: WentOn) -> bool:
    """Whether a program caught the first of its exceptions and not the later, or made progress between them."""
    if words_of(printed.info) == words_of(later.info):
        return False
    caught = exception_frames.begins_in_function(printed.info) and exception_frames.begins_at_module(later.info)
    return caught or went_on.between(printed.end - 1, later.start)


def _orphans(spoken: SpokenText, indexes: Sequence[int], taken: set[int]) -> list[Raised]:
    """Yield `Type: message` lines whose traceback is truncated, or torn by several processes writing at once."""
    found = []
    went_on: WentOn | None = None
    shown = lines_with(("Error", "Ex", "Int", "Failed"), [spoken.lines[index] for index in indexes])
    candidates = [position for position in shown if indexes[position] not in taken]
    for position in candidates[-_MOST_ORPHANS:]:
        index = indexes[position]
        said = spoken.lines[index]
        line = once(said[spoken.by[index].start :].strip())
        tests = _PYTESTS.match(line)
        line = line[tests.end() :] if tests is not None else line
        quoted = _IN_JSON.match(line)
        line = quoted[1] if quoted is not None else line
        hit = _ORPHAN.match(line)
        if hit is None or is_agents(hit["type"]) or hit["type"] in _CANCELLED or _OF_A_SIGNAL.match(line):
            continue
        above = spoken.lines[indexes[position - 1]] if position else ""
        if traceback_text.says_ignored(above) or above.endswith(_RAISED):
            continue
        lines = [spoken.lines[k] for k in indexes[max(0, position - _BEFORE) : position]]
        places = [place for text in lines if _FRAME in text for place in PLACE.finditer(text)]
        own = [place for place in places if not traceback_text.is_library(place["file"])] or places
        place = own[-1] if own else tests if tests is not None and tests["file"] else None
        below = indexes[position + 1 : position + 1 + _MESSAGE_LINES]
        following = [spoken.lines[k] for k in below if spoken.by[k][:2] == spoken.by[index][:2]]
        went_on = went_on or WentOn([spoken.lines[k] for k in indexes])
        info = ExceptionInfo(
            hit["type"],
            _message(hit["message"] or "", following),
            place["file"] if place else None,
            int(place["line"]) if place else None,
            place.groupdict().get("function") if place else None,
            "\n".join([*lines[_first_frame(lines) :], line]),
        )
        if is_launchers(info) or OF_A_THREAD in info.traceback:
            continue
        ranks = whose.named(info, lines[-1:]) or spoken.by[index].ranks
        final = not went_on.after(0, position, position + 1)
        found.append(Raised(info, index, ranks, final, frozenset((index,))))
    return found


def _first_frame(lines: Sequence[str]) -> int:
    """Return where the frames before the end of these lines begin: each has two lines, or three with its marks."""
    begin, gap = len(lines), 0
    for index in range(len(lines) - 1, -1, -1):
        gap = 0 if _FRAME in lines[index] else gap + 1
        if gap > _FRAME_LINES:
            break
        begin = index if gap == 0 else begin
    return len(lines) - 1 if begin == len(lines) and lines and lines[-1].startswith("    ") else begin


def _message(first: str, following: Sequence[str]) -> str:
    """Return the message with its continuation lines: NCCL's and torch's state-dict errors have some.

    Where the first line has no message, a blank one may follow it.
    """
    lines = [first]
    for line in following[0 if first or not following or following[0].strip() else 1 :]:
        other = _ORPHAN.match(line) is not None and not lines[-1].endswith(_RAISED)
        torn = PLACE.search(line) or other or traceback_text.ends_message(line)
        if torn or not line.strip() or not is_news(line):
            break
        lines.append(line)
    return "\n".join(lines)
