"""Names, ports and their holders, on this host's loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ports import unused_port

from ddp_run.plan import net
from ddp_run.values.addresses import Resolved, is_local


def _listener(address: str = "127.0.0.1", family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, unused_port()))
    server.listen()
    return server


@pytest.mark.parametrize("name", ["127.0.0.1", "10.1.2.3", "192.0.2.7"])
def test_an_address_passes_unchanged(name: str) -> None:
    assert net.resolve(name, 29500, 1, several_nodes=True) == Resolved(name, socket.AF_INET)


@pytest.mark.parametrize("name", ["::1", "[::1]", "fe80::1%lo"])
def test_an_ipv6_address_passes_without_brackets(name: str) -> None:
    assert net.resolve(name, 29500, 1) == Resolved(name.strip("[]"), socket.AF_INET6)


def test_localhost_is_ipv4_where_it_has_one() -> None:
    assert net.resolve("localhost", 29500, 5) == Resolved("127.0.0.1", socket.AF_INET)


def test_a_missing_name_fails_at_once_on_one_node() -> None:
    said: list[str] = []
    with pytest.raises(net.Unresolvable, match=r"no-such-host\.invalid has no address") as caught:
        net.resolve("no-such-host.invalid", 29500, 60, say=said.append)
    assert "getent ahosts no-such-host.invalid" in caught.value.helps


def test_a_missing_name_is_waited_for_with_several_nodes() -> None:
    said: list[str] = []
    with pytest.raises(net.Unresolvable, match="no address after"):
        net.resolve("no-such-host.invalid", 29500, 1.2, several_nodes=True, say=said.append)
    assert len(said) >= 1
    assert said[0].startswith("waiting for DNS: no-such-host.invalid: ")


def test_a_wait_says_how_long_it_is() -> None:
    said: list[str] = []
    with pytest.raises(net.Unresolvable, match="no address after") as caught:
        net.resolve("no-such-host.invalid", 29500, 60, several_nodes=True, missing_s=1.2, say=said.append)
    if not caught.value.missing:
        pytest.skip("there is no name server, so nothing says that the name isn't there")
    assert all(line.endswith(" s of 1 s)") for line in said)


def test_names_of_this_host() -> None:
    assert "localhost" in net.names_in_hosts_file()


def test_a_name_that_is_asked_for_once() -> None:
    """It may come later with several nodes, of which a launch waits for it."""
    with pytest.raises(net.Unresolvable) as caught:
        net.resolve("no-such-host.invalid", 29500, 5, once=True)
    assert type(caught.value) is net.Unresolvable or "temporary" in caught.value.reason
    with pytest.raises(net.NoAddressYet, match=r"no-such-host\.invalid has no address: "):
        net.resolve("no-such-host.invalid", 29500, 5, several_nodes=True, once=True)
    assert net.resolve("localhost", 29500, 5, once=True).ip == "127.0.0.1"


@pytest.mark.parametrize("name", ["a b", "x" * 80, "a..b"])
def test_what_is_no_host_name_is_refused(name: str) -> None:
    with pytest.raises(net.Unresolvable):
        net.resolve(name, 29500, 2)


def test_a_name_of_loopback_is_refused_for_several_nodes() -> None:
    """`localhost.localdomain` and its like; the plain word "localhost" says what is meant."""
    try:
        own = net.resolve(socket.gethostname(), 29500, 5)
    except net.Unresolvable:
        pytest.skip("this host's name has no address")
    if not own.ip.startswith("127."):
        pytest.skip("this host's name is not on loopback")
    with pytest.raises(net.Unresolvable, match="resolves to loopback"):
        net.resolve(socket.gethostname(), 29500, 5, several_nodes=True)
    assert net.resolve("localhost", 29500, 5, several_nodes=True).ip == "127.0.0.1"


def test_a_lookup_that_hangs_leaves_no_thread_and_no_process() -> None:
    """The agent is started with a function between fork and exec: no other thread may hold a lock then."""
    own = Path("/proc/self/task")
    threads, children = len(list(own.iterdir())), [(each / "children").read_text() for each in own.iterdir()]
    with pytest.raises(net._NotReady, match="no answer"):
        net._bounded(lambda: time.sleep(60), 0.2)
    assert len(list(own.iterdir())) == threads
    assert [(each / "children").read_text() for each in own.iterdir()] == children


def test_a_lookup_that_is_interrupted_leaves_no_process() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    children = [(each / "children").read_text() for each in Path("/proc/self/task").iterdir()]
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            net._bounded(lambda: time.sleep(60), 30)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [(each / "children").read_text() for each in Path("/proc/self/task").iterdir()] == children


def test_what_a_lookup_raises_is_raised_here() -> None:
    def look_up(name: str) -> Callable[[], object]:
        return lambda: socket.getaddrinfo(name, 1)

    with pytest.raises(socket.gaierror) as caught:
        net._bounded(look_up("no-such-host.invalid"), 30)
    assert caught.value.errno in (socket.EAI_NONAME, socket.EAI_AGAIN)
    assert caught.value.strerror
    with pytest.raises(UnicodeError):
        net._bounded(look_up("a..b"), 30)
    assert net._bounded(lambda: [1, "x"], 30) == [1, "x"]


def test_local_addresses() -> None:
    assert is_local("127.0.0.1")
    assert is_local("127.0.0.2")
    assert not is_local("192.0.2.199")
    assert not is_local("not-an-address")


def test_a_free_port_can_be_listened_on_and_is_not_one_to_avoid() -> None:
    seen: set[int] = set()
    for _ in range(20):
        port = net.free_port("127.0.0.1", seen)
        assert port not in seen
        seen.add(port)
        with socket.socket() as server:
            try:
                server.bind(("0.0.0.0", port))
                server.listen()
            except OSError:
                assert net.port_holder(port) is not None, "somebody else was quicker"


def test_a_listener_on_any_address_takes_the_port() -> None:
    with _listener("127.0.0.2") as server:
        assert not net.port_is_free(server.getsockname()[1])
    if socket.has_ipv6:
        try:
            six = _listener("::1", socket.AF_INET6)
        except OSError:
            return
        with six:
            assert not net.port_is_free(six.getsockname()[1])


def test_a_connection_that_has_ended_leaves_the_port_free() -> None:
    server = _listener()
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        accepted, _ = server.accept()
        # The side that closes first keeps the connection in TIME_WAIT.
        accepted.close()
    server.close()
    assert net.port_is_free(port)


def test_the_holder_is_named() -> None:
    program = (
        "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        port = int(holder.stdout.readline())
        found = net.port_holder(port)
        assert found is not None
        assert found.pid == holder.pid
        assert "import socket" in (found.command or "")
        assert holder.pid != os.getpid()
    after = net.port_holder(port)
    assert after is None or after.pid != holder.pid
