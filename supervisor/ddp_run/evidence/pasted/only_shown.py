"""Finds the lines that show words without saying them: help, forms, notes, what passed tests printed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddp_run.evidence.lines_with import lines_with

_NOTES = ("+ : ", "+ # ", "+ echo ")
"""Commands that a shell traces, and that only say something."""
_USAGE = re.compile(r"\b[Uu]sage: ([\w.\-/]{1,200})")
_OF_HELP = re.compile(r" {2}|[A-Za-z ]{1,40}:$")
"""An option or what goes on with it, or the heading of a group of options."""
_SECTION = re.compile(r"={3,200} ([^=\n]{1,200}) ={3,200}$")
"""Of pytest's report."""
_COMPILERS = ("torch/_dynamo/convert_frame.py:",)
_SUPPRESSED = re.compile(
    r"(?:\[rank\d{1,9}\]:)?\[?[WI]\d{4} [\d:.]{8,20} \d{1,9} (?:\S{0,400}/)?torch/_dynamo/convert_frame\.py:"
)
"""torch.compile's warning about a function that it leaves as it is (torch/_dynamo/convert_frame.py)."""
_SETTING = re.compile(r"\s{0,40}[\w.\-]{1,80}: {1,9}\{\w{1,80}: [^{}\n]{1,400}\}\s*$")
"""A printed configuration, in YAML."""
_RULER = re.compile(r"#{10,200}\s*$")
_REFUSED = re.compile(r"(?<![\w.\-/])([\w.\-/]{1,200}): error: ")


def indexes(lines: Sequence[str], starts: Sequence[int]) -> set[int]:
    """Return where they are. `starts`: where in each line the text begins, behind who wrote it."""
    compiled = (k for k in lines_with(_COMPILERS, lines) if _SUPPRESSED.match(lines[k]))
    options = (k for k in lines_with(("[ ] ",), lines) if lines[k].lstrip(" -*").startswith("[ ] "))  # of a form
    settings = (k for k in lines_with((': "',), lines) if _SETTING.match(lines[k]))
    notes = (k for k, line in enumerate(lines) if line.startswith(_NOTES))
    shown = {*_help(lines, starts), *_of_passed_tests(lines), *_in_frames(lines)}
    return shown.union(compiled, options, settings, notes)


def _help(lines: Sequence[str], starts: Sequence[int]) -> Iterator[int]:
    """Yield the lines that argparse prints below `usage: PROGRAM`, or from there to `PROGRAM: error:`: what options are
    for."""
    began: dict[str, int] = {}
    inside = False
    for index, line in enumerate(lines):
        said = line[starts[index] :] if inside else ""
        inside = inside and (not said or _OF_HELP.match(said) is not None)
        if inside:
            yield index
        usage = _USAGE.search(line) if "sage: " in line else None
        refused = _REFUSED.search(line) if ": error: " in line else None
        if usage is not None:
            began[usage[1]] = index
            inside = True
        elif refused is not None and refused[1] in began:
            yield from range(began.pop(refused[1]) + 1, index)


def _in_frames(lines: Sequence[str]) -> Iterator[int]:
    """Yield the lines of texts that are framed with `#`: what a site wants to be read."""
    begun = -1
    for index in lines_with(("##########",), lines):
        framed = begun >= 0 and all(line.startswith("#") for line in lines[begun:index])
        if framed and _RULER.match(lines[index]):
            yield from range(begun, index)
        begun = index if _RULER.match(lines[index]) else begun


def _of_passed_tests(lines: Sequence[str]) -> Iterator[int]:
    """Yield the lines that pytest captured of tests that passed."""
    passed = False
    for index, line in enumerate(lines):
        section = _SECTION.match(line) if line.startswith("===") else None
        passed = passed if section is None else section[1] == "PASSES"
        if passed:
            yield index
