"""What is said of a death that nothing explains: what was seen, and no cause."""

from __future__ import annotations

from ddp_run.evidence.model import Death, Evidence, LogText
from ddp_run.evidence.resources import MemoryTrend, MemoryUse
from ddp_run.judge.rules.unknown import match
from ddp_run.judge.verdict import Finding
from ddp_run.record.events import MonotonicNs, Rank

GIB = 1 << 30


def trend(last: int) -> MemoryTrend:
    use = MemoryUse(MonotonicNs(8_000_000_000), last, 0, 62 * GIB - last)
    return MemoryTrend(MemoryUse(MonotonicNs(0), GIB, 0), use, 62 * GIB, MonotonicNs(10_000_000_000))


def found(death: Death, run: Evidence | None = None) -> Finding:
    finding = match(death, run or Evidence())
    assert finding is not None
    assert (finding.rule.name, finding.confidence) == ("unknown", "unknown")
    return finding


def test_a_sigkill_shows_its_memory_and_asks_the_kernel() -> None:
    large = found(Death(Rank(3), code=-9, memory=trend(61 * GIB)))
    assert large.cause == "rank 3 was killed by SIGKILL; sender unknown"
    shown = "rank 3: resident memory 1.0 GiB, then 61.0 GiB 2.0 s before its end, of 62.0 GiB here"
    assert [quote.text for quote in large.evidence] == [shown]
    assert "memory was nearly used up" in large.advice[0]
    assert any("dmesg" in line for line in large.advice)


def test_a_sigkill_of_a_small_process_has_no_word_about_scarce_memory() -> None:
    small = found(Death(Rank(3), code=-9, memory=trend(2 * GIB)))
    assert "then 2.0 GiB" in small.evidence[0].text
    assert not any("nearly used up" in line for line in small.advice)
    assert found(Death(Rank(3), code=-9)).evidence == ()


def test_another_signal_shows_the_kernels_line_of_this_process_and_its_core() -> None:
    lines = ("[1.0] traps: python[70] trap int3", "[2.0] traps: python[7] trap int3 ip:55d0", "[3.0] x[17]: segfault")
    kernel = LogText("kernel", lines, None)
    death = Death(Rank(0), pid=7, code=-5, core="/here/core", memory=trend(61 * GIB))
    finding = found(death, Evidence(kernel=kernel, kernel_pids=True))
    assert [quote.text for quote in finding.evidence] == [lines[1]]
    assert "/here/core" in finding.advice[0]
    assert found(death, Evidence(kernel=kernel)).evidence == ()


def test_the_phase_points_to_where_to_look() -> None:
    assert "its variables (ddp-run --ddp-debug …)" in found(Death(Rank(0), code=3, phase="before-init")).advice[0]
    assert "MASTER_ADDR" in found(Death(Rank(0), code=3, phase="init")).advice[0]
    wrapping = found(Death(Rank(0), code=3, phase="after-init", call="DistributedDataParallel()")).advice[0]
    assert wrapping.startswith("exited after init_process_group, in DistributedDataParallel() and before")
    assert found(Death(Rank(0), code=3, phase="training")).advice == ()
    assert found(Death(Rank(0), code=3)).advice == ()


def test_a_sigkill_quotes_no_line_that_has_nothing_to_do_with_it() -> None:
    warned = LogText("attempt_0/rank_3/stderr.log", ("/env/torch/utils.py:3: UserWarning: slow", "  warnings.warn("))
    assert found(Death(Rank(3), code=-9, stderr=warned)).evidence == ()
    assert found(Death(Rank(3), code=7, stderr=warned)).evidence != ()
