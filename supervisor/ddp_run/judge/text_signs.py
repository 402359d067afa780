"""What a pasted log shows behind the last sign of progress: each finding of the rules, and where it stands. Pure.

Every exception there is asked about, whole or torn, then single lines, as if each were a rank's last words.
"""

from __future__ import annotations

import re
import signal
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace

from ddp_run.evidence import childfailed
from ddp_run.evidence.model import AgentEnd, Death, Evidence, LogText
from ddp_run.evidence.pasted import got_over, launcher_text, raised, torn_frames
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge import oom_text
from ddp_run.judge.catalogue import GENERAL, catalogue, not_superseded, rule_named, sign_words
from ddp_run.judge.verdict import SUREST_FIRST, Finding
from ddp_run.record.events import ExceptionInfo, Rank
from ddp_run.values.typed_fields import frozen

MOST_LINES = 4000
"""Lines at a log's end that are looked at: this is for what people paste."""
_MOST_LOGS = 64
_MOST_EXCEPTIONS = 40
_MOST_LINES_ASKED = 60
_CALM = 15
"""Lines without a word of trouble behind one: the program went on after it."""
_BEFORE, _AFTER = 3, 9
"""Lines around one with a sign's words that are shown to the rules."""
_ABORTS = re.compile(
    r"terminate called|Fatal Python error: (?!Seg)|double free|free\(\): |stack smashing|\*\*\* SIGABRT received at "
)
_KERNELS_CRASH = re.compile(r"\]: segfault at [0-9a-f]|traps: [^\n]{1,60} general protection")
_PROGRESS = 3
"""Lines of one form, numbers aside, that a program writes as it goes on."""
_BARS = 3
_COUNT = re.compile(r"\d{1,12}/\d{1,12}")
_BAR = re.compile(r"\d%\|| (?:it|s)/(?:s|it)\b")
_TROUBLE = re.compile(
    r"[Ee]rror|ERROR|[Ee]xception|[Ff]ailed|FAILED|Traceback|File \"|NCCL (?:INFO|WARN)|[Gg]loo|[Tt]imed? ?out"
    r"|[Kk]ill(?:ed|ing)|[Aa]bort|frame #|[Ww]aiting|registered at|Process group|\^\^|Thread (?:0x|\d+ \()"
    r"|Process \d+: |PID|amdgpu|NVRM|ray::|@ +0x|#\d+ \S+ from "
)
"""What lines of progress do not say, though several ranks may write it in one form."""
_LOGGED_BY_TORCH = re.compile(r"\[?[WE]\d{3,4} \d\d:")
_OF_RAYS_DRIVER = re.compile(r"ray\.exceptions\.\w{1,40}Error\b")
_LATE = re.compile(r"100%\||\[repeated \d{1,6}x across cluster\]")
"""What Ray shows of other processes after its driver failed: it collects their lines, and what they had finished."""
_WENT_WELL = re.compile(r"\b(?:[Ff]inished|[Dd]one|DONE|[Cc]ompleted?|[Ss]uccess\w*|[Ss]aved)\b")
_HANDLED = re.compile(
    r"\b(?:instead\b|[Ff]all(?:ing|s)? ?back\b|[Ss]kipp(?:ed|ing)\b|[Ii]gnor(?:ed|ing)\b|[Cc]ontinu(?:es?|ing)\b"
    r"|[Rr]etry(?:ing)? (?:in|after|\d)|[Ss]tarting (?:fresh|from scratch|over)\b)"
)
"""What a program says of an error that it goes on after."""


@frozen
class TextSign:
    """One finding, where it stands, and whose words it is."""

    finding: Finding
    index: int
    rank: Rank | None
    exception: ExceptionInfo | None = None

    @property
    def strength(self) -> tuple[bool, bool, int, int]:
        """For ordering, the strongest first: a cause, of an exception, surely meant, the earliest."""
        rule = self.finding.rule
        sure = SUREST_FIRST.index(self.finding.confidence)
        return rule.consequence, rule.name in GENERAL, sure, self.index


# ------------------------------------------------------------------------------------------- where to look


def _words(spoken: SpokenText, index: int) -> str:
    return spoken.lines[index][spoken.by[index].start :]


def _behind_progress(spoken: SpokenText, summaries: Set[int]) -> int:
    """The index behind the last line of those that a program writes again and again as it goes on."""
    said = [_words(spoken, index) for index in range(len(spoken.lines))]
    present = _present("\n".join(said))
    texts: dict[str, set[str]] = {}
    forms: dict[int, str] = {}
    driver_failed, bars = False, dict[str, int]()
    for index, line in enumerate(said):
        driver_failed = driver_failed or _OF_RAYS_DRIVER.match(line) is not None
        if driver_failed and _LATE.search(line):
            continue
        if _BAR.search(line):
            bars.setdefault(_counted(line), index)
        elif spoken.by[index].agent or index in summaries or _LOGGED_BY_TORCH.match(line):
            continue  # which is no progress, however often: `Sending process … closing signal`, a store that is tried
        elif _is_calm(spoken, index) and not any(word in line for word in present):
            form = forms[index] = raised.form_of(line)
            texts.setdefault(form, set()).add(line)  # what all ranks write alike once is no progress
    often = [index for index, form in forms.items() if len(texts[form]) >= _PROGRESS]
    drawn = sorted(bars.values())[-_BARS:]  # the last ones may be drawn once more by an end
    still = drawn[0] if len(drawn) == _BARS else 0
    return max([still, *(index + 1 for index in often)])


def _counted(line: str) -> str:
    """How far a bar has come: `1818/7272`; else the whole line."""
    found = _COUNT.search(line)
    return line if found is None else str(found[0])


def _present(text: str) -> list[str]:
    """The words of rules' signs that the text holds."""
    return [word for word in sign_words() if word in text]


# ------------------------------------------------------------------------------------------------- signs


def found_in(logs: Sequence[Log]) -> Iterator[TextSign]:
    """What the rules find behind the last progress: exceptions, whole and torn, then lines, then frames alone."""
    spoken, summaries = _spoken(logs)
    behind = max(_behind_progress(spoken, summaries), got_over.until(spoken))
    everything = spoken.text(range(len(spoken.lines)))
    exceptions = [each for each in raised.all_of(spoken) if each.index >= behind][-_MOST_EXCEPTIONS:]
    exceptions = [each for each in exceptions if not raised.starts_a_launcher(each.info)] or exceptions
    for each in exceptions:
        own = spoken.text(sorted(each.lines))
        death = Death(rank=_alone(each.ranks), exception=each.info, stderr=own)
        yield from (TextSign(found, each.index, death.rank, each.info) for found in _asked(death, everything))
    inside = {index for each in exceptions for index in each.lines} | raised.ignored(spoken)
    others = [index for index in range(behind, len(spoken.lines)) if index not in inside]
    well = any(_WENT_WELL.search(spoken.lines[index]) for index in others)
    for sign in _lines(spoken, others, everything, summaries):
        if not (well and sign.finding.rule.consequence):  # the first rank to end takes the store and its sockets along
            yield sign
    if not exceptions:
        yield from _frames(spoken, others, everything)


def went_on_after(logs: Sequence[Log], line: int) -> bool:
    """Whether somebody wrote on, as programs do that go on or end well, behind this line of the only log."""
    if len(logs) != 1:
        return False
    spoken, summaries = _spoken(logs)
    behind = [index for index, (text, own) in enumerate(spoken.sources) if (text.number(own) or 0) > line]
    calm = [index for index in behind if index not in summaries and _is_calm(spoken, index)]
    own = [said for index in calm if not _LOGGED_BY_TORCH.match(said := _words(spoken, index))]
    return len(calm) >= _CALM or any(_WENT_WELL.search(said) for said in own)


def _spoken(logs: Sequence[Log]) -> tuple[SpokenText, Set[int]]:
    """The end of the logs, and the lines there that launchers wrote when all was over."""
    spoken = SpokenText.of_logs([replace(log, text=log.text.ending(MOST_LINES)) for log in logs[:_MOST_LOGS]])
    return spoken, childfailed.boxes(spoken.lines) | launcher_text.report(spoken.lines)


def _lines(spoken: SpokenText, indexes: Sequence[int], everything: LogText, summaries: Set[int]) -> Iterator[TextSign]:
    """What single lines show that hold the words of a sign, with the lines around them."""
    present = _present("\n".join(spoken.lines[index] for index in indexes))
    telling = [k for k, index in enumerate(indexes) if any(word in spoken.lines[index] for word in present)]
    once = {raised.form_of(spoken.lines[indexes[k]]): k for k in reversed(telling)}  # eight ranks say the same
    calm = [k for k, index in enumerate(indexes) if index not in summaries and _is_calm(spoken, index)]
    for k in sorted(once.values())[-_MOST_LINES_ASKED:]:
        index = indexes[k]
        if len(calm) - bisect_right(calm, k) >= _CALM:
            continue
        if (
            spoken.by[index].agent
            or got_over.is_answered(spoken.lines[index])
            or any(_HANDLED.search(spoken.lines[near]) for near in indexes[k : k + 2])
        ):
            continue
        rank = _alone(spoken.by[index].ranks)
        window = spoken.text(indexes[max(0, k - _BEFORE) : k + _AFTER])
        for code in _codes(spoken.lines[index]):
            death = Death(rank=rank, code=code, stderr=window)
            for found in _asked(death, everything):
                if found.rule.name not in GENERAL and found.evidence:
                    yield TextSign(found, index, rank)


def _is_calm(spoken: SpokenText, index: int) -> bool:
    """Whether a line is what a program writes as it goes on, whatever it is."""
    said = _words(spoken, index)
    return bool(said[:1].strip()) and not spoken.by[index].agent and not _TROUBLE.search(said)


def _codes(line: str) -> Iterator[int | None]:
    """The ends that a line may be about, besides one that nobody knows."""
    yield None
    if any(sign.search(line) for sign in oom_text.SIGNS):
        yield -signal.SIGKILL
    crashes = ("Segmentation fault", "*** SIGSEGV received at ", "!!! Segfault")
    if any(words in line for words in crashes) or _KERNELS_CRASH.search(line):
        yield -signal.SIGSEGV
    if _ABORTS.search(line):
        yield -signal.SIGABRT


def _frames(spoken: SpokenText, indexes: Sequence[int], everything: LogText) -> Iterator[TextSign]:
    """A traceback whose last line is missing: the exception that it raises, else whose frames they are."""
    torn = torn_frames.read(spoken.text(indexes))
    if torn is None:
        return
    info, index = torn.exception, indexes[-1]
    if raised.says_a_launcher(info.traceback or "") or raised.OF_A_THREAD in (info.traceback or ""):
        return
    if info.type:
        death = Death(rank=None, exception=info, stderr=spoken.text(indexes))
        yield from (TextSign(found, index, None, info) for found in _asked(death, everything))
    name = torn.cause or "python-exception"
    rule = rule_named(name)
    if rule is not None:
        where = f"{info.file.rpartition('/')[2]}:{info.line}" if info.file else "its last line"
        cause = f"a rank died with a traceback that is cut off, in {where}"
        yield TextSign(Finding(rule, None, cause, (torn.quote,), confidence="unknown"), index, None)


def _alone(ranks: Sequence[Rank]) -> Rank | None:
    return ranks[0] if len(ranks) == 1 else None


def _asked(death: Death, everything: LogText) -> list[Finding]:
    """What the catalogue's rules say of it, without what others of them win over; a broken rule says nothing."""
    run = Evidence(deaths=(death,), agent=AgentEnd(log=everything), logs_only=True)
    found: list[Finding] = []
    for cause in catalogue():
        if cause.match is not None and cause.rule.name != "unknown":
            with suppress(Exception):  # the strict reading tells of a broken rule
                finding = cause.match(death, run)
                found += [] if finding is None else [finding]
    if any(finding.rule.name not in GENERAL for finding in found):
        found = [finding for finding in found if finding.rule.name not in GENERAL]
    return not_superseded(found)
