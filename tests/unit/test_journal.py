"""Events survive the way to a file and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_run.record import journal
from ddp_run.record.events import (
    AttemptStarted,
    Event,
    ExceptionInfo,
    GpuSampled,
    MonotonicNs,
    Noted,
    Rank,
    RankExited,
    RankFailed,
    RunStarted,
    SignalSent,
    Target,
)

EVENTS: list[Event] = [
    RunStarted(MonotonicNs(5), 1_700_000_000_000_000_005, "id", "host", 0, 1, ("a", "b"), 1, "by-cause", 30.0, 0, "1"),
    AttemptStarted(MonotonicNs(6), 0, ("python", "-m"), None),
    RankFailed(
        MonotonicNs(7), Rank(1), 0, 1, ExceptionInfo("ValueError", "bad \udcff \u2028 text", "t.py", 3, "f", "T")
    ),
    RankFailed(MonotonicNs(8), Rank(1), 0, 3, None),
    RankExited(MonotonicNs(9), Rank(1), 0, -9),
    SignalSent(MonotonicNs(10), Target.RANKS, 15, (1, 2), "why"),
    Noted(MonotonicNs(11), "line\nbreak"),
    GpuSampled(
        MonotonicNs(12),
        *((0, 1), ("GPU-a", "GPU-b"), (5, 6), (3, 2), (8, 8), (None, 7)),
        *((41, 42), (0, 0), (5, None), ("python", ""), (Rank(0), None), True),
        *((Rank(0), Rank(1)), ((1, 0), None)),
    ),
]


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writer = journal.Journal(path)
    for event in EVENTS:
        writer.record(event)
    writer.close()
    assert len(path.read_bytes().splitlines()) == len(EVENTS)
    again = list(journal.read(path))
    assert [type(event) for event in again] == [type(event) for event in EVENTS]
    assert again[3:] == EVENTS[3:]
    assert again[:2] == EVENTS[:2]


def test_what_is_kept_and_what_is_written_have_no_secrets(tmp_path: Path) -> None:
    secret = "correct-horse-9"
    raised = ExceptionInfo("ValueError", f"password={secret}", "t.py", 3, "f", f"Traceback\npassword={secret}")
    writer = journal.Journal(tmp_path / "events.jsonl")
    for event in (
        RankFailed(MonotonicNs(7), Rank(1), 0, 1, raised),
        Noted(MonotonicNs(8), f"left behind: 7 (x --password {secret})"),
        AttemptStarted(MonotonicNs(6), 0, ("python", f"--token={secret}"), None),
    ):
        writer.record(event)
    writer.close()
    assert secret not in (tmp_path / "events.jsonl").read_text() + repr(list(writer.events))
    assert list(journal.read(tmp_path / "events.jsonl")) == list(writer.events)


def test_a_line_cut_by_its_writers_death_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    whole = journal.encode(EVENTS[4], "2026-01-01T00:00:00.000000Z")
    path.write_text(whole + "\n" + whole[:30])
    assert list(journal.read(path)) == [EVENTS[4]]


def test_an_event_of_a_newer_version_is_passed_over() -> None:
    assert journal.decode('{"event": "NotYetKnown", "at": 1}') is None


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"event": "Noted"}', "null"])
def test_what_is_no_event(line: str) -> None:
    with pytest.raises(ValueError):
        journal.decode(line)


def test_stamps_become_dates() -> None:
    date = journal.clock(EVENTS)
    assert date(MonotonicNs(1_000_005)) == "2023-11-14T22:13:20.001000Z"
    with pytest.raises(ValueError):
        journal.clock(EVENTS[1:])
