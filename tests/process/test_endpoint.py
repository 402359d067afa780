"""What answers at a c10d rendezvous' endpoint: real programs on real ports, before ranks start."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.ports import unused_port
from tests.waiting import limit

from ddp_run.evidence.model import Evidence
from ddp_run.judge.diagnose import judge
from ddp_run.record.events import EndpointTaken, Event, LocalRank, MonotonicNs, PeerFailed, Rank, RankStarted
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes import reach
from ddp_run.supervise.nodes.place import Ears
from ddp_run.supervise.nodes.reach import Endpoint

STORES = """
import torch.distributed as dist
stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=uv) for uv in (True, False)]
print(*(store.port for store in stores), flush=True)
input()
"""
"""Both kinds that torch has."""


class Node:
    """A node that waits at an endpoint, and what it told."""

    def __init__(self, loop: Loop, host: str, port: int) -> None:
        self.loop = loop
        self.events: list[Event] = []
        self.told: list[PeerFailed] = []
        self.said: list[str] = []
        ears = Ears(loop, self.events.append, self.events, self.said.append, self._end, lambda _s: None, lambda: 0)
        self.endpoint = Endpoint(host, port, ears)

    def _end(self, attempt: int, event: Event) -> None:
        assert isinstance(event, PeerFailed)
        self.told.append(event)

    def serve(self, until: Callable[[], bool], within_s: float = 20.0) -> bool:
        deadline = time.monotonic() + limit(within_s)
        while not until() and time.monotonic() < deadline:
            for wakeup in self.loop.wait(0.05):
                assert not isinstance(wakeup, int)
                wakeup()
        return until()

    @property
    def taken(self) -> list[EndpointTaken]:
        return [event for event in self.events if isinstance(event, EndpointTaken)]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    for name, seconds in (("FIRST_S", 0.0), ("_AGAIN_S", 0.2), ("_ANSWER_S", 1.0)):
        monkeypatch.setattr(reach, name, seconds)
    with Loop([]) as made:
        yield made


@contextmanager
def accepting(speak: Callable[[socket.socket], None]) -> Iterator[int]:
    """A program that takes connections; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            while True:
                try:
                    speak(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@contextmanager
def an_http_server() -> Iterator[int]:
    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_said: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("program", "heard"),
    [
        (an_http_server, "it answered `"),
        (lambda: accepting(lambda taken: taken.sendall(b"SSH-2.0-Open\r\n")), "it answered `SSH-2.0-Open`"),
        (lambda: accepting(lambda taken: taken.sendall(b"\x1b[2J\x00\xff")), "it answered `"),
    ],
    ids=["http", "ssh", "bytes"],
)  # fmt: skip
def test_another_program_ends_the_job(loop: Loop, program: Callable[[], object], heard: str) -> None:
    with program() as port:  # type: ignore[attr-defined]
        node = Node(loop, "localhost", port)
        assert node.serve(lambda: bool(node.told))
    (taken,) = node.taken
    assert taken.said.startswith(f"the program at localhost:{port} is not torch's rendezvous: {heard}")
    assert taken.said.isprintable()
    assert [event.said for event in node.told] == [taken.said]
    verdict = judge(Evidence(endpoint_taken=taken))
    assert (verdict.outcome, verdict.exit_code, verdict.cause) == ("refused", 2, "port-in-use")
    assert verdict.title == taken.said
    assert f"ss -ltnp 'sport = :{port}'" in verdict.advice[0]


def test_a_store_is_left_alone(loop: Loop) -> None:
    with subprocess.Popen([sys.executable, "-c", STORES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stores:
        assert stores.stdout is not None
        for port in map(int, stores.stdout.readline().split()):
            node = Node(loop, "127.0.0.1", port)
            assert node.serve(lambda: node.endpoint._nonce != b"")  # noqa: B023
            assert not node.serve(lambda: bool(node.told or node.said), 2.5)  # noqa: B023
            assert node.endpoint._socket is None
            with socket.create_connection(("127.0.0.1", port)) as client:  # as a store that answers late is asked
                client.sendall(reach._GREETING + b"\1\2\3\4" + reach._PROVOKES)
                client.settimeout(limit(20))
                answer = b""
                while len(answer) < 8:
                    answer += client.recv(8)
            assert answer == b"\1\2\3\4" + reach._PROVOKES[1:]
        stores.kill()


def test_a_program_that_says_nothing_is_told_of_and_left(loop: Loop) -> None:
    kept: list[socket.socket] = []
    with accepting(kept.append) as port:
        node = Node(loop, "127.0.0.1", port)
        assert node.serve(lambda: len(kept) >= 2)
        assert node.said == [
            f"waiting for the rendezvous: 127.0.0.1:{port} takes connections, but doesn't answer as torch's store does"
        ]
        assert not node.told


def test_a_program_that_hangs_up_may_be_a_proxy(loop: Loop) -> None:
    with accepting(lambda taken: taken.close()) as port:
        node = Node(loop, "127.0.0.1", port)
        assert node.serve(lambda: bool(node.said))
        assert not node.serve(lambda: bool(node.told) or len(node.said) > 1, 1.0)
    assert "hangs up" in node.said[0]


def test_a_store_may_answer_in_pieces(loop: Loop) -> None:
    def answer(taken: socket.socket) -> None:
        nonce = taken.recv(64)[len(reach._GREETING) :]
        taken.sendall(nonce[:1])
        time.sleep(0.3)
        taken.sendall(nonce[1:])

    with accepting(answer) as port:
        node = Node(loop, "127.0.0.1", port)
        assert node.serve(lambda: len(node.endpoint._heard) == 4)
        assert not node.told
        assert node.endpoint._socket is None


def test_nothing_is_said_of_this_hosts_own_port_before_its_agent_listens(loop: Loop) -> None:
    node = Node(loop, "127.0.0.1", unused_port())
    assert not node.serve(lambda: bool(node.said or node.told), 1.0)


def test_ranks_that_start_end_the_look(loop: Loop) -> None:
    kept: list[socket.socket] = []
    with accepting(kept.append) as port:
        node = Node(loop, "127.0.0.1", port)
        assert node.serve(lambda: bool(kept))
        node.endpoint.hear(RankStarted(MonotonicNs(1), Rank(0), LocalRank(0), 0, 7, 1, 1, "rank_0"))
        assert not node.serve(lambda: len(kept) > 1 or bool(node.said), 2.5)
