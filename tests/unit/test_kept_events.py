"""What a run holds of its own events: bounded, and the same as what a replay holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddp_run.record.events import (
    Event,
    LocalRank,
    MemorySampled,
    MonotonicNs,
    Noted,
    ProgressSampled,
    Rank,
    RankStarted,
)
from ddp_run.record.journal import RECENT, Journal, KeptEvents, Recorded, encode, load


def memory(at: int, own: int) -> MemorySampled:
    return MemorySampled(MonotonicNs(at), (Rank(0),), (own,), (0,), None, None, None, None, None, None)


def progress(at: int) -> ProgressSampled:
    return ProgressSampled(MonotonicNs(at), (Rank(0),), ("training",), (at,), (at,))


def test_samples_are_bounded_and_nothing_else_is_left_out() -> None:
    events = KeptEvents()
    notes: list[Event] = []
    for at in range(20 * RECENT):
        events.append(progress(at))
        if at % 1000 == 0:
            notes.append(Noted(MonotonicNs(at), "seen"))
            events.append(notes[-1])
    assert [event for event in events if isinstance(event, Noted)] == notes
    samples = [event.at for event in events if isinstance(event, ProgressSampled)]
    assert RECENT <= len(samples) < 2 * RECENT
    assert samples == list(range(20 * RECENT - len(samples), 20 * RECENT))


def test_the_first_look_at_memory_stays() -> None:
    events = KeptEvents([memory(0, 5), memory(1, 90), *(memory(at, 50) for at in range(2, 5 * RECENT))])
    kept = [event for event in events if isinstance(event, MemorySampled)]
    assert kept[0].own == (5,)
    assert len(kept) < 2 * RECENT + 2


def starts(at: int, rank: int) -> RankStarted:
    return RankStarted(MonotonicNs(at), Rank(rank), LocalRank(rank), 0, 9, 2, 2, f"attempt_0/rank_{rank}")


def test_whoever_reads_them_again_keeps_the_same(tmp_path: Path) -> None:
    written = Journal(tmp_path / "events.jsonl")
    written.record(starts(0, 0))
    for at in range(1, 9 * RECENT):
        written.record(memory(at, at % 7) if at % 2 else progress(at))
        if at == 3 * RECENT:
            written.record(starts(at, 1))
            written.record(replace(memory(at, 3), ranks=(Rank(0), Rank(1)), own=(3, 4), children=(0, 0)))
    written.close()
    assert any(event.ranks == (0, 1) for event in written.events if isinstance(event, MemorySampled))
    assert load(tmp_path / "events.jsonl") == Recorded(tuple(written.events), ())
    assert len(written.events) < 4 * RECENT + 5


def test_damaged_lines_are_numbered_without_decoding_what_goes(tmp_path: Path) -> None:
    lines = [encode(progress(at), "2026") for at in range(3 * RECENT)]
    lines[5] = lines[5][:50]  # the disk was full
    lines[7] = "not JSON"
    lines[-3] = lines[-3].replace('"ranks"', '"runks"')
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n" + lines[0][:40])
    found = load(tmp_path / "events.jsonl")
    assert found.damaged == (6, 8, 3 * RECENT - 2)
    assert len(found.events) < 2 * RECENT
