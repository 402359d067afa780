"""A job's secret by MUNGE, where that runs: a credential that only the same user can open, on a host of this cluster.

Node 0 makes the secret and shows the credential to all that connect. munge(1) and unmunge(1) reach the daemon; that a
credential was opened before, or is old, doesn't matter here: what it holds is still a secret.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import final

from ddp_run.values.helper_process import answer_of, spawn

_SOCKET = Path("/run/munge/munge.socket.2")
_ANSWER_S = 3.0
_AGAIN_S = 30.0
_LONGEST = 800
"""Characters of a credential that go into a greeting; with 32 bytes in it, it has some 200."""
_OPENED = frozenset({0, 15, 16, 17})
"""Success; expired, rewound, replayed: munge.h, munge_err_t."""


def runs_here() -> bool:
    """Whether MUNGE seems to serve this host."""
    return _SOCKET.exists() and all(shutil.which(name) for name in ("munge", "unmunge"))


@final
class Munge:
    """Both sides' part. `is_wanted`: the user has set no secret, which would do the same.

    `credential`: what node 0 shows; None without MUNGE. `why`: what was wrong last; None if nothing was.
    """

    def __init__(self, *, is_wanted: bool = True) -> None:
        self._is_wanted = is_wanted
        self._is_here = is_wanted and runs_here()
        self.credential: str | None = None
        self.why: str | None = None
        self._opened: dict[str, bytes] = {}
        """The secret of the last credential: no process is needed when a node connects again."""
        self._refused = ("", 0.0)
        """The last one that could not be opened, and when to try it again: a node dials every second."""

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
