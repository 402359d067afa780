"""What ranks send is input: anybody below ddp-run can write to the socket. Real datagrams."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import limit

from ddp_run.record.events import ExceptionInfo, MonotonicNs, Noted, Rank, RankFailed, RankPhase, RankStarted
from ddp_run.supervise.inbox import Inbox, clear_stale

AT = time.monotonic_ns()
HELLO: dict[str, Any] = {
    "event": "started",
    "at": AT,
    "rank": 3,
    "local_rank": 1,
    "restart": 0,
    "pid": os.getpid(),
    "world_size": 4,
    "local_world_size": 2,
    "folder": "attempt_0/restart_1/rank_3",
    "watched": 1,
    "stdout": None,
}
RAISED: dict[str, Any] = {"type": "ValueError", "message": "no", "file": "/a.py", "line": 3, "function": "f"}
FAILED: dict[str, Any] = {"event": "failed", "at": AT, "rank": 3, "restart": 0, "code": 1, "exception": RAISED}
PHASE: dict[str, Any] = {"event": "phase", "at": AT, "rank": 3, "restart": 0, "phase": "training"}
MISSED: dict[str, Any] = {"event": "missed", "at": AT, "rank": 3, "text": "hook: OSError: no"}


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Inbox() as inbox:
        yield inbox


def send(inbox: Inbox, message: bytes | dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect(str(inbox.path))
        channel.send(message if isinstance(message, bytes) else json.dumps(message).encode())


def test_what_ranks_say(inbox: Inbox) -> None:
    for message in (HELLO, FAILED, FAILED | {"exception": None}, PHASE, MISSED):
        send(inbox, message)
    failed = RankFailed(MonotonicNs(AT), Rank(3), 0, 1, ExceptionInfo("ValueError", "no", "/a.py", 3, "f"))
    started, *others = inbox.read()
    assert isinstance(started, RankStarted)
    assert (started.rank, started.pid, started.folder) == (3, os.getpid(), "attempt_0/restart_1/rank_3")
    assert others[0] == failed
    assert isinstance(others[1], RankFailed)
    assert others[1].exception is None
    assert others[2] == RankPhase(MonotonicNs(AT), Rank(3), 0, "training")
    assert others[3] == Noted(MonotonicNs(AT), "rank 3 cannot be monitored: hook: OSError: no")


BROKEN: list[bytes | dict[str, Any]] = [
    b"",
    b"\xff\xfe",
    b"[]",
    b"null",
    b'"started"',
    b"[" * 100_000,
    b'{"event":' * 20_000,
    b'{"event": ["started"]}',
    json.dumps(HELLO).replace(str(AT), "1e999").encode(),
    json.dumps(HELLO).replace(str(AT), "NaN").encode(),
    json.dumps(HELLO).replace(str(AT), "9" * 5000).encode(),
    HELLO | {"at": -1},
    HELLO | {"at": "1"},
    HELLO | {"at": True},
    HELLO | {"rank": -1},
    HELLO | {"rank": 1 << 40},
    HELLO | {"rank": 1.5},
    HELLO | {"restart": -1},
    HELLO | {"world_size": 1 << 40},
    HELLO | {"folder": "attempt_0/rank_0\0"},
    HELLO | {"folder": "attempt_0/../../x/rank_0"},
    HELLO | {"folder": "/etc"},
    HELLO | {"folder": ""},
    FAILED | {"code": 1 << 40},
    FAILED | {"code": None},
    FAILED | {"exception": []},
    FAILED | {"exception": RAISED | {"type": None}},
    FAILED | {"exception": RAISED | {"line": 1e999}},
    FAILED | {"exception": RAISED | {"line": -3}},
    FAILED | {"exception": RAISED | {"file": ["/a.py"]}},
    PHASE | {"phase": "asleep"},
    PHASE | {"phase": 3},
    MISSED | {"text": None},
    MISSED | {"rank": "3"},
]


@pytest.mark.parametrize("message", BROKEN, ids=map(str, range(len(BROKEN))))
def test_what_is_not_of_our_form_is_dropped(inbox: Inbox, message: bytes | dict[str, Any]) -> None:
    send(inbox, message)
    send(inbox, PHASE)
    assert [type(event) for event in inbox.read()] == [RankPhase]


def test_a_file_that_cannot_be_is_not_known(inbox: Inbox) -> None:
    send(inbox, FAILED | {"exception": RAISED | {"file": "/a\0.py"}})
    (event,) = inbox.read()
    assert isinstance(event, RankFailed)
    assert event.exception == ExceptionInfo("ValueError", "no", None, 3, "f")


def test_a_time_to_come_is_now(inbox: Inbox) -> None:
    send(inbox, PHASE | {"at": 1 << 62})
    (event,) = inbox.read()
    assert AT <= event.at <= time.monotonic_ns()


@pytest.mark.parametrize("claimed", [1, 0, -1, os.getpid(), 1 << 40], ids=["first", "group", "all", "another", "none"])
def test_who_says_hello_is_the_kernels_word(inbox: Inbox, claimed: int) -> None:
    """A wrong pid would get the signals that are meant for a rank; one of another pid namespace is wrong here."""
    program = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(sys.argv[1]); "
    program += "s.send(sys.argv[2].encode())"
    hello = json.dumps(HELLO | {"pid": claimed})
    with subprocess.Popen([sys.executable, "-c", program, str(inbox.path), hello]) as sender:
        assert sender.wait(limit(60)) == 0
        (event,) = inbox.read()
        assert isinstance(event, RankStarted)
        assert event.pid == sender.pid


KILLED = """
import os
import sys
from pathlib import Path
from ddp_run.supervise.inbox import Inbox, clear_stale
inbox = Inbox()
for folder in inbox.board_folders:
    for name in ("board_0_3", *sys.argv[1:]):
        (folder / name).write_bytes(bytes(4096))
print(inbox.folder)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def killed_run() -> Iterator[Callable[..., Path]]:
    """Makes a run that is killed, with these files beside its boards, and gives its folder.

    TMPDIR is the test's own, shared memory is not: runs of other tests clear it too.
    """
    names: list[str] = []

    def kill(*files: str) -> Path:
        done = subprocess.run([sys.executable, "-c", KILLED, *files], stdout=subprocess.PIPE, timeout=limit(60))
        folder = Path(done.stdout.decode().strip())
        names.append(folder.name)
        return folder

    yield kill
    for name in names:
        shutil.rmtree(Path("/dev/shm") / name, ignore_errors=True)


def test_folders_of_killed_runs_are_cleared(inbox: Inbox, killed_run: Callable[..., Path]) -> None:
    dead = [killed_run() for _ in range(2)]
    assert all(folder.is_dir() for folder in dead)
    clear_stale()
    assert not any(folder.exists() for folder in dead)
    assert not any((Path("/dev/shm") / folder.name).exists() for folder in dead)
    send(inbox, PHASE)
    assert len(inbox.read()) == 1, "a living one stays"


def test_boards_whose_socket_folder_somebody_removed_are_cleared_too(
    inbox: Inbox, killed_run: Callable[..., Path]
) -> None:
    """Temporary files go by their age or with a container; shared memory may stay."""
    dead = killed_run()
    shutil.rmtree(dead)
    clear_stale()
    assert not (Path("/dev/shm") / dead.name).exists()
    assert (Path("/dev/shm") / inbox.folder.name).is_dir(), "that of a living run stays"


def test_boards_that_may_be_somebody_elses_are_left_alone(inbox: Inbox, killed_run: Callable[..., Path]) -> None:
    dead = killed_run("weights.pt")
    shutil.rmtree(dead)
    clear_stale()
    assert {file.name for file in (Path("/dev/shm") / dead.name).iterdir()} == {"board_0_3", "weights.pt"}


@pytest.mark.parametrize("how", ["mode", "name", "link", "file", "host", "owner", "unmarked", "folder"])
def test_what_may_be_somebody_elses_is_left_alone(
    inbox: Inbox, tmp_path: Path, killed_run: Callable[..., Path], how: str
) -> None:
    folder = killed_run()
    match how:
        case "mode":
            folder.chmod(0o755)
        case "name":
            folder = folder.rename(folder.with_name(folder.name + "0"))
        case "link":
            moved = folder.rename(tmp_path / "moved")
            folder.symlink_to(moved)
        case "file":
            (folder / "weights.pt").write_text("")
        case "host":
            (folder / "host").write_text("another machine's, on a shared file system\n")
        case "owner" if os.getuid() == 0:
            os.chown(folder, 65534, 65534)
        case "owner":
            pytest.skip("only root can give a folder away")
        case "unmarked":
            (folder / "host").unlink()
        case _:
            (folder / "board_1_1").mkdir()
    before = sorted(folder.iterdir())
    clear_stale()
    assert sorted(folder.iterdir()) == before
