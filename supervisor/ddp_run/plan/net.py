"""Network facts of this host: resolved names, free ports, routes, interfaces, and who listens on a port."""

from __future__ import annotations

import errno
import ipaddress
import json
import socket
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_run.values.addresses import Resolved, is_local, literal_address
from ddp_run.values.helper_process import answer_of, fork
from ddp_run.values.process_table import command_lines, look

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_LOOKUP_S = 10.0
"""Limit of a single lookup; libc's is 5 s per server and try."""
MISSING_NAME_S = 60.0
"""How long a name may be unknown in a job with several nodes: a pod's record appears after the pod has started."""
TYPED_NAME_S = 10.0
"""The same on a terminal, where it may be mistyped, and a person waits."""
_LONGEST_PAUSE_S = 5.0
"""Between two lookups; the pauses double from half a second."""
_HOLDER_S = 1.0
"""How long to wait for the command line of a port's holder."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where packets to an address leave this host: the address they come from, and its interface."""

    ip: str
    interface: str


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface of this host, as its kernel sees it (netdevice(7))."""

    name: str
    addresses: tuple[str, ...]
    """IPv4 and IPv6."""
    is_up: bool
    """IFF_UP: an administrator has enabled it."""
    is_running: bool
    """IFF_RUNNING: it can carry packets. Always set if it can't tell (tunnels, loopback)."""
    is_loopback: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that listens on a port; None stands for what the system doesn't show."""

    pid: int | None
    name: str | None
    command: str | None = None


class Unresolvable(Exception):
    """A name has no usable address. `helps`: what to do, best first. `missing`: the resolver says that it isn't
    there."""

    def __init__(self, reason: str, helps: tuple[str, ...] = (), *, missing: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.helps, self.missing = reason, helps, missing


class NoAddressYet(Unresolvable):
    """A single lookup found none; a caller that asks again, as a launch does, may get one."""


class _NotReady(Exception):
    """DNS cannot answer yet; `missing`: it says that there is no such name, so far."""

    def __init__(self, reason: str, *, missing: bool) -> None:
        super().__init__(reason)
        self.missing = missing


def resolve(
    name: str,
    port: int,
    deadline_s: float,
    *,
    several_nodes: bool = False,
    loopback_allowed: bool = False,
    missing_s: float = MISSING_NAME_S,
    once: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> Resolved:
    """Return the IP address of a master: IPv4 if it has one. An address passes unchanged. Raises `Unresolvable`.

    While DNS isn't ready, asks again for `deadline_s` seconds, and `say` gets a line each time. With several nodes,
    it also asks again for a name that doesn't exist, for up to `missing_s`. `once`: asks once, for up to `deadline_s`.

    With several nodes, a name that leads only to this host (127.0.1.1, docker0) is refused unless `loopback_allowed`.
    "localhost" and addresses are always accepted: two nodes on one host need them.
    """
    literal = literal_address(name)
    found = (
        [literal] if literal is not None else _look_up(name, port, (deadline_s, missing_s), several_nodes, once, say)
    )
    best = min(found, key=lambda each: each.family != socket.AF_INET)
    if several_nodes and not loopback_allowed and leads_only_here(name, best.ip):
        _refuse_private(name, best)
    return best


def _look_up(
    name: str, port: int, limits_s: tuple[float, float], several_nodes: bool, once: bool, say: Callable[[str], None]
) -> list[Resolved]:
    # No tenacity: loading it would delay every start, and most names are found at once.
    started, pause_s = time.monotonic(), 0.5
    deadline_s = limits_s[0]
    while True:
        waited = time.monotonic() - started
        limit_s = deadline_s if once else max(0.1, min(_LOOKUP_S, deadline_s - waited))
        try:
            return _look_up_once(name, port, limit_s)
        except _NotReady as error:
            waited, helps = time.monotonic() - started, _ask_yourself(name)
            if error.missing and not several_nodes:
                raise Unresolvable(f"{name} has no address: {error}", helps, missing=True) from error
            if once:
                raise NoAddressYet(f"{name} has no address: {error}", helps) from error
            until_s = min(limits_s) if error.missing else deadline_s
            if waited >= until_s:
                reason = f"{name} has no address after {waited:.0f} s: {error}"
                raise Unresolvable(reason, helps, missing=error.missing) from error
            say(f"waiting for DNS: {name}: {error} ({waited:.0f} s of {until_s:.0f} s)")
        time.sleep(min(pause_s, until_s - waited))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _ask_yourself(name: str) -> tuple[str, ...]:
    return f"getent ahosts {name}", "use the master's IP address instead of its name"


def names_in_hosts_file() -> frozenset[str]:
    """The names that /etc/hosts gives to addresses (hosts(5)); empty if it can't be read."""
    try:
        lines = Path("/etc/hosts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(name for line in lines for name in line.partition("#")[0].split()[1:])


def _look_up_once(name: str, port: int, limit_s: float) -> list[Resolved]:
    try:
        answers = _bounded(lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM), limit_s)
    except socket.gaierror as error:
        reason = (error.strerror or str(error)).lower()
        unknown = error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
        if error.errno == socket.EAI_AGAIN or unknown:
            raise _NotReady(reason, missing=unknown) from error
        raise Unresolvable(f"{name} has no address: {reason}", _ask_yourself(name)) from error
    except UnicodeError as error:
        raise Unresolvable(f"{name} is not a host name") from error
    usable = [Resolved(str(address[0]), family) for family, *_, address in answers if family in _FAMILIES]
    if not usable:
        raise Unresolvable(f"{name} has neither an IPv4 nor an IPv6 address")
    return usable


def _bounded(call: Callable[[], object], limit_s: float) -> Any:
    """Return a look-up's result, passed through JSON, or raise its error. A child makes the call.

    libc's look-up can't be interrupted, and a thread won't do: starting the agent runs code between fork and exec, when
    no other thread may hold a lock.
    """

    def answer(fd: int) -> None:
        try:
            told: object = {"result": call()}
        except UnicodeError as error:
            told = {"no_name": str(error)}
        except OSError as error:
            told = {"errno": error.errno, "said": error.strerror}
        with open(fd, "w") as pipe:
            json.dump(told, pipe)

    said = answer_of(fork(answer, limit_s))
    if not said:
        raise _NotReady(f"no answer in {limit_s:.1g} s", missing=False)
    match json.loads(said):
        case {"no_name": text}:
            raise UnicodeError(text)
        case {"errno": number, "said": text}:
            raise socket.gaierror(number, text)
        case answered:
            return answered["result"]


def leads_only_here(name: str, ip: str) -> bool:
    """Whether the name has an address that each host has for itself: 127.0.1.1, docker0's.

    Not for "localhost" and addresses, which mean what they say.
    """
    if literal_address(name) is not None or name == "localhost":
        return False
    return ipaddress.ip_address(ip.partition("%")[0]).is_loopback or ip == _docker_address()


def _refuse_private(name: str, found: Resolved) -> None:
    if ipaddress.ip_address(found.ip.partition("%")[0]).is_loopback:
        raise Unresolvable(
            f"{name} resolves to loopback ({found.ip})",
            (
                f"remove the line for {name} with {found.ip} from /etc/hosts (Debian writes 127.0.1.1 there)",
                "use an address of node 0 that the other nodes can reach: hostname -I",
            ),
        )
    if found.ip == _docker_address():
        raise Unresolvable(
            f"{name} resolves to {found.ip}, the address of docker0: every host has its own docker0",
            ("use an address of node 0 that the other nodes can reach: hostname -I",),
        )


def _docker_address() -> str | None:
    if not Path("/sys/class/net/docker0").exists():
        return None
    import psutil

    addresses = psutil.net_if_addrs().get("docker0", [])
    return next((each.address for each in addresses if each.family == socket.AF_INET), None)


# ---------------------------------------------------------------------------------------- this host


def free_port(ip: str | None = None, avoid: Collection[int] = ()) -> int:
    """Return a port that is free at all IPv4 and IPv6 addresses (and at `ip`) and not in `avoid`. Raises `OSError`.

    It must be free at all addresses, because torch's store listens on all of them, whatever host it is given.
    """
    for _ in range(200):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        if port not in avoid and port_is_free(port, ip):
            return port
    raise OSError(errno.EADDRINUSE, "no free port found in 200 tries")


def port_is_free(port: int, ip: str | None = None) -> bool:
    """Whether a server could listen on the port now, at all addresses and at `ip`.

    SO_REUSEADDR is set, as TCP servers do: closed connections (TIME_WAIT) don't count, listeners do, because the probe
    listens too.
    """
    literal = literal_address(ip) if ip else None
    wanted = [("0.0.0.0", socket.AF_INET), ("::", socket.AF_INET6)]  # noqa: S104 - where torch's store listens
    if literal is not None and is_local(literal.ip):
        wanted.insert(0, (literal.ip, literal.family))
    return all(_can_listen(address, port, family) for address, family in wanted)


def _can_listen(address: str, port: int, family: socket.AddressFamily) -> bool:
    with ExitStack() as stack:
        try:
            probe = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            # Not in use: the host has no IPv6, or the address isn't local.
            return error.errno not in (errno.EADDRINUSE, errno.EACCES)
    return True


def route_to(ip: str) -> Route | None:
    """Look up an address in this host's routing table; None without a route. Sends nothing."""
    literal = literal_address(ip)
    if literal is None:
        return None
    import psutil

    try:
        with socket.socket(literal.family, socket.SOCK_DGRAM) as probe:
            probe.connect((literal.ip, 9))
            source = str(probe.getsockname()[0])
        interfaces = psutil.net_if_addrs()
    except (psutil.Error, OSError):
        return None
    for name, addresses in interfaces.items():
        if any(each.address.partition("%")[0] == source for each in addresses):
            return Route(source, name)
    return None


def interfaces() -> tuple[Interface, ...]:
    """List the interfaces of this process's network namespace (/sys may show another's); empty if unreadable."""
    import psutil

    try:
        addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
        flags_of = {name: state.flags.split(",") for name, state in states.items()}
    except (psutil.Error, OSError, AttributeError):  # psutil has the flags since 5.9.3
        return ()
    found = []
    for name, flags in flags_of.items():
        ips = tuple(each.address for each in addresses.get(name, ()) if each.family in _FAMILIES)
        found.append(Interface(name, ips, "up" in flags, "running" in flags, "loopback" in flags))
    return tuple(found)


def mtu_of(interface: str) -> int | None:
    """An interface's MTU in bytes; None if unknown."""
    import psutil

    try:
        found = psutil.net_if_stats().get(interface)
    except (psutil.Error, OSError):
        return None
    return (found.mtu or None) if found is not None else None


def port_holder(port: int) -> Holder | None:
    """Find the listener on a TCP port of this host, if any. Another user's process has no pid."""
    import psutil

    from ddp_run.values.redaction import redact_words

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    listening = [
        each for each in connections if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
    ]
    if not listening:
        return None
    pid = next((each.pid for each in listening if each.pid), None)
    if pid is None:
        return Holder(None, None)
    process = look(pid)
    if process is None:
        return Holder(pid, None)
    words = command_lines([pid], _HOLDER_S).get(pid)
    return Holder(pid, process.name.decode(errors="replace"), " ".join(redact_words(words)) if words else None)
