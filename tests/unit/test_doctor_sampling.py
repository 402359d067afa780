"""What a rank sees of a data path: equal for equal content, different where something differs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddp_run.doctor_ranks.sampling import sampled


def made(folder: Path) -> Path:
    (folder / "train").mkdir(parents=True)
    for number in range(5):
        (folder / "train" / f"{number}.bin").write_bytes(bytes([number]) * 300_000)
    (folder / "labels.txt").write_text("cat\n")
    return folder


def test_copies_are_equal(tmp_path: Path) -> None:
    one, other = (sampled(str(made(tmp_path / name)), full=False) for name in "ab")
    assert one == other
    assert (one["files"], one["bytes"]) == (6, 5 * 3 * (64 << 10) + 4)


@pytest.mark.parametrize("change", ["name", "size", "begin", "middle", "end", "missing"])
def test_a_difference_shows(tmp_path: Path, change: str) -> None:
    before = sampled(str(made(tmp_path / "a")), full=False)["hash"]
    file = tmp_path / "a" / "train" / "3.bin"
    match change:
        case "name":
            file.rename(file.with_name("x.bin"))
        case "size":
            os.truncate(file, 299_999)
        case "missing":
            file.unlink()
        case place:
            data = bytearray(file.read_bytes())
            data[{"begin": 0, "middle": 150_000, "end": 299_999}[place]] ^= 1
            file.write_bytes(data)
    assert sampled(str(tmp_path / "a"), full=False)["hash"] != before


def test_a_single_file_and_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "one.bin").write_bytes(b"x" * 10)
    assert sampled(str(tmp_path / "one.bin"), full=False)["bytes"] == 10
    (tmp_path / "empty").mkdir()
    assert sampled(str(tmp_path / "empty"), full=False)["files"] == 0


@pytest.mark.parametrize("size", [1, 100_000, 3 * (64 << 10), 3 * (64 << 10) + 1])
def test_no_byte_counts_twice(tmp_path: Path, size: int) -> None:
    (tmp_path / "one.bin").write_bytes(b"x" * size)
    assert sampled(str(tmp_path / "one.bin"), full=False)["bytes"] == min(size, 3 * (64 << 10))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert sampled(str(tmp_path / "none"), full=False)["error"].startswith("No such file or directory: ")


def test_a_large_folder_is_read_in_part(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number:03}").write_text(str(number))
    assert sampled(str(tmp_path), full=False)["files"] == 64
    assert sampled(str(tmp_path), full=True)["files"] == 100
