"""A run's count of attempts: which port and backend the next one gets, and what does not count as a retry."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.ports import unused_port
from tests.unit.test_retry import CATALOGUE, verdict

from ddp_run.judge.retry import ALONE, Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.launch_plan import make_plan
from ddp_run.plan.net import port_is_free
from ddp_run.settings.parse import parse
from ddp_run.supervise.retries import Retries

HOST = "127.0.0.1"


def retries(line: str, *, master: str | None = HOST, connected: bool = True, port_needed: bool = False) -> Retries:
    """A run's count before its first attempt. `port_needed`: as with torch 2.4 to 2.9, whose own port is 29500."""
    rows = torch_rows()
    if port_needed:
        rows = tuple(replace(row, default=29500) if row.dest == "master_port" else row for row in rows)
    options = parse([*shlex.split(line), "x.py"], {}, torch_rows=rows, read_file=lambda _path: "")
    return Retries(make_plan(options, {}, python="python", master=master), lambda: connected)


def attempt(run: Retries, ended: Verdict | None = None) -> tuple[int | None, Decision]:
    """Make one attempt that ends so. Returns what is put in place of the user's port, and what follows."""
    override = run.choose_port()
    run.started += 1
    ended = ended or verdict()
    decision = run.decide(ended)
    run.count(ended, decision)
    return override, decision


@pytest.fixture
def listening() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listen(stack: ExitStack, port: int) -> None:
    server = stack.enter_context(socket.socket())
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", port))
    server.listen()


def several(port: int, node: int = 0) -> str:
    return f"--max-retries=3 --nnodes=2 --node-rank={node} --master-addr={HOST} --master-port={port}"


def test_torch_takes_a_free_port_where_the_user_names_none() -> None:
    run = retries("--max-retries=2", master=None)
    assert [attempt(run)[0] for _ in range(2)] == [None, None]
    assert run.port is None


def test_a_torch_with_a_port_of_its_own_gets_a_fresh_one_each_time() -> None:
    run = retries("--max-retries=2", master=None, port_needed=True)
    ports = [attempt(run)[0] for _ in range(3)]
    assert run.port == ports[-1]
    assert None not in ports
    assert 29500 not in ports
    assert len(set(ports)) == 3


def test_the_users_port_is_for_the_first_attempt_and_each_retry_gets_a_fresh_one() -> None:
    port = unused_port()
    run = retries(f"--max-retries=2 --master-addr={HOST} --master-port={port}")
    assert attempt(run)[0] is None
    assert run.port == port
    second, third = attempt(run)[0], attempt(run)[0]
    assert run.port == third
    assert len({port, second, third, None}) == 4
    assert second is not None
    assert port_is_free(second, HOST)


def test_retries_are_counted_and_end() -> None:
    run = retries("--max-retries=2")
    assert not run.are_used_up
    first, second, third = (attempt(run)[1] for _ in range(3))
    assert first == second == Decision(True, CATALOGUE)
    assert third == Decision(False, "all 2 retries are used (--max-retries)")
    assert run.are_used_up
    assert [each.cause for each in run.verdicts] == ["peer-died"] * 3


def test_the_last_retry_is_used_up_before_it_ends() -> None:
    run = retries("--max-retries=1")
    attempt(run)
    assert (run.counted, run.are_used_up) == (1, True)
    assert retries("").are_used_up


def test_how_the_user_wants_retries_decided() -> None:
    uncured = verdict(helps=False)
    assert attempt(retries("--max-retries=1"), uncured)[1] == Decision(False, CATALOGUE)
    assert attempt(retries("--max-retries=1 --retry=always"), uncured)[1] == Decision(True, "--retry always")


def test_attempts_that_fail_the_same_way_are_remembered() -> None:
    run = retries("--max-retries=9")
    assert [attempt(run)[1].retry for _ in range(3)] == [True, True, False]


def test_a_port_that_was_taken_does_not_count_and_the_next_one_is_near() -> None:
    port = unused_port()
    run = retries(f"--master-addr={HOST} --master-port={port}", connected=False)
    stolen = verdict(cause="port-in-use")
    _, decision = attempt(run, stolen)
    assert (run.counted, decision.retry, decision.free) == (0, True, True)
    assert decision.port is not None
    assert port < decision.port < port + 32
    assert decision.reason == (
        f"port {port} is taken by another process; starting again on port {decision.port} "
        "(this does not count as a retry)"
    )
    override, after = attempt(run, stolen)
    assert override == decision.port
    assert after.port not in (port, override, None)


def test_ports_that_are_taken_are_given_up_after_five() -> None:
    run = retries(f"--master-addr={HOST} --master-port={unused_port()}")
    ends = [attempt(run, verdict(cause="port-in-use"))[1] for _ in range(6)]
    assert [each.free for each in ends] == [True] * 5 + [False]
    assert not ends[-1].retry
    assert run.counted == 1
    assert len({each.port for each in ends}) == 6


def test_nodes_agree_on_a_free_port_just_after_the_first(listening: ExitStack) -> None:
    port = unused_port()
    listen(listening, port + 1)
    run = retries(several(port))
    _, first = attempt(run)
    assert first.reason == CATALOGUE
    assert first.port is not None
    assert port + 1 < first.port < port + 32
    override, second = attempt(run)
    assert override == run.port == first.port
    assert second.port is not None
    assert first.port < second.port < port + 32
    assert run.counted == 2


def test_nodes_that_have_agreed_on_nothing_keep_the_users_port() -> None:
    port = unused_port()
    run = retries(several(port))
    run.started = 1
    assert run.choose_port() is None
    assert run.port == port


def test_no_port_is_above_the_last_one() -> None:
    run = retries(several(65535))
    port = attempt(run)[1].port
    assert port is not None
    assert 0 < port < 65535


def test_the_agreed_port_follows_from_another_nodes_decision() -> None:
    run = retries(several(unused_port(), node=1))
    run.choose_port()
    run.started += 1
    run.count(verdict(), Decision(True, "node 0 says so", port=31000))
    assert run.choose_port() == run.port == 31000


def test_one_node_alone_makes_no_other_attempt() -> None:
    run = retries(several(unused_port()), connected=False)
    assert attempt(run)[1] == ALONE
    ended = attempt(retries(several(unused_port()), connected=False), verdict(outcome="succeeded"))[1]
    assert ended == Decision(False, "the job succeeded")


def test_the_ranks_fall_back_to_another_backend_once() -> None:
    run = retries("--max-retries=1 --fallback-backend=gloo")
    _, fallback = attempt(run, verdict(cause="nccl-init"))
    assert (fallback.free, fallback.backend, run.backend, run.counted) == (True, "gloo", "gloo", 0)
    assert "does not count" not in fallback.reason
    _, again = attempt(run, verdict(cause="nccl-init"))
    assert (again.backend, run.backend, run.counted) == (None, "gloo", 1)
    assert again == Decision(True, CATALOGUE)


def test_a_fallback_costs_no_port_and_a_lost_port_no_backend() -> None:
    port = unused_port()
    run = retries(f"--master-addr={HOST} --master-port={port} --fallback-backend=gloo")
    attempt(run, verdict(cause="nccl-init"))
    ends = [attempt(run, verdict(cause="port-in-use"))[1] for _ in range(6)]
    assert [each.free for each in ends] == [True] * 5 + [False]
    assert run.backend == "gloo"


def test_a_lost_port_of_torchs_own_is_replaced_by_one_that_the_kernel_gives() -> None:
    run = retries("", master=None, port_needed=True)
    _, decision = attempt(run, verdict(cause="port-in-use"))
    assert decision.port is not None
    assert decision.port > 1024


def test_the_port_just_after_the_first_comes_first() -> None:
    port = unused_port()
    assert attempt(retries(several(port)))[1].port == port + 1


@pytest.mark.parametrize("master", [HOST, "127.0.0.9"])
def test_a_port_is_free_at_the_masters_address_and_was_not_used(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str | None, set[int]]] = []

    def given(ip: str | None = None, avoid: Collection[int] = ()) -> int:
        asked.append((ip, set(avoid)))
        return 31000 + len(asked)

    monkeypatch.setattr("ddp_run.plan.net.free_port", given)
    run = retries("--max-retries=2 --master-addr=localhost --master-port=29400", master=master)
    for _ in range(3):
        attempt(run)
    assert asked == [(master, {29400}), (master, {29400, 31001})]
    asked.clear()
    attempt(retries(several(65535), master=master))
    assert asked == [(master, {65535})]


def test_without_a_free_port_there_is_no_other_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_words: object, **_names: object) -> int:
        raise OSError("no free port found in 200 tries")

    monkeypatch.setattr("ddp_run.plan.net.free_port", none)
    run = retries(several(65535))
    assert attempt(run)[1] == Decision(False, "attempt 2 could not be started: no free port found in 200 tries")
