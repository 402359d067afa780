"""Which ranks failed, by what launchers report and by the exceptions that a text shows, and what each of them wrote.
Pure."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddp_run.evidence import childfailed, exception_frames, traceback_text
from ddp_run.evidence.launcher_exceptions import starts_a_launcher
from ddp_run.evidence.model import Death, SummaryEntry
from ddp_run.evidence.pasted import launcher_text
from ddp_run.evidence.pasted.raised import OF_A_THREAD, IsConsequence, Raised
from ddp_run.evidence.pasted.spoken_text import SpokenText
from ddp_run.evidence.traceback_text import HEADER, PLACE
from ddp_run.evidence.went_on import form_of, is_crash, is_native
from ddp_run.evidence.windows import LEAVING, VERY_LAST
from ddp_run.record.events import ExceptionInfo, LocalRank, Rank

_OFTEN = 40
"""This many unnamed lines of one form after a rank's exception must be from another process."""
_TORN = re.compile(r"(?:Error|Exception)\b|Error[A-Z]")
_PID = "pid"
_RANK_AND_PID = re.compile(
    r"\b[Rr]ank[ =:_#]{0,2}(?P<rank>\d{1,6})\b[^\n]{0,40}?\b(?:pid|PID)\b[ =:]{1,2}(?P<pid>\d{2,9})\b"
)
_OF_PID = re.compile(
    r"[Kk]illed process (?P<killed>\d{1,9})\b|\bXid \([^)\n]{1,40}\): [^\n]{0,200}?pid='?(?P<failed>\d{1,9})"
)
"""A process that the kernel killed for memory, or whose GPU failed."""
_RAISING = (None, 1, -signal.SIGINT, -signal.SIGABRT)
"""Python's own code after an exception, and signals that follow one. The program chose any other code."""


def deaths_of(
    spoken: SpokenText,
    begin: int,
    summary: Sequence[SummaryEntry],
    exceptions: Sequence[Raised],
    is_consequence: IsConsequence,
) -> list[Death]:
    """Return the failed ranks, the most likely first: torch's root, then by torch's times, then in printed order."""
    sent = childfailed.signals_sent(spoken.lines)
    entries = sorted((e for e in summary if e.code != 0), key=lambda e: (not e.root, e.time or "", e.rank))
    deaths = [_told(spoken, entry, sent) for entry in _each_once(entries)]
    deaths += _told_elsewhere(spoken, begin, {death.rank for death in deaths})
    known = {death.rank for death in deaths}
    own: dict[Rank, Raised] = {}
    for raised in exceptions:
        for rank in raised.ranks:
            own[rank] = raised
            if rank not in known and raised.final:
                known.add(rank)
                deaths.append(Death(rank=rank, code=_code_of(raised.info), stderr=spoken.said_by(rank)))
    nobodys = [raised for raised in exceptions if not raised.ranks]
    by_themselves = any(raised.ranks and raised.final and not is_consequence(raised.info) for raised in exceptions)
    if by_themselves and any(death.rank is None for death in deaths):  # a launcher's code, and its rank
        deaths = [death for death in deaths if death.rank is not None] or deaths
    if any(raised.final and not is_consequence(raised.info) for raised in nobodys):  # the others are told to end
        deaths = [death for death in deaths if death.rank is not None or death.code != -signal.SIGTERM]
    given = _shared_out([_with_own(death, own) for death in deaths], nobodys, is_consequence)
    written = _Written(spoken, exceptions)
    return [written.by(death) for death in given]


def with_the_kernels(spoken: SpokenText, deaths: Sequence[Death], kernel: Sequence[str]) -> list[Death]:
    """Return the deaths, and before them those of ranks that only the kernel tells of: by a process ID, which a line of
    a launcher or program gives to a rank."""
    told = [(int(hit["killed"] or hit["failed"]), hit) for line in kernel if (hit := _OF_PID.search(line))]
    lines = [line for line in spoken.lines if _PID in line.lower()] if told else []
    named = ((Rank(int(hit["rank"])), int(hit["pid"])) for line in lines if (hit := _RANK_AND_PID.search(line)))
    ranks = {pid: rank for rank, pid in named}
    known = {death.rank for death in deaths}
    first = [
        Death(ranks[pid], pid=pid, code=-signal.SIGKILL if hit["killed"] else None, stderr=spoken.said_by(ranks[pid]))
        for pid, hit in {pid: hit for pid, hit in told if pid in ranks and ranks[pid] not in known}.items()
    ]
    pids = {rank: pid for pid, rank in ranks.items()}
    return [*first, *(replace(d, pid=pids.get(d.rank)) if d.pid is None and d.rank in pids else d for d in deaths)]


def told_on(spoken: SpokenText, rank: Rank | None, pid: int | None, code: int | None) -> int | None:
    """Return the index of the last line that tells of such an end: torch's agent names the pid, others the rank."""
    agents = f"(pid: {pid})"
    told = [index for index, line in enumerate(spoken.lines) if agents in line and "exitcode" in line]
    told = told or [each.index for each in launcher_text.ends(spoken.lines) if (each.rank, each.code) == (rank, code)]
    return max(told, default=None)


def with_nobodys(deaths: Sequence[Death], first: Death) -> list[Death]:
    """Return the deaths, and before them the one of an unknown rank: a launcher may report its code without a rank."""
    told = next((death for death in deaths if death.rank is None and death.exception is None), None)
    others = [death for death in deaths if death is not told]
    return [first if told is None else replace(told, exception=first.exception), *others]


class _Written:
    """Finds each failed rank's text, without the exceptions that belong to others."""

    def __init__(self, spoken: SpokenText, exceptions: Sequence[Raised]) -> None:
        self._spoken = spoken
        self._nobodys = {index: raised.info for raised in exceptions if not raised.ranks for index in raised.lines}
        self._elsewhere = {index: raised.ranks for raised in exceptions if raised.elsewhere for index in raised.lines}
        self._shown = {id(raised.info): raised.index for raised in exceptions}
        self._forms: dict[int, str] = {}

    def by(self, death: Death) -> Death:
        """Remove others' tracebacks from its possible lines, and the others' continuous output after them."""
        spoken, shown = self._spoken, self._shown.get(id(death.exception))
        if not (self._nobodys or self._elsewhere) and (shown is None or death.rank is None):
            return death
        said = spoken.of(death.rank)
        others = {index for index in said if index in self._nobodys and self._nobodys[index] != death.exception}
        others |= {index for index in said if death.rank not in self._elsewhere.get(index, (death.rank,))}
        if shown is not None and death.rank is not None:
            later = [index for index in said if index > shown and not spoken.by[index].ranks]
            forms = Counter(map(self._form, later))
            often = {one for one, count in forms.items() if count > _OFTEN and "0" in one and not one[:1].isspace()}
            others.update(index for index in later if self._form(index) in often)
        kept = [index for index in said if index not in others]
        return replace(death, stderr=spoken.text(kept)) if len(kept) < len(said) else death

    def _form(self, index: int) -> str:
        if index not in self._forms:
            self._forms[index] = form_of(self._spoken.lines[index])
        return self._forms[index]


def _each_once(entries: Sequence[SummaryEntry]) -> list[SummaryEntry]:
    """Return the last attempt's failure for each rank (restarts print one summary each, as do nodes)."""
    kept: dict[Rank, SummaryEntry] = {}
    for entry in entries:
        if entry.rank not in kept:
            kept[entry.rank] = entry
    return list(kept.values())


def _told(spoken: SpokenText, entry: SummaryEntry, sent: dict[int, tuple[int, ...]]) -> Death:
    return Death(
        rank=entry.rank,
        local_rank=entry.local_rank,
        host=entry.host,
        pid=entry.pid,
        code=entry.code,
        signals_sent=sent.get(entry.pid, ()) if entry.pid is not None else (),
        stderr=spoken.said_by(entry.rank),
        exception=_recorded(entry.message),
    )


def _recorded(message: str) -> ExceptionInfo | None:
    """Return the exception of a summary's traceback, if the program used `@record`."""
    return traceback_text.from_text(message) if HEADER in message else None


def _told_elsewhere(spoken: SpokenText, begin: int, known: set[Rank | None]) -> list[Death]:
    """Return the ends reported by other launchers from `begin` on. One without a rank counts if there is no other."""
    ended = [each for each in launcher_text.ends(spoken.lines) if each.index >= begin]
    named = [each for each in ended if each.rank is not None and each.rank not in known]
    together = Counter(each.index for each in named)
    if all(each.code > 0 and together[each.index] > 1 and each.rank not in spoken.index.by_rank for each in named):
        named = []  # of ranks that left together, and wrote nothing that is known as theirs, none left first
    deaths = []
    for each in dict.fromkeys(replace(one, index=0) for one in named):
        deaths.append(
            Death(
                rank=each.rank,
                local_rank=LocalRank(each.rank) if each.rank is not None and each.host is None else None,
                host=each.host,
                code=each.code,
                signals_sent=(-each.code,) if each.told else (),
                stderr=spoken.said_by(each.rank),
            )
        )
    if deaths or known or not ended:
        return deaths
    running = spoken.running_at()
    if ended[-1].index >= running:
        crashed = next(filter(None, (_crash_of(spoken, each) for each in ended if each.index >= running)), None)
        anybodys = spoken.text([index for index, each in enumerate(spoken.by) if not each.agent])
        deaths.append(crashed or Death(rank=None, code=ended[-1].code, stderr=anybodys))
    return deaths


def _crash_of(spoken: SpokenText, ended: launcher_text.Ended) -> Death | None:
    """Return the end of a container that crashed and says so: of several, it didn't follow another one."""
    own = spoken.index.by_place.get(ended.host, []) if ended.host is not None else []
    death = Death(rank=None, code=ended.code, stderr=spoken.text(own))
    return death if death.crashed and any(is_crash(spoken.lines[index]) for index in own) else None


def _with_own(death: Death, last: Mapping[Rank, Raised]) -> Death:
    """Return the last exception that this rank itself shows, unless it survived it."""
    own = last.get(death.rank) if death.rank is not None and death.exception is None else None
    if own is None or not (_may_raise(death) or own.elsewhere):
        return death
    if death.code not in (None, 1) and not own.final:
        return death
    return replace(death, exception=own.info)


def _may_raise(death: Death) -> bool:
    return death.code is None or death.code > 0 or death.code in (-signal.SIGINT, -signal.SIGABRT)


def _shared_out(deaths: list[Death], nobodys: Sequence[Raised], is_consequence: IsConsequence) -> list[Death]:
    """Assign unnamed exceptions to the ranks that have none: causes first, in rank order."""
    lacking = [death for death in deaths if death.exception is None and death.code in _RAISING]
    fitting = [raised for raised in nobodys if raised.final]
    if not fitting and any(death.code == 1 for death in lacking):
        fitting = list(nobodys)
    fitting = [raised for raised in fitting if not exception_frames.of_a_command(raised.info)] or fitting
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
        elif others and _may_follow(death):
            given[death.rank] = others[-1].info
    wanting = set(map(id, lacking))
    return [replace(d, exception=given[d.rank]) if d.rank in given and id(d) in wanting else d for d in deaths]


def _may_follow(death: Death) -> bool:
    """Whether it may be the rank that raised because of another's failure: not if it aborted without a message, or
    for one of its own memory."""
    said = [line for line in death.stderr.lines if is_native(line)]
    return death.code != -signal.SIGABRT or (bool(said) and not any(map(is_crash, said)))


def _kind(info: ExceptionInfo) -> tuple[str, str | None, int | None]:
    return info.type, info.file, info.line


def nameless_deaths(
    spoken: SpokenText, exceptions: Sequence[Raised], ignored: set[int], is_consequence: IsConsequence
) -> list[Death]:
    """If no launcher reports an end: return the last exception that nothing follows, or native code's last message."""
    text = spoken.said_by(None)
    final = [raised for raised in exceptions if raised.final]
    causes = [raised for raised in final if not is_consequence(raised.info)] or final
    causes = [raised for raised in causes if not starts_a_launcher(raised.info)] or causes
    if causes:
        return [Death(rank=None, code=_code_of(causes[-1].info), exception=causes[-1].info, stderr=text)]
    both = zip(spoken.lines, spoken.by, strict=True)
    speaking = dict.fromkeys(rank for line, each in both if each.ranks and is_native(line) for rank in each.ranks)
    if speaking:
        return [Death(rank=rank, code=None, stderr=spoken.said_by(rank)) for rank in speaking]
    said = [index for index, each in enumerate(spoken.by) if not each.agent and index not in ignored]
    text = spoken.text(said)
    tail = _outside(text.ending(LEAVING).lines)[-VERY_LAST:]
    places = [line for line in text.ending(LEAVING).lines if PLACE.search(line)]
    of_threads = any(OF_A_THREAD in line for line in places)
    torn = bool(places) and not exceptions and not of_threads and any(_TORN.search(line) for line in tail)
    if not torn and not any(map(is_native, tail)):
        return []
    ranks = {rank for index in said[-VERY_LAST:] for rank in spoken.by[index].ranks}
    return [Death(rank=ranks.pop() if len(ranks) == 1 else None, stderr=text)]


def _outside(lines: Sequence[str]) -> list[str]:
    """Return the lines outside complete tracebacks and outside messages that announce that the program goes on."""
    found = traceback_text.find(lines)
    inside = {index for each in found for index in range(each.start - (0 if each.final else 2), each.end)}
    return [line for index, line in enumerate(lines) if index not in inside]


def _code_of(info: ExceptionInfo) -> int | None:
    """Python exits with 1 after an uncaught exception; these two exit differently."""
    return None if info.type.rpartition(".")[2] in ("KeyboardInterrupt", "SystemExit") else 1
