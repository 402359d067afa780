"""What a run holds of its own events: bounded, and the same as what a replay holds."""

from __future__ import annotations

from ddp_run.record.events import Event, MemorySampled, MonotonicNs, Noted, ProgressSampled, Rank
from ddp_run.record.journal import RECENT, KeptEvents


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


def test_whoever_reads_them_again_keeps_the_same() -> None:
    recorded = [memory(at, at % 7) if at % 2 else progress(at) for at in range(9 * RECENT)]
    live = KeptEvents()
    for event in recorded:
        live.append(event)
    assert list(KeptEvents(recorded)) == list(live)
