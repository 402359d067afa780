"""Interfaces that were named for NCCL or gloo: which names are refused, by values."""

from __future__ import annotations

import pytest

from ddp_run.plan.checks.interfaces import judged
from ddp_run.plan.net import Interface, interfaces

NCCL, GLOO = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"
MASTER = "node0.cluster"
HERE = (
    Interface("lo", ("127.0.0.1",), is_up=True, is_running=True, is_loopback=True),
    Interface("eth0", ("10.0.0.2",), is_up=True, is_running=True, is_loopback=False),
    Interface("eth1", ("10.0.1.2",), is_up=False, is_running=False, is_loopback=False),
    Interface("eth2", ("10.0.2.2",), is_up=True, is_running=False, is_loopback=False),
    Interface("ib0", (), is_up=True, is_running=True, is_loopback=False),
    Interface("docker0", ("172.17.0.1",), is_up=True, is_running=True, is_loopback=False),
    Interface("br-0123456789ab", ("172.18.0.1",), is_up=True, is_running=True, is_loopback=False),
    Interface("br-lan", ("10.0.3.2",), is_up=True, is_running=True, is_loopback=False),
)


def reason(variable: str, value: str, master: str | None = MASTER) -> tuple[str, bool] | None:
    found = judged(variable, value, HERE, master)
    return (found.problem.title.partition(": ")[2], found.certain) if found is not None else None


@pytest.mark.parametrize(
    "value", ["eth0", "eth", "=eth0", "ib0,eth0", "^docker0,lo", "^eth0", "^=eth0", "br-lan", "br-", "e", "eth0:1024"]
)
def test_what_may_work_for_nccl_is_not_spoken_of(value: str) -> None:
    assert reason(NCCL, value) is None


@pytest.mark.parametrize(
    ("value", "why", "certain"),
    [
        ("eth1", "eth1 is down", True),
        ("eth2", "eth2 has no carrier", False),
        ("ib", "ib0 has no IP address", True),
        (
            "=eth",
            "matches none of this host's interfaces: lo, eth0, eth1, eth2, ib0, docker0, br-0123456789ab, br-lan",
            True,
        ),
        ("lo", "lo only reaches this host", False),
        ("docker0", "docker0 is a bridge within this host", False),
        ("br-0", "br-0123456789ab is a bridge within this host", False),
        ("=eth1,eth2", "eth1 is down", False),
    ],
)
def test_what_cannot_work_for_nccl(value: str, why: str, certain: bool) -> None:
    assert reason(NCCL, value) == (why, certain)


def test_gloo_takes_whole_names_and_opens_all() -> None:
    assert reason(GLOO, "eth0") is None
    assert reason(GLOO, "eth0,br-lan") is None
    assert reason(GLOO, "eth0,eth1") == ("eth1 is down", True)
    missing = (
        "eth isn't an interface of this host, which has lo, eth0, eth1, eth2, ib0, docker0, br-0123456789ab, br-lan"
    )
    assert reason(GLOO, "eth") == (missing, True)


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_loopback_is_the_way_between_nodes_on_one_host(master: str) -> None:
    assert reason(NCCL, "lo", master) is None
    assert reason(GLOO, "lo", master) is None


def test_this_host() -> None:
    (loopback,) = [each for each in interfaces() if each.name == "lo"]
    assert loopback.is_loopback
    assert loopback.is_up
    assert loopback.is_running
    assert "127.0.0.1" in loopback.addresses
