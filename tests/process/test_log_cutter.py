"""`--log-size-cap`: real files with holes, and the process that makes them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import limit

from ddp_run.commands.logs.shown import Shown, show_run
from ddp_run.evidence.log_tail import read_tail
from ddp_run.record.rank_logs import RankLog
from ddp_run.record.run_folder import read_data
from ddp_run.supervise import log_cutter
from ddp_run.supervise.log_cutter import CutLog

CAP = 1 << 20
LINE = b"line %09d " + b"x" * 80 + b"\n"


class Rank:
    """Writes as a rank does, at an offset of its own."""

    def __init__(self, run: Path, attempt: int = 0) -> None:
        folder = run / f"attempt_{attempt}" / "rank_0"
        folder.mkdir(parents=True)
        self.path = folder / "stderr.log"
        self.log = RankLog(0, "stderr", attempt, 0, self.path)
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        self.lines = 0

    def write(self, count: int) -> None:
        data = b"".join(LINE % number for number in range(self.lines, self.lines + count))
        assert os.write(self.fd, data) == len(data)
        self.lines += count

    @property
    def used(self) -> int:
        return self.path.stat().st_blocks * 512


def test_the_head_and_the_end_stay(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    cut = CutLog(rank.log)
    rank.write(5_000)
    assert not cut.keep_within(CAP), "it is not too large yet"
    for times in range(40):
        rank.write(3_000)
        assert cut.keep_within(CAP) == (times == 1), "the first time is told"
        assert rank.used <= CAP + (64 << 10)
    os.write(rank.fd, b"ValueError: the end\n")
    whole = rank.path.read_bytes()
    assert len(whole) == 125_000 * len(LINE % 0) + 20, "the rank's offset is its own"
    head, notice, zeros, *tail = whole.rpartition(b"\n[ddp-run")[0], *whole.partition(b"[ddp-run")[2].split(b"\n")
    assert head.split(b"\n")[:-1] == [(LINE % number)[:-1] for number in range(head.count(b"\n"))]
    assert CAP // 4 <= len(head) <= CAP // 4 + 200
    dropped_mib = (cut.end - cut.place) / (1 << 20)
    assert notice.rstrip() == f" dropped {dropped_mib:.1f} MiB here: --log-size-cap]".encode()
    assert set(zeros.rstrip(b" ")) == {0}
    assert tail[-2:] == [b"ValueError: the end", b""]
    first = int(tail[0].split()[1])
    assert tail[:-2] == [(LINE % number)[:-1] for number in range(first, 125_000)]
    assert len(tail) * len(LINE % 0) >= CAP // 2


@pytest.mark.parametrize("size", [1000, 65536, 1 << 20])
def test_who_reads_meanwhile_sees_no_zeros(tmp_path: Path, size: int) -> None:
    rank = Rank(tmp_path)
    rank.write(60_000)
    CutLog(rank.log).keep_within(CAP)
    fd, offset, seen = os.open(rank.path, os.O_RDONLY), 0, b""
    while (read := read_data(fd, size, offset))[0]:
        data, offset = read
        seen += data
    os.close(fd)
    assert seen == rank.path.read_bytes().replace(b"\0", b"")
    assert seen.count(b"[ddp-run dropped ") == 1
    assert len(seen) < CAP


def test_at_the_end_the_zeros_are_left_out(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    cut = CutLog(rank.log)
    rank.write(60_000)
    cut.keep_within(CAP)
    before, status = rank.path.read_bytes(), rank.path.stat()
    told = read_tail(tmp_path, "attempt_0/rank_0/stderr.log", CAP // 4)
    cut.close_up()
    assert b"\0" not in rank.path.read_bytes()
    assert rank.path.read_bytes().split(b"\n")[-100:] == before.split(b"\n")[-100:]
    assert rank.path.read_bytes().count(b"\n") == before.count(b"\n")
    after = rank.path.stat()
    assert after.st_size < CAP
    assert (after.st_mtime_ns, after.st_mode) == (status.st_mtime_ns, status.st_mode)
    assert os.listdir(rank.path.parent) == ["stderr.log"]
    assert read_tail(tmp_path, "attempt_0/rank_0/stderr.log", CAP // 4) == told, "a replay finds the same lines"
    assert told.first_line == before.count(b"\n") - len(told.lines) + 1


def test_a_rank_that_still_writes_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path)
    cut = CutLog(rank.log)
    rank.write(60_000)
    cut.keep_within(CAP)
    copy = log_cutter._copy

    def slow_copy(source: int, to: int, start: int, stop: int) -> None:
        copy(source, to, start, stop)
        rank.write(1)

    monkeypatch.setattr(log_cutter, "_copy", slow_copy)
    cut.close_up()
    assert rank.path.read_bytes().endswith(LINE % 60_001)
    assert os.listdir(rank.path.parent) == ["stderr.log"]


def test_lines_without_an_end(tmp_path: Path) -> None:
    """A progress bar that only returns to the beginning of its line."""
    rank = Rank(tmp_path)
    cut = CutLog(rank.log)
    os.write(rank.fd, b"\r  7%|#  |" * 400_000)
    cut.keep_within(CAP)
    cut.close_up()
    head, notice, empty, tail = rank.path.read_bytes().split(b"\n")
    assert (len(head), len(tail), empty) == (CAP // 4, CAP // 2, b"")
    assert notice.startswith(b"[ddp-run dropped 3.1 MiB here")


def test_a_log_that_starts_again(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    cut = CutLog(rank.log)
    rank.write(60_000)
    cut.keep_within(CAP)
    os.ftruncate(rank.fd, 0)
    os.lseek(rank.fd, 0, os.SEEK_SET)
    rank.write(100)
    assert not cut.keep_within(CAP)
    rank.write(20_000)
    assert cut.keep_within(CAP)
    assert rank.path.read_bytes().startswith(LINE % 60_000)


def test_only_files_of_the_run(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    cut = CutLog(rank.log)
    rank.write(60_000)
    cut.keep_within(CAP)
    other = tmp_path / "other"
    rank.path.rename(other)
    rank.path.symlink_to(other)
    before = other.read_bytes()
    rank.write(60_000)
    assert not cut.keep_within(CAP)
    with pytest.raises(OSError, match="not a regular file"):
        cut.close_up()
    assert other.read_bytes().startswith(before)
    assert rank.path.is_symlink()


def test_the_process(tmp_path: Path) -> None:
    """What it says, and that it leaves logs alone once an attempt is over."""
    first = Rank(tmp_path)
    first.write(40_000)
    process = subprocess.Popen(
        [sys.executable, "-P", log_cutter.__file__, str(tmp_path), str(CAP)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdin is not None and process.stdout is not None
    said = process.stdout.readline().split()
    assert said[:4] == [b"cut", b"0", b"0", b"stderr"]
    first.write(40_000)
    process.stdin.write(b"s")
    again = process.stdout.readline().split()
    assert int(again[4]) > int(said[4]) > CAP
    assert process.stdout.readline() == b"settled\n"
    first.write(40_000)
    second = Rank(tmp_path, attempt=1)
    second.write(40_000)
    assert process.stdout.readline().startswith(b"cut 0 0 stderr ")
    assert first.used > 3 * CAP
    process.stdin.close()
    assert process.wait(limit(60)) == 0
    assert b"\0" not in first.path.read_bytes()
    assert b"\0" in second.path.read_bytes(), "its rank may still write"


def test_a_file_system_without_holes_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The real answer of such a file system: tests/system."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(log_cutter, "_punch", refuse)
    rank = Rank(tmp_path)
    rank.write(20_000)
    before = rank.path.read_bytes()
    assert not log_cutter._keep_within(CAP, [CutLog(rank.log)])
    assert rank.path.read_bytes() == before
    assert capfd.readouterr().out == (
        f"logs are not held within --log-size-cap: cannot drop a part of {rank.path}: Operation not supported\n"
    )


def test_a_hole_of_a_terabyte_costs_no_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rank = Rank(tmp_path)
    rank.write(3)
    os.lseek(rank.fd, 1 << 40, os.SEEK_SET)
    os.write(rank.fd, b"\n")
    rank.write(60_000)
    shown = Shown(tmp_path, None, None, 0, None, False)
    assert show_run(shown)
    lines = capfd.readouterr().out.splitlines()
    assert lines[:3] == [f"[rank0]: {(LINE % number)[:-1].decode()}" for number in range(3)]
    assert len(lines) == 60_004
    assert show_run(Shown(tmp_path, None, None, 0, 100_000, False))
    assert capfd.readouterr().out.endswith(f"[rank0]: {(LINE % 60_002)[:-1].decode()}\n")
    assert read_tail(tmp_path, "attempt_0/rank_0/stderr.log", 1000).number(0) == 60_004 - 9
