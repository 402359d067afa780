"""Decides whether a program went on after an error in its text. An error that it survived is not the cause. Pure.

Nothing in a text marks the end of an error, or whether anything caught it. So the lines after it decide. They show
that the program went on by progress, by forms that it had written before, by words for a fallback or for finished
work, or by many new lines. The patterns below say what these look like.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import accumulate

from ddp_run.evidence import traceback_text
from ddp_run.evidence.traceback_text import Printed
from ddp_run.evidence.windows import LEAVING, VERY_LAST

HANDLED = re.compile(
    r"\b(?:\w{2,20}ing\b[^\n]{0,60} instead\b|[Ff]all(?:ing|s)? ?back\b|[Ss]kipp(?:ed|ing)\b|[Ii]gnor(?:ed|ing)\b"
    r"|(?<!not )(?<!'t )(?<!to )(?:[Cc]ontinu(?:es?|ing)|[Gg]o(?:es|ing)? on)\b"
    r"|[Rr]etry(?:ing\W*$|(?:ing)? (?:in|after|\d))|will retry\b|[Rr]estor(?:ed|ing)\b[^\n]{0,80} from\b"
    r"|[Ss]tarting (?:fresh|from scratch|over)\b|[Tt]rying (?:port|another|again|the next)\b)"
)
"""Words of a program that handles an error, in the same line or in a neighbouring one. More must follow."""
WORKED = re.compile(
    r"\b(?:[Ff]inished|[Dd]one|DONE|[Cc]ompleted?|COMPLETED|[Ss]uccess\w*|[Ss]aved|Started container)\b"
)
"""A program finished some work."""
ENDED_WELL = re.compile(
    r"\b(?:[Tt]raining|[Rr]un|[Jj]ob)\b[^\n]{0,60}\b(?:completed?|finished|done|ended well)\b"
    r"|`Trainer\.fit` stopped: `max_(?:epochs|steps)=\d{1,12}` reached"  # Lightning's
)
"""A whole job ended well."""
WARNED = re.compile(r"^.{0,60}\b[Ww](?:arning|ARNING)\b|^[^\s:]{1,400}:\d{1,7}: \w{1,40}Warning: ")
"""After a warning, a program usually goes on."""
_CRASH = r"Fatal Python error: |Assertion .{0,400} failed|double free or corruption|free\(\): |stack smashing"
_CRASHED = re.compile(_CRASH)
_NATIVE = re.compile(
    rf"terminate called|what\(\): |{_CRASH}|Watchdog caught collective|Process group watchdog thread terminated"
)
"""Native code's last words before it aborts."""
_NATIVE_WORDS = (
    *("terminate called", "what(): ", "Fatal Python error: ", "Assertion ", "double free", "free(): "),
    *("stack smashing", "Watchdog caught collective", "Process group watchdog"),
)
_ONE_WORD = re.compile(r"\W{0,20}\w{1,40}\W{0,20}$")
_ABORTS = ("terminate called", "what(): ", "Fatal Python error: Aborted")
"""Messages that begin or contain the reason for an abort."""
_EMPTY = re.compile(
    r"^(?:\s*$|\s+warnings\.warn|\s*[\^~]+\s*$|frame #\d|\s*={3}|\s*-{3}|\.\.\.$|wandb: "
    r"|(?:\[rank\d{1,9}\]:)?(?:\[[WIEF]\d{0,4} [^\n]{0,80}\.(?:cpp|cc|cu|h):\d"
    r"|\[?[WEF]\d{3,4} |\[?I\d{3,4} [^\n]{0,60}\.(?:cc|cpp|cu|h):\d)"
    r"|(?:\d{1,6}: )?(?:srun|slurmstepd|pyxis|flux-job|flux-shell)\b"
    r"|\w+: (?:fallthrough )?registered at /)"  # torch's list of backends, 60 lines, below "Could not run 'aten::…'"
)
_OF_SCRIPTS = re.compile(
    r"\W{0,20}(?:[Jj]ob|JOB|[Ss]cript|[Ee]nd|real|user|sys)\b|\+ "
    r"|(?:Cluster|User/Group|State|Nodes|Cores(?: per node)?|(?:CPU|Memory) (?:Utilized|Efficiency)): "
)
"""Printed by scripts, and by SLURM's seff, at the end, whether their commands failed or not."""
_NOISE_WORDS = ("resource_tracker", "Warning", "%|")
_NOISE = re.compile(r"resource_tracker|Warning\b|%\|")
_TROUBLE = re.compile(
    r"[Ee]rror|ERROR|[Ee]xception|[Ff]ailed|FAILED|Traceback|File \"|NCCL (?:INFO|WARN)|[Gg]loo|[Tt]imed? ?out"
    r"|[Kk]ill(?:ed|ing)|[Aa]bort|frame #|[Ww]aiting|registered at|Process group|\^\^|Thread (?:0x|\d+ \()"
    r"|Process \d+: |PID|amdgpu|NVRM|ray::|@ +0x|#\d+ \S+ from |0x[\da-f]{6}"
)
"""Lines that show no progress, although several ranks may print them in one form."""
_LEAVES = re.compile(
    r"[Cc]lean(?:ed|ing)?[ -]?up|[Ss]hut(?:ting)? ?down|[Cc]los(?:ed|ing)\b|[Ee]mergency|SIG[A-Z]{3,4}\b|[Ss]ignal \d"
    r"|[Tt]erminat|[Ee]xiting|\bexit(?:ed|s)?(?: with)?(?: code| status)?[ :=]{1,3}-?\d"
)
"""Words that a program also writes while an error ends it."""
_BAR_WORDS = ("%|", "it/s", "s/it")
_BAR = re.compile(r"\d%\|| (?:it|s)/(?:s|it)\b")
_PICTURE = re.compile(r"\|[^|]*\|")
_COUNT = re.compile(r"\d{1,12}/\d{1,12}")
_DIGITS = re.compile(r"(?:(?<= ) {1,12})?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_ONE_DIGIT = str.maketrans("123456789", "000000000")
_PROGRESS = 3
"""This many lines that differ in their numbers show progress; this many bars, too: the exit may redraw the last."""
_KNOWN = 3
_REPEATED = 5
"""After an exception, this many lines of forms seen before, or of one form: other ranks go on for a line or two."""


class WentOn:
    """Reads where in these lines the program went on.

    `exceptions`: those in the lines, if already known. `silent`: indexes of lines that do not count, because another
    program wrote them. `ended_well`: the index of the last line which says that a job ended well; -1: none.
    """

    def __init__(
        self, lines: Sequence[str], exceptions: Sequence[Printed] | None = None, silent: Set[int] = frozenset()
    ) -> None:
        exceptions = traceback_text.find(lines) if exceptions is None else exceptions
        whole = "\n".join(lines)
        apart = {k for printed in exceptions for k in range(printed.start, printed.index + 1)} | silent
        messages = {k: printed.index for printed in exceptions for k in range(printed.index + 1, printed.end)}
        self._lines = lines
        self._new: list[int] = []
        self._aborts: list[int] = []
        first = [-1] * len(lines)
        steps: list[list[int]] = []
        self._repeated = self._worked = self.ended_well = -1
        for form, at in _by_form(lines, whole).items():  # lines of one form show the same
            line, said = lines[at[0]], [k for k in at if k not in apart]
            if any(words in line for words in _ABORTS):
                self._aborts += at
            if ENDED_WELL.search(line):
                self.ended_well = max(self.ended_well, at[-1])
            if not said or not is_news(line):
                continue
            own = line.removeprefix(" ")  # Megatron's steps begin with one blank, as does wrapped text
            if len(at) > 1 and not own[:1].isspace():
                for k in said:
                    first[k] = at[0]
                often = _outside(messages, said) if "0" in form and len(said) >= _REPEATED else []
                if len(often) >= _REPEATED:
                    self._repeated = max(self._repeated, often[-_REPEATED])
            if shows_life(own):
                new = [k for k in said if k not in messages] if line[:1].strip() else []
                self._new += new
                self._worked = max([self._worked, *new[-1:]]) if _finished(line) else self._worked
                differing = sorted({lines[k]: k for k in said}.values())  # all ranks may print one line
                steps += [differing] if len(differing) >= _PROGRESS else []
        self._new.sort()
        self._aborts.sort()
        self._known = _earliest(first)
        self._bars = drawn = _bars(lines, whole, silent)
        self._drawn = drawn[-_PROGRESS] if len(drawn) >= _PROGRESS else -1
        self._much = self._new[-VERY_LAST] if len(self._new) >= VERY_LAST else -1
        spans = sorted(span for at in [*steps, drawn] for span in zip(at, at[_PROGRESS - 1 :], strict=False))
        self._begun = [first for first, _ in spans]
        self._seen = [*accumulate((last for _, last in reversed(spans)), min)][::-1]
        self._steady = max(self._begun, default=-1)
        self.running = max(self._drawn, self._repeated, self._much)
        """After each line before this index, a program went on. Holds for lines of any writer."""
        self.progress = max(-1, self._drawn - 1, *(at[-1] for at in steps))
        """The index of the last line that shows progress; -1: none does."""

    def after_line(self, index: int) -> bool:
        """Whether the program went on after this line, which is not part of an exception."""
        return max(self._steady, self._worked, self._much) > index or self.handled(index)

    def says_handled(self, index: int) -> bool:
        """Whether this line or the next one says that the program handles it, whatever came then."""
        return bool(self._handling(index, index + 1))

    def handled(self, index: int, before: int = -1) -> bool:
        """Whether this line, the next one or the one `before` says that the program handles it, and it wrote more."""
        said = self._handling(before, index, index + 1)
        return bool(said) and max((*self._new[-1:], *self._bars[-1:]), default=-1) > max(index, min(said))

    def _handling(self, *places: int) -> list[int]:
        return [k for k in places if 0 <= k < len(self._lines) and HANDLED.search(self._lines[k])]

    def after(self, start: int, shown: int, end: int, *, runs_on: bool = False) -> bool:
        """Whether it went on after the exception that starts at `start`, is named at `shown` and ends before `end`.

        `runs_on`: it was printed by what caught it, and goes on.
        """
        if self.running > shown:
            return True
        earliest = self._known[shown + 1]
        beside = (*self._lines[max(0, start - 1) : start], *self._lines[end : end + 1])
        handled = any(HANDLED.search(line) for line in beside)
        enough = 1 if handled else _KNOWN - runs_on
        return (len(earliest) >= enough and earliest[enough - 1] < start) or (handled and self._new[-1:] > [end])

    def between(self, one: int, other: int) -> bool:
        """Whether lines between these two show progress."""
        place = bisect_right(self._begun, one)
        return place < len(self._seen) and self._seen[place] < other

    def after_stop(self, index: int) -> bool:
        """Whether the job ran again after a line that reports its end. A stopped program may write for a while."""
        return self.ended_well > index or len(self._new) - bisect_right(self._new, index) >= LEAVING

    def may_be_over(self, index: int, *, alone: bool = False) -> bool:
        """Whether it may have gone on unseen: the line is a warning, a later abort gives its own reason, or it wrote a
        new line behind it. `alone`: a log with one writer."""
        later = self._aborts[-1:] > [index] or (alone and self._new[-1:] > [index])
        return later or WARNED.search(self._lines[index]) is not None

    def before_abort(self, index: int) -> bool:
        """Whether it wrote a new line between this one and the reason for its abort.

        Only for a log with one writer: otherwise another process may have written the new line.
        """
        place = bisect_right(self._aborts, index)
        new = bisect_right(self._new, index)
        return place < len(self._aborts) and new < len(self._new) and self._new[new] < self._aborts[place]


def is_native(line: str) -> bool:
    """Whether native code says something there before it aborts."""
    return any(words in line for words in _NATIVE_WORDS) and _NATIVE.search(line) is not None


def is_crash(line: str) -> bool:
    """Whether native code says there that it is broken itself."""
    return _CRASHED.search(line) is not None


def is_news(line: str) -> bool:
    """Whether the line says something: not empty, no warning, no frame, not what native code says as it aborts."""
    if _EMPTY.match(line) or is_native(line):
        return False
    return not any(words in line for words in _NOISE_WORDS) or _NOISE.search(line) is None


def shows_life(line: str) -> bool:
    """Whether a program prints such a line while it goes on, whatever it contains."""
    if not line[:1].strip() or not is_news(line):
        return False
    return not (_TROUBLE.search(line) or _LEAVES.search(line) or _OF_SCRIPTS.match(line))


def _finished(line: str) -> bool:
    """Whether the line says which work is done. A clean-up also ends with `done`."""
    return WORKED.search(line) is not None and _ONE_WORD.match(line) is None


def _outside(messages: Mapping[int, int], said: list[int]) -> list[int]:
    """Return the lines of one form without those that several exceptions say once each. `messages`: the exception in
    whose message a line is."""
    if messages.keys().isdisjoint(said):
        return said
    within = Counter(map(messages.get, said))
    return [k for k in said if k not in messages or within[messages[k]] > 1]


def kind_of(text: str) -> str:
    """Return the text with all its digits alike: found faster than its form, and as long as it."""
    return text.translate(_ONE_DIGIT)


def form_of(line: str) -> str:
    """Return the line without its numbers, and without the blanks that align them."""
    return _DIGITS.sub("0", line)


def _earliest(first: Sequence[int]) -> list[tuple[int, ...]]:
    """Return for each line, and the end, where the forms of it and of the lines after it first occur: the `_KNOWN`
    earliest. `first` is that of the line alone, -1 if its form doesn't count."""
    earliest: tuple[int, ...] = ()
    found = [earliest] * (len(first) + 1)
    for k in range(len(first) - 1, -1, -1):
        if first[k] >= 0 and (len(earliest) < _KNOWN or first[k] < earliest[-1]):
            earliest = tuple(sorted((*earliest, first[k]))[:_KNOWN])
        found[k] = earliest
    return found


def _by_form(lines: Sequence[str], whole: str) -> dict[str, list[int]]:
    """Return where the lines of each form are. `whole`: all lines as one text."""
    alike: dict[str, list[int]] = {}
    for k, kind in enumerate(kind_of(whole).split("\n") if lines else ()):
        alike.setdefault(kind, []).append(k)
    found: dict[str, list[int]] = {}
    for line, at in alike.items():
        found.setdefault(form_of(line), []).extend(at)
    return {form: sorted(at) for form, at in found.items()}


def _bars(lines: Sequence[str], whole: str, silent: Set[int]) -> list[int]:
    """Return where each state of a progress bar was first drawn, in order. Several bars may take turns."""
    states: list[str] = []
    drawn: list[int] = []
    present = [words for words in _BAR_WORDS if words in whole]
    for k, line in enumerate(lines if present else ()):
        if any(words in line for words in present) and k not in silent and _BAR.search(line):
            count = _COUNT.search(line)
            state = _PICTURE.sub("", line) if count is None else f"{line.partition('|')[0]}{count[0]}"
            if state not in states[-VERY_LAST:]:
                states.append(state)
                drawn.append(k)
    return drawn
