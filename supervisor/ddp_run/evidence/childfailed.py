"""Parses the failures printed by torch's agent (`ChildFailedError` and its "failed (exitcode: …)" line). Pure.

Forms, from torch/distributed/elastic/multiprocessing/errors/__init__.py of the releases:

- 1.9 and 1.10: `Root Cause:` first, then `Other Failures:`; fields `rank: 1 (local_rank: 1)`, `msg: "…"`, no host.
- 1.11 and later: `Failures:` first, then `Root Cause (first observed failure):`; aligned fields, `host`, `traceback`.
- later releases add the signal's name after the pid: `exitcode : -9 (pid: 5) (SIGKILL)`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ddp_run.evidence.model import LogText, SummaryEntry
from ddp_run.evidence.traceback_text import HEADER
from ddp_run.record.events import LocalRank, Rank

_ROOT = re.compile(r"\bRoot Cause(?: \(first observed failure\))?:\s*$")
_OTHERS = re.compile(r"\b(?:Other )?Failures:\s*$")
_BORDER = re.compile(r"(?:={10}|\*{10}|-{10})\s*$")
_START = re.compile(r"\[\d+\]:\s*$")
_FIELD = re.compile(r"(?<![\w.])(time|host|rank|exitcode|error_file|traceback|msg)\s*: ?(.*)$")
_RANK = re.compile(r"(\d{1,9}) \(local_rank: (\d{1,9})\)")
_CODE = re.compile(r"(-?\d{1,9}) \(pid: (\d{1,9})\)")
_TERM = re.compile(r"Sending process (\d{1,9}) closing signal (?:Signals\.)?(SIG\w+)")
_KILL = re.compile(r"Unable to shutdown process (\d{1,9}) via \S+ forcefully exiting via (?:Signals\.)?(SIG\w+)")
_MOST_LINES = 4096
_ONE_END_S = 60
_TO_ALL = "closing signal CTRL_C_EVENT"
_STOPPED = re.compile(
    r"SignalException: Process \d+ got signal: (\d{1,2})\b|Received (?:Signals\.)?(SIG\w+|\d{1,2}) death signal"
    r"|Main process received (SIGINT), exiting"
)
"""torch's agent, and DeepSpeed's launcher (deepspeed/launcher/launch.py, sigkill_handler), whose runner sends it
SIGTERM for any signal."""
_STAMP = re.compile(r"\[?[WE](\d{4} \d\d:\d\d:\d\d\.\d{1,9}) ")
_OBSERVED = re.compile(r"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,9}) \(pid: (\d{1,9})\)")


@dataclass
class _Draft:
    """An entry while its lines are being read."""

    root: bool
    values: dict[str, str] = field(default_factory=dict)
    message: list[str] = field(default_factory=list)
    indent: str = ""

    def entry(self) -> SummaryEntry | None:
        rank = _RANK.match(self.values.get("rank", ""))
        if rank is None:
            return None
        code = _CODE.match(self.values.get("exitcode", ""))
        return SummaryEntry(
            rank=Rank(int(rank[1])),
            local_rank=LocalRank(int(rank[2])),
            host=self.values.get("host"),
            pid=int(code[2]) if code else None,
            code=int(code[1]) if code else None,
            time=self.values.get("time"),
            message=_unquoted("\n".join(self.message).strip()),
            root=self.root,
        )


def parse(text: str) -> tuple[SummaryEntry, ...]:
    """Return the failures of every ChildFailedError box in `text`, in printed order, complete or truncated.

    Lines may be prefixed, indented or mixed with others. A failure without a readable rank is left out.
    """
    return tuple(entry for _index, entry in placed(text.splitlines()))


def placed(lines: Sequence[str]) -> list[tuple[int, SummaryEntry]]:
    """Yield the same, each with the index of the line after it."""
    found: list[SummaryEntry] = []
    ends: list[int] = []
    draft: _Draft | None = None
    section: bool | None = None
    first = next((index for index, line in enumerate(lines) if "Cause" in line or "Failures" in line), len(lines))
    for index in range(first, len(lines)):
        line = lines[index]
        heading = _heading(line)
        if heading is not None or (draft is not None and _BORDER.search(line)):
            _close(draft, found)
            draft = None
            section = heading if heading is not None else section
        elif section is not None:
            draft = _read(line, draft, section, found)
        ends += [index] * (len(found) - len(ends))
    _close(draft, found)
    ends += [len(lines)] * (len(found) - len(ends))
    return list(zip(ends, found, strict=True))


def last_attempts(told: Sequence[tuple[int, SummaryEntry]]) -> tuple[list[SummaryEntry], list[range]]:
    """Return the failures of each host's last box, and the lines of earlier attempts, up to the end of their box.

    A restarted job appends to its log, and the logs of several nodes may be concatenated.
    """
    boxes: list[list[tuple[int, SummaryEntry]]] = [[]]
    for position, each in enumerate(told):
        root_first = told[0][1].root and not told[-1][1].root
        if position and (each[1].root if root_first else told[position - 1][1].root):
            boxes.append([])
        boxes[-1].append(each)
    again = _told_again(boxes)
    over: list[range] = []
    kept: list[SummaryEntry] = []
    start = 0
    for box, repeated in zip(boxes, again, strict=True):
        end = max((index for index, _entry in box), default=0)
        if repeated:
            over.append(range(start, end))
        else:
            kept += [entry for _index, entry in box]
        start = end
    return kept, over


def _told_again(boxes: Sequence[Sequence[tuple[int, SummaryEntry]]]) -> list[bool]:
    """Return, for each box, whether a later one is of another attempt on the same host.

    It is if it names the same rank again, or at another time: two agents on one host print their boxes within a minute.
    """
    again: list[bool] = []
    ranks: dict[str | None, set[Rank]] = {}
    times: dict[str | None, tuple[float, float]] = {}
    for box in reversed(boxes):
        entries = [(entry, _moment(entry.time)) for _index, entry in box]
        repeated = False
        for entry, at in entries:
            first, last = times.get(entry.host, (at or 0, at or 0))
            apart = at is not None and max(at - first, last - at) > _ONE_END_S
            repeated = repeated or apart or entry.rank in ranks.get(entry.host, ())
        again.append(repeated)
        for entry, at in entries:
            ranks.setdefault(entry.host, set()).add(entry.rank)
            if at is not None:
                first, last = times.get(entry.host, (at, at))
                times[entry.host] = min(first, at), max(last, at)
    return again[::-1]


def _moment(time: str | None) -> float | None:
    try:
        return datetime.strptime(time or "", "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def boxes(lines: Sequence[str]) -> set[int]:
    """Return the line indexes of boxes without a traceback, from border to border of the same kind."""
    found: set[int] = set()
    if not any("FAILED" in line for line in lines):
        return found
    start: int | None = None
    root = False
    for index, line in enumerate(lines):
        if start is None:
            titled = index + 1 < len(lines) and lines[index + 1].rstrip().endswith("FAILED")
            if titled and _BORDER.search(line):
                start, root = index, False
        elif HEADER in line or index - start > _MOST_LINES:
            start = None
        elif root and line.rstrip()[-10:] == lines[start].rstrip()[-10:]:
            found.update(range(start, index + 1))
            start = None
        else:
            root = root or _ROOT.search(line) is not None
    return found


def observed(text: str) -> tuple[SummaryEntry, ...]:
    """Return the failures that the agent logs when it sees them ("failed (exitcode: 1) local_rank: 0 …"), without a
    box.

    For single-node jobs only: the line has only the local rank, which is then used as the rank.
    """
    return tuple(
        SummaryEntry(
            rank=Rank(int(hit[2])),
            local_rank=LocalRank(int(hit[2])),
            host=None,
            pid=int(hit[3]),
            code=int(hit[1]),
            time=None,
            message="",
            root=True,
        )
        for hit in _OBSERVED.finditer(text)
    )


def stop_signal(text: str) -> int | None:
    """Return the first signal that the launcher says it received: by number, or by name (older releases).

    On Windows, the event by which it stops its ranks reaches itself, too.
    """
    hit = _STOPPED.search(text)
    if hit is None or _TO_ALL in text[: hit.start()]:
        return None
    said = hit[1] or hit[2] or hit[3]
    return int(said) if said.isdigit() else int(getattr(signal, said, signal.SIGTERM))


def stopped_on(log: LogText) -> int:
    """Return the number of the line that says so; 0 if none does."""
    return next((log.number(k) or 0 for k, line in enumerate(log.lines) if says_stopped(line)), 0)


def says_stopped(line: str) -> bool:
    """Whether a launcher says there that it was told to stop."""
    return ("ignal" in line or "SIGINT" in line) and _STOPPED.search(line) is not None


def stopped_first(lines: Iterable[str]) -> bool:
    """Whether the agents' stamps say that one was told to stop before any saw a rank fail: their nodes' logs may stand
    in any order."""
    stamped = [
        (hit[1], line) for line in lines if "signal" in line or "exitcode" in line if (hit := _STAMP.match(line))
    ]
    failed = min((stamp for stamp, line in stamped if _OBSERVED.search(line)), default="")
    return any(stamp < failed and _STOPPED.search(line) for stamp, line in stamped)


def signals_sent(lines: Iterable[str]) -> dict[int, tuple[int, ...]]:
    """Return the signals that the agent says it sent, by pid."""
    sent: dict[int, tuple[int, ...]] = {}
    for line in lines:
        if "signal" not in line and "forcefully" not in line:
            continue
        hit = _TERM.search(line) or _KILL.search(line)
        number = getattr(signal, hit[2], None) if hit else None
        if hit is not None and number is not None:
            pid = int(hit[1])
            sent[pid] = (*sent.get(pid, ()), int(number))
    return sent


def _heading(line: str) -> bool | None:
    """Return which section starts here: the root's (True), the others' (False), none (None)."""
    if "Cause" not in line and "Failures" not in line:
        return None
    if _ROOT.search(line):
        return True
    return False if _OTHERS.search(line) else None


def _read(line: str, draft: _Draft | None, root: bool, found: list[SummaryEntry]) -> _Draft | None:
    if _START.search(line):
        _close(draft, found)
        return _Draft(root)
    hit = _FIELD.search(line)
    if draft is not None and draft.message and (hit is None or not _starts_field(line, hit, draft)):
        if line.startswith(draft.indent) or not draft.indent.strip():
            draft.message.append(line[len(draft.indent) :] if line.startswith(draft.indent) else line)
        return draft
    if hit is None:
        return draft
    key, value = hit[1], hit[2].strip()
    if draft is None or key in draft.values:
        _close(draft, found)
        draft = _Draft(root)
    if key in ("traceback", "msg"):
        draft.indent = line[: hit.start()]
        draft.message = [value]
    draft.values[key] = value
    return draft


def _starts_field(line: str, hit: re.Match[str], draft: _Draft) -> bool:
    """Whether a line after the message starts the next entry (its number was lost) and does not continue the
    message."""
    return hit[1] in ("time", "host", "rank") and line[: hit.start()] == draft.indent


def _close(draft: _Draft | None, found: list[SummaryEntry]) -> None:
    entry = draft.entry() if draft is not None else None
    if entry is not None:
        found.append(entry)


def _unquoted(message: str) -> str:
    return message[1:-1] if len(message) > 1 and message[0] == message[-1] == '"' else message


def is_complete(lines: Sequence[str]) -> bool:
    """Whether a log ends with a complete box: the agent then reports nothing further about the failure."""
    frame = len(lines) > 1 and len(lines[-1]) > 3 and set(lines[-1]) == {"="}
    return frame and any(_ROOT.search(line) for line in lines)
