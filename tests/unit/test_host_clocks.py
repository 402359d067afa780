"""A clock that is set, and a host that was suspended, by values."""

from __future__ import annotations

import pytest

from ddp_run.supervise.nodes.clocks import HostClocks, Readings, read

BEFORE = Readings(100.0, 500.0, 1.8e9)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        pytest.param(Readings(101.0, 501.0, 1.8e9 + 1), (), id="a second later"),
        pytest.param(Readings(130.0, 530.0, 1.8e9 + 30), (), id="the process did not run"),
        pytest.param(Readings(101.0, 501.0, 1.8e9 + 1.4), (), id="a clock that is steered"),
        pytest.param(Readings(101.0, 501.0, 1.8e9 + 3601), ("was set forward by 3600 s",), id="forward"),
        pytest.param(Readings(101.0, 501.0, 1.8e9 - 59), ("was set back by 60 s",), id="back"),
        pytest.param(Readings(101.0, 540.0, 1.8e9 + 40), ("was suspended for 39 s",), id="suspended"),
        pytest.param(Readings(101.0, 540.0, 1.8e9), ("suspended for 39 s", "set back by 40 s"), id="both"),
    ],
)
def test_what_happened_to_clocks_is_told_once(after: Readings, said: tuple[str, ...]) -> None:
    clocks = HostClocks(BEFORE)
    told = clocks.look(after)
    assert len(told) == len(said)
    assert all(part in line for part, line in zip(said, told, strict=True))
    later = Readings(after.monotonic + 1, after.boottime + 1, after.wall + 1)
    assert clocks.look(later) == ()


def test_a_host_that_is_left_alone_says_nothing() -> None:
    assert HostClocks().look(read()) == ()
