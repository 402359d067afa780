"""File system error.

## What happened
A read or a write failed because the file system or the server behind it did, not because of the path or its
permissions.
## How to recognise it
`[Errno 116] Stale file handle`, `[Errno 5] Input/output error`, `[Errno 30] Read-only file system`, `[Errno 107]
Transport endpoint is not connected` (a FUSE or Gluster mount whose daemon died), `[Errno 108] Cannot send after
transport endpoint shutdown` (Lustre), `[Errno 117] Structure needs cleaning`, `No locks available`. A `print` after the
terminal was closed gives `Input/output error` too: [terminal-closed](terminal-closed.md).
## What to do
`findmnt -T PATH` shows the mount and its server, `dmesg -T | tail` the kernel's messages. If it happens on one node
only, exclude that node. For a read-only mount in a container, mount it with `:rw` or use another folder.
"""

from __future__ import annotations

import re
import shlex

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge import printed_text
from ddp_run.judge.signs import QUOTED_PATH, Hit, Sign, ended_by, like, said_last
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP907",
    layer=Layer.REFUSED,
    retry=Retry(helps=True, reason="file servers and mounts often come back"),
    wins_over=(("checkpoint-corrupt", "the checkpoint can't be read because its disk or mount failed"),),
)
_QUOTED = rf"(?:: {QUOTED_PATH})?"
_ERRORS = (
    "Stale file handle",
    "Stale NFS file handle",
    "Input/output error",
    "Read-only file system",
    "Transport endpoint is not connected",
    "Cannot send after transport endpoint shutdown",
    "Structure needs cleaning",
    "Remote I/O error",
    "No locks available",
    "Host is down",
)
_OF_A_PATH = ("Connection timed out", "Bad message", "No data available", "No such device", "Device or resource busy")
"""Sockets and devices return these, too: they count only next to a file path."""
# An unconnected socket returns the same errno, so the class must be about a file.
_TYPES = frozenset(
    {"OSError", "IOError", "HfHubHTTPError", "SafetensorError", "RuntimeError", "BlockingIOError", "TimeoutError"}
)
_RAISED: tuple[Sign, ...] = (
    *(Sign(words, rf"\[[Ee]rrno \d+\] (?P<what>{re.escape(words)}){_QUOTED}", _TYPES) for words in _ERRORS),
    *(Sign(words, rf"\[Errno \d+\] (?P<what>{words}): (?!['\"]/dev/){QUOTED_PATH}", _TYPES) for words in _OF_A_PATH),
    *(Sign(words, rf"(?P<what>{re.escape(words)}) \(os error \d+\)") for words in (*_ERRORS, "No such device")),
    *(  # the words of C libraries in custom exception classes
        Sign(words, rf"^[\w.]{{1,200}}(?:Error|Exception): (?P<path>/[^\s:]{{1,400}}): (?P<what>{re.escape(words)})$")
        for words in _ERRORS
    ),
    *(
        Sign(words, rf"\w\(\): fd \d+ failed with (?P<what>{re.escape(words)})") for words in _ERRORS
    ),  # torch's before 1.6
    *(Sign(words, rf"on fopen: (?P<what>{re.escape(words)}), file path: (?P<path>\S+)") for words in _ERRORS),
    like(
        r"unable to lock file, errno = \d+, error message = '(?P<what>[^']+)'",
        cause="{who} could not lock an HDF5 file{where}: another process holds it, or locks are not supported",
        advice=("export HDF5_USE_FILE_LOCKING=FALSE   # if every process only reads the file",),
        likely=True,
    ),
)
_OF_TOOLS = (
    *(
        Sign(words, rf"^\S{{1,300}}: [^\n]{{0,400}}: (?P<what>{words})\s*$")
        for words in (
            "Stale file handle",
            "Read-only file system",
            "Input/output error",
            "Transport endpoint is not connected",
        )
    ),
    # the kernel's
    like(r"nfs: server (?P<path>\S{1,300}) (?P<what>not responding, timed out)"),
    like(r"mount\.nfs4?: (?P<what>Connection timed out|[^\n]{0,80}not responding)"),
    like(r"(?P<what>EXT4-fs error) \(device [^)\n]{1,80}\)"),
    like(r"(?P<what>I/O error, dev \w{1,40})"),
)
"""Group `what`: the message of the file system or kernel."""
SIGNS = (*_RAISED, *_OF_TOOLS)
_PRINTED = printed_text.errors(_ERRORS)
_SOCKET = re.compile(r"/socket\.py|/ssl\.py|/asyncio/|\.(?:recv|send|sendall|connect|shutdown|getpeername)\(")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match an error number that only a file system, a disk or a file server returns."""
    if death.killed_by_another:
        return None
    hit = ended_by(death, _RAISED) or said_last(death, _OF_TOOLS) or printed_text.at_the_end(death, _PRINTED)
    if hit is None or _of_socket(hit) or printed_text.could_not_print(death):
        return None
    file, read_only = hit["path"] or "a file", hit["what"] == "Read-only file system"
    does, why = ("write", "the file system is read-only") if read_only else ("use", hit["what"])
    cause = hit.says(death) or f"{death.who} could not {does} {file}{hit.where(death)}: {why}"
    retry = Retry(helps=False, reason="the file system will still be read-only") if read_only else None
    return hit.finding(RULE, death, cause, _advice(death, attempt, hit), retry=retry)


def _of_socket(hit: Hit) -> bool:
    """Whether a socket, not a file, returned the number."""
    either = hit["path"] is None and (hit["what"] or "").startswith(("Transport", "Cannot send"))
    return either and _SOCKET.search(hit.traceback) is not None


def _advice(death: Death, attempt: Evidence, hit: Hit) -> tuple[str, ...]:
    folder = shlex.quote((hit["path"] or "").rpartition("/")[0] or ".")
    on = f" on {death.host}" if death.host and attempt.nodes > 1 else ""
    return (
        f"findmnt -T {folder}   # which mount, which server, read-only?{on}",
        f"dmesg -T | tail -n 30   # what the kernel says about it{on}",
    )
