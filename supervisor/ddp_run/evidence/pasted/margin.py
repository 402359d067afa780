"""Takes away what a container runtime, a mail client or a page put around the lines of a log. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ddp_run.evidence.lines_with import lines_with
from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted.spoken_text import Log
from ddp_run.evidence.traceback_text import HEADER

_QUOTE = re.compile(r"\s{0,3}(?:\|? ?> ?)+")
_MOSTLY = 0.4
_FEW = 8
_OF_A_STREAM = re.compile(r"\S{1,40} (?P<stream>std(?:out|err)) (?P<part>[FP]) ")
"""How container runtimes write a line (kubernetes' CRI logging): P is a part, and the next of its stream goes on."""
_BEGIN, _CURLY = 'File "', "File \u201c"
_STRAIGHT = str.maketrans("\u201c\u201d", '""')
_FRAME = re.compile(r' ?(?P<place>File "[^"\n]{1,4096}", line \d{1,9}(?:, in \S.{0,400})?)(?:, in)?\s*$')
"""A page takes the name `<module>` for a tag."""
_WITHOUT_SOURCE = f"{_BEGIN}<"
_EXCEPTION = re.compile(r"(?:\w{1,80}\.){0,10}_?[A-Z]\w{0,200}(?::\s|\s*$)")
_MARKS = re.compile(r"^[\^~]{1,400}\s{0,9}$")
_SPELT = re.compile(rf'{re.escape(HEADER)}:\\n {{1,4}}File (?P<escaped>\\)?"')
_MARK, _APOSTROPHE = re.compile(r'(?<!\\)"'), re.compile(r"(?<!\\)'")
_ESCAPED = re.compile(r"\\(?P<code>u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)")
_CHARACTERS = {"n": "\n", "t": "\t", "r": ""}


def without_margin(log: Log) -> Log:
    """Join the parts of lines, and remove quotation marks, then the common indentation: a log within a reply, a list or
    a code block. Where it stood in none, HTML has taken the indentation of tracebacks, which they get again."""
    log = _single_spaced(_unescaped(_of_whole_lines(log)))
    lines = _unquoted(log.text.lines)
    margin = 0 if any(line[:1].strip() for line in lines) else _indentation(lines)
    lines = tuple(line[margin:] for line in lines) if margin else lines
    lines = _indented(_with_straight_quotes(lines))
    return log if lines is log.text.lines else replace(log, text=replace(log.text, lines=lines))


def _of_whole_lines(log: Log) -> Log:
    if not any(" P " in line for line in log.text.lines):
        return log
    lines: list[list[str]] = []
    numbers: list[int] = []
    open_at: dict[str, int] = {}
    for index, line in enumerate(log.text.lines):
        hit = _OF_A_STREAM.match(line)
        begun = open_at.pop(hit["stream"], None) if hit is not None else None
        if hit is not None and hit["part"] == "P":
            open_at[hit["stream"]] = len(lines) if begun is None else begun
        if hit is None or begun is None:
            lines.append([line])
            numbers.append(log.text.number(index) or 0)
        else:
            lines[begun].append(line[hit.end() :])
    return replace(log, text=LogText(log.text.source, tuple(map("".join, lines)), numbers[0], tuple(numbers)))


def _unquoted(lines: tuple[str, ...]) -> tuple[str, ...]:
    said = [line for line in lines if line.strip()]
    quoted = sum(1 for line in said if _QUOTE.match(line))
    return tuple(_QUOTE.sub("", line, count=1) for line in lines) if said and quoted >= _MOSTLY * len(said) else lines


def _indentation(lines: Sequence[str]) -> int:
    margin = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
    own = any(line[margin:].startswith('File "') for line in lines)  # a traceback's: its first line is cut off
    return max(0, margin - 2) if own else margin


def _unescaped(log: Log) -> Log:
    """Return the lines of a text that stands in one, as Python and JSON spell it, if no traceback stands in several."""
    spelt = [_SPELT.search(line) if HEADER in line and not line.startswith("{") else None for line in log.text.lines]
    if not any(spelt) or any(HEADER in line and not hit for line, hit in zip(log.text.lines, spelt, strict=True)):
        return log
    lines: list[str] = []
    numbers: list[int] = []
    for index, (line, hit) in enumerate(zip(log.text.lines, spelt, strict=True)):
        said = [line] if hit is None else _parts(line, hit)
        lines += said
        numbers += [log.text.number(index) or 0] * len(said)
    return replace(log, text=LogText(log.text.source, tuple(lines), numbers[0], tuple(numbers)))


def _parts(line: str, hit: re.Match[str]) -> list[str]:
    """Return what stands before the text, its lines, and what stands behind it."""
    marks = [mark.start() for mark in (_MARK if hit["escaped"] else _APOSTROPHE).finditer(line)]
    begin = max((mark + 1 for mark in marks if mark < hit.start()), default=0)
    end = min((mark for mark in marks if mark > hit.start()), default=len(line))
    text = _ESCAPED.sub(_meant, line[begin:end])
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")  # JSON has two escapes for an emoji
    return [*([line[:begin]] if begin > 1 else []), *text.split("\n"), "", line[end:]]


def _meant(escaped: re.Match[str]) -> str:
    """Return the character that an escape means."""
    code = escaped["code"]
    return chr(int(code[1:], 16)) if len(code) > 1 else _CHARACTERS.get(code, code)


def _single_spaced(log: Log) -> Log:
    """Remove the empty line that a page put below each line."""
    text = log.text
    full = next((k for k in (0, 1) if not any(line.strip() for line in text.lines[1 - k :: 2])), None)
    if full is None or len(text.lines) < _FEW:
        return log
    kept = range(full, len(text.lines), 2)
    numbers = tuple(text.number(index) or 0 for index in kept)
    return replace(log, text=LogText(text.source, text.lines[full::2], numbers[0], numbers))


def _with_straight_quotes(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Undo what word processors make of quotation marks."""
    curly = any(_CURLY in line for line in lines)
    return tuple(line.translate(_STRAIGHT) for line in lines) if curly else lines


def _indented(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Indent frames and their source lines as Python does, where they are not."""
    whole: list[str] = []
    for index in lines_with((HEADER, _BEGIN), lines):
        if index < len(whole):
            continue
        header = HEADER in lines[index]
        prefix = lines[index].partition(HEADER)[0].removesuffix("Original ") if header else ""
        first = index + 1 if header else index
        frames = _frames(lines, first, prefix)
        if frames:
            whole += [*lines[len(whole) : first], *frames]
    return (*whole, *lines[len(whole) :]) if whole else lines


def _frames(lines: Sequence[str], first: int, prefix: str) -> list[str]:
    """Return the lines of the frames that begin there, indented; empty if none begins there, or if they are."""
    found: list[str] = []
    source = False
    """Whether the next line may be the one that the last frame shows."""
    for line in map(lines.__getitem__, range(first, len(lines))):
        text = line.removeprefix(prefix)
        frame = _FRAME.match(text) if line.startswith(prefix) else None
        if frame is not None:
            found.append(f"{prefix}  {frame['place']}")
            source = not text.startswith(_WITHOUT_SOURCE)
        elif found and line.startswith(prefix) and (_MARKS.match(text) or (source and not _EXCEPTION.match(text))):
            found.append(f"{prefix}    {text}")
            source = False
        else:
            break
    return found
