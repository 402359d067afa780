"""Which checkpoint is a job's newest, from the files that a real process has open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import limit

from ddp_run.observe.file_systems import Checkpoints, answers
from ddp_run.record.events import CheckpointSeen, LocalRank, Rank, RankStarted
from ddp_run.record.journal import now

HOLDS_OPEN = """
import sys
files = [open(path, mode) for path, mode in zip(sys.argv[1::2], sys.argv[2::2])]
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(*paths_and_modes: str | Path) -> Iterator[int]:
    """The pid of a process that has these files open."""
    words = [sys.executable, "-c", HOLDS_OPEN, *map(str, paths_and_modes)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


def rank(number: int, pid: int) -> RankStarted:
    return RankStarted(now(), Rank(number), LocalRank(number), 0, pid, 2, 2, "")


def newest(seen: Checkpoints) -> CheckpointSeen | None:
    process = seen.ask()
    if process is None:
        return None
    process.deadline += limit(10)
    found: list[CheckpointSeen] = []
    over = False
    while not over:
        process.wait()
        said, over = answers(process, CheckpointSeen, now())
        found += said
    process.end()
    os.waitpid(process.pid, 0)
    return found[0]


def aged(path: Path, seconds: float) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.touch()
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))
    return path


@pytest.mark.parametrize("name", ["step_9.pt", "step_9.pt.tmp", "model.safetensors", "last.ckpt"])
def test_the_folder_of_a_file_that_is_being_written(tmp_path: Path, name: str) -> None:
    kept = aged(tmp_path / "step_8.pt", 60)
    seen = Checkpoints(None)
    with holding(tmp_path / name, "wb") as pid:
        seen.look([rank(0, pid)])
    (tmp_path / name).unlink()
    found = newest(seen)
    assert found is not None
    assert (found.folder, found.path) == (str(tmp_path), str(kept))
    assert found.written is not None
    assert 60 <= (now() - found.written) / 1e9 < 60 + limit(10)


def test_a_checkpoint_may_be_a_folder(tmp_path: Path) -> None:
    earlier, later = tmp_path / "out" / "checkpoint-500", tmp_path / "out" / "checkpoint-1000"
    for folder in (earlier, later):
        folder.mkdir(parents=True)
    aged(later / "optimizer.bin", 5)
    seen = Checkpoints(None)
    with holding(earlier / "optimizer.bin", "wb") as pid:
        seen.look([rank(0, pid)])
    aged(earlier / "optimizer.bin", 50)
    found = newest(seen)
    assert found is not None
    assert (found.folder, found.path) == (str(tmp_path / "out"), str(later / "optimizer.bin"))


def test_what_is_only_read_or_no_checkpoint_tells_nothing(tmp_path: Path) -> None:
    weights, text = aged(tmp_path / "pretrained.pt", 1), tmp_path / "log.txt"
    seen = Checkpoints(None)
    with holding(weights, "rb", text, "wb") as pid:
        seen.look([rank(0, pid)])
    assert newest(seen) is None


def test_another_rank_may_write(tmp_path: Path) -> None:
    seen = Checkpoints(None)
    with holding(tmp_path / "a.pt", "wb") as pid:
        ranks = [rank(0, os.getpid()), rank(1, os.getpid()), rank(2, pid)]
        for _ in range(2):
            seen.look(ranks)
    assert newest(seen) is not None


def test_a_given_folder_counts_alone(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    seen = Checkpoints(str(given))
    with holding(tmp_path / "other.pt", "wb") as pid:
        seen.look([rank(0, pid)])
    found = newest(seen)
    assert found is not None
    assert (found.folder, found.path, found.written) == (str(given), None, None)
    (given / "latest.pt").symlink_to(aged(given / "a.pt", 9))
    found = newest(seen)
    assert found is not None
    assert found.path == str(given / "a.pt")


def test_a_given_folder_that_is_missing_has_none(tmp_path: Path) -> None:
    found = newest(Checkpoints(str(tmp_path / "missing")))
    assert found is not None
    assert found.path is None
