"""A question to NCCL's RAS over a real socket, to servers that answer well, badly, late or not at all."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.waiting import wait_until

from ddp_run.observe.nccl_ras import addresses, answer, ask
from ddp_run.values.helper_process import HelperProcess, reap

Serve = Callable[[socket.socket], None]
ANSWER = b"NCCL version 2.27.5 compiled with CUDA 12.9\n\nErrors\n======\n\n"


@contextmanager
def server(serve: Serve) -> Iterator[int]:
    """Serves one caller on a port of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            try:
                with listening.accept()[0] as caller:
                    serve(caller)
            except OSError:
                pass

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield int(listening.getsockname()[1])
        listening.close()
        thread.join(5)


def asked(port: int, wait_s: float = 60.0) -> tuple[str, str | None]:
    return ended(ask((("127.0.0.1", port),), within_s=wait_s))


def ended(question: HelperProcess) -> tuple[str, str | None]:
    wait_until(lambda: question.read()[1] or question.late, "the end of the question")
    told = answer(question)
    question.end()
    reap(question.pid)
    return told


def lines(caller: socket.socket, count: int) -> list[bytes]:
    got = b""
    while got.count(b"\n") < count:
        part = caller.recv(4096)
        if not part:
            break
        got += part
    return got.splitlines()


def as_nccl_does(*parts: bytes, pause_s: float = 0.0, protocol: bytes = b"2") -> Serve:
    def serve(caller: socket.socket) -> None:
        assert lines(caller, 1) == [b"CLIENT PROTOCOL 2"]
        caller.sendall(b"SERVER PROTOCOL " + protocol + b"\n")
        assert lines(caller, 2) == [b"TIMEOUT 2", b"VERBOSE STATUS"]
        caller.sendall(b"OK\n")
        for part in parts:
            time.sleep(pause_s)
            caller.sendall(part)

    return serve


@pytest.mark.parametrize("protocol", [b"2", b"3"])
def test_an_answer(protocol: bytes) -> None:
    with server(as_nccl_does(ANSWER, b"Warnings\n", protocol=protocol)) as port:
        assert asked(port) == (ANSWER.decode() + "Warnings\n", None)


def test_an_answer_in_pieces() -> None:
    with server(as_nccl_does(*(bytes([byte]) for byte in ANSWER[:40]), pause_s=0.005)) as port:
        assert asked(port) == (ANSWER[:40].decode(), None)


def test_an_answer_that_comes_too_late_is_used_as_far_as_it_came() -> None:
    def breaks_off(caller: socket.socket) -> None:
        as_nccl_does(ANSWER)(caller)
        caller.recv(100)  # until it hangs up

    with server(breaks_off) as port:
        assert asked(port, wait_s=3) == (ANSWER.decode(), "NCCL RAS did not respond in time")


def test_it_is_never_waited_for() -> None:
    with server(silent) as port:
        question = ask((("127.0.0.1", port),), within_s=3600)
        assert [question.read() for _ in range(3)] == [(b"", False)] * 3
        question.end()  # hangs up
        reap(question.pid)


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = int(listening.getsockname()[1])
    assert asked(port) == ("", None)


def test_the_second_address_is_called_where_nobody_is_at_the_first() -> None:
    with server(as_nccl_does(ANSWER)) as port:
        assert ended(ask((("::1", port), ("127.0.0.1", port)), within_s=60)) == (ANSWER.decode(), None)


def silent(caller: socket.socket) -> None:
    caller.recv(100)
    caller.recv(100)  # until it hangs up


def closes(caller: socket.socket) -> None:
    caller.recv(100)


def other_service(caller: socket.socket) -> None:
    assert lines(caller, 1) == [b"CLIENT PROTOCOL 2"]  # and not a word more
    caller.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
    assert caller.recv(100) == b""


def noise(caller: socket.socket) -> None:
    caller.sendall(os.urandom(1 << 16))


def greets_and_closes(caller: socket.socket) -> None:
    caller.recv(100)
    caller.sendall(b"SERVER PROT")


def resets(caller: socket.socket) -> None:
    as_nccl_does(ANSWER)(caller)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    time.sleep(0.2)


@pytest.mark.parametrize(
    ("serve", "text", "why"),
    [
        (silent, "", "did not respond in time"),
        (closes, "", "closed the connection"),
        (other_service, "", "another service"),
        (noise, "", "another service"),
        (greets_and_closes, "", "closed the connection"),
        (resets, ANSWER.decode(), "connection failed"),
    ],
)
def test_no_answer(serve: Serve, text: str, why: str) -> None:
    with server(serve) as port:
        said, reason = asked(port, wait_s=1.0 if serve is silent else 60.0)
        assert said == text
        assert reason is not None
        assert why in reason


def test_a_flood_is_cut() -> None:
    with server(as_nccl_does(*[b"x" * (1 << 16)] * 40)) as port:
        text, why = asked(port)
        assert len(text) < 2 << 20
        assert why is not None
        assert "more than 1 MiB" in why


@pytest.mark.parametrize(
    ("environ", "places"),
    [
        ({}, (("127.0.0.1", 28028), ("::1", 28028))),
        ({"NCCL_RAS_ADDR": "localhost:5"}, (("127.0.0.1", 5), ("::1", 5))),
        ({"NCCL_RAS_ADDR": "10.0.0.1:5"}, (("10.0.0.1", 5),)),
        ({"NCCL_RAS_ADDR": "[fe80::1]:5"}, (("fe80::1", 5),)),
        ({"NCCL_RAS_ADDR": "0.0.0.0:5"}, (("127.0.0.1", 5),)),
        ({"NCCL_RAS_ADDR": "[::]:5"}, (("::1", 5),)),
        ({"NCCL_RAS_ADDR": "node1:5"}, ()),
        ({"NCCL_RAS_ADDR": "nonsense"}, ()),
        ({"NCCL_RAS_ADDR": "127.0.0.1:99999"}, ()),
        ({"NCCL_RAS_ENABLE": "0"}, ()),
        ({"NCCL_RAS_ENABLE": "1"}, (("127.0.0.1", 28028), ("::1", 28028))),
    ],
)
def test_where_a_rank_listens(environ: dict[str, str], places: tuple[tuple[str, int], ...]) -> None:
    assert addresses(environ) == places
