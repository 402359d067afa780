"""Finds where a job was started again after an end that the same text reports: all before that is over. Pure.

Whatever starts a job again (a scheduler's requeue, a loop in a script, a controller) appends to its log. The new start
repeats what the first one printed at its beginning. Logs of several nodes or ranks in one text repeat it, too, but not
later in time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence, Set
from itertools import accumulate

from ddp_run.evidence.lines_with import lines_with
from ddp_run.evidence.pasted.spoken_text import SpokenText
from ddp_run.evidence.shell_prompt import PROMPT
from ddp_run.evidence.went_on import form_of, shows_life

_WORD = re.compile(r"[A-Za-z_]{3,}")
_LEVELS = frozenset({"DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"})
_WORDS, _HEAD = 3, 200
"""A line is known again by so many words at its beginning; by all that it has there, if it has fewer."""
_ALIKE = 2
"""So many are enough for another line behind it."""
_AGAIN = re.compile(r"\b(?:[Rr]e-?queu|[Rr]esubmi|[Rr]estart|[Rr]etrying|[Bb]ack-?off|append)")
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_STAMP = re.compile(
    r"(?:(?<!\d)\d{4}[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]|(?<![a-z])[WEIF](?P<logs>\d\d)(?P<of_log>\d\d) "
    r"|\b(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(?P<dates>\d{1,2}) )"
    r"(?P<time>\d\d:\d\d(?::\d\d)?)"
)
"""ISO's and its kin, glog's, and what `date` prints."""
_NEVER = "~"
"""Sorts behind all stamps."""
_BEGINNING = 400
"""A job's first lines."""
_BANNER = re.compile(r"[#=*~>+\-]{3}")
_COMMAND = re.compile(rf"(?:\+ |{PROMPT})\w")
"""A shell's, traced or behind its prompt."""
_TYPED = re.compile(
    rf"{PROMPT}(?:\w{{1,60}}=\S{{0,200}} ){{0,8}}"
    r"(?:torchrun|accelerate|deepspeed|ddp-run|srun|mpirun"
    r"|(?:(?:ba)?sh |\./|python[\d.]{0,5} (?:-m )?)[\w./\-]{1,200})\b"
    r"[^\n]{0,400}(?<!&)$"
)
"""A program that a user starts in the foreground."""
_RESUMES = re.compile(r"\b[Rr]esum(?:ing|ed)\b[^\n]{0,60}\b(?:at|from)\b")
_NEXT = 6
"""Within so many lines after the first one a start repeats another line. A banner, or a shell's
command, needs no other."""


def at(spoken: SpokenText, reports: Set[int]) -> int:
    """Return the index of the line at which the job began for the last time; 0 if the text shows no second start.

    `reports`: indexes of the lines that report an end.
    """
    if spoken.index.one_by_one:
        return 0
    told = lines_with(("$ ", "# ", "% ", "esum"), spoken.lines)
    return max(_repeated(spoken, reports), _typed(spoken, told, reports), _resumed(spoken, told, reports))


def _resumed(spoken: SpokenText, told: Sequence[int], reports: Set[int]) -> int:
    """Return the index of the last line that says from where the job resumes, later in time than an end."""
    first_end = min(reports, default=len(spoken.lines))
    says = [k for k in told if k > first_end and _RESUMES.search(spoken.lines[k])]
    return says[-1] if says and says[-1] in _later(spoken, first_end) else 0


def _typed(spoken: SpokenText, told: Sequence[int], reports: Set[int]) -> int:
    """Return the index of the last start of a program behind a shell's prompt, if an end is reported below it: what was
    started before had ended by then."""
    typed = (k for k in told if _TYPED.match(spoken.lines[k]))
    return max((k for k in typed if k < max(reports, default=0)), default=0)


def _repeated(spoken: SpokenText, reports: Set[int]) -> int:
    """Return the index of the last line that repeats the job's beginning, later in time."""
    lines = spoken.without_names()
    first_end = min(reports, default=len(lines))
    begin = [
        _words(line) if shows_life(line) or _BANNER.match(line) else () for line in lines[: min(first_end, _BEGINNING)]
    ]
    first, alike = _once(begin), _once([words[:_ALIKE] for words in begin])
    commands = _once([_command(line) for line in lines[: len(begin)]])
    later: Set[int] | None = None
    last = next((k for k in range(len(lines) - 1, -1, -1) if lines[k].strip()), 0)  # it says how something ended
    for index in range(last - 1, first_end, -1):
        command = commands.get(_command(lines[index]))
        place = first.get(_words(lines[index]), command)
        if place is None:
            continue
        following = map(_words, lines[index + 1 : index + 1 + _NEXT])
        further = max(max(first.get(words, -1), alike.get(words[:_ALIKE], -1)) for words in following)
        if not (further > place or place == command or _BANNER.match(lines[index])):
            continue
        later = _later(spoken, first_end) if later is None else later
        if index in later:
            earlier = range(max(first_end + 1, index - _NEXT), index)  # of the same start
            return next((k for k in earlier if first.get(_words(lines[k]), place) < place), index)
    return 0


def _once(keys: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    counts = Counter(keys)
    return {key: index for index, key in enumerate(keys) if key and counts[key] == 1}


def _words(line: str) -> tuple[str, ...]:
    words = [word for word in _WORD.findall(line[:_HEAD]) if word not in _LEVELS]
    return tuple(words[:_WORDS])


def _command(line: str) -> tuple[str, ...]:
    return (form_of(line),) if _COMMAND.match(line) else ()


def _later(spoken: SpokenText, end: int) -> Set[int]:
    """Return the lines behind the first `end` that are later, with all after them, than all before them: by their
    stamps, or else by words that the job is started again."""
    stamps = [_stamp(line) for line in spoken.raw]
    before = [*accumulate(stamps, max)]
    after = [*accumulate((each or _NEVER for each in reversed(stamps)), min)][::-1]
    stamped = next((k for k in range(end, len(stamps)) if stamps[k]), len(stamps))
    again = next((k for k in range(end, len(stamps)) if _AGAIN.search(spoken.lines[k])), len(stamps))
    return {
        k
        for k in range(end + 1, len(stamps))
        if ("" < before[k - 1] < after[k] if (stamped < k or stamps[k]) and after[k] != _NEVER else again <= k)
    }


def _stamp(line: str) -> str:
    """Return the first date and time in a line, `05-01 10:00:00`; empty if it has none. Some don't say the year."""
    hit = _STAMP.search(line) if ":" in line else None
    if hit is None:
        return ""
    month = hit["month"] or hit["logs"] or f"{_MONTHS.index(hit['name']) // 3 + 1:02d}"
    day = hit["day"] or hit["of_log"] or f"{int(hit['dates']):02d}"
    return f"{month}-{day} {hit['time']}"
