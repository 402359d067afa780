"""Finds the Python exceptions printed in a log, whatever the prefix of each line. Pure.

Forms: the interpreter's own, loguru's (`> File` for the frame that caught it) and the boxes of rich. Python marks
neither the end of a traceback nor whether the exception was handled, so `last` returns the last one that could have
ended the program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_run.evidence.at_once import once
from ddp_run.evidence.line_prefix import Prefix
from ddp_run.evidence.lines_with import lines_with
from ddp_run.evidence.shell_prompt import PROMPT
from ddp_run.record.events import ExceptionInfo

HEADER = "Traceback (most recent call last)"
PLACE = re.compile(r'  File "(?P<file>[^"\n]{1,4096})", line (?P<line>\d{1,9})\b(?:, in (?P<function>[\w<>]+))?')
"""A frame anywhere in a line."""
OF_A_RANK = f"{HEADER}: (RANK "
_HEADER = re.compile(r"(?P<group>Exception Group )?Traceback \(most recent call last\):(?: \(RANK \d{1,9}\))?\s*$")
"""Python's; torch.distributed.checkpoint adds the rank (torch/distributed/checkpoint/api.py)."""
FRAME = re.compile(r'^(?:  |> )File "(?P<file>.+)", line (?P<line>\d{1,9})(?:, in (?P<function>.+))?\s*$')
_BOX = re.compile(r"(?:╭|\+)[─-]+ Traceback \(most recent call last\) [─-]+(?:╮|\+)\s*$")
_BOX_END = re.compile(r"(?:╰|\+)[─-]+(?:╯|\+)\s*$")
_BOX_FRAME = re.compile(r"^(?P<file>\S.*):(?P<line>\d{1,9}) in (?P<function>\S+)$")
_TOP = f" {HEADER} "
_BOX_LINES = 4000
_OPEN_BOXES = 200
"""After this many boxes without an end, as in a truncated log, stop searching for ends."""
_TRACEBACK_CHARS = 64 << 10
"""If an exception's text, including those that led to it, is longer, its first and last half are kept."""
_PATH_CHARS = 4096
_BARE_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d{1,9})\s*$')
_NAME = r"[^\W\d][\w.<>]*"
_EXCEPTION = re.compile(rf"^(?!(?:ERROR|WARNING|INFO|CRITICAL|DEBUG|FATAL)\b)(?P<type>{_NAME})(?:: ?(?P<message>.*))?$")
_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError)(?::|$)")
CHAIN = re.compile(
    r"(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):"
)
DIRECT = "The above exception was the direct cause of the following exception"
_IGNORED = re.compile(r"Exception ignored in|--- Logging error ---")
_THREAD = "Exception in thread "
_OTHER_SPEAKER = re.compile(
    r"^(?!\[ERROR\] [\d:\-]{10,30} \(PID:)"  # torch_npu's own messages continue like this
    rf"(?:{PROMPT}|\[?\d{{4}}-\d\d-\d\d[T ]\d\d:|\[?\d\d/\d\d/\d{{4}} \d\d:"
    r"|\[?\d\d:\d\d:\d\d[\], ]|\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[\]: |]"
    r"|\[?[EWIF]\d{4} |\[(?:rank\d+\]:)?\[?[EWIF]\d* |Exception (?:ignored|in thread)|\s*\d+%\||\w+Warning: "
    r"|(?:make(?:\[\d{1,9}\])?|srun|slurmstepd): |#{2,6} )"  # or a script's heading
)
_OF_THE_SYSTEM = re.compile(r"^\[Errno -?\d{1,9}\] [^'\":]{1,100}(?:: (?:'.*'|\".*\"))?$")
"""What OSError makes of a code and a file's name: all in one line."""
_NPUS = re.compile(r"\[ERROR\] \S{1,40} \(PID:\d{1,9}, Device:-?\d{1,9}, RankID:-?\d{1,9}\) ERR\d{5} ")
"""A line of the messages of torch_npu's exceptions (torch_npu/csrc/core/npu/NPUException.cpp)."""
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib\d*/python\d[\d.]*/|^<|/ddp_run/(?:rank|training)/|\.p[yx][xdi]$")
_RAYS = "ray::"
_OF_RAYS_WORKER = re.compile(r"\bray::\S{1,200} \(pid=\d{1,9}, ip=[^\n]{1,600}\)(?P<group>)\s{0,9}$")
"""Ray's header for the frames of an exception that a worker sent to the driver."""
_WORKERS_LINES = 400
_NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_MESSAGE_LINES = 40
_THREADS_LINES = 6
"""The most lines between `Exception in thread` and its traceback, if several threads write at once."""


@dataclass(frozen=True, slots=True)
class Printed:
    """An exception in a log. `index` is the line with `Type: message`; `start` and `end` bound all its lines."""

    info: ExceptionInfo
    index: int
    start: int
    end: int
    final: bool = True
    """False if the text says that the program went on: in a thread, ignored, in the logging module."""
    ignored: bool = False
    """Python itself says that the exception was ignored."""


@dataclass(frozen=True, slots=True)
class _Frame:
    file: str
    line: int
    function: str | None


def says_ignored(line: str) -> bool:
    """Whether Python says there that the next exception is ignored."""
    return _IGNORED.search(line) is not None


def is_library(file: str) -> bool:
    """Whether a frame's file belongs to Python, to an installed package or to no file at all (Cython's)."""
    return _LIBRARY.search(file) is not None


def find(lines: Sequence[str]) -> tuple[Printed, ...]:
    """Return every printed exception, in order: only the last of a chain (`raise … from`), only the whole of a group.
    A chain below `-- Process 0 terminated` is that of a child of torch.multiprocessing.spawn alone."""
    found: list[Printed] = []
    open_boxes = end = 0
    threads: list[int] = []
    for index in lines_with((HEADER, 'File "', _RAYS, _THREAD), lines):
        if index < end:
            continue
        printed = at(lines, index, boxes=open_boxes < _OPEN_BOXES)
        if printed is None:
            open_boxes += _TOP in lines[index]
            threads += [index] if _THREAD in lines[index] else []
            continue
        threads = [line for line in threads if printed.start - line <= _THREADS_LINES]
        if threads:  # two threads that end at once write their headers, then their tracebacks
            threads.pop()
            printed = replace(printed, final=False)
        if found and found[-1].end == printed.start and OF_A_RANK in lines[printed.start]:  # why it is raised on all
            whole = _bounded(f"{found[-1].info.traceback}\n{printed.info.traceback}")
            printed = replace(found[-1], info=replace(found.pop().info, traceback=whole), end=printed.end)
        link = _link(lines, found[-1], printed) if found and "-- Process " not in found[-1].info.message else None
        if link is not None:
            printed = _joined(found.pop(), printed, link)
        found.append(printed)
        end = printed.end
    return tuple(found)


def last(lines: Sequence[str]) -> Printed | None:
    """Return the last exception that could have ended the program; if there is none, one that ended only a thread."""
    found = find(lines)
    return next((p for p in reversed(found) if p.final), found[-1] if found else None)


def from_text(text: str) -> ExceptionInfo | None:
    """Return the exception of one formatted traceback, as in `error.json`."""
    printed = last(text.splitlines())
    return printed.info if printed is not None else None


def at(lines: Sequence[str], index: int, *, boxes: bool = True) -> Printed | None:
    """Return the exception whose traceback, box or bare frame begins at this line; None if there is none."""
    form = _HEADER if HEADER in lines[index] else _OF_RAYS_WORKER if _RAYS in lines[index] else None
    header = form.search(lines[index]) if form is not None else None
    if header is not None:
        return _traceback(lines, index, header)
    box = _BOX.search(lines[index]) if boxes and _TOP in lines[index] else None
    if box is not None:
        return _boxed(lines, index, _before(box))
    bare = _BARE_FRAME.search(lines[index]) if 'File "' in lines[index] else None
    return _syntax_error(lines, index, _before(bare)) if bare is not None else None


def _traceback(lines: Sequence[str], start: int, header: re.Match[str]) -> Printed | None:
    prefix = Prefix.of(_before(header), lines[start + 1 : start + 4])
    frames, index = _frames(lines, start + 1, prefix)
    said = _said(lines, index, prefix)
    if said is None or not frames:
        return None
    message, end = _message(lines, index, prefix, said["message"])
    own = end
    if header["group"]:
        end = _end_of_group(lines, end, prefix)
    worker, end = _worker_frames(lines, index, end, prefix)
    frame = _user_frame(worker or frames)
    text = [stripped for line in lines[start:own] if (stripped := prefix.strip(line)) is not None]
    text += [member for line in lines[own:end] if (member := prefix.of_member(line)) is not None]
    before = lines[max(0, start - 2) : start + 1]
    ignored = any(map(says_ignored, before)) or "Call stack:" in lines[index + 1 : end + 1]  # logging's
    final = not ignored and not any(_THREAD in line for line in before)
    info = ExceptionInfo(said["type"], message, frame.file, frame.line, frame.function, _body(header, text))
    return Printed(info, index, start, end, final, ignored)


def _said(lines: Sequence[str], index: int, prefix: Prefix) -> re.Match[str] | None:
    """Return class and message of the exception that this line names, if it names one."""
    shown = prefix.strip(lines[index]) if index < len(lines) else None
    return _EXCEPTION.match(once(shown.rstrip())) if shown is not None else None


def _boxed(lines: Sequence[str], start: int, before: str) -> Printed | None:
    """Return the exception in a rich.traceback box, with its text in Python's own format."""
    prefix = Prefix.of(before, lines[start + 1 : start + 4])
    frames: list[_Frame] = []
    path = ""
    strangers = 0
    for index in range(start + 1, min(len(lines) - 1, start + _BOX_LINES)):
        text = prefix.strip(lines[index])
        if text is None:
            strangers += 1
            if strangers > _MESSAGE_LINES:
                break
            continue
        if HEADER in text and _BOX.match(text):
            break  # the next one starts: this one was cut off
        if _BOX_END.match(text):
            return _below_box(lines, start, index + 1, prefix, frames)
        said = _row(text)
        frame = _BOX_FRAME.match(path + said)
        if frame is not None:
            frames.append(_Frame(frame["file"], int(frame["line"]), frame["function"]))
        path = path + said if said[:1] in "/<~" or path else ""  # a long path continues in the next row
        path = "" if frame is not None or not said or len(path) > _PATH_CHARS else path
    return None


def _row(text: str) -> str:
    """Return the text between the sides of a box; empty if the line has none."""
    text = text.rstrip()
    return text[2:-1].rstrip() if text[:2] in ("│ ", "| ") and text[-1:] in ("│", "|") and len(text) > 2 else ""


def _before(hit: re.Match[str]) -> str:
    return hit.string[: hit.start()]


def _below_box(lines: Sequence[str], start: int, index: int, prefix: Prefix, frames: list[_Frame]) -> Printed | None:
    said = _said(lines, index, prefix)
    if said is None or not frames:
        return None
    message, end = _message(lines, index, prefix, said["message"])
    frame = _user_frame(frames)
    text = [f'  File "{each.file}", line {each.line}, in {each.function}' for each in frames]
    body = "\n".join([f"{HEADER}:", *text, f"{said['type']}: {message}"])
    info = ExceptionInfo(said["type"], message, frame.file, frame.line, frame.function, body)
    return Printed(info, index, start, end)


def _body(header: re.Match[str], text: list[str]) -> str:
    first = header[0].rstrip() if HEADER in header[0] else f"{HEADER}:"
    return _bounded("\n".join([first, *(text[1:] if text and text[0].endswith(first) else text)]))


def _bounded(text: str) -> str:
    half = _TRACEBACK_CHARS // 2
    if len(text) <= _TRACEBACK_CHARS:
        return text
    return "\n  …\n".join((text[:half].rpartition("\n")[0], text[-half:].partition("\n")[2] or text[-half:]))


def _frames(lines: Sequence[str], index: int, prefix: Prefix) -> tuple[list[_Frame], int]:
    """Return the frames from `index` on, and the index of the line after them (skipping other speakers' lines)."""
    frames: list[_Frame] = []
    strangers = 0
    while index < len(lines) and strangers < _MESSAGE_LINES:
        text = prefix.strip(lines[index])
        if text is None:
            strangers += 1
        elif (frame := FRAME.match(text)) is not None:
            frames.append(_Frame(frame["file"], int(frame["line"]), frame["function"]))
        elif text.strip() and not text[0].isspace() and not (text.startswith("[Previous line repeated")):
            break
        index += 1
    return frames, index


def _message(lines: Sequence[str], index: int, prefix: Prefix, first: str | None) -> tuple[str, int]:
    """Return the message and the index after it. Python marks no end, so a blank line or another speaker ends it.

    A blank line after a colon does not: the announced text is below it. `first` is None if the type is alone on its
    line.
    """
    message = [first or ""]
    end = index + 1
    if _OF_THE_SYSTEM.match(message[0]):
        return message[0].strip(), end
    most = _WORKERS_LINES if _OF_RAYS_WORKER.search(message[0]) else _MESSAGE_LINES
    for position in range(end, min(len(lines), index + most)):
        text = prefix.strip(lines[position])
        if text == "" and _announces(":" if first == "" and not any(message) else message[-1], lines, position):
            message.append(text)
            continue
        if text is None or not text.strip() or _HEADER.search(text) or ends_message(text):
            break
        if _goes_on(text, [prefix.strip(line) for line in lines[position + 1 : position + 3]]):
            break
        message.append(text)
        end = position + 1
    return "\n".join(message).strip(), end


def _announces(before: str, lines: Sequence[str], blank: int) -> bool:
    """Whether the text after a blank line belongs to the text before it: after a colon, or between code and a colon."""
    quoted = before.startswith("  ") and blank + 1 < len(lines) and lines[blank + 1].rstrip().endswith(":")
    return before.rstrip().endswith(":") or quoted


def _goes_on(text: str, following: Sequence[str | None]) -> bool:
    """Whether repeated output of a program starts here, ignoring numbers; a list in a message is indented."""
    if text[0].isspace() or len(following) < 2:
        return False
    form = _NUMBERS.sub("0", text)
    return "0" in form and all(_NUMBERS.sub("0", line or "") == form for line in following)


def ends_message(text: str) -> bool:
    """Whether this line below a message isn't part of it: another program's, or another exception's."""
    if _OTHER_SPEAKER.match(text) is not None:
        return _NPUS.match(text) is None
    return _BARE_FRAME.search(text) is not None or CHAIN.match(text) is not None


def _worker_frames(lines: Sequence[str], index: int, end: int, prefix: Prefix) -> tuple[list[_Frame], int]:
    """Return the frames inside a worker process that torch appends to the message ("Original Traceback …")."""
    for position in range(index, min(len(lines), end + 2)):
        text = prefix.strip(lines[position])
        if text is not None and text.startswith(f"Original {HEADER}:"):
            frames, after = _frames(lines, position + 1, prefix)
            return frames, min(len(lines), after + 1)
    return [], end


def _end_of_group(lines: Sequence[str], index: int, prefix: Prefix) -> int:
    while index < len(lines) and prefix.of_member(lines[index]) is not None:
        index += 1
    return index


def _syntax_error(lines: Sequence[str], start: int, before: str) -> Printed | None:
    """Parse Python's output for a script that does not compile: the position, the source, and no header."""
    prefix = Prefix.of(before, lines[start : start + 1])
    for index in range(start + 1, min(len(lines), start + 5)):
        text = prefix.strip(lines[index])
        if text is None or not _SYNTAX.match(text):
            continue
        frame = FRAME.match(prefix.strip(lines[start]) or "")
        kind, _, message = text.partition(": ")
        shown = "\n".join(prefix.strip(line) or "" for line in lines[start : index + 1])
        if frame is None:
            return None
        info = ExceptionInfo(kind.rstrip(":"), message, frame["file"], int(frame["line"]), None, shown)
        return Printed(info, index, start, index + 1)
    return None


def _user_frame(frames: Sequence[_Frame]) -> _Frame:
    return next((frame for frame in reversed(frames) if not is_library(frame.file)), frames[-1])


def _link(lines: Sequence[str], earlier: Printed, later: Printed) -> str | None:
    """Return the words that link the later exception to the earlier; None if they are not linked."""
    between = lines[earlier.end : later.start] if later.start - earlier.end <= _MESSAGE_LINES else ()
    return next((hit[0] for line in between if (hit := CHAIN.search(line))), None)


def _joined(earlier: Printed, later: Printed, link: str) -> Printed:
    text = _bounded(f"{earlier.info.traceback}\n\n{link}\n\n{later.info.traceback}")
    info = replace(later.info, traceback=text)
    return replace(later, info=info, start=earlier.start, final=later.final and earlier.final)
