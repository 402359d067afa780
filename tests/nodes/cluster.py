"""Several nodes on one machine: network namespaces with addresses and host names of their own, wires that can be cut.

Each `Cluster` has a bridge in a namespace of its own, so clusters side by side may use the same addresses. Needs root.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import limit, wait_until

INTERFACE = "eth0"
NETWORK, NETWORK_6 = "10.99.0.", "fd00:99::"
BRIDGE = "br0"
NAME = re.compile(r"ddprun-(\d+)-\d+-(?:switch|node\d+)")
NEEDED = ("ip", "tc", "nsenter", "unshare", "mount")
SLOW_WIRE = Path(__file__).with_name("slow_wire.py")
ENTER = (
    'for file in "$1"/*; do mount --bind "$file" "/etc/${file##*/}"; done; '
    'echo "$0" > /proc/sys/kernel/hostname; shift; exec "$@"'
)
"""What `ip netns exec` does but for its new /sys, which would hide the cgroups from ddp-run; and the host name."""

_numbers = count()


class Failed(Exception):
    """A command that makes or changes the network did not work."""


@functools.cache
def missing() -> str | None:
    """Why there can be no clusters here, if so."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if lacking := [name for name in NEEDED if shutil.which(name) is None]:
        return f"network namespaces need the commands {', '.join(lacking)}"
    try:
        with Cluster(1) as cluster:
            cluster.node(0).run("true")
    except (Failed, OSError, subprocess.SubprocessError) as error:
        return f"network namespaces cannot be made here: {error}"
    return None


def namespaces() -> list[str]:
    """Those of all clusters on this machine, of other processes too."""
    return [line.split()[0] for line in _command("ip", "netns", "list").splitlines() if NAME.match(line)]


class Started(subprocess.Popen[bytes]):
    """A program on a node. What it writes goes to two files."""

    def __init__(self, words: Sequence[str], cwd: Path, environ: Mapping[str, str], name: str) -> None:
        self.out_file, self.err_file = cwd / f"{name}.out", cwd / f"{name}.err"
        with self.out_file.open("wb") as out, self.err_file.open("wb") as err:
            super().__init__(words, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    @property
    def out(self) -> str:
        return self.out_file.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.err_file.read_text(errors="replace")


@dataclass(frozen=True)
class Node:
    """A namespace that looks like a host of its own: address, host name, the names of the others."""

    rank: int
    namespace: str
    network: str = NETWORK
    """What its address begins with."""

    @property
    def host(self) -> str:
        return f"node{self.rank}"

    @property
    def address(self) -> str:
        return f"{self.network}{self.rank + 1}"

    @property
    def ethernet(self) -> str:
        return f"02:00:00:63:00:{self.rank + 1:02x}"

    @property
    def port(self) -> str:
        """The other end of its wire, at the switch."""
        return f"port{self.rank}"

    @property
    def etc(self) -> Path:
        """Files here take the place of those in /etc, for what is started on the node from then on."""
        return Path("/etc/netns", self.namespace)

    @property
    def hosts_file(self) -> Path:
        return self.etc / "hosts"

    @property
    def within(self) -> list[str]:
        """Words that become the command after them, on this node and in the same process: signals reach that."""
        return self.within_clock(0)

    def within_clock(self, ahead_s: int) -> list[str]:
        """The same, with a CLOCK_MONOTONIC that is so far ahead of this machine's."""
        clock = ["--time", "--monotonic", str(ahead_s)] if ahead_s else []
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount", "--uts", *clock]
        return [*enter, "sh", "-euc", ENTER, self.host, str(self.etc)]

    def start(self, argv: Sequence[object], cwd: Path, env: Mapping[str, str] | None = None) -> Started:
        """In the background, until it ends or the cluster does."""
        words = [*self.within, *map(str, argv)]
        return Started(words, cwd, os.environ if env is None else env, f"{self.host}-{next(_numbers)}")

    def run(self, *argv: object) -> str:
        """To its end; what it printed, or `Failed`."""
        return _command(*self.within, *map(str, argv))

    def reaches(self, other: Node, within_s: float = 1.0) -> bool:
        """Whether the other answers a TCP connection, with a refusal too."""
        answers = (
            "import errno, socket, sys; s = socket.socket(); s.settimeout(float(sys.argv[2]))\n"
            "print(s.connect_ex((sys.argv[1], 9)) in (0, errno.ECONNREFUSED))"
        )
        return self.run(sys.executable, "-SEc", answers, other.host, within_s).strip() == "True"

    def pids(self) -> list[int]:
        return _pids(self.namespace)


class Cluster:
    """So many nodes on one switch, from `with` to its end; then nothing of them is left, not even processes.

    With `ipv6` that is all they have.
    """

    def __init__(self, nodes: int, *, ipv6: bool = False) -> None:
        self._ipv6 = ipv6
        name = f"ddprun-{os.getpid()}-{next(_numbers)}"
        self.nodes = [Node(rank, f"{name}-node{rank}", NETWORK_6 if ipv6 else NETWORK) for rank in range(nodes)]
        self._switch = f"{name}-switch"
        self._slow: dict[int, subprocess.Popen[str]] = {}

    def node(self, rank: int) -> Node:
        return self.nodes[rank]

    def __enter__(self) -> Self:
        _remove([name for name in namespaces() if not _is_of_living(name)])
        try:
            self._make()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def cut(self, rank: int) -> None:
        """Nothing to or from the node passes any more. Nobody is told: no connection is closed or reset."""
        self._at_switch(f"link set {self.node(rank).port} down")

    def cut_one_way(self, rank: int) -> None:
        """What the node sends is lost; what is sent to it arrives."""
        _command("tc", "-n", self.node(rank).namespace, "qdisc", "replace", "dev", INTERFACE, "root", "blackhole")

    def delay(self, rank: int, ms: float, loss: float = 0.0) -> None:
        """Each packet from and to the node comes that much later, or with that probability not at all.

        Through a process instead of `tc qdisc … netem`, which many kernels are built without.
        """
        self._end_delay(rank)
        near, far = f"near{rank}", f"far{rank}"
        words = [sys.executable, "-SE", str(SLOW_WIRE), near, far, str(ms / 1000), str(loss)]
        entered = ["nsenter", f"--net=/run/netns/{self._switch}", *words]
        wire = subprocess.Popen(entered, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self._slow[rank] = wire
        assert wire.stdout is not None
        if wire.stdout.readline() != "ready\n":
            raise Failed(f"{' '.join(entered)}: exit code {wire.wait(limit(30))}")
        self._at_switch(
            f"link add slow{rank} type bridge",
            f"link set slow{rank} up",
            f"link set {near} master slow{rank} up",
            f"link set {far} master {BRIDGE} up",
            f"link set {self.node(rank).port} master slow{rank}",
        )

    def narrow(self, rank: int, other: int, rate: str) -> None:
        """What these two send each other passes at that rate, as tc has it (`200mbit`); all else as before. Of IPv4."""
        for sender, receiver in ((rank, other), (other, rank)):
            at = ("tc", "-n", self.node(sender).namespace)
            to = ("dev", INTERFACE, "parent", "1:")
            _command(*at, "qdisc", "replace", "dev", INTERFACE, "root", "handle", "1:", "htb")
            _command(*at, "class", "replace", *to, "classid", "1:1", "htb", "rate", rate)
            match = ("match", "ip", "dst", f"{self.node(receiver).address}/32")
            _command(*at, "filter", "add", *to, "protocol", "ip", "u32", *match, "flowid", "1:1")

    def heal(self, rank: int) -> None:
        """Whatever was done to the node's wire is over."""
        node = self.node(rank)
        self._end_delay(rank)
        self._at_switch(f"link set {node.port} up")
        with suppress(Failed):  # there is none
            _command("tc", "-n", node.namespace, "qdisc", "del", "dev", INTERFACE, "root")

    def _end_delay(self, rank: int) -> None:
        wire = self._slow.pop(rank, None)
        if wire is not None:
            _end(wire)
            self._at_switch(f"link set {self.node(rank).port} master {BRIDGE}", f"link del slow{rank}")

    def _at_switch(self, *lines: str) -> None:
        _command("ip", "-n", self._switch, "-batch", "-", text="\n".join(lines))

    def _make(self) -> None:
        for namespace in (self._switch, *(node.namespace for node in self.nodes)):
            _command("ip", "netns", "add", namespace)
        self._at_switch(f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up")
        hosts = "".join(f"{node.address} {node.host}\n" for node in self.nodes)
        # So c10d, whose sockets are of IPv6, finds a name for who connects, as it does where DNS has one.
        mapped = "".join(f"::ffff:{node.address} {node.host}.cluster\n" for node in self.nodes if not self._ipv6)
        length = "64 nodad" if self._ipv6 else "24"
        for node in self.nodes:
            node.etc.mkdir(parents=True)
            node.hosts_file.write_text(f"127.0.0.1 localhost\n{hosts}{mapped}")
            veth = f"type veth peer name {INTERFACE} netns {node.namespace} address {node.ethernet}"
            self._at_switch(f"link add {node.port} {veth}", f"link set {node.port} master {BRIDGE} up")
            # Neighbours known for good: after a cut nobody says that there is no such host, as beyond a router.
            others = [other for other in self.nodes if other is not node]
            known = [f"neigh add {other.address} lladdr {other.ethernet} dev {INTERFACE}" for other in others]
            up = ["link set lo up", f"addr add {node.address}/{length} dev {INTERFACE}", f"link set {INTERFACE} up"]
            _command("ip", "-n", node.namespace, "-batch", "-", text="\n".join([*up, *known]))

    def _end(self) -> None:
        for wire in self._slow.values():
            _end(wire)
        _remove([node.namespace for node in self.nodes] + [self._switch])


def _command(*words: str, text: str | None = None) -> str:
    """Its output; `Failed` with what it said on stderr."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=limit(60))
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}: {(done.stderr or done.stdout).strip() or done.returncode}")
    return done.stdout


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(limit(30))
    if process.stdout is not None:
        process.stdout.close()


def _pids(namespace: str) -> list[int]:
    return [int(pid) for pid in _command("ip", "netns", "pids", namespace).split()]


def _is_of_living(namespace: str) -> bool:
    """Whether the process that made it is still there."""
    named = NAME.match(namespace)
    return named is None or Path("/proc", named[1]).exists()


def _remove(names: Sequence[str]) -> None:
    """Namespaces, their processes, wires and files, as far as they were made."""
    there = set(namespaces()).intersection(names)
    for name in there:
        wait_until(functools.partial(_emptied, name), f"the end of the processes in {name}", 30)
    for name in there:
        with suppress(Failed):
            _command("ip", "netns", "del", name)
    for name in names:
        shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)


def _emptied(namespace: str) -> bool:
    pids = _pids(namespace)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not pids
