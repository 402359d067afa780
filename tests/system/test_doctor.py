"""`ddp-run doctor` with ranks of its own: real launches with gloo."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import limit, wait_until

from .conftest import DDP_RUN, carriers, disposition


def environ(folder: Path, **further: str) -> dict[str, str]:
    (folder / "tmp").mkdir()
    kept = {name: value for name, value in os.environ.items() if not re.match(r"(DDP_|PET_|NCCL_|GLOO_|MASTER_)", name)}
    return {**kept, "TMPDIR": str(folder / "tmp"), **further}


def doctor(folder: Path, *words: str, **further: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON, stderr."""
    done = subprocess.run(
        [str(DDP_RUN), "doctor", "--json", *words],
        cwd=folder,
        env=environ(folder, **further),
        capture_output=True,
        text=True,
        timeout=limit(240),
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def named(document: dict[str, Any], check: str) -> list[dict[str, Any]]:
    return [each for each in document["findings"] if each["check"] == check]


def test_two_ranks(tmp_path: Path) -> None:
    """All that needs no GPU and no other node; one data path is right, what the ranks see in it is compared."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(b"x" * 1000)
    code, document, _stderr = doctor(tmp_path, "--nproc-per-node=2", "--data-path=data", OMP_NUM_THREADS="1")
    grades = [each["grade"] for each in document["findings"]]
    assert (code, document["fit"], "fail" in grades) == (0, True, False)
    assert [each["grade"] for name in ("launch", "collectives", "data_on_ranks") for each in named(document, name)] == [
        "pass",
        "pass",
        "pass",
    ]
    assert named(document, "data_on_ranks")[0]["value"] == "the same on all ranks 0-1 (1 file, 1000 B sampled)"
    (bandwidth,) = named(document, "all_reduce_bandwidth")
    sizes = [row["bytes"] for row in bandwidth["data"]]
    assert sizes[:3] == [1 << 10, 1 << 12, 1 << 14]
    for row in bandwidth["data"]:
        # with two ranks, bus and algorithm bandwidth are the same number
        assert row["busbw"] == pytest.approx(row["algbw"]) == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "ddp-run-logs").exists()


@pytest.mark.slow_system
def test_what_ranks_cannot_do_is_the_launch_s_verdict(tmp_path: Path) -> None:
    code, document, _stderr = doctor(tmp_path, "--nproc-per-node=2", GLOO_SOCKET_IFNAME="nope0")
    (launch,) = named(document, "launch")
    assert (code, launch["grade"], launch["against"]) == (78, "fail", "during: init_process_group")
    assert launch["value"].startswith("[DDP204] ")
    assert [each["grade"] for each in named(document, "collectives")] == ["skipped"]
    assert (Path(document["folder"]) / "verdict.json").exists()


@pytest.mark.slow_system
def test_one_rank_and_a_folder_for_the_run(tmp_path: Path) -> None:
    code, document, _stderr = doctor(
        tmp_path, "--nproc-per-node=1", "--log-dir=runs", "--on-end=touch ended", DDP_RUN_ON_SUCCESS="touch succeeded"
    )
    assert code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "tmp"]  # no hook has run
    assert [each["grade"] for each in named(document, "all_reduce_bandwidth")] == ["skipped"]
    assert (Path(document["folder"]) / "verdict.json").exists()
    assert Path(document["folder"]).parent.samefile(tmp_path / "runs")


@pytest.mark.parametrize(
    ("signum", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow_system),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow_system),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow_system),
    ],
    ids=["INT", "TERM", "HUP"],
)
def test_interrupted(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    """While its ranks start: they end with it, and nothing is left."""
    with disposition(signum, signal.SIG_DFL):
        process = subprocess.Popen(
            [str(DDP_RUN), "doctor", "--nproc-per-node=2", "--log-dir=runs"],
            cwd=tmp_path,
            env=environ(tmp_path),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    latest = tmp_path / "runs" / "latest"
    wait_until(lambda: (latest / "events.jsonl").exists() and carriers(latest.resolve().name), "the launch")
    process.send_signal(signum)
    process.communicate(timeout=limit(60))
    assert process.returncode == code
    assert carriers(latest.resolve().name) == []
    assert list((tmp_path / "tmp").iterdir()) == []
