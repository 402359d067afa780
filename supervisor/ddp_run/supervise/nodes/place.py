"""What a side starts with: where the nodes of the job meet, the key of what they say, and the run's ears.

The key is the user's secret, or one by MUNGE where that runs: a credential that only the same user can open, on a host
of this cluster. Node 0 makes the secret and shows the credential to all that connect. munge(1) and unmunge(1) reach the
daemon; that a credential was opened before, or is old, doesn't matter here: what it holds is still a secret.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import final

from ddp_run.record.events import Event, EventSink
from ddp_run.supervise.loop import Loop
from ddp_run.values.helper_process import HelperProcesses, answer_of, spawn
from ddp_run.values.node_fact import Fact

SECRET = "DDP_RUN_SECRET"  # noqa: S105  # the name of a variable
"""The user's secret, the same on all nodes."""

# ---------------------------------------------------------------------------------------------- the key

_SOCKET = Path("/run/munge/munge.socket.2")
_ANSWER_S = 3.0
_AGAIN_S = 30.0
_LONGEST = 800
"""Characters of a credential that go into a greeting; with 32 bytes in it, it has some 200."""
_OPENED = frozenset({0, 15, 16, 17})
"""Success; expired, rewound, replayed: munge.h, munge_err_t."""


def job_key(environ: Mapping[str, str], job: str) -> bytes:
    """The key of a job's messages: with DDP_RUN_SECRET a secret, without it only what tells jobs apart."""
    return f"{environ.get(SECRET, '')}\n{job}".encode()


@final
class Munge:
    """Both sides' part. `is_wanted`: the user has set no secret, which would do the same.

    `credential`: what node 0 shows; None without MUNGE. `why`: what was wrong last; None if nothing was.
    """

    def __init__(self, *, is_wanted: bool = True) -> None:
        self._is_wanted = is_wanted
        self._is_here = is_wanted and self.runs_here()
        self.credential: str | None = None
        self.why: str | None = None
        self._opened: dict[str, bytes] = {}
        """The secret of the last credential: no process is needed when a node connects again."""
        self._refused = ("", 0.0)
        """The last one that could not be opened, and when to try it again: a node dials every second."""

    @staticmethod
    def runs_here() -> bool:
        """Whether MUNGE seems to serve this host."""
        return _SOCKET.exists() and all(shutil.which(name) for name in ("munge", "unmunge"))

    def make(self) -> bytes:
        """A new secret, with a credential for this user on any host; empty without MUNGE."""
        secret = secrets.token_hex(16).encode()
        said = self._run(secret, "munge", f"--restrict-uid={os.geteuid()}", "--ttl=-1").strip()
        if not said.startswith(b"MUNGE:") or len(said) > _LONGEST:
            return b""
        self.credential = said.decode("ascii", "replace")
        return secret

    def open(self, credential: str | None) -> bytes | None:
        """The secret that node 0's greeting holds; empty if it has none, as where MUNGE runs nowhere.

        None if it can't be opened, was made by another user, or is missing although MUNGE runs here.
        """
        if credential is None or not self._is_wanted:
            self.why = "node 0 shows no MUNGE credential, but MUNGE runs on this host" if self._is_here else None
            return None if self._is_here else b""
        if credential not in self._opened:
            if credential == self._refused[0] and time.monotonic() < self._refused[1]:
                return None
            head, _blank, secret = self._run(credential.encode(), "unmunge", "-N", "-k", "STATUS,UID").partition(
                b"\n\n"
            )
            told = dict(re.findall(rb"^(STATUS|UID):\s+(\d+)$", head, re.MULTILINE))
            if int(told.get(b"STATUS", b"1")) not in _OPENED or told.get(b"UID") != b"%d" % os.geteuid():
                self.why = "node 0 protects messages by MUNGE, and this host can't open its credential"
                self._refused = credential, time.monotonic() + _AGAIN_S
                return None
            self._opened = {credential: secret}
        self.why = None
        return self._opened[credential]

    def _run(self, said: bytes, program: str, *options: str) -> bytes:
        """The program's whole answer to these words; empty without MUNGE, or if it has none in time."""
        if not self._is_here:
            return b""
        try:
            process = spawn((program, f"--socket={_SOCKET}", *options), outlives_us=False)
        except OSError:
            return b""
        process.deadline = time.monotonic() + _ANSWER_S
        process.tell(said)
        process.close_input()
        return answer_of(process) or b""


# --------------------------------------------------------------------------------- this node, and its run


@dataclass(frozen=True, slots=True)
class Place:
    """This node in its job, and where the nodes meet. `address`: the host's that all know."""

    node_rank: int | None
    """None: torch numbers the nodes when they have met, and the hub is where the rendezvous' endpoint is."""
    nodes: int
    """The most that the job may have."""
    host: str
    folder: str
    address: str
    port: int
    job_key: bytes
    grace_s: float
    agent_restarts: bool
    """The agents restart ranks themselves (--max-restarts), or for a node that joins (--nnodes MIN:MAX)."""
    least: int | None = None
    """In an elastic job: the fewest nodes that it runs on. None: always `nodes`."""
    spares: int = 0
    """How many more nodes may wait to take another's place."""
    master_port: int = 0
    join_s: float = 900.0
    """How long nodes may be missing before the job ends: as long as torch's own rendezvous waits."""
    facts: tuple[Fact, ...] = ()
    """What this node is like; empty with `--preflight off`."""
    strict: bool = False
    """A difference between nodes that breaks jobs ends this one."""
    host_names: tuple[str, ...] = ()
    """A command that prints the hosts of all nodes, by node rank; empty if there is none."""
    munge: Munge = field(default_factory=partial(Munge, is_wanted=False))
    """What adds a secret to the key, unless the user's own is in it."""
    has_endpoint: bool = False
    """The rendezvous' endpoint is on this host."""

    @property
    def needed(self) -> int:
        """How many nodes the job can't begin without."""
        return self.nodes if self.least is None else self.least

    @property
    def node_0(self) -> str:
        """What to call the node that has the hub, before it has said who it is."""
        return "node 0" if self.node_rank is not None else "the endpoint's host"


@dataclass(frozen=True, slots=True)
class Ears:
    """What an agreement needs of the run."""

    loop: Loop
    emit: EventSink
    events: Sequence[Event]
    """All that the sinks got."""
    say: Callable[[str], None]
    end_ranks: Callable[[int, Event], None]
    """End the ranks of an attempt, or let its agent go if all ranks have ended. An attempt that has not begun yet is
    not begun then."""
    serve: Callable[[float], object]
    """Serve the loop for at most so many seconds."""
    stops: Callable[[], int]
    """How often ddp-run was told to stop."""
    helpers: HelperProcesses = field(default_factory=HelperProcesses)
    """Where processes beside the job are known."""
