"""A rank that aborted or crashed by itself, where the only text is that of the peers that lost it."""

from __future__ import annotations

import pytest

from ddp_run import explain

LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2312"
RAISED = f"""Traceback (most recent call last):
  File "train.py", line 9, in <module>
    dist.all_reduce(x)
RuntimeError: {LOST}"""
WARNED = f"[W1122 10:00:00.000000000 ProcessGroupGloo.cpp:1] {LOST}"
STORE = "[rank0]:[W TCPStore.cpp:125] recvValue failed on SocketImpl(fd=3): Failed to recv, got 0 bytes"
ABORTED = f"terminate called after throwing an instance of 'std::runtime_error'\n  what():  {LOST}"
FAILURE = """[{number}]:
  time      : 2026-01-01_00:00:00
  host      : node-a
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : Signal received by PID {pid}"""


def box(*ends: tuple[int, int]) -> str:
    """The summary of (rank, code), the root first; torch prints it last."""
    shown = [
        FAILURE.format(number=number, rank=rank, code=code, pid=70 + rank) for number, (rank, code) in enumerate(ends)
    ]
    border, line = "=" * 60, "-" * 60
    head = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", border, "train.py FAILED", line]
    others = ["Failures:", *(shown[1:] or ["  <NO_OTHER_FAILURES>"]), line]
    return "\n".join([*head, *others, "Root Cause (first observed failure):", shown[0], border])


def by_rank(rank: int, text: str) -> str:
    return "\n".join(f"[rank{rank}]: {line}" for line in text.split("\n"))


@pytest.mark.parametrize(("code", "cause"), [(-6, "native-abort"), (-11, "segfault")])
@pytest.mark.parametrize("said", [RAISED, WARNED, STORE, by_rank(0, RAISED), f"{WARNED}\n{by_rank(0, RAISED)}"])
@pytest.mark.parametrize("others", [(), ((0, 1),), ((0, -15),)])
def test_its_end_is_the_cause(said: str, code: int, cause: str, others: tuple[tuple[int, int], ...]) -> None:
    found = explain("\n".join(["step 1", said, box((1, code), *others)]))
    first = found.first_failure
    assert (found.cause, first and first.rank, first and first.exit_code) == (cause, 1, code)


def test_an_abort_for_a_lost_peer_is_none() -> None:
    found = explain("\n".join(["step 1", ABORTED, box((1, -6))]))
    assert found.cause == "peer-died"
    found = explain("\n".join(["step 1", by_rank(1, RAISED), box((1, -6))]))
    assert found.cause == "peer-died"
