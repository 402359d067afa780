"""What a log that is cut still shows: a tolerant reading, where the strict one finds no failure or no cause. Pure.

People paste the piece that they take for the failure: it begins or ends within a traceback, holds the warning and not
the exception, shows one rank of eight, and no word of how anything ended. What stands behind the last sign of progress
is then asked as if it were a rank's last words. The answer is never more than likely, and what is not shown stays null.
"""

from __future__ import annotations

import re
import signal
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace

from ddp_run.evidence import childfailed, traceback_text
from ddp_run.evidence.model import AgentEnd, Death, Evidence, LogText
from ddp_run.evidence.pasted import launcher_text, raised, torn_frames
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge import oom_text
from ddp_run.judge.catalogue import GENERAL, catalogue, not_superseded, rule_named, sign_words
from ddp_run.judge.diagnose import judge
from ddp_run.judge.verdict import SUREST_FIRST, Finding, FirstFailure, Verdict
from ddp_run.record.events import ExceptionInfo, Rank
from ddp_run.values.frozen import frozen

NOTE = "the log is incomplete: it does not show how the job ended; this is the strongest sign in it"
WORDLESS = "the rank that aborted first printed no reason; this one is from another rank"
FOLLOWED = "another exception came last, but an earlier one explains more and no progress followed it"
CRASHED = "the log does not show which rank crashed; the ranks that lost a peer lost it to that crash"
_LOST_A_PEER = "peer-died"
_CRASHES = ("segfault", "native-abort", "host-oom")
_MAY_FOLLOW = ("python-exception", "peer-died", "user-interrupt", "process-group-misuse")
_MOST_LINES = 4000
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
_ROOT = re.compile(
    r"Root Cause[^\n]{0,40}\s{0,40}[^\n]{0,40}?\brank[ :]{1,10}(?P<rank>\d{1,7})\b[^\n]{0,60}\s{0,40}[^\n]{0,60}?"
    r"\bexitcode[ :]{1,10}(?P<code>-?\d{1,3})\b"
)
_ABORTED = "native-abort"
_RAYS = "ray-actor-died"
"""What Ray's driver says of every worker that ended; why, stands above if anywhere."""
_OF_RAYS_DRIVER = re.compile(r"ray\.exceptions\.\w{1,40}Error\b")
_LATE = re.compile(r"100%\||\[repeated \d{1,6}x across cluster\]")
"""What Ray shows of other processes after its driver failed: it collects their lines, and what they had finished."""
_WENT_WELL = re.compile(r"\b(?:[Ff]inished|[Dd]one|DONE|[Cc]ompleted?|[Ss]uccess\w*|[Ss]aved)\b")
_HANDLED = re.compile(
    r"\b(?:instead\b|[Ff]all(?:ing|s)? ?back\b|[Ss]kipp(?:ed|ing)\b|[Ii]gnor(?:ed|ing)\b|[Cc]ontinu(?:es?|ing)\b"
    r"|[Rr]etry(?:ing)? (?:in|after|\d)|[Ss]tarting (?:fresh|from scratch|over)\b)"
)
"""What a program says of an error that it goes on after."""
_GIVES_UP = "Received sigquit from a child process. It usually means the child failed."
"""SGLang's server, which then kills itself and its children."""
_OF_THE_KILLED = (*GENERAL, "file-not-found")


@frozen
class _Sign:
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


def read(logs: Sequence[Log], strict: Verdict) -> Verdict:
    """The strict reading's verdict; where that knows no cause, with the cause that the text shows all the same."""
    if not _lacks_a_cause(strict):
        return _with_what_stands_above(logs, strict) if strict.cause in _MAY_FOLLOW else strict
    if strict.outcome is None:
        strict = _shortened(logs) or strict
        if not _lacks_a_cause(strict):
            return strict
    signs = _signs(logs)
    first = strict.first_failure
    if strict.cause != _ABORTED and first is not None and first.signal is not None and not _ends_itself(logs):
        # a server ends its processes by SIGKILL after an exception of one of them; others miss what was killed
        signs = (sign for sign in signs if sign.exception and sign.finding.rule.name not in _OF_THE_KILLED)
    found = _strongest(signs)
    if found is None or (strict.outcome is not None and found.finding.rule.consequence):
        return strict
    if strict.cause in (None, "unknown", _ABORTED):
        return _with(strict, found, WORDLESS if strict.cause == _ABORTED else NOTE)
    if found.finding.rule.name in GENERAL:
        return strict
    return _with(replace(strict, first_failure=None, collateral=()), found)  # who only noticed did not fail first


def _ends_itself(logs: Sequence[Log]) -> bool:
    """Whether a server says that it ends all its processes because one of them failed."""
    return any(_GIVES_UP in line for log in logs for line in log.text.ending(_MOST_LINES).lines)


def _strongest(signs: Iterable[_Sign]) -> _Sign | None:
    """The one to believe: a cause wins over those that come of it, wherever they stand."""
    told = list(signs)
    causes = [sign.finding for sign in told if not sign.finding.rule.consequence]
    left = {finding.rule.name for finding in not_superseded([sign.finding for sign in told], by=causes)}
    return min((sign for sign in told if sign.finding.rule.name in left), key=lambda sign: sign.strength, default=None)


def _with_what_stands_above(logs: Sequence[Log], strict: Verdict) -> Verdict:
    """With the cause of an earlier exception that says more, where nothing went on in between: what came last followed.

    A clean-up, a summary or a retry in the same program raises anew; somebody presses Ctrl-C at what stands still. A
    line that would say more (a warning, a word of another process) may be about something else: the last exception
    stays, and is not certain.
    """
    first = strict.first_failure.rank if strict.first_failure is not None else None
    signs = list(_signs(logs))
    crashes = [sign for sign in signs if sign.finding.rule.name in _CRASHES]
    if strict.cause == _LOST_A_PEER and crashes:
        return _with(replace(strict, first_failure=None), min(crashes, key=lambda sign: sign.strength), CRASHED)
    exception = strict.first_failure.exception if strict.first_failure is not None else None
    raised_at = [sign.index for sign in signs if sign.exception is not None]
    same = [sign.index for sign in signs if sign.exception is not None and _say_the_same(sign.exception, exception)]
    last = max(same or raised_at, default=-1)
    causes = [
        sign
        for sign in signs
        if sign.index < last
        and not sign.finding.rule.consequence
        and sign.finding.rule.name not in (*GENERAL, *_MAY_FOLLOW)
        and (sign.rank is None or first is None or sign.rank == first)
    ]
    only_tells = exception is not None and traceback_text.tells_of_a_program(exception)
    believed = [sign for sign in causes if sign.exception is not None or only_tells]
    if believed:
        return _with(strict, min(believed, key=lambda sign: sign.strength), FOLLOWED)
    return replace(strict, confidence="likely") if causes and strict.confidence == "certain" else strict


def _say_the_same(one: ExceptionInfo, other: ExceptionInfo | None) -> bool:
    first = (one.message.partition("\n")[0].strip(), one.type)
    return other is not None and first == (other.message.partition("\n")[0].strip(), other.type)


def _shortened(logs: Sequence[Log]) -> Verdict | None:
    """The verdict where somebody has made torch's summary shorter: `Root Cause [0]: rank 1 exitcode: -6 (SIGABRT)`."""
    for log in logs:
        text = log.text.ending(_MOST_LINES)
        hit = _ROOT.search("\n".join(text.lines))
        if hit is not None and int(hit["code"]):
            death = Death(Rank(int(hit["rank"])), code=int(hit["code"]), stderr=text)
            verdict = judge(Evidence(deaths=(death,), agent=AgentEnd(log=text), started=1, logs_only=True))
            sure = "likely" if verdict.confidence == "certain" else verdict.confidence
            return replace(verdict, confidence=sure)
    return None


def _lacks_a_cause(strict: Verdict) -> bool:
    if strict.outcome is None or strict.cause == _RAYS:
        return True
    if strict.cause == _ABORTED and strict.confidence != "certain":  # who aborted on purpose (a watchdog) says why
        return True
    first = strict.first_failure
    silent = first is None or first.rank is None or first.exit_code is None or first.exit_code > 0
    return strict.outcome == "failed" and strict.cause in (None, "unknown") and silent


def _with(strict: Verdict, found: _Sign, note: str = NOTE) -> Verdict:
    finding = found.finding
    first = strict.first_failure
    rank = None if finding.rule.consequence else found.rank  # who lost a peer did not fail first
    if first is None and (rank is not None or found.exception is not None):
        first = FirstFailure(rank, exception=found.exception)
    elif first is not None and first.exception is None and rank in (None, first.rank):
        first = replace(first, exception=found.exception)
    return replace(
        strict,
        cause=finding.rule.name,
        code=finding.rule.code,
        title=finding.cause,
        confidence="likely",
        first_failure=first,
        evidence=finding.evidence,
        advice=finding.advice,
        retry=finding.retry or finding.rule.retry,
        notes=(*strict.notes, note),
    )


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


def _signs(logs: Sequence[Log]) -> Iterator[_Sign]:
    """What the rules find behind the last progress: exceptions, whole and torn, then lines, then frames alone."""
    spoken = SpokenText.of_logs([replace(log, text=log.text.ending(_MOST_LINES)) for log in logs[:_MOST_LOGS]])
    summaries = childfailed.boxes(spoken.lines) | launcher_text.report(spoken.lines)
    behind = _behind_progress(spoken, summaries)
    everything = spoken.text(range(len(spoken.lines)))
    exceptions = [each for each in raised.all_of(spoken) if each.index >= behind][-_MOST_EXCEPTIONS:]
    exceptions = [each for each in exceptions if not raised.starts_a_launcher(each.info)] or exceptions
    for each in exceptions:
        own = spoken.text(sorted(each.lines))
        death = Death(rank=_alone(each.ranks), exception=each.info, stderr=own)
        yield from (_Sign(found, each.index, death.rank, each.info) for found in _asked(death, everything))
    inside = {index for each in exceptions for index in each.lines} | raised.ignored(spoken)
    others = [index for index in range(behind, len(spoken.lines)) if index not in inside]
    well = any(_WENT_WELL.search(spoken.lines[index]) for index in others)
    for sign in _lines(spoken, others, everything, summaries):
        if not (well and sign.finding.rule.consequence):  # the first rank to end takes the store and its sockets along
            yield sign
    if not exceptions:
        yield from _frames(spoken, others, everything)


def _lines(spoken: SpokenText, indexes: Sequence[int], everything: LogText, summaries: Set[int]) -> Iterator[_Sign]:
    """What single lines show that hold the words of a sign, with the lines around them."""
    present = _present("\n".join(spoken.lines[index] for index in indexes))
    telling = [k for k, index in enumerate(indexes) if any(word in spoken.lines[index] for word in present)]
    once = {raised.form_of(spoken.lines[indexes[k]]): k for k in reversed(telling)}  # eight ranks say the same
    calm = [k for k, index in enumerate(indexes) if index not in summaries and _is_calm(spoken, index)]
    for k in sorted(once.values())[-_MOST_LINES_ASKED:]:
        index = indexes[k]
        if len(calm) - bisect_right(calm, k) >= _CALM:
            continue
        if spoken.by[index].agent or any(_HANDLED.search(spoken.lines[near]) for near in indexes[k : k + 2]):
            continue
        rank = _alone(spoken.by[index].ranks)
        window = spoken.text(indexes[max(0, k - _BEFORE) : k + _AFTER])
        for code in _codes(spoken.lines[index]):
            death = Death(rank=rank, code=code, stderr=window)
            for found in _asked(death, everything):
                if found.rule.name not in GENERAL and found.evidence:
                    yield _Sign(found, index, rank)


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


def _frames(spoken: SpokenText, indexes: Sequence[int], everything: LogText) -> Iterator[_Sign]:
    """A traceback whose last line is missing: the exception that it raises, else whose frames they are."""
    torn = torn_frames.read(spoken.text(indexes))
    if torn is None:
        return
    info, index = torn.exception, indexes[-1]
    if raised.says_a_launcher(info.traceback or ""):
        return
    if info.type:
        death = Death(rank=None, exception=info, stderr=spoken.text(indexes))
        yield from (_Sign(found, index, None, info) for found in _asked(death, everything))
    name = torn.cause or "python-exception"
    rule = rule_named(name)
    if rule is not None:
        where = f"{info.file.rpartition('/')[2]}:{info.line}" if info.file else "its last line"
        cause = f"a rank died with a traceback that is cut off, in {where}"
        yield _Sign(Finding(rule, None, cause, (torn.quote,), confidence="unknown"), index, None)


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
