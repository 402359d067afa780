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

from ddp_run.record.events import (
    ExceptionInfo,
    MonotonicNs,
    Noted,
    Rank,
    RankFailed,
    RankPhase,
    RankStarted,
    RankUnwinds,
)
from ddp_run.supervise.inbox import Inbox, Said, clear_stale
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.ranks import RankProcess, Ranks

AT = time.monotonic_ns()
RANK_3 = {"at": AT, "folder": "attempt_0/restart_1/rank_3"}
HELLO: dict[str, Any] = {
    "event": "started",
    **RANK_3,
    "local_rank": 1,
    "world_size": 4,
    "local_world_size": 2,
    "group_rank": 0,
    "group_world_size": 2,
}
RAISED: dict[str, Any] = {"type": "ValueError", "message": "no", "file": "/a.py", "line": 3, "function": "f"}
FAILED: dict[str, Any] = {"event": "failed", **RANK_3, "code": 1, "exception": RAISED}
PHASE: dict[str, Any] = {"event": "phase", **RANK_3, "phase": "training"}
MISSED: dict[str, Any] = {"event": "missed", **RANK_3, "text": "hook: OSError: no"}


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Inbox() as inbox:
        yield inbox


def send(inbox: Inbox, message: bytes | dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect(str(inbox.path))
        channel.send(message if isinstance(message, bytes) else json.dumps(message).encode())


def said(inbox: Inbox) -> list[Said]:
    return [heard.said for heard in inbox.read()]


def test_what_ranks_say(inbox: Inbox) -> None:
    for message in (HELLO, FAILED, FAILED | {"exception": None}, FAILED | {"event": "unwinds"}, PHASE, MISSED):
        send(inbox, message)
    heard = inbox.read()
    assert {(each.attempt, each.restart, each.rank, each.sender) for each in heard} == {(0, 1, 3, os.getpid())}
    started, *others = (each.said for each in heard)
    assert isinstance(started, RankStarted)
    assert (started.rank, started.restart, started.pid) == (3, 1, os.getpid())
    assert others == [
        RankFailed(MonotonicNs(AT), Rank(3), 1, 1, ExceptionInfo("ValueError", "no", "/a.py", 3, "f")),
        RankFailed(MonotonicNs(AT), Rank(3), 1, 1, None),
        RankUnwinds(MonotonicNs(AT), Rank(3), 1, 1, ExceptionInfo("ValueError", "no", "/a.py", 3, "f")),
        RankPhase(MonotonicNs(AT), Rank(3), 1, "training"),
        Noted(MonotonicNs(AT), "rank 3 cannot be monitored: hook: OSError: no"),
    ]


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
    HELLO | {"world_size": 1 << 40},
    HELLO | {"folder": 3},
    HELLO | {"folder": "attempt_0/rank_-1"},
    HELLO | {"folder": "attempt_0/rank_1.5"},
    HELLO | {"folder": f"attempt_0/rank_{1 << 40}"},
    HELLO | {"folder": "attempt_0/rank_0\0"},
    HELLO | {"folder": "attempt_0/../../x/rank_0"},
    HELLO | {"folder": "/etc"},
    HELLO | {"folder": ""},
    FAILED | {"code": 1 << 40},
    FAILED | {"code": None},
    FAILED | {"code": 0},
    FAILED | {"code": -11},
    FAILED | {"event": "unwinds", "code": 0},
    FAILED | {"exception": []},
    FAILED | {"exception": RAISED | {"type": None}},
    FAILED | {"exception": RAISED | {"line": 1e999}},
    FAILED | {"exception": RAISED | {"line": -3}},
    FAILED | {"exception": RAISED | {"file": ["/a.py"]}},
    PHASE | {"phase": "asleep"},
    PHASE | {"phase": 3},
    MISSED | {"text": None},
    MISSED | {"folder": ""},
]


@pytest.mark.parametrize("message", BROKEN, ids=map(str, range(len(BROKEN))))
def test_what_is_not_of_our_form_is_dropped(inbox: Inbox, message: bytes | dict[str, Any]) -> None:
    send(inbox, message)
    send(inbox, PHASE)
    assert [type(event) for event in said(inbox)] == [RankPhase]


def test_a_file_that_cannot_be_is_not_known(inbox: Inbox) -> None:
    send(inbox, FAILED | {"exception": RAISED | {"file": "/a\0.py"}})
    (event,) = said(inbox)
    assert isinstance(event, RankFailed)
    assert event.exception == ExceptionInfo("ValueError", "no", None, 3, "f")


def test_a_time_to_come_is_now(inbox: Inbox) -> None:
    send(inbox, PHASE | {"at": 1 << 62})
    (event,) = said(inbox)
    assert AT <= event.at <= time.monotonic_ns()


@pytest.mark.parametrize("claimed", [1, 0, -1, os.getpid(), 1 << 40], ids=["first", "group", "all", "another", "none"])
def test_who_says_hello_is_the_kernels_word(inbox: Inbox, claimed: int) -> None:
    """A wrong pid would get the signals that are meant for a rank; one of another pid namespace is wrong here."""
    program = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(sys.argv[1]); "
    program += "s.send(sys.argv[2].encode())"
    hello = json.dumps(HELLO | {"pid": claimed})
    with subprocess.Popen([sys.executable, "-c", program, str(inbox.path), hello]) as sender:
        assert sender.wait(limit(60)) == 0
        (event,) = said(inbox)
        assert isinstance(event, RankStarted)
        assert event.pid == sender.pid


SENDER = """
import json, os, socket, sys
def send(message):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect(sys.argv[1])
        channel.send(message.encode())
for line in sys.stdin:
    words = json.loads(line)
    if words["forked"] and os.fork() == 0:
        send(words["message"])
        os._exit(0)
    if words["forked"]:
        os.wait()
    else:
        send(words["message"])
    print(flush=True)
"""


class Sender:
    """A process of the job that says what it is told to say."""

    def __init__(self, inbox: Inbox) -> None:
        words = [sys.executable, "-c", SENDER, str(inbox.path)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def say(self, message: dict[str, Any], *, forked: bool = False) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"message": json.dumps(message), "forked": forked}) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=limit(60))


class Job:
    """The ranks of attempt 0, and two processes: `own` is to be rank 3, `other` any other process of the job."""

    def __init__(self, inbox: Inbox, loop: Loop) -> None:
        self.inbox = inbox
        self.ranks = Ranks(0, loop, lambda: None, self.on_end)
        self.own, self.other = Sender(inbox), Sender(inbox)

    def on_end(self, process: RankProcess) -> None:
        process.alive = False

    def hears(self) -> list[bool]:
        """Whether each message counted as the rank's own word; who says hello becomes a rank by it."""
        counted = []
        for heard in self.inbox.read():
            counted.append(self.ranks.is_own_word(heard))
            if counted[-1] and isinstance(heard.said, RankStarted):
                self.ranks.add(heard.said)
        return counted


@pytest.fixture
def job(inbox: Inbox) -> Iterator[Job]:
    with Loop(()) as loop:
        job = Job(inbox, loop)
        yield job
        job.ranks.close()
    job.own.end()
    job.other.end()


def test_only_a_ranks_own_process_speaks_for_it(job: Job) -> None:
    job.own.say(FAILED)
    assert job.hears() == [False], "nobody has said hello yet"
    job.own.say(HELLO)
    job.own.say(FAILED)
    assert job.hears() == [True, True]
    job.other.say(FAILED)
    job.own.say(FAILED, forked=True)
    job.other.say(HELLO)
    assert job.hears() == [False, False, False]
    assert job.ranks.started == {3: job.own.pid}


def test_a_message_of_another_attempt_or_start_is_not_of_this_one(job: Job) -> None:
    """Of a rank that could not be ended: its datagram may be read an attempt later."""
    job.own.say(HELLO)
    assert job.hears() == [True]
    for folder in ("attempt_1/restart_1/rank_3", "attempt_0/rank_3", "attempt_0/restart_2/rank_3"):
        job.own.say(FAILED | {"folder": folder})
    job.other.say(HELLO | {"folder": "attempt_1/rank_2"})
    job.other.say(HELLO | {"folder": "attempt_0/rank_3"})
    assert job.hears() == [False] * 5


def test_a_rank_has_another_process_in_its_next_start_or_when_the_first_is_gone(job: Job) -> None:
    job.own.say(HELLO)
    job.other.say(HELLO | {"folder": "attempt_0/restart_2/rank_3"})
    assert job.hears() == [True, True]
    assert job.ranks.started == {3: job.other.pid}
    job.other.end()  # a wrapper may start its program once more
    job.own.say(HELLO | {"folder": "attempt_0/restart_2/rank_3"})
    assert job.hears() == [True]
    assert job.ranks.started == {3: job.own.pid}


KILLED = """
import os
import sys
from pathlib import Path
from ddp_run.supervise.inbox import Inbox, Said, clear_stale
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.ranks import RankProcess, Ranks
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
