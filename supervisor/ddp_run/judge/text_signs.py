"""Finds all signs after the last sign of progress in a pasted log: each rule's finding and its position. Pure.

Every exception there is tested, complete or torn, and then single lines, each as if it were a rank's last words.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from functools import cache, cached_property

from ddp_run.evidence import childfailed, launcher_exceptions, traceback_text
from ddp_run.evidence.lines_with import lines_with
from ddp_run.evidence.model import AgentEnd, Death, Evidence, LogText, Quote
from ddp_run.evidence.pasted import got_over, labels, launcher_text, raised, torn_frames
from ddp_run.evidence.pasted.spoken_text import SpokenText
from ddp_run.evidence.went_on import WORKED, WentOn, form_of, kind_of
from ddp_run.evidence.windows import AFTER, BEFORE, LAST_WORDS
from ddp_run.judge import oom_text
from ddp_run.judge.catalogue import NAMELESS, catalogue, follows_another, sign_words
from ddp_run.judge.order import strongest
from ddp_run.judge.verdict import OF_THE_NETWORK, Finding, Rule
from ddp_run.record.events import ExceptionInfo, Rank
from ddp_run.values.typed_fields import frozen

MOST_LINES = 4000
"""The number of lines read at a log's end: this handles pasted excerpts."""
_MOST_EXCEPTIONS = 40
_MOST_LINES_ASKED = 60
_CRASHES = tuple(
    (signum, re.compile(form))
    for signum, form in (
        (
            signal.SIGSEGV,
            r"Segmentation fault|!!! Segfault|\]: segfault at [0-9a-f]|traps: [^\n]{1,60} general protection",
        ),
        (signal.SIGILL, r"Fatal Python error: Illegal|^Illegal instruction\b|traps: [^\n]{1,60} trap invalid opcode"),
        (
            signal.SIGABRT,
            r"terminate called|Fatal Python error: (?!Seg|Ill)|double free|free\(\): |stack smashing"
            # assert(3), also wrapped; the same in a kernel fails on the device
            r"|^(?!.{1,400}\.(?:cuh?|hip):\d)(?:.{1,600}: {0,8}|\s{1,8})Assertion `[^`'\n]{1,300}' failed\.$",
        ),
    )
)
"""What is printed where a process crashes, by its signal."""
_OF_RAYS_DRIVER = re.compile(r"ray\.exceptions\.\w{1,40}Error\b")
_THE_REST = ("look at the end of that traceback: its last line names the exception",)
_REFUSED = re.compile(r"\b[Cc]onnection (?:was )?(?:refused|reset|closed)\b")
_LATE = re.compile(r"100%\||\[repeated \d{1,6}x across cluster\]")
"""Printed by Ray for other processes after its driver failed: it collects their lines, and finished work."""


@frozen
class TextSign:
    """One finding, its position, and the rank that printed it."""

    finding: Finding
    index: int
    rank: Rank | None
    exception: ExceptionInfo | None = None


class LogEnd:
    """The last lines of each pasted log, read once: who wrote them, where programs went on, and what rules find."""

    def __init__(self, spoken: SpokenText) -> None:
        self.spoken = spoken.ending(MOST_LINES)

    @cached_property
    def _telling(self) -> Set[int]:
        """The lines with words of a rule's sign. Of lines that differ in digits, one is looked at."""
        text = "\n".join(set(map(kind_of, self.spoken.lines)))
        present = [word for word, form in _forms_of_words() if form in text]
        return set(lines_with(present, self.spoken.lines))

    @cached_property
    def _went_on(self) -> WentOn:
        """Where the programs went on. Launchers' lines and lines with a sign's words do not show it."""
        lines, by = self.spoken.lines, self.spoken.by
        said = self.spoken.without_names()
        silent = self._telling | {index for index, each in enumerate(by) if each.agent}
        silent |= childfailed.boxes(lines) | launcher_text.report(lines)
        failed = next((index for index, line in enumerate(said) if _OF_RAYS_DRIVER.match(line)), len(said))
        silent |= {index for index in range(failed, len(said)) if _LATE.search(said[index])}
        return WentOn(said, traceback_text.find(self.spoken.raw), silent)

    @cached_property
    def over(self) -> int:
        """The index from which on the lines count."""
        return got_over.until(self.spoken)

    @cached_property
    def signs(self) -> tuple[TextSign, ...]:
        """The rules' findings after the last progress: exceptions (complete, torn), then lines, then bare frames."""
        spoken, found = self.spoken, list[TextSign]()
        behind = max(self._went_on.progress + 1, self.over)
        everything = spoken.text(range(len(spoken.lines)))
        shown = raised.Exceptions(spoken, shows)
        late = [each for each in shown.all() if each.index >= behind][-_MOST_EXCEPTIONS:]
        inside = {index for each in late for index in each.lines} | shown.ignored
        exceptions = [each for each in late if not self._went_on.handled(each.index, min(each.lines) - 1)]
        exceptions = [each for each in exceptions if not launcher_exceptions.starts_a_launcher(each.info)] or exceptions
        for each in exceptions:
            death = Death(rank=_alone(each.ranks), exception=each.info, stderr=spoken.text(sorted(each.lines)))
            found += [TextSign(asked, each.index, death.rank, each.info) for asked in _asked(death, everything)]
        others = [index for index in range(behind, len(spoken.lines)) if index not in inside]
        well = any(WORKED.search(spoken.lines[index]) for index in others)
        lines = self._lines(others, everything)
        # the first rank to end closes the store and its sockets
        found += [sign for sign in lines if not (well and sign.finding.rule.consequence)]
        frames = [] if exceptions else [index for index in others if index not in shown.launchers]
        return (*found, *_frames(spoken, frames, everything))

    def _lines(self, indexes: Sequence[int], everything: LogText) -> Iterator[TextSign]:
        """Yield findings from single lines with a sign's words, together with the lines around them."""
        spoken = self.spoken
        telling = [k for k, index in enumerate(indexes) if index in self._telling]
        once = {form_of(spoken.lines[indexes[k]]): k for k in reversed(telling)}  # eight ranks print the same
        for k in sorted(once.values())[-_MOST_LINES_ASKED:]:
            index = indexes[k]
            if spoken.by[index].agent or self._went_on.after_line(index):
                continue
            rank = _alone(labels.ranks_of(spoken.lines[index], spoken.by[index]))
            around = indexes[max(0, k - BEFORE) : k + 1 + AFTER]
            window = spoken.text([each for each in around if rank is None or spoken.by[each].ranks in ((), (rank,))])
            for code in _codes(spoken.lines[index]):
                death = Death(rank=rank, code=code, stderr=window)
                for found in _asked(death, everything):
                    if not found.rule.general and found.evidence:
                        yield TextSign(found, index, rank)

    def symptoms(self) -> Iterator[TextSign]:
        """Yield what the last lines show where they show nothing else: canonical lines, each of one cause."""
        indexes = range(max(self.over, len(self.spoken.lines) - LAST_WORDS), len(self.spoken.lines))
        text = self.spoken.text(indexes)
        whole = "\n".join(text.lines)
        for cause in catalogue():
            for hit in (sign.search(whole) for sign in cause.symptoms):
                if hit is None:
                    continue
                first, last = whole.count("\n", 0, hit.start()), whole.count("\n", 0, hit.end() - 1)
                if self._went_on.after_line(indexes[last]):
                    continue
                quote = text.quote(first)
                said = f"the log shows only this: {quote.text.strip()[:160]}"
                own = hit.groupdict().get("rank")
                by = labels.ranks_of(text.lines[first], self.spoken.by[indexes[first]])
                rank = _alone(by) if own is None else Rank(int(own))
                yield TextSign(Finding(cause.rule, said, (quote,), confidence="likely"), indexes[first], rank)

    def of_another_service(self, line: int) -> bool:
        """Whether the writer of this line has a name, and torch's agents wrote under other names only."""
        agents = {each.place for each in self.spoken.by if each.agent}
        if not agents or None in agents:
            return False
        written = zip(self.spoken.numbers, self.spoken.by, strict=True)
        return any(number == line and each.place not in {None, *agents} for number, each in written)

    def writers_of(self, line: int) -> tuple[Rank, ...]:
        """The ranks that this line names as its writer."""
        return self.spoken.by[place].ranks if (place := self._place(line)) >= 0 else ()

    def went_on_after(self, line: int) -> bool:
        """Whether a process kept writing after this line of the only log, like programs that go on or end normally."""
        return len(set(self.spoken.sources)) == 1 and self._went_on.after_line(self._place(line))

    def ran_again_after(self, line: int) -> bool:
        """Whether a job wrote much after this line of the only log, which reports an end."""
        return len(set(self.spoken.sources)) == 1 and self._went_on.after_stop(self._place(line))

    def left_with_0_after(self, line: int) -> bool:
        """Whether what started the program says below this line that it exited with 0."""
        return got_over.told_of_0(self.spoken) > self._place(line)

    def place_of(self, quotes: Sequence[Quote]) -> int:
        """The index of the last line that these quote; -1: they quote none."""
        lines = [quote.line for quote in quotes if quote.line is not None]
        return self._place(max(lines)) if lines else -1

    def _place(self, line: int) -> int:
        return max((index for index, number in enumerate(self.spoken.numbers) if number <= line), default=-1)


@cache
def _forms_of_words() -> tuple[tuple[str, str], ...]:
    return tuple((word, kind_of(word)) for word in sign_words())


def _codes(line: str) -> Iterator[int | None]:
    """Yield the ends that a line may belong to, besides an unknown one."""
    yield None
    if any(sign.search(line) for sign in oom_text.SIGNS):
        yield -signal.SIGKILL
    for signum, form in _CRASHES:
        if form.search(line):
            yield -signum


def _frames(spoken: SpokenText, indexes: Sequence[int], everything: LogText) -> Iterator[TextSign]:
    """Return findings for a traceback without its last line: from its `raise`, else from the frames' packages."""
    torn = torn_frames.read(spoken.text(indexes)) if indexes else None
    if torn is None:
        return
    info, index = torn.exception, indexes[-1]
    if launcher_exceptions.says_a_launcher(info.traceback or "") or raised.OF_A_THREAD in (info.traceback or ""):
        return
    rank = _alone(next(spoken.by[k].ranks for k in indexes if spoken.numbers[k] == torn.quote.line))
    if info.type:
        death = Death(rank=rank, exception=info, stderr=spoken.text(indexes))
        yield from (TextSign(found, index, rank, info) for found in _asked(death, everything))
    shown = [
        cause.rule for place in torn.places for cause in catalogue() if cause.frames and cause.frames.search(place)
    ]
    rule = max(shown, key=lambda rule: rule.layer, default=NAMELESS)
    where = f"{info.file.rpartition('/')[2]}:{info.line}" if info.file else "its last line"
    cause = f"{Death(rank).who} died with a traceback that is cut off, in {where}"
    yield TextSign(Finding(rule, cause, (torn.quote,), _THE_REST, "unknown"), index, rank)


def _alone(ranks: Sequence[Rank]) -> Rank | None:
    return ranks[0] if len(ranks) == 1 else None


def shows(exception: ExceptionInfo) -> raised.Shown:
    """What the catalogue makes of an exception alone."""
    if follows_another(exception):
        return raised.Shown(raised.Shows.A_LOSS)
    text = LogText("", tuple((exception.traceback or f"{exception.type}: {exception.message}").splitlines()))
    best = next(iter(_asked(Death(rank=None, code=1, exception=exception, stderr=text), LogText(""))), None)
    if best is None or best.rule.general:
        return raised.Shown(raised.Shows.NO_CAUSE)
    waited = best.rule.end == "waited" or not_there(best.rule, exception)
    return raised.Shown(raised.Shows.A_WAIT if waited else raised.Shows.A_CAUSE, best.culprit)


def not_there(rule: Rule, exception: ExceptionInfo) -> bool:
    """Whether a connection to another rank was refused: it may have left, or its host may be out of reach."""
    between = rule.unlike == "together" and rule.code.startswith(OF_THE_NETWORK)
    return between and _REFUSED.search(exception.message) is not None


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
