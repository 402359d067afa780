"""Logs cut to ranks that only noticed a failure: they are not named as its cause, and what is missing is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.test_crash_beside_lost_peers import FAILURE, RAISED, STORE, box, by_rank

from ddp_run.evidence.model import LogText, Quote
from ddp_run.evidence.pasted.spoken_text import Log
from ddp_run.judge.lost_peers import address, without_the_first
from ddp_run.judge.pasted_logs import explain_logs, explain_text
from ddp_run.judge.verdict import Collateral, FirstFailure, Verdict
from ddp_run.record.events import ExceptionInfo, Rank
from ddp_run.tell import verdict_file
from ddp_run.tell.verdict_text import verdict_block

MISSING = "this is a consequence: the first failure was not found in this log"
GLOO = RAISED.replace("127.0.0.1", "10.0.0.2")
NCCL = """torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:275, remote process exited or there was \
a network error, NCCL version 2.20.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
socketProgress: Connection closed by remote peer node-b.cluster<45678>"""
NATIVE = "terminate called after throwing an instance of 'gloo::IoException'\n  what():  " + GLOO.split("Error: ")[1]
KEY = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
KeyError: 'x'"""
TOGETHER = "ddp-run explain rank*.log   # the logs of all ranks together, or the run's folder"


def says_that_the_first_is_missing(found: Verdict) -> bool:
    return (found.first_failure, found.exit_code, found.confidence) == (None, None, "likely") and MISSING in found.notes


@pytest.mark.parametrize(
    ("text", "ranks", "title"),
    [
        pytest.param(by_rank(3, GLOO), [3], "rank 3 lost its connection to a peer at 10.0.0.2", id="one rank"),
        pytest.param(GLOO, [None], "a rank lost its connection to a peer at 10.0.0.2", id="no rank is named"),
        pytest.param(by_rank(3, NCCL), [3], "rank 3 lost its connection to a peer at node-b.cluster", id="NCCL"),
        pytest.param(NATIVE, [None], "a rank lost its connection to a peer at 10.0.0.2", id="no traceback"),
        pytest.param(f"step 9\n{GLOO.rpartition('Error: ')[2]}", [], "a rank lost its connection to a peer at 10.0.0.2",
                     id="a line"),
        pytest.param(by_rank(3, GLOO) + "\n" + by_rank(5, GLOO), [3, 5],
                     "rank 3 lost its connection to a peer at 10.0.0.2", id="two ranks"),
        pytest.param(by_rank(3, GLOO) + "\n" + box((3, 1)), [3], "rank 3 lost its connection to a peer at 10.0.0.2",
                     id="torchrun calls it the root cause"),
        pytest.param(by_rank(1, GLOO) + "\n" + by_rank(0, GLOO) + "\n" + box((1, 1), (0, 1)).replace(
            FAILURE.format(number=1, rank=0, code=1, pid=70),
            FAILURE.format(number=1, rank=0, code=1, pid=70).replace("node-a", "node-b")),
                     [1, 0], "rank 1 lost its connection to a peer at 10.0.0.2", id="two hosts in one summary"),
    ],
)  # fmt: skip
def test_who_only_noticed_is_not_the_first(text: str, ranks: list[int | None], title: str) -> None:
    found = explain_text(text)
    assert (found.cause, found.title) == ("peer-died", f"{title}, which likely failed first")
    assert says_that_the_first_is_missing(found)
    assert [(each.rank, each.reason) for each in found.collateral] == [(rank, "lost its peer") for rank in ranks]
    assert found.advice[1] == TOGETHER


def test_a_store_that_was_lost() -> None:
    found = explain_text(STORE.replace("[W TCPStore.cpp:125]", "[W TCPStore.cpp:125] [c10d]"))
    assert found.cause == "store-lost"
    assert says_that_the_first_is_missing(found)


@pytest.mark.parametrize(
    ("peer", "where"),
    [
        ("10.0.0.2", "read the log of the rank at 10.0.0.2: what failed there first is the cause"),
        ("127.0.0.1", "read the logs of the other ranks on the same host: what failed there first is the cause; if"),
        ("::1", "read the logs of the other ranks on the same host: "),
        ("::ffff:127.0.0.1", "read the logs of the other ranks on the same host: "),
        ("localhost", "read the logs of the other ranks on the same host: "),
        ("::ffff:10.0.0.2", "read the log of the rank at ::ffff:10.0.0.2: "),
        ("node-b", "read the log of the rank at node-b: "),
    ],
)
def test_where_to_look(peer: str, where: str) -> None:
    assert explain_text(RAISED.replace("127.0.0.1", peer)).advice[0].startswith(where)


def test_all_that_is_read_of_it_says_so() -> None:
    found = explain_text(by_rank(3, GLOO))
    block = verdict_block(found, folder=Path(), attempts=1)
    assert "= note: rank 3 exited with code 1 (lost its peer); it is not the cause" in block
    assert f"= note: {MISSING}" in block
    assert f"help: {TOGETHER}" in block
    assert "(likely)" not in block
    document = verdict_file.as_json(found)
    assert (document["first_failure"], document["exit_code"], document["notes"]) == (None, None, [MISSING])


def test_several_logs_are_not_asked_for_again() -> None:
    logs = [Log(LogText(f"rank_{rank}.log", tuple(GLOO.split("\n"))), Rank(rank)) for rank in (0, 2)]
    found = explain_logs(logs)
    assert found.notes == ("this is a consequence: the first failure was not found in these logs",)
    assert found.first_failure is None
    assert TOGETHER not in found.advice


@pytest.mark.parametrize("code", [3, -9, -11])
def test_where_the_first_is_shown_it_is_named(code: int) -> None:
    found = explain_text("\n".join([by_rank(0, GLOO), box((1, code), (0, 1))]))
    assert found.first_failure is not None
    assert (found.first_failure.rank, found.first_failure.exit_code) == (1, code)
    assert MISSING not in found.notes
    found = explain_text("\n".join([by_rank(0, GLOO), by_rank(1, KEY)]))
    assert (found.cause, found.first_failure and found.first_failure.rank) == ("python-exception", 1)
    assert MISSING not in found.notes


@pytest.mark.parametrize(
    ("message", "peer"),
    [
        ("Connection closed by peer [10.0.0.2]:2312", "10.0.0.2"),
        ("Read error [::ffff:10.0.0.2]:24197: Connection reset by peer", "::ffff:10.0.0.2"),
        ("writev [10.0.0.2]:24197: Broken pipe", "10.0.0.2"),
        ("Connection closed by remote peer fe80::1%eth0<4123>", "fe80::1%eth0"),
        ("failed on SocketImpl(fd=3, addr=[a]:1, remote=[node-b]:29500): Failed to recv, got 0 bytes", "node-b"),
        ("Connection reset by peer", None),
    ],
)
def test_the_peers_address(message: str, peer: str | None) -> None:
    assert address(message) == peer


LOST = Verdict(
    *("failed", 1, "peer-died", "DDP501", "rank 3 lost its connection to a peer", "certain"),
    first_failure=FirstFailure(Rank(3), exit_code=-6, signal="SIGABRT"),
    collateral=(
        Collateral(Rank(5), 1, None, "lost its peer, rank 3"),
        Collateral(Rank(6), -15, "SIGTERM", "stopped with the job"),
    ),
    advice=("as the rule says",),
    notes=("as it was",),
)


def test_the_rank_that_seemed_to_be_first_followed_with_its_own_end_and_so_did_the_others() -> None:
    found = without_the_first(LOST, 2)
    assert found.collateral == (
        Collateral(Rank(3), -6, "SIGABRT", "lost its peer"),
        Collateral(Rank(5), 1, None, "lost its peer"),
        Collateral(Rank(6), -15, "SIGTERM", "stopped with the job"),
    )
    assert found.notes == ("this is a consequence: the first failure was not found in these logs", "as it was")
    nobody = replace(LOST, first_failure=None)
    assert without_the_first(nobody, 2).collateral == LOST.collateral


def test_without_an_address_all_other_ranks_logs_are_to_be_read() -> None:
    assert without_the_first(LOST, 2).advice == (
        "read the logs of the other ranks: what failed there first is the cause",
    )


def test_the_address_is_read_from_the_exception_and_else_from_the_lines_that_are_quoted() -> None:
    quotes = tuple(Quote("log", 1, text) for text in ("bad", "Connection closed by peer [10.0.0.7]:1"))
    quoted = replace(LOST, evidence=quotes)
    assert "at 10.0.0.7" in without_the_first(quoted, 2).advice[0]
    raised = ExceptionInfo("RuntimeError", "Connection closed by peer [10.0.0.8]:1", None, None)
    both = replace(quoted, first_failure=FirstFailure(Rank(3), exception=raised))
    assert "at 10.0.0.8" in without_the_first(both, 2).advice[0]
    assert "at 10.0.0.7" in without_the_first(replace(quoted, first_failure=None), 2).advice[0]


def test_what_to_do_about_a_lost_store_stays() -> None:
    found = without_the_first(replace(LOST, cause="store-lost"), 1)
    assert (found.title, found.advice) == (LOST.title, ("as the rule says", TOGETHER))
