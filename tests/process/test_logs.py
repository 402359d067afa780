from __future__ import annotations

import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from tests.waiting import limit, wait_until

from ddp_run.record.run_folder import RunFolder
from ddp_run.tell.tail import POLL_S, Chunk, Tailer, pause_s
from ddp_run.values.lines import STREAMS

NOW = datetime(2026, 11, 21, 8, 15, 0)


@pytest.fixture(params=["inotify", "polling"])
def tailer(request: pytest.FixtureRequest) -> Iterator[Tailer]:
    with Tailer(polling=request.param == "polling") as tailer:
        yield tailer


def wait_for(tailer: Tailer, size: int) -> list[Chunk]:
    """Chunks until `size` bytes have come, woken as the supervisor is."""
    chunks: list[Chunk] = []
    end = time.monotonic() + limit(60)
    while sum(len(chunk.data) for chunk in chunks) < size and time.monotonic() < end:
        fd, pause = tailer.fileno(), tailer.wait_s()
        select.select([] if fd is None else [fd], [], [], 5 if pause is None else pause)
        chunks += tailer.read()
    return chunks


def to_the_ends(tailer: Tailer, budget: int = 1 << 20) -> list[Chunk]:
    tailer.stop_at_ends()
    return [chunk for chunks in iter(lambda: tailer.read(budget), []) for chunk in chunks]


def text(chunks: list[Chunk]) -> bytes:
    return b"".join(chunk.data for chunk in chunks)


def test_run_folders_of_one_second_differ_and_latest_is_the_newest(tmp_path: Path) -> None:
    log_dir = tmp_path / "new" / "logs"
    runs = [RunFolder.create(log_dir, NOW) for _ in range(20)]
    assert len({run.path for run in runs}) == 20
    for run in runs:
        assert run.path.name.startswith("20261121-081500-")
        assert len(run.run_id) == 20
        assert run.path.is_absolute()
        assert run.path.stat().st_mode & 0o777 == 0o700
        assert run.note is None
    assert os.readlink(log_dir / "latest") == runs[-1].run_id
    assert sorted(os.listdir(log_dir)) == sorted([*(run.run_id for run in runs), "latest"])
    assert runs[0].attempt_folder(2) == runs[0].path / "attempt_2"
    assert (runs[0].path / "attempt_2").is_dir()


def test_a_real_folder_named_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    run = RunFolder.create(tmp_path, NOW)
    assert run.path.is_dir()
    assert run.note is not None
    assert str(tmp_path / "latest") in run.note
    assert sorted(os.listdir(tmp_path)) == sorted([run.run_id, "latest"])


def test_a_log_folder_that_is_a_file_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as caught:
        RunFolder.create(tmp_path / "file" / "logs", NOW)
    assert str(tmp_path / "file") in str(caught.value)


def test_what_a_process_writes_arrives_unchanged(tmp_path: Path, tailer: Tailer) -> None:
    program = "import os\nfor i in range(200): os.write(1, bytes(range(256)) * 40); os.write(2, b'%d\\n' % i)"
    files = [tmp_path / "stdout.log", tmp_path / "stderr.log"]
    with files[0].open("wb") as out, files[1].open("wb") as err:
        child = subprocess.Popen([sys.executable, "-c", program], stdout=out, stderr=err)
    tailer.add(3, 1, "stdout", files[0])
    tailer.add(3, 1, "stderr", files[1])
    expected = [bytes(range(256)) * 40 * 200, b"".join(b"%d\n" % i for i in range(200))]
    chunks = wait_for(tailer, len(expected[0]) + len(expected[1]))
    assert child.wait() == 0
    assert text([chunk for chunk in chunks if chunk.stream == "stdout"]) == expected[0]
    assert text([chunk for chunk in chunks if chunk.stream == "stderr"]) == expected[1]
    assert {(chunk.rank, chunk.local_rank) for chunk in chunks} == {(3, 1)}
    assert [chunk.fresh for chunk in chunks].count(True) == 2


def test_a_file_and_folder_that_come_later(tmp_path: Path, tailer: Tailer) -> None:
    file = tmp_path / "attempt_0" / "rank_0" / "stdout.log"
    tailer.add(0, 0, "stdout", file)
    assert tailer.read() == []
    assert (tailer.wait_s() or 0) <= POLL_S
    file.parent.mkdir(parents=True)
    file.write_bytes(b"hello\n")
    assert text(wait_for(tailer, 6)) == b"hello\n"


def test_the_budget_bounds_a_read_and_every_file_gets_its_turn(tmp_path: Path, tailer: Tailer) -> None:
    for rank in range(4):
        (tmp_path / f"{rank}").write_bytes(b"%d" % rank * 1_000_000)
        tailer.add(rank, rank, "stdout", tmp_path / f"{rank}")
    first = tailer.read(400_000)
    assert sum(len(chunk.data) for chunk in first) == 400_000
    assert {chunk.rank for chunk in first} == {0, 1, 2, 3}
    assert tailer.wait_s() == 0
    rest = to_the_ends(tailer, 100_000)
    for rank in range(4):
        assert text([chunk for chunk in first + rest if chunk.rank == rank]) == b"%d" % rank * 1_000_000


def test_a_truncated_file_starts_again(tmp_path: Path, tailer: Tailer) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"long first text\n")
    tailer.add(0, 0, "stdout", file)
    assert text(wait_for(tailer, 16)) == b"long first text\n"
    file.write_bytes(b"short\n")
    chunks = wait_for(tailer, 6)
    assert text(chunks) == b"short\n"
    assert chunks[0].fresh
    assert [str(file) in note and "truncated" in note for note in tailer.take_notes()] == [True]
    assert tailer.take_notes() == []


def test_the_hole_that_a_truncation_leaves_is_skipped(tmp_path: Path, tailer: Tailer) -> None:
    file = tmp_path / "log"
    with file.open("wb", buffering=0) as writer:
        writer.seek(64 << 20)
        writer.write(b"before\n")
        tailer.add(0, 0, "stdout", file)
        size = 4096 + 7
        text_before = text(wait_for(tailer, 7))
        assert text_before.endswith(b"before\n")
        assert len(text_before) <= size + (1 << 20)


def test_a_replaced_file_is_read_to_its_end_and_then_the_new_one(tmp_path: Path, tailer: Tailer) -> None:
    file = tmp_path / "log"
    old = file.open("wb", buffering=0)
    old.write(b"one ")
    tailer.add(0, 0, "stdout", file)
    assert text(wait_for(tailer, 4)) == b"one "
    old.write(b"two ")
    (tmp_path / "new").write_bytes(b"three")
    (tmp_path / "new").replace(file)
    chunks = wait_for(tailer, 9)
    assert text(chunks) == b"two three"
    assert [chunk.fresh for chunk in chunks] == [False, True]
    assert any("replaced" in note for note in tailer.take_notes())
    with file.open("ab") as new:
        new.write(b" four")
    assert text(wait_for(tailer, 5)) == b" four"
    old.close()


def test_a_removed_file_is_still_followed_and_its_successor_too(tmp_path: Path, tailer: Tailer) -> None:
    file = tmp_path / "log"
    with file.open("wb", buffering=0) as writer:
        tailer.add(0, 0, "stdout", file)
        tailer.read()
        file.unlink()
        tailer.read()
        writer.write(b"unseen name\n")
        assert text(wait_for(tailer, 12)) == b"unseen name\n"
        file.write_bytes(b"again\n")
        assert text(wait_for(tailer, 6)) == b"again\n"


def test_64_files(tmp_path: Path, tailer: Tailer) -> None:
    for number in range(64):
        tailer.add(number, number, "stdout", tmp_path / f"{number}")
    for number in range(64):
        (tmp_path / f"{number}").write_bytes(b"%02d" % number)
    chunks = wait_for(tailer, 128)
    assert sorted(chunk.data for chunk in chunks) == [b"%02d" % number for number in range(64)]


def test_idle_files_wake_nobody(tmp_path: Path) -> None:
    with Tailer() as tailer:
        for rank in range(8):
            for stream in ("stdout", "stderr"):
                (tmp_path / f"{rank}{stream}").write_bytes(b"x")
                tailer.add(rank, rank, "stdout", tmp_path / f"{rank}{stream}")
        wait_for(tailer, 16)
        tailer.read()
        fd = tailer.fileno()
        if fd is None or tailer.wait_s() is not None:
            pytest.skip("inotify does not work on this file system")
        assert select.select([fd], [], [], 0.3)[0] == []


def test_reading_opens_no_descriptor_that_children_inherit_and_leaks_none(tmp_path: Path) -> None:
    def open_fds() -> set[int]:
        return {int(name) for name in os.listdir("/proc/self/fd")}

    before = open_fds()
    (tmp_path / "log").write_bytes(b"x")
    with Tailer() as tailer:
        tailer.add(0, 0, "stdout", tmp_path / "log")
        tailer.read()
        opened = {fd for fd in open_fds() - before if os.path.exists(f"/proc/self/fd/{fd}")}
        assert opened
        assert not any(os.get_inheritable(fd) for fd in opened)
    assert open_fds() <= before | {max(before) + 1}


def test_files_of_a_rank_that_starts_again_are_read_to_their_end_and_closed(tmp_path: Path, tailer: Tailer) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for restart in range(20):
        path = tmp_path / f"restart_{restart}.log"
        tailer.add(0, 0, "stdout", path)
        path.write_bytes(b"x" * 1000)
        tailer.retire(0)
        if restart % 2:  # else it has to wait for the next read
            assert len(text(wait_for(tailer, 1000))) >= 1000
    tailer.read()
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_stays_bounded_while_nobody_reads(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(4 << 30)
        file.seek(0)
        for _ in range(64):
            file.write(b"x" * (1 << 20))
    with Tailer() as tailer:
        tailer.add(0, 0, "stdout", tmp_path / "log")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(10):
            assert len(text(tailer.read(1 << 20))) == 1 << 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


def test_a_handle_that_goes_stale_is_told_of_once_and_the_file_goes_on(tmp_path: Path, tailer: Tailer) -> None:
    """As when a file server comes back (ESTALE): every call on the descriptor fails, and the path is another's turn."""
    file = tmp_path / "log"
    file.write_bytes(b"one ")
    tailer.add(0, 0, "stdout", file)
    assert text(wait_for(tailer, 4)) == b"one "
    before = set(os.listdir("/proc/self/fd"))
    with file.open("ab", buffering=0) as writer:
        for more in (b"two ", b"three "):
            os.close(tailer._tails[0].fd)
            writer.write(more)
            chunks = wait_for(tailer, len(more))
            assert text(chunks) == more
            assert not any(chunk.fresh for chunk in chunks)
            assert len(tailer.take_notes()) == 1
        os.close(tailer._tails[0].fd)
        writer.write(b"four")
    assert text(to_the_ends(tailer)) == b"four"
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_no_regular_file_is_not_read_and_told_of_once(tmp_path: Path, tailer: Tailer, kind: str) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"written before\n")
    tailer.add(0, 0, "stdout", log)
    assert text(wait_for(tailer, 15)) == b"written before\n"
    log.unlink()
    if kind == "folder":
        log.mkdir()
    elif kind == "pipe":
        os.mkfifo(log)
    else:
        log.symlink_to("/dev/zero")
    for _ in range(5):
        time.sleep(2 * POLL_S)
        assert tailer.read() == []
    assert to_the_ends(tailer) == []
    assert [note.endswith(": not a regular file") for note in tailer.take_notes()] == [True]


def test_a_link_is_followed_only_where_it_was_made(tmp_path: Path, tailer: Tailer) -> None:
    (tmp_path / "users").write_bytes(b"here\n")
    (tmp_path / "log").symlink_to(tmp_path / "users")
    (tmp_path / "other").symlink_to(tmp_path / "users")
    tailer.add(0, 0, "stdout", tmp_path / "log", links=[str(tmp_path / "users")])
    tailer.add(1, 1, "stdout", tmp_path / "other", links=["/elsewhere"])
    chunks = wait_for(tailer, 5)
    assert [(chunk.rank, chunk.data) for chunk in chunks] == [(0, b"here\n")]


def test_at_the_end_only_what_is_there_is_read_whoever_still_writes(tmp_path: Path, tailer: Tailer) -> None:
    (tmp_path / "log").write_bytes(b"x" * 1000)
    tailer.add(0, 0, "stdout", tmp_path / "log")
    tailer.stop_at_ends()
    read = b""
    with (tmp_path / "log").open("ab", buffering=0) as file:
        while chunks := tailer.read(100):
            read += text(chunks)
            file.write(b"y" * 1000)
    assert read == b"x" * 1000


def test_a_stream_that_is_not_asked_for_stays_in_its_file(tmp_path: Path, tailer: Tailer) -> None:
    for stream in STREAMS:
        (tmp_path / stream).write_bytes(stream.encode())
        tailer.add(0, 0, stream, tmp_path / stream)
    assert text(tailer.read(streams=STREAMS[1:])) == b"stderr"
    assert (tailer.wait_s(STREAMS[1:]) or 0, tailer.wait_s(())) != (0, 0)
    assert tailer.wait_s() == 0
    assert text(tailer.read(streams=())) == b""
    assert text(tailer.read()) == b"stdout"


def test_files_that_rest_are_looked_at_less_often(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one ")
    with Tailer(polling=True) as tailer:
        tailer.add(0, 0, "stdout", tmp_path / "log")
        tailer.add(1, 1, "stdout", tmp_path / "never made")
        assert text(wait_for(tailer, 4)) == b"one "
        wait_until(lambda: tailer.read() == [] and (tailer.wait_s() or 0) > POLL_S, "a longer pause")
        with (tmp_path / "log").open("ab") as file:
            file.write(b"two")
        assert text(wait_for(tailer, 3)) == b"two"
        assert (tailer.wait_s() or 0) <= POLL_S
    assert [pause_s(quiet_s) for quiet_s in (0, 0.5, 5, 3600)] == [POLL_S, POLL_S, 0.5, 1.0]
