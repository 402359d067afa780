"""Finds the lines that show words without saying them: help, forms, notes, what passed tests printed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ddp_run.evidence.lines_with import lines_with

_USAGE = re.compile(r"\b[Uu]sage: ([\w.\-/]{1,200})")
_OF_HELP = re.compile(r" {2}|[A-Za-z ]{1,40}:$")
"""An option or what goes on with it, or the heading of a group of options."""
_SECTION = re.compile(r"={3,200} ([^=\n]{1,200}) ={3,200}$")
"""Of pytest's report."""
_ALONE = re.compile(
    r"(?:\[rank\d{1,9}\]:)?\[?[WI]\d{4} [\d:.]{8,20} \d{1,9} (?:\S{0,400}/)?torch/_dynamo/convert_frame\.py:"
    r"|[ *\-]{0,40}\[ \] |\s{0,40}[\w.\-]{1,80}: {1,9}\{\w{1,80}: [^{}\n]{1,400}\}\s*$|\+ (?:[:#]|echo) "
    r"|(?:\[\w{1,10}\]:? )?(?:sample|prompt|completion|generat(?:ed|ion))s?(?: \d{1,6})? ?[>:|] |Q: [^\n]{1,2000} A: "
)
"""torch.compile's warning about a function that it leaves as it is (torch/_dynamo/convert_frame.py), a line of a form
to fill in, a printed configuration in YAML, commands that a shell traces, and that only say something, and text that a
model reads or writes."""
_WORDS = (
    *("sage: ", ": error: ", "=== ", "##########"),  # of several lines
    *("torch/_dynamo/convert_frame.py:", "[ ] ", ': "', "+ : ", "+ # ", "+ echo "),
    *("sample", "prompt", "completion", "generat", "Q: "),
)
_RULER = re.compile(r"#{10,200}\s*$")
_REFUSED = re.compile(r"(?<![\w.\-/])([\w.\-/]{1,200}): error: ")


def indexes(lines: Sequence[str], starts: Sequence[int]) -> set[int]:
    """Return where they are. `starts`: where in each line the text begins, behind who wrote it."""
    telling = lines_with(_WORDS, lines)
    alone = {k for k in telling if _ALONE.match(lines[k])}
    spans = sorted((*_help(lines, starts, telling), *_of_passed_tests(lines, telling), *_in_frames(lines, telling)))
    done = 0
    for begin, end in spans:  # one may be within another
        alone.update(range(max(begin, done), end))
        done = max(done, end)
    return alone


def _help(lines: Sequence[str], starts: Sequence[int], telling: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the spans of lines that argparse prints below `usage: PROGRAM`, or from there to `PROGRAM: error:`: what
    options are for."""
    began: dict[str, int] = {}
    end = 0
    for index in telling:
        usage = _USAGE.search(lines[index]) if "sage: " in lines[index] else None
        refused = _REFUSED.search(lines[index]) if ": error: " in lines[index] else None
        if usage is not None:
            began[usage[1]] = index
            end = max(end, index + 1)
            while end < len(lines) and (not (said := lines[end][starts[end] :]) or _OF_HELP.match(said)):
                end += 1
            yield index + 1, end
        elif refused is not None and refused[1] in began:
            yield began.pop(refused[1]) + 1, index


def _in_frames(lines: Sequence[str], telling: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the spans of lines that are framed with `#`: what a site wants to be read."""
    for begun, ended in pairwise(k for k in telling if _RULER.match(lines[k])):
        if all(line.startswith("#") for line in lines[begun:ended]):
            yield begun, ended


def _of_passed_tests(lines: Sequence[str], telling: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the spans of lines that pytest captured of tests that passed."""
    sections = [(k, hit[1]) for k in telling if (hit := _SECTION.match(lines[k])) is not None]
    for (begun, name), (ended, _) in pairwise([*sections, (len(lines), "")]):
        if name == "PASSES":
            yield begun, ended
