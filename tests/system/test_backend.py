"""What ddp-run hooks into the ranks on request: the backend, its fallback, time-outs, `[DDP-DEBUG]` lines, phases."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Launcher, by_rank

NCCL_HERE = """
import gc, sys, torch, torch.distributed as dist
gc.freeze()  # else the interpreter's end goes through all objects of torch
dist.init_process_group("nccl")
total = torch.ones(2)
dist.all_reduce(total)
group = dist.distributed_c10d._get_default_group()
timeout = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
print(dist.get_backend(), total.tolist(), timeout)
del group  # kept to the end, it leaves gloo's threads to an interpreter that is gone; then torch may abort
dist.destroy_process_group()
if "--fail" in sys.argv:
    raise ValueError("after all")
"""


def script(tmp_path: Path, text: str = NCCL_HERE) -> Path:
    path = tmp_path / "job.py"
    path.write_text(text)
    return path


def test_a_forced_backend_and_a_time_out(ddp: Launcher, tmp_path: Path) -> None:
    outcome = ddp("--backend", "gloo", script(tmp_path), env={"TORCH_DIST_TIMEOUT": "7"})
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout == "[rank0]: gloo [1.0, 1.0] 420.0\n"
    assert "[DDP-WARNING] backend gloo in place of nccl, as ddp-run was told" in outcome.stderr


def test_all_ranks_fall_back_together(ddp: Launcher, tmp_path: Path) -> None:
    """No NCCL or no GPU here: the group cannot be made, and one more attempt uses the other backend in all ranks."""
    outcome = ddp("--nproc-per-node", 2, "--fallback-backend", "gloo", script(tmp_path), "--fail")
    assert outcome.code == 1
    assert "the process group failed to initialise: all ranks fall back to backend gloo" in outcome.stderr
    assert all(line.startswith("gloo [2.0, 2.0]") for lines in by_rank(outcome.stdout).values() for line in lines)
    assert sorted(by_rank(outcome.stdout)) == [0, 1]
    assert outcome.verdict["attempts"] == 2
    assert outcome.verdict["cause"] == "python-exception"
    assert outcome.verdict["phase"] == "shutdown"


@pytest.mark.slow_system
def test_without_a_fallback_the_phase_tells_where_it_failed(ddp: Launcher, tmp_path: Path) -> None:
    outcome = ddp("--nproc-per-node", 2, script(tmp_path))
    assert (outcome.verdict["cause"], outcome.verdict["phase"], outcome.verdict["attempts"]) == (
        "cuda-unavailable",
        "init",
        1,
    )
    assert "ddp_run/rank" not in outcome.stderr


@pytest.mark.slow_system
def test_debug_lines(ddp: Launcher, tmp_path: Path) -> None:
    secret = {"DDP_DEBUG": "1", "NCCL_FAKE_TOKEN": "hunter2", "NCCL_MARK": "seen"}
    outcome = ddp("--nproc-per-node", 2, script(tmp_path), env=secret)
    lines = outcome.stderr
    assert "[DDP-DEBUG] WORLD_SIZE=2" in lines
    assert "[DDP-DEBUG] before init_process_group('nccl')" in lines
    error = outcome.verdict["first_failure"]["exception"]  # its words depend on whether torch is built with NCCL
    assert "NCCL" in error["message"] or error["message"] == "nccl2 requires at least one CUDA device"
    assert f"[DDP-ERROR] init_process_group failed: {error['type']}: {error['message']}\n" in lines
    assert lines.count("[DDP-ERROR] NCCL_MARK=seen") in (1, 2), "each rank says it once; the same line is shown once"
    assert "hunter2" not in lines


@pytest.mark.slow_system
def test_debug_lines_of_a_failure_in_the_training(ddp: Launcher, tmp_path: Path) -> None:
    program = script(tmp_path, "raise ValueError('bad batch')")
    environ = {"DDP_DEBUG": "1", "TORCH_HUB_TOKEN": "hunter2", "NCCL_MARK": "seen"}
    outcome = ddp("--nproc-per-node", 1, program, env=environ)
    said = [line for line in outcome.stderr.splitlines() if "[DDP-ERROR]" in line]
    assert said[0] == "[rank0]: [DDP-ERROR] the program failed: ValueError: bad batch"
    assert [line for line in said if "_MARK" in line or "TOKEN" in line] == [
        "[rank0]: [DDP-ERROR] NCCL_MARK=seen",
        "[rank0]: [DDP-ERROR] TORCH_HUB_TOKEN=(removed)",
    ]
    assert "hunter2" not in outcome.stderr
    assert outcome.verdict["cause"] == "python-exception"
