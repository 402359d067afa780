"""Builds Evidence from pasted logs of any launcher: the same values as from a run's own folder. Pure.

Several processes wrote into these texts, mostly unnamed. So a rank's text consists of the lines that name it and the
unnamed lines, which it may have written. The catalogue recognises consequences of other failures (`shows`), since
the rules decide who is a victim.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ddp_run.evidence import childfailed
from ddp_run.evidence.launcher_exceptions import AGENT_FRAME, starts_a_launcher
from ddp_run.evidence.model import AgentEnd, Death, Evidence, SummaryEntry
from ddp_run.evidence.pasted import got_over, launcher_text, own_words
from ddp_run.evidence.pasted.deaths import deaths_of, nameless_deaths, with_nobodys, with_the_kernels
from ddp_run.evidence.pasted.line_prefixes import Writer
from ddp_run.evidence.pasted.raised import Exceptions, OfException, Raised, Shown, Shows
from ddp_run.evidence.pasted.spoken_text import SpokenText
from ddp_run.evidence.traceback_text import HEADER
from ddp_run.evidence.windows import VERY_LAST
from ddp_run.record.events import ExceptionInfo, Rank

WORDS = (
    *(HEADER, "Root Cause", "failed (exitcode:", "closing signal", "got signal:"),
    *("death signal", "terminate called", "Fatal Python error", "terminated with the following error", "Failures:"),
    *("slurmstepd: error", "oom-kill:", "illed process ", "exited on", *launcher_text.WORDS),
)
"""The literals by which this finds how ranks ended, for a scanner of large logs."""
_REFUSED = re.compile(r"(?:torchrun|run\.py|launch\.py|accelerate|deepspeed)\b.{0,200}: error: ")
_KERNEL = ("NVRM: ", "ut of memory: ", "Killed process ", "oom-kill:", "oom_reaper", "segfault at ", "kernel: ")


def read(spoken: SpokenText, catalogue: OfException) -> Evidence:
    """Return the evidence in these texts. If nothing failed there, it has no deaths. The catalogue says what an
    exception shows."""
    known: dict[tuple[str, str, str], Shown] = {}  # many ranks raise the same

    def shows(info: ExceptionInfo) -> Shown:
        words = info.type, info.message, info.traceback
        return known[words] if words in known else known.setdefault(words, catalogue(info))

    def is_consequence(info: ExceptionInfo) -> bool:
        return shows(info).what is Shows.A_LOSS

    text = "\n".join(spoken.lines)
    begin = got_over.until(spoken)
    everything = spoken.text(range(begin, len(spoken.lines)))
    told, over = childfailed.last_attempts([each for each in childfailed.placed(spoken.lines) if each[0] > begin])
    over.append(range(begin))
    spoken = spoken.given_to_launchers({index for lines in over for index in lines})
    observed = () if told else _observed_at_the_end(spoken, begin)
    shown = Exceptions(spoken, shows)
    exceptions, launchers = shown.found, shown.launchers
    starters = [raised for raised in exceptions if starts_a_launcher(raised.info)]
    # the process that started the program has no rank
    if starters and (told or observed or len(starters) == len(exceptions)):
        others = [raised for raised in exceptions if raised not in starters]
        others = others or [raised for raised in shown.all() if not starts_a_launcher(raised.info)]
        if others:
            launchers |= {index for raised in starters for index in raised.lines}
            exceptions = others
    summary = (*told, *_of_who_raised(observed, exceptions, spoken))
    whole = [raised for raised in exceptions if raised.info.file is not None or not raised.ranks]
    followed = [raised for raised in exceptions if shows(raised.info).what in (Shows.A_LOSS, Shows.A_WAIT)]
    rest = [raised for raised in whole if raised not in followed]
    nobodys: Raised | None = None
    only_followed = all(raised.info.file is None for raised in rest)
    if only_followed and (victims := own_words.of_others(spoken, followed)):
        left = own_words.of_who_left(spoken, followed, victims, shows) if not rest else None
        nobodys = own_words.of_no_rank(spoken, shown.without_rank(), victims, shows) if left is None else None
        if left is not None and not is_consequence(left.info):
            others = [raised for raised in exceptions if raised.index != left.index]
            exceptions = sorted([*others, left], key=lambda raised: raised.index)
            spoken = spoken.given_to(left.ranks, left.index)  # a name in it may not be one that all lines have
    spoken = spoken.given_to_launchers(launchers | shown.boxes, len(summary))
    stop = _stop_signal(spoken, begin)
    if stop is not None:
        exceptions = [raised for raised in exceptions if raised.final]
    deaths = deaths_of(spoken, begin, summary, exceptions, is_consequence)
    if nobodys is not None and all(death.exception is not nobodys.info for death in deaths):
        deaths = with_nobodys(deaths, Death(rank=None, exception=nobodys.info, stderr=spoken.said_by(None)))
    if not summary and (stop is not None or any(AGENT_FRAME.search(spoken.lines[index]) for index in launchers)):
        # torch's agent raised on its own, or was told to stop: srun's messages about its tasks are about agents
        deaths = [death for death in deaths if death.exception is not None]
    if not deaths and stop is None and (not launchers or any(raised.final for raised in exceptions)):
        deaths = nameless_deaths(spoken, exceptions, shown.ignored, is_consequence)
    kernels = _kernels(spoken.lines, text)
    deaths = with_the_kernels(spoken, deaths, [spoken.lines[index] for index in kernels if index >= begin])
    return Evidence(
        deaths=tuple(deaths),
        started=len(deaths),
        agent=AgentEnd(_launchers_code(spoken, bool(launchers)), everything, summary=summary),
        stop_signal=stop,
        kernel=spoken.text(kernels),
        nodes=len({entry.host for entry in summary if entry.host}) or 1,
        logs_only=True,
    )


def _stop_signal(spoken: SpokenText, begin: int) -> int | None:
    """Return the signal that stopped the job: of the jobs in one log, the last one's that was stopped."""
    lines, running = spoken.lines[begin:], spoken.running_at()
    last = spoken.lines[running + 1 :] if begin <= running and len(set(spoken.sources)) == 1 else ()
    return childfailed.stop_signal("\n".join(last)) or childfailed.stop_signal("\n".join(lines))


def _kernels(lines: Sequence[str], whole: str) -> list[int]:
    present = [words for words in _KERNEL if words in whole]
    found = ((index, line, line.find(words)) for index, line in enumerate(lines) for words in present if words in line)
    return sorted({index for index, line, place in found if line.count('"', 0, place) % 2 == 0})  # not what is quoted


def _observed_at_the_end(spoken: SpokenText, begin: int) -> tuple[tuple[int, SummaryEntry], ...]:
    """Return the failures that agents logged from `begin` on, and on which lines, unless the ranks went on after them:
    restarted."""
    found = [
        (index, entry)
        for index, line in enumerate(spoken.lines)
        for entry in (childfailed.observed(line) if "exitcode" in line else ())
    ]
    over = max(spoken.running_at(), begin - 1) if found else begin
    return tuple((index, entry) for index, entry in found if index > over)


def _of_who_raised(
    observed: Sequence[tuple[int, SummaryEntry]], exceptions: Sequence[Raised], spoken: SpokenText
) -> list[SummaryEntry]:
    """Return what agents observed, with the rank in place of a local rank: of one that writes nothing, while just one
    other raised, or writes, in the agent's pod, or, where none is named, raised and writes at all."""
    agents = Counter(spoken.by[index].place for index, _entry in observed)
    writing = _ranks_by_place(agents, spoken.by)
    raising = _ranks_by_place(agents, (spoken.by[each.index]._replace(ranks=each.ranks) for each in exceptions))
    summary = []
    for index, entry in observed:
        place = spoken.by[index].place
        there = writing[place]
        alone = raising[place] or (there if place is not None else set())
        sole = agents[place] == 1 and len(alone) == 1 and (place is not None or there == alone)
        known = entry.rank is None or not sole or entry.rank in there
        summary.append(entry if known else replace(entry, rank=max(entry.rank, *alone)))
    return summary


def _ranks_by_place(places: Collection[str | None], writers: Iterable[Writer]) -> dict[str | None, set[Rank]]:
    """Return the ranks that wrote at each of these places; None: at any."""
    ranks: dict[str | None, set[Rank]] = {place: set() for place in places}
    for each in writers if ranks else ():
        for place in ranks.keys() & {None, each.place}:
            ranks[place].update(each.ranks)
    return ranks


def _launchers_code(spoken: SpokenText, raised: bool) -> int | None:
    """Return Python's code for an uncaught exception, or argparse's for a rejected option; None if neither is shown."""
    if raised:
        return 1
    return 2 if any(_REFUSED.search(line) for line in spoken.lines[-VERY_LAST:]) else None
