"""Finds the prefix that every line of a text has: a time, a host, the number of the line. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from ddp_run.evidence.traceback_text import HEADER

FRAME = '  File "'
_HOST = re.compile(r"(?P<pod>[a-zA-Z][\w.\-]{0,255}): ")
_NUMBERED = re.compile(r"\s{0,8}(?P<number>\d{1,7})(?P<gap>:?[ \t]{0,8}|$)")
_STEP = 3
"""The gap between the numbers of two lines: empty lines may be missing."""
_WITHOUT = ("srun: ", "slurmstepd: ", "mpirun", "pdsh@")
"""Launchers that prefix the lines of others but not their own."""
_NO_WRAPPER = re.compile(r"\[[A-Za-z_]+\d+(?:[-,]\d+)*\]|\]<std|torch[./]|kernel: |\brank=\d")
"""A rank's name, and signs of other writers: the agent, the kernel."""
_LABELS_WRITER = re.compile(r"^(?![^\n]*\d\d:\d\d:)[^\n]*(?:\b[Rr]ank[ =:_]?\d|:\d{1,6}\]|^\[\d{1,6}\])")
"""A prefix of every line that differs from writer to writer: `host | rank 3 | `, `[host:3] `, `[3] `."""
_TIME = re.compile(r"\d\d:\d\d|\d{4}-\d\d")
"""The start of a time or a date, which ends a writer's name."""
_OPENS = "([{<"
"""The start of a name that differs from line to line."""
_TO_A_GAP = re.compile(r"(?<![\w.\-/])[\w.\-/]+$")
_FEW = 8
_SAMPLE = 64
NEARLY_ALL = 0.9
_LAYERS = 4
_NUMBERS = re.compile(r"\d+")

_Match = Callable[[str], re.Match[str] | None]


def without(
    lines: Sequence[str], stamps: re.Pattern[str], form_of: Callable[[Sequence[str]], re.Pattern[str]]
) -> tuple[list[str], list[str | None], re.Pattern[str]]:
    """Return each line without the prefix of every line, the place that it names, and what is then left to strip.

    `stamps`, and the pattern of one prefix that lines may have (`form_of`), are known forms of it.
    """
    texts, places = list(lines), list[str | None]([None]) * len(lines)
    before = form_of(texts)
    for _ in range(_LAYERS):
        said = said_below(texts)
        wrapper, known = next((w for w in _wrappers(said, stamps, before) if _before_all(said, w[0])), (None, True))
        if wrapper is None:
            break
        found = {k: hit for k, line in enumerate(texts) if (hit := wrapper(line) or wrapper(line + " ")) is not None}
        names = {} if known else {k: _name(hit[0]) for k, hit in found.items()}
        in_turns = _take_turns(list(names.values()))
        for index, hit in found.items():  # trailing spaces of empty lines get lost
            texts[index] = texts[index][hit.end() :]
            label = hit[hit.lastgroup] if hit.lastgroup else _LABELS_WRITER.search(hit[0]) and hit[0].strip()
            places[index] = label or (names[index] if in_turns else None) or places[index]
        before = form_of(texts)
    return texts, places, before


def said_below(lines: Sequence[str]) -> list[str]:
    """Return the lines that say something, without those that launchers write themselves."""
    return [line for line in lines if line and not line.isspace() and not line.startswith(_WITHOUT)]


def _name(prefix: str) -> str:
    """Return what stands before a time."""
    time = _TIME.search(prefix)
    return prefix.strip() if time is None else prefix[: time.start()].strip(" [(")


def _take_turns(names: Sequence[str]) -> bool:
    """Whether some come again after others, as those of writers do, and not steps."""
    runs = 1 + sum(one != other for one, other in pairwise(names))
    return runs > len(set(names)) > 1


def _wrappers(lines: Sequence[str], stamps: re.Pattern[str], before: re.Pattern[str]) -> Iterator[tuple[_Match, bool]]:
    """Return candidates for a prefix of every line, and whether its form is known: known forms, a host, then the text
    before most tracebacks."""
    tasks = "task" in before.groupindex
    if tasks and _counts_within_a_traceback(lines) and (numbers := _numbering(lines)) is not None:
        yield numbers, True
    yield from ((stamps.match, True), (before.match, True))
    if not tasks and (numbers := _numbering(lines)) is not None:
        yield numbers, True
    if any(HEADER in line or FRAME in line for line in lines):
        yield _HOST.match, True
    for common in _common(lines):
        if common.strip() and not _NO_WRAPPER.search(common):
            yield re.compile(_NUMBERS.sub(r"\\d+", re.escape(common))).match, False


def _numbering(lines: Sequence[str]) -> _Match | None:
    """Return the pattern of line numbers: `cat -n`, an editor, a web page."""
    middle = lines[len(lines) // 2 :][:_SAMPLE]  # tells most texts without them
    found = _counted(lines, NEARLY_ALL) if _counted(middle, NEARLY_ALL * NEARLY_ALL) else []
    if len(found) < _FEW:
        return None
    gap = min((hit["gap"] for hit in found if hit["gap"]), key=len, default="")
    return re.compile(rf"\s{{0,8}}\d{{1,7}}(?:{re.escape(gap)})?").match


def _counted(lines: Sequence[str], most: float) -> list[re.Match[str]]:
    """Return the numbers before these lines, if most have one that counts on; else none."""
    found = [hit for line in lines if (hit := _NUMBERED.match(line)) is not None]
    steps = [int(later["number"]) - int(hit["number"]) for hit, later in pairwise(found)]
    counting = sum(1 for step in steps if 0 < step <= _STEP)
    return found if len(found) >= most * len(lines) and counting >= most * len(steps) else []


def _counts_within_a_traceback(lines: Sequence[str]) -> bool:
    """Whether a traceback's header and its first frame have two numbers: of lines, then, as `grep -n` writes them."""
    ends = ((_NUMBERED.match(line), _NUMBERED.match(next_)) for line, next_ in pairwise(lines) if HEADER in line)
    return any(one and two and int(two["number"]) == int(one["number"]) + 1 for one, two in ends)


def _common(lines: Sequence[str]) -> Iterator[str]:
    """Return the prefix of most tracebacks, and the common start of all lines, ignoring numbers."""
    headers = [line.partition(HEADER)[0].removesuffix("Original ") for line in lines if HEADER in line]
    headers = [before.removesuffix("Exception Group ").removesuffix("  + ") for before in headers]
    if headers:
        yield Counter(_NUMBERS.sub("0", before) for before in headers).most_common(1)[0][0]
    sample = [_NUMBERS.sub("0", line) for line in lines[:: max(1, len(lines) // _SAMPLE)]]
    if len(sample) >= _FEW and "" not in headers:
        yield _before_open(_TO_A_GAP.sub("", _both_begin_with(min(sample), max(sample)))).rstrip(_OPENS)


def _before_open(text: str) -> str:
    """Remove an unclosed bracket at the end, as in `(Worker pid=` before numbers and more."""
    opened = text.rfind("(")
    return text if opened < 0 or ")" in text[opened:] else text[:opened]


def _both_begin_with(first: str, last: str) -> str:
    same = next((index for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    return first[:same] if same is not None else min(first, last, key=len)


def _before_all(lines: Sequence[str], wrapper: _Match) -> bool:
    """Whether nearly every line has it, and each line of a traceback."""
    sample = lines[:: max(1, len(lines) // _SAMPLE)]
    if not sample or sum(1 for line in sample if wrapper(line)) < NEARLY_ALL * NEARLY_ALL * len(sample):
        return False
    if any(wrapper(line) is None for line in lines if HEADER in line or FRAME in line):
        return False
    return sum(1 for line in lines if wrapper(line)) >= NEARLY_ALL * len(lines)
