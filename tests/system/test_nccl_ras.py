"""A job that hangs while NCCL's RAS is asked: its words are evidence, kept in `ras.txt`.

NCCL needs GPUs; here gloo stands in for it under a name of that family, and a server speaks RAS' protocol at the
address that NCCL_RAS_ADDR gives, in the words of NCCL 2.27. tests/gpu asks the real one.
"""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Callable

import pytest

from .conftest import Launcher
from .test_hangs import names_its_threads

PROGRAM = """
import threading
import torch
import torch.distributed as dist

def make(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)

dist.Backend.register_backend("nccl2", make, devices=["cpu"])
dist.init_process_group("nccl2")
dist.all_reduce(torch.ones(3))
if dist.get_rank() == 1:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
dist.all_reduce(torch.ones(3))
"""
ANSWER = """\
NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 2 -- GPU 0 managed by process {0} on node 127.0.0.1
  Rank 1 has launched up to operation 1 -- GPU 1 managed by process {1} on node 127.0.0.1

"""


class Server:
    """Answers every caller with `answer()`; a null answer leaves the caller waiting."""

    def __init__(self, answer: Callable[[], str | None]) -> None:
        self.calls = 0
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._held: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listening.accept()
            except OSError:
                return
            self.calls += 1
            self._held.append(caller)
            text = self._answer()
            if text is None:
                continue
            caller.recv(100)
            caller.sendall(b"SERVER PROTOCOL 2\n")
            caller.recv(100)
            caller.sendall(b"OK\n" + text.encode())
            caller.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._held:
            each.close()
        self._thread.join(5)


@pytest.mark.slow_system
@pytest.mark.parametrize("kind", ["ours", "anothers", "silent", "off"])
def test_a_hang_with_nccls_words(ddp: Launcher, kind: str) -> None:
    def answer() -> str | None:
        pids = [event["pid"] for event in sorted(running.events("RankStarted"), key=lambda event: event["rank"])]
        return None if kind == "silent" else ANSWER.format(*(pids if kind == "ours" else (1, 2)))

    server = Server(answer)
    try:
        folder = ddp.cwd / "script"
        folder.mkdir()
        (folder / "train.py").write_text(PROGRAM)
        off = {"NCCL_RAS_ENABLE": "0"} if kind == "off" else {}
        words = ("--nproc-per-node", "2", "--hang-timeout", "16", folder / "train.py")
        running = ddp.start(*words, env={"NCCL_RAS_ADDR": server.address, **off})
        outcome = running.wait()
    finally:
        server.close()
    assert (outcome.code, outcome.verdict["cause"]) == (124, "hang")
    assert outcome.verdict["first_failure"]["rank"] == 1
    (stall,) = outcome.named("StallSeen")
    assert (stall["culprits"], stall["hung"]) == ([1], names_its_threads())
    assert server.calls == (0 if kind == "off" else 1)
    assert outcome.folder is not None
    kept = outcome.folder / "attempt_0" / "ras.txt"
    notes = " ".join(event["text"] for event in outcome.named("Noted"))
    assert kept.exists() is (kind == "ours")
    if kind == "ours":
        assert "MISMATCH" in kept.read_text()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert any("Rank 1 has launched up to operation 1" in quote["text"] for quote in outcome.verdict["evidence"])
        assert "Rank 1 has launched up to operation 1" in outcome.stderr
    assert ("answered for another job" in notes) is (kind == "anothers")
    assert ("did not respond in time" in notes) is (kind == "silent")
