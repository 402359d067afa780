"""What logs of any launcher show of a failure, as Evidence: the same values that a run's own folder gives. Pure.

Several processes wrote into these texts, mostly without saying which. A rank's text is then what it wrote by name and
what it may have written: the lines that name nobody. What only follows another's failure is told apart by the catalogue
(`is_consequence`), since who is a victim is the rules' to say.
"""

from __future__ import annotations

import re
import signal
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddp_run import childfailed, launcher_text, traceback_text
from ddp_run.events import ExceptionInfo, LocalRank, Rank
from ddp_run.speakers import Spoken, assign, unfolded, without_colour
from ddp_run.traceback_text import Printed
from ddp_run.verdict import AgentEnd, Death, Evidence, LogText, SummaryEntry

IsConsequence = Callable[[ExceptionInfo], bool]

WORDS = (
    *("Traceback (most recent call last)", "Root Cause", "failed (exitcode:", "closing signal", "got signal:"),
    *("death signal", "terminate called", "Fatal Python error", "terminated with the following error", "Failures:"),
    *("srun: error:", "slurmstepd: error", "exited on signal", "crashed with exit code", "exits with return code"),
    *("core dumped", "oom-kill:", "Out of memory: Killed process"),
)
"""Literals by which this finds how ranks ended, for a scanner of large logs."""
_AGENTS = frozenset({"ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException"})
_AGENT_FRAME = re.compile(r"torch/distributed/(?:run|launch)\.py|torch/distributed/(?:launcher|elastic/agent)/")
_LAUNCHER = re.compile(r"accelerate/commands/|deepspeed/launcher/|torch/multiprocessing/spawn\.py")
_SPAWNED = re.compile(r"-- Process (?P<rank>\d+) terminated with the following error:")
_EMPTY = re.compile(
    r"\s*$|\s+warnings\.warn|\s*[\^~]+\s*$|frame #\d+|\s*={3,}|\s*-{3,}|\[?[WI]\d{4} |wandb: |srun: |slurmstepd: "
)
_NOISE_WORDS = ("resource_tracker", "Warning", "%|")
_NOISE = re.compile(r"resource_tracker|Warning\b|%\|")
_NATIVE = re.compile(
    r"terminate called|what\(\): |Fatal Python error: |Assertion .* failed|double free or corruption|free\(\): "
    r"|stack smashing|Watchdog caught collective|Process group watchdog thread terminated"
)
_NATIVE_WORDS = (
    *(
        "terminate called",
        "what(): ",
        "Fatal Python error: ",
        "Assertion ",
        "double free",
        "free(): ",
        "stack smashing",
    ),
    *("Watchdog caught collective", "Process group watchdog"),
)
_REFUSED = re.compile(r"(?:torchrun|run\.py|launch\.py|accelerate|deepspeed)\b.*: error: ")
_SELF = re.compile(r"which did not receive grad for rank (\d+)|^\[Rank (\d+)\]: |^Rank (\d+) successfully reached")
"""Messages of torch in which a rank names itself (reducer.cpp, ProcessGroupGloo.cpp)."""
_LAST_WORDS = 12
_MESSAGE_LINES = 20
_WENT_ON = 3
_LONGEST = 4000
_TORN_LINES = 60
_FEW = 6
_REPEATED = 5
_OFTEN = 40
"""Lines of a known form, and of one form, after which a program is taken to have gone on."""
_DIGITS = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_TORN = re.compile(r"(?:Error|Exception)\b|Error[A-Z]")
_ORPHAN = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit))(?:: (?P<message>.*))?$")
_FRAME = '  File "'
_PLACE = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>[\w<>]+))?')
_KERNEL = ("NVRM: ", "Out of memory: Killed process", "oom-kill:", "oom_reaper", "segfault at ", "kernel: ")


@dataclass(frozen=True, slots=True)
class Log:
    """One text to explain; `rank` where its file's name tells."""

    text: LogText
    rank: Rank | None = None


@dataclass(frozen=True, slots=True)
class _Spoken:
    """All lines of all logs in one row, and who wrote each."""

    lines: tuple[str, ...]
    by: tuple[Spoken, ...]
    sources: tuple[tuple[LogText, int], ...]
    """For each line its log and its index there."""

    def text(self, indexes: Sequence[int]) -> LogText:
        """Some of the lines, numbers kept, under the name of the log that most of them are from."""
        if not indexes:
            return LogText("")
        named = [self.sources[index][0].source for index in indexes]
        source = max(dict.fromkeys(named), key=named.count)
        kept = [index for index in indexes if self.sources[index][0].source == source]
        numbers = tuple(self.sources[index][0].number(self.sources[index][1]) or 0 for index in kept)
        return LogText(source, tuple(self.lines[index] for index in kept), numbers[0], numbers)


def read(logs: Sequence[Log], is_consequence: IsConsequence) -> Evidence:
    """The evidence in these texts. Where nothing failed there, it has no deaths."""
    spoken = _spoken(logs)
    everything = spoken.text(range(len(spoken.lines)))
    whole = "\n".join(spoken.lines)
    told, over = childfailed.last_attempts(childfailed.placed(spoken.lines))
    spoken = _given_to_launchers(spoken, {index for lines in over for index in lines})
    summary = tuple(told) or _observed_at_the_end(spoken)
    exceptions, launchers = _exceptions(spoken)
    spoken = _given_to_launchers(spoken, launchers | childfailed.boxes(spoken.lines))
    stop = childfailed.stop_signal(whole)
    deaths = _deaths(spoken, summary, exceptions, is_consequence)
    if not deaths and not launchers and stop is None:
        deaths = _nameless(spoken, exceptions, is_consequence)
    return Evidence(
        deaths=tuple(deaths),
        started=len(deaths),
        agent=AgentEnd(_launchers_code(spoken, bool(launchers)), everything, summary=summary),
        stop_signal=stop,
        kernel=spoken.text(_kernels(spoken.lines, whole)),
        nodes=len({entry.host for entry in summary if entry.host}) or 1,
        logs_only=True,
    )


def _kernels(lines: Sequence[str], whole: str) -> list[int]:
    present = [words for words in _KERNEL if words in whole]
    return [index for index, line in enumerate(lines) if any(words in line for words in present)]


def _observed_at_the_end(spoken: _Spoken) -> tuple[SummaryEntry, ...]:
    """The failures that the agent logged, unless the ranks went on after them: it had started them again."""
    found = [
        (index, entry)
        for index, line in enumerate(spoken.lines)
        for entry in (childfailed.observed(line) if "exitcode" in line else ())
    ]
    if not found:
        return ()
    others = [index for index, each in enumerate(spoken.by) if not each.agent]
    went_on = _WentOn.of([spoken.lines[index] for index in others])
    places = [bisect_left(others, index) for index, _entry in found]
    return tuple(
        entry
        for place, (_index, entry) in zip(places, found, strict=True)
        if went_on.after(0, place - 1, place) <= _LAST_WORDS
    )


# -------------------------------------------------------------------------------------------- who wrote


def _spoken(logs: Sequence[Log]) -> _Spoken:
    lines: list[str] = []
    by: list[Spoken] = []
    sources: list[tuple[LogText, int]] = []
    for log in logs:
        pieces = [(index, piece) for index, line in enumerate(log.text.lines) for piece in unfolded(line)]
        assigned = assign([without_colour(piece) for _index, piece in pieces])
        for (index, _piece), each in zip(pieces, assigned, strict=True):
            lines.append(each.text)
            own = log.rank is not None and not each.ranks and not each.agent
            by.append(each._replace(ranks=(log.rank,)) if own and log.rank is not None else each)
            sources.append((log.text, index))
    return _Spoken(tuple(lines), tuple(by), tuple(sources))


def _given_to_launchers(spoken: _Spoken, lines: set[int]) -> _Spoken:
    """The same with these lines said to be launchers': they are no last words of a rank."""
    by = (each._replace(agent=True, ranks=()) if index in lines else each for index, each in enumerate(spoken.by))
    return replace(spoken, by=tuple(by)) if lines else spoken


def _of(spoken: _Spoken, rank: Rank | None) -> list[int]:
    """The lines that a rank wrote or may have written."""
    return [
        index
        for index, each in enumerate(spoken.by)
        if not each.agent and (not each.ranks or (rank is not None and rank in each.ranks))
    ]


# ------------------------------------------------------------------------------------------- exceptions


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception in the text. `ranks`: who says so, empty where nobody is named. `after`: lines that follow it.

    `lines` are the indexes of its own.
    """

    info: ExceptionInfo
    index: int
    ranks: tuple[Rank, ...]
    after: int
    lines: frozenset[int]


def _exceptions(spoken: _Spoken) -> tuple[list[_Raised], set[int]]:
    """Every exception that may have ended a rank, in order; and the lines of those with which a launcher ended."""
    found: dict[int, _Raised] = {}
    launchers: set[int] = set()
    taken: set[int] = set()
    nobody = _of(spoken, None)
    by_rank: dict[Rank, list[int]] = {}
    for index, each in enumerate(spoken.by):
        for rank in each.ranks:
            by_rank.setdefault(rank, []).append(index)
    for _rank, indexes in [*sorted(by_rank.items()), (None, nobody)]:
        lines = [spoken.lines[index] for index in indexes]
        shown = traceback_text.find(lines)
        if not shown:
            continue
        went_on = _WentOn(lines, shown)
        for printed in shown:
            taken.update(indexes[printed.start : printed.end])
            if not printed.final or _is_launchers(printed.info):
                launchers.update(indexes[printed.start : printed.index + 1] if printed.final else ())
                continue
            where = indexes[printed.index]
            ranks = spoken.by[where].ranks or _spawned(lines, printed) or _named(printed.info)
            own = frozenset(indexes[printed.start : printed.end])
            raised = _Raised(printed.info, where, ranks, went_on.after(printed.start, printed.index, printed.end), own)
            found.setdefault(where, raised)
    said = [index for index, each in enumerate(spoken.by) if not each.agent]
    torn = any("Traceback (most recent call last)" in spoken.lines[index] for index in said if index not in taken)
    if torn or not found:
        found |= {raised.index: raised for raised in _orphans(spoken, said, taken)}
    return [found[index] for index in sorted(found)], launchers


def _launchers_code(spoken: _Spoken, raised: bool) -> int | None:
    """Python's code for an uncaught exception, or argparse's for a refused option; null where neither is shown."""
    if raised:
        return 1
    return 2 if any(_REFUSED.search(line) for line in spoken.lines[-_LAST_WORDS:]) else None


def _is_launchers(info: ExceptionInfo) -> bool:
    name = info.type.rpartition(".")[2]
    if name in _AGENTS:
        return True
    if name == "CalledProcessError" and _LAUNCHER.search(info.traceback):
        return True
    return bool(_AGENT_FRAME.search(info.traceback))


def _spawned(lines: Sequence[str], printed: Printed) -> tuple[Rank, ...]:
    """The rank of a child of torch.multiprocessing.spawn, whose traceback its parent prints."""
    for line in lines[max(0, printed.start - 3) : printed.start]:
        hit = _SPAWNED.search(line)
        if hit:
            return (Rank(int(hit["rank"])),)
    return ()


def _named(info: ExceptionInfo) -> tuple[Rank, ...]:
    """The rank that an exception says it is from."""
    hit = _SELF.search(info.message)
    return (Rank(int(hit[1] or hit[2] or hit[3])),) if hit else ()


class _WentOn:
    """How much one speaker says after any place of its text: whether it went on after an exception.

    Python marks no end of a message. What tells that the program went on are lines of a form that it wrote before, or
    now writes again and again (`step 7 loss 0.3`): they count wherever they stand behind the line that shows the
    exception. Other tracebacks and native stacks are no news.
    """

    def __init__(self, lines: Sequence[str], exceptions: Sequence[Printed]) -> None:
        inside = {k for printed in exceptions for k in range(printed.start, printed.index + 1)}
        messages = {k for printed in exceptions for k in range(printed.index + 1, printed.end)}
        news = [k for k, line in enumerate(lines) if k not in inside and _is_news(line)]
        self._news = news
        self._plain = [k for k in news if k not in messages]
        self._first: dict[str, int] = {}
        again: dict[str, list[int]] = {}
        forms = [_form(line) for line in lines]
        for k, form in enumerate(forms):
            if self._first.setdefault(form, k) != k:
                again[form] = []
        for k in news:
            if forms[k] in again and not lines[k][:1].isspace():
                again[forms[k]].append(k)
        self._again = again
        often = (at[-_REPEATED] for form, at in again.items() if len(at) >= _REPEATED and "0" in form)
        self._often_after = max(often, default=-1)

    @classmethod
    def of(cls, lines: Sequence[str]) -> _WentOn:
        return cls(lines, traceback_text.find(lines))

    def after(self, start: int, shown: int, end: int) -> int:
        """How many lines with news follow an exception that begins at `start`, is shown at `shown`, ends at `end`."""
        if self._often_after > shown or self._known_after(start, shown) >= _WENT_ON:
            return _LAST_WORDS + len(self._news) - bisect_right(self._news, shown)
        return len(self._plain) - bisect_left(self._plain, end)

    def _known_after(self, start: int, shown: int) -> int:
        """Lines behind `shown` of a form that stands before `start`."""
        known = (at for form, at in self._again.items() if self._first[form] < start)
        return sum(len(at) - bisect_right(at, shown) for at in known)


def _is_news(line: str) -> bool:
    if _EMPTY.match(line) or (any(words in line for words in _NATIVE_WORDS) and _NATIVE.search(line)):
        return False
    return not any(words in line for words in _NOISE_WORDS) or _NOISE.search(line) is None


def _form(line: str) -> str:
    """The line with its numbers taken out."""
    return _DIGITS.sub("0", line)


def _orphans(spoken: _Spoken, indexes: Sequence[int], taken: set[int]) -> list[_Raised]:
    """`Type: message` lines whose traceback is cut off, or torn by several processes writing into each other."""
    found = []
    went_on: _WentOn | None = None
    for position, index in enumerate(indexes):
        said = spoken.lines[index]
        if index in taken or not ("Error" in said or "Ex" in said or "Int" in said):
            continue
        line = once(said[spoken.by[index].start :].strip())
        hit = _ORPHAN.match(line)
        if hit is None or hit["type"].rpartition(".")[2] in _AGENTS:
            continue
        lines = [spoken.lines[k] for k in indexes[max(0, position - 60) : position]]
        places = [place for text in lines if _FRAME in text for place in _PLACE.finditer(text)]
        own = [place for place in places if not traceback_text.is_library(place["file"])] or places
        place = own[-1] if own else None
        following = [spoken.lines[k] for k in indexes[position + 1 : position + 1 + _MESSAGE_LINES]]
        went_on = went_on or _WentOn.of([spoken.lines[k] for k in indexes])
        info = ExceptionInfo(
            hit["type"],
            _message(hit["message"] or "", following),
            place["file"] if place else None,
            int(place["line"]) if place else None,
            place["function"] if place else None,
            line,
        )
        ranks = spoken.by[index].ranks or _named(info)
        after = went_on.after(0, position, position + 1)
        found.append(_Raised(info, index, ranks, after, frozenset((index,))))
    return found


def _message(first: str, following: Sequence[str]) -> str:
    """The message with the lines that belong to it: NCCL's and torch's state-dict errors go on below."""
    lines = [first]
    for line in following:
        if not line.strip() or _PLACE.search(line) or _ORPHAN.match(line) or not _is_news(line):
            break
        lines.append(line)
    return "\n".join(lines)


def once(line: str) -> str:
    """The line as one process wrote it, where several wrote the same pieces at once (`ErrorError: : no xno x`)."""
    for times in range(8 if len(line) <= _LONGEST else 0, 1, -1):
        # Each character is there a multiple of times; most lines are told apart by a few of them.
        pieces = _pieces(line, times) if all(line.count(c) % times == 0 for c in line[:_FEW]) else None
        if pieces is not None:
            return pieces
    return line


def _pieces(line: str, times: int) -> str | None:
    parts: list[str] = []
    start = 0
    while start < len(line):
        longest = (len(line) - start) // times
        size = next((n for n in range(longest, 0, -1) if _repeats(line, start, n, times)), 0)
        if not size or len(parts) > 12:
            return None
        parts.append(line[start : start + size])
        start += size * times
    return "".join(parts) if parts and len(line) > 12 else None


def _repeats(line: str, start: int, size: int, times: int) -> bool:
    """Whether the piece of that size stands there so many times."""
    if line[start] != line[start + size]:
        return False
    piece = line[start : start + size]
    return all(line.startswith(piece, start + k * size) for k in range(1, times))


# ----------------------------------------------------------------------------------------------- deaths


def _deaths(
    spoken: _Spoken, summary: Sequence[SummaryEntry], exceptions: Sequence[_Raised], is_consequence: IsConsequence
) -> list[Death]:
    """The ranks that failed, the likeliest first one first: torch's root, then by its times, then as they speak."""
    sent = childfailed.signals_sent(spoken.lines)
    entries = sorted((e for e in summary if e.code != 0), key=lambda e: (not e.root, e.time or "", e.rank))
    deaths = [_told(spoken, entry, sent) for entry in _each_once(entries)]
    deaths += _told_elsewhere(spoken, {death.rank for death in deaths})
    speaking = [raised for raised in exceptions if raised.ranks]
    for raised in speaking:
        for rank in raised.ranks:
            if all(death.rank != rank for death in deaths) and raised.after <= _LAST_WORDS:
                deaths.append(Death(rank=rank, code=_code_of(raised.info), stderr=spoken.text(_of(spoken, rank))))
    nobodys = [raised for raised in exceptions if not raised.ranks]
    given = _shared_out([_with_own(death, exceptions) for death in deaths], nobodys, is_consequence)
    return [_without_others(spoken, death, exceptions) for death in given]


def _without_others(spoken: _Spoken, death: Death, exceptions: Sequence[_Raised]) -> Death:
    """Takes out of what it may have written the tracebacks of others, and what others wrote on end afterwards."""
    nobodys = [raised for raised in exceptions if not raised.ranks]
    others = {index for raised in nobodys if raised.info != death.exception for index in raised.lines}
    own = [raised.index for raised in exceptions if raised.info is death.exception]
    said = _of(spoken, death.rank)
    if own and death.rank is not None:
        later = [index for index in said if index > own[-1] and not spoken.by[index].ranks]
        forms = Counter(_form(spoken.lines[index]) for index in later)
        often = {form for form, count in forms.items() if count > _OFTEN and "0" in form and not form[:1].isspace()}
        others |= {index for index in later if _form(spoken.lines[index]) in often}
    return replace(death, stderr=spoken.text([index for index in said if index not in others])) if others else death


def _each_once(entries: Sequence[SummaryEntry]) -> list[SummaryEntry]:
    """The last attempt's word for each rank (restarts print one summary; nodes each print theirs)."""
    kept: dict[Rank, SummaryEntry] = {}
    for entry in entries:
        if entry.rank not in kept:
            kept[entry.rank] = entry
    return list(kept.values())


def _told(spoken: _Spoken, entry: SummaryEntry, sent: dict[int, tuple[int, ...]]) -> Death:
    return Death(
        rank=entry.rank,
        local_rank=entry.local_rank,
        host=entry.host,
        pid=entry.pid,
        code=entry.code,
        signals_sent=sent.get(entry.pid, ()) if entry.pid is not None else (),
        stderr=spoken.text(_of(spoken, entry.rank)),
        exception=_recorded(entry.message),
    )


def _recorded(message: str) -> ExceptionInfo | None:
    """The exception of a summary's traceback, where the program had `@record`."""
    return traceback_text.from_text(message) if "Traceback (most recent call last)" in message else None


def _told_elsewhere(spoken: _Spoken, known: set[Rank | None]) -> list[Death]:
    """Ends that other launchers tell of. One without a rank counts only where nothing else does."""
    ended = launcher_text.ends(spoken.lines)
    named = [each for each in ended if each.rank is not None and each.rank not in known]
    deaths = []
    for each in dict.fromkeys(replace(one, index=0) for one in named):
        deaths.append(
            Death(
                rank=each.rank,
                local_rank=LocalRank(each.rank) if each.rank is not None and each.host is None else None,
                host=each.host,
                code=each.code,
                stderr=spoken.text(_of(spoken, each.rank)),
            )
        )
    if not deaths and not known and ended:
        deaths.append(Death(rank=None, code=ended[-1].code, stderr=spoken.text(_of(spoken, None))))
    return deaths


def _with_own(death: Death, exceptions: Sequence[_Raised]) -> Death:
    """The last exception that this very rank shows, unless it lived on after it."""
    if death.exception is not None or not _may_raise(death):
        return death
    own = [raised for raised in exceptions if death.rank in raised.ranks]
    if not own or (death.code not in (None, 1) and own[-1].after > _LAST_WORDS):
        return death
    return replace(death, exception=own[-1].info)


_RAISING = (None, 1, -signal.SIGINT, -signal.SIGABRT)
"""Python's own code after an exception, and signals that follow one; any other code was chosen by the program."""


def _may_raise(death: Death) -> bool:
    return death.code is None or death.code > 0 or death.code in (-signal.SIGINT, -signal.SIGABRT)


def _shared_out(deaths: list[Death], nobodys: Sequence[_Raised], is_consequence: IsConsequence) -> list[Death]:
    """Gives the exceptions that name nobody to the ranks that have none: the causes first, to the first ranks."""
    lacking = [death for death in deaths if death.exception is None and death.code in _RAISING]
    fitting = [raised for raised in nobodys if raised.after <= _LAST_WORDS or any(d.code == 1 for d in lacking)]
    if not lacking or not fitting:
        return deaths
    causes = [raised for raised in fitting if not is_consequence(raised.info)]
    others = [raised for raised in fitting if is_consequence(raised.info)]
    kinds = {_kind(raised.info) for raised in causes}
    given: dict[Rank | None, ExceptionInfo] = {}
    for position, death in enumerate(lacking):
        if causes and len(kinds) == 1 and (len(causes) >= len(lacking) or position == 0 or not others):
            given[death.rank] = causes[-1].info
        elif causes and position < len(causes):
            given[death.rank] = causes[position].info
        elif others:
            given[death.rank] = others[-1].info
    return [replace(d, exception=given[d.rank]) if d.rank in given and d in lacking else d for d in deaths]


def _kind(info: ExceptionInfo) -> tuple[str, str | None, int | None]:
    return info.type, info.file, info.line


def _nameless(spoken: _Spoken, exceptions: Sequence[_Raised], is_consequence: IsConsequence) -> list[Death]:
    """Where no launcher tells of an end: the last exception that nothing follows, or last words of native code."""
    text = spoken.text(_of(spoken, None))
    final = [raised for raised in exceptions if raised.after <= _LAST_WORDS]
    causes = [raised for raised in final if not is_consequence(raised.info)] or final
    if causes:
        return [Death(rank=None, code=_code_of(causes[-1].info), exception=causes[-1].info, stderr=text)]
    speaking = {rank for each in spoken.by for rank in each.ranks if _NATIVE.search(each.text)}
    if speaking:
        return [Death(rank=rank, code=None, stderr=spoken.text(_of(spoken, rank))) for rank in sorted(speaking)]
    said = [index for index, each in enumerate(spoken.by) if not each.agent]
    text = spoken.text(said)
    tail = _outside(text.ending(_TORN_LINES).lines)[-_LAST_WORDS:]
    torn = (
        not exceptions
        and any(_TORN.search(line) for line in tail)
        and any(_PLACE.search(line) for line in text.ending(_TORN_LINES).lines)
    )
    if not torn and not any(_NATIVE.search(line) for line in tail):
        return []
    ranks = {spoken.by[index].ranks for index in said[-_LAST_WORDS:]}
    alone = ranks.pop() if len(ranks) == 1 else ()
    return [Death(rank=alone[0] if len(alone) == 1 else None, stderr=text)]


def _outside(lines: Sequence[str]) -> list[str]:
    """The lines that are part of no whole traceback, nor of what says before one that the program goes on."""
    found = traceback_text.find(lines)
    inside = {index for each in found for index in range(each.start - (0 if each.final else 2), each.end)}
    return [line for index, line in enumerate(lines) if index not in inside]


def _code_of(info: ExceptionInfo) -> int | None:
    """Python ends with 1 after an exception that nobody caught; these two end otherwise."""
    return None if info.type.rpartition(".")[2] in ("KeyboardInterrupt", "SystemExit") else 1
