"""Finds all signs after the last sign of progress in a pasted log: each rule's finding and its position. Pure.

Every exception there is tested, complete or torn, and then single lines, each as if it were a rank's last words.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import cache

from ddp_run.evidence import childfailed
from ddp_run.evidence.model import AgentEnd, Death, Evidence, LogText
from ddp_run.evidence.pasted import got_over, launcher_text, raised, torn_frames
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.evidence.went_on import WORKED, WentOn, form_of, kind_of
from ddp_run.evidence.windows import AFTER, BEFORE, LAST_WORDS
from ddp_run.judge import oom_text
from ddp_run.judge.catalogue import catalogue, rule_named, sign_words
from ddp_run.judge.order import strongest
from ddp_run.judge.verdict import Finding
from ddp_run.record.events import ExceptionInfo, Rank
from ddp_run.values.typed_fields import frozen

MOST_LINES = 4000
"""The number of lines read at a log's end: this handles pasted excerpts."""
_MOST_LOGS = 64
_MOST_EXCEPTIONS = 40
_MOST_LINES_ASKED = 60
_ABORTS = re.compile(
    r"terminate called|Fatal Python error: (?!Seg)|double free|free\(\): |stack smashing|\*\*\* SIGABRT received at "
)
_KERNELS_CRASH = re.compile(r"\]: segfault at [0-9a-f]|traps: [^\n]{1,60} general protection")
_OF_RAYS_DRIVER = re.compile(r"ray\.exceptions\.\w{1,40}Error\b")
_LATE = re.compile(r"100%\||\[repeated \d{1,6}x across cluster\]")
"""Printed by Ray for other processes after its driver failed: it collects their lines, and finished work."""


@frozen
class TextSign:
    """One finding, its position, and the rank that printed it."""

    finding: Finding
    index: int
    rank: Rank | None
    exception: ExceptionInfo | None = None


# ------------------------------------------------------------------------------------------- where to look


def _words(spoken: SpokenText, index: int) -> str:
    return spoken.lines[index][spoken.by[index].start :]


def _went_on(spoken: SpokenText, summaries: Set[int]) -> WentOn:
    """Read where the programs went on. Launchers' lines and lines with a sign's words do not show it."""
    said = [_words(spoken, index) for index in range(len(spoken.lines))]
    present = _present(said)
    silent = {index for index, each in enumerate(spoken.by) if each.agent} | summaries
    silent |= {index for index, line in enumerate(said) if any(word in line for word in present)}
    failed = next((index for index, line in enumerate(said) if _OF_RAYS_DRIVER.match(line)), len(said))
    silent |= {index for index in range(failed, len(said)) if _LATE.search(said[index])}
    return WentOn(said, silent=silent)


def _present(lines: Sequence[str]) -> list[str]:
    """Return the words of rules' signs that the lines may contain. Of lines that differ in digits, one is looked at."""
    text = "\n".join({kind_of(line) for line in lines})
    return [word for word, form in _forms_of_words() if form in text]


@cache
def _forms_of_words() -> tuple[tuple[str, str], ...]:
    return tuple((word, kind_of(word)) for word in sign_words())


# ------------------------------------------------------------------------------------------------- signs


def found_in(logs: Sequence[Log]) -> Iterator[TextSign]:
    """Yield the rules' findings after the last progress: exceptions (complete, torn), then lines, then bare frames."""
    spoken, summaries = _spoken(logs)
    went_on = _went_on(spoken, summaries)
    behind = max(went_on.progress + 1, got_over.until(spoken))
    everything = spoken.text(range(len(spoken.lines)))
    exceptions = [each for each in raised.all_of(spoken) if each.index >= behind][-_MOST_EXCEPTIONS:]
    exceptions = [each for each in exceptions if not raised.starts_a_launcher(each.info)] or exceptions
    for each in exceptions:
        own = spoken.text(sorted(each.lines))
        death = Death(rank=_alone(each.ranks), exception=each.info, stderr=own)
        yield from (TextSign(found, each.index, death.rank, each.info) for found in _asked(death, everything))
    inside = {index for each in exceptions for index in each.lines} | raised.ignored(spoken)
    others = [index for index in range(behind, len(spoken.lines)) if index not in inside]
    well = any(WORKED.search(spoken.lines[index]) for index in others)
    for sign in _lines(spoken, others, everything, went_on):
        if not (well and sign.finding.rule.consequence):  # the first rank to end closes the store and its sockets
            yield sign
    if not exceptions:
        yield from _frames(spoken, others, everything)


def symptoms_in(logs: Sequence[Log]) -> Iterator[TextSign]:
    """Yield what the last lines show where they show nothing else: canonical lines, each of one cause."""
    spoken, summaries = _spoken(logs)
    went_on = _went_on(spoken, summaries)
    indexes = range(max(0, len(spoken.lines) - LAST_WORDS), len(spoken.lines))
    text = spoken.text(indexes)
    whole = "\n".join(text.lines)
    for cause in catalogue():
        for hit in (sign.search(whole) for sign in cause.symptoms):
            if hit is None:
                continue
            first, last = whole.count("\n", 0, hit.start()), whole.count("\n", 0, hit.end() - 1)
            if went_on.after_line(indexes[last]):
                continue
            quote = text.quote(first)
            said = f"the log shows only this: {quote.text.strip()[:160]}"
            yield TextSign(Finding(cause.rule, None, said, (quote,), confidence="likely"), indexes[first], None)


def went_on_after(logs: Sequence[Log], line: int) -> bool:
    """Whether a process kept writing after this line of the only log, like programs that go on or end normally."""
    if len(logs) != 1:
        return False
    spoken, summaries = _spoken(logs)
    place = max(
        (index for index, (text, own) in enumerate(spoken.sources) if (text.number(own) or 0) <= line), default=-1
    )
    return _went_on(spoken, summaries).after_line(place)


def _spoken(logs: Sequence[Log]) -> tuple[SpokenText, Set[int]]:
    """Return the end of the logs, and the launchers' lines there."""
    spoken = SpokenText.of_logs([replace(log, text=log.text.ending(MOST_LINES)) for log in logs[:_MOST_LOGS]])
    return spoken, childfailed.boxes(spoken.lines) | launcher_text.report(spoken.lines)


def _lines(spoken: SpokenText, indexes: Sequence[int], everything: LogText, went_on: WentOn) -> Iterator[TextSign]:
    """Yield findings from single lines with a sign's words, together with the lines around them."""
    present = _present([spoken.lines[index] for index in indexes])
    telling = [k for k, index in enumerate(indexes) if any(word in spoken.lines[index] for word in present)]
    once = {form_of(spoken.lines[indexes[k]]): k for k in reversed(telling)}  # eight ranks print the same
    for k in sorted(once.values())[-_MOST_LINES_ASKED:]:
        index = indexes[k]
        if spoken.by[index].agent or went_on.after_line(index):
            continue
        rank = _alone(spoken.by[index].ranks)
        window = spoken.text(indexes[max(0, k - BEFORE) : k + 1 + AFTER])
        for code in _codes(spoken.lines[index]):
            death = Death(rank=rank, code=code, stderr=window)
            for found in _asked(death, everything):
                if not found.rule.general and found.evidence:
                    yield TextSign(found, index, rank)


def _codes(line: str) -> Iterator[int | None]:
    """Yield the ends that a line may belong to, besides an unknown one."""
    yield None
    if any(sign.search(line) for sign in oom_text.SIGNS):
        yield -signal.SIGKILL
    crashes = ("Segmentation fault", "*** SIGSEGV received at ", "!!! Segfault")
    if any(words in line for words in crashes) or _KERNELS_CRASH.search(line):
        yield -signal.SIGSEGV
    if _ABORTS.search(line):
        yield -signal.SIGABRT


def _frames(spoken: SpokenText, indexes: Sequence[int], everything: LogText) -> Iterator[TextSign]:
    """Return findings for a traceback without its last line: from its `raise`, else from the frames' packages."""
    torn = torn_frames.read(spoken.text(indexes))
    if torn is None:
        return
    info, index = torn.exception, indexes[-1]
    if raised.says_a_launcher(info.traceback or "") or raised.OF_A_THREAD in (info.traceback or ""):
        return
    if info.type:
        death = Death(rank=None, exception=info, stderr=spoken.text(indexes))
        yield from (TextSign(found, index, None, info) for found in _asked(death, everything))
    shown = [
        cause.rule for place in torn.places for cause in catalogue() if cause.frames and cause.frames.search(place)
    ]
    rule = max(shown, key=lambda rule: rule.layer, default=rule_named("python-exception"))
    if rule is not None:
        where = f"{info.file.rpartition('/')[2]}:{info.line}" if info.file else "its last line"
        cause = f"a rank died with a traceback that is cut off, in {where}"
        yield TextSign(Finding(rule, None, cause, (torn.quote,), confidence="unknown"), index, None)


def _alone(ranks: Sequence[Rank]) -> Rank | None:
    return ranks[0] if len(ranks) == 1 else None


def _asked(death: Death, everything: LogText) -> list[Finding]:
    """Return the rules' findings without superseded ones; a broken rule returns nothing."""
    run = Evidence(deaths=(death,), agent=AgentEnd(log=everything), logs_only=True)
    found: list[Finding] = []
    for cause in catalogue():
        if cause.match is not None and cause.rule.name != "unknown":
            with suppress(Exception):  # the strict reading reports broken rules
                finding = cause.match(death, run)
                found += [] if finding is None else [finding]
    return [best] if (best := strongest(found)) is not None else []
