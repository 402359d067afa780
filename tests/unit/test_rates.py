from __future__ import annotations

import pytest

from ddp_run.tell.snapshot import PrintedProgress, Progress, Rate


def fed(*seen: tuple[float, int]) -> Rate:
    rate = Rate()
    for at, count in seen:
        rate.feed(at, count)
    return rate


@pytest.mark.parametrize(
    ("seen", "per_s"),
    [
        ([], None),
        ([(0, 5), (1, 6)], None),
        ([(0, 5), (4, 13)], 2.0),
        ([(0, 5), (4, 13), (4, 99), (3, 99)], 2.0),
        ([(0, 900), (100, 1000), (101, 3), (106, 13)], 2.0),
        ([(0, 1), *((at, 2 * at) for at in range(100, 200))], 2.0),
        ([(0, 0), (50, 0), (100, 1), (104, 5)], 1.0),
    ],
    ids=["nothing", "too short", "two", "not in order", "starts again", "the last seconds count", "from the first on"],
)
def test_a_rate(seen: list[tuple[float, int]], per_s: float | None) -> None:
    assert fed(*seen).per_s == per_s


def test_a_counter_that_stands_still_slows_down() -> None:
    rate = fed(*((at, 10 * at) for at in range(1, 20)))
    rates = []
    for at in range(20, 100):
        rate.feed(at, 190)
        rates.append(rate.per_s or 0)
    assert rates == sorted(rates, reverse=True)
    assert rates[10] < 1.5
    assert rates[-1] == 0


def test_slow_steps_have_a_rate() -> None:
    """One every 8 s, looked at each second."""
    rate = fed(*((at, 1 + at // 8) for at in range(200)))
    assert rate.per_s == pytest.approx(1 / 8, rel=0.2)


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        ("24%|██▍ | 120/500 [00:12<00:38, 10.00it/s, loss=0.1]", Progress(120, 500, 38)),
        ("Epoch 3:  24%|#| 120/500 [1:00:12<2:00:38, 1.0it/s]", Progress(120, 500, 7238)),
        ("0%| | 0/500 [00:00<?, ?it/s]", None),
        ("epoch 3 of many", None),
    ],
)
def test_what_a_program_prints_at_once(line: str, progress: Progress | None) -> None:
    assert PrintedProgress().look(0, ["text", line, "more text"]) == progress


@pytest.mark.parametrize(
    ("form", "total"),
    [("epoch 3/10, step {}/500 loss 0.1", 500), ("step {} / 500", 500), ("[{}/500] loss 1/2", 500)],
)
def test_a_printed_total_has_an_estimate_once_it_moves(form: str, total: int) -> None:
    printed = PrintedProgress()
    if "1/2" in form:
        form = form.replace(" loss 1/2", "")
    assert printed.look(0, [form.format(100)]) is None
    assert printed.look(10, [form.format(120)]) == Progress(120, total, 190)


@pytest.mark.parametrize(
    "line", ["11/27 20:19:01 INFO ok", "see /data/1/2", "http://host/3/4", "2026/11/27", "5/3", "0/0"]
)
def test_dates_and_paths_are_not_progress(line: str) -> None:
    printed = PrintedProgress()
    assert [printed.look(at, [line]) for at in range(0, 60, 10)] == [None] * 6
