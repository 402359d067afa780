"""Peer exited without an error.

## What happened
This rank lost its connection to another rank in the middle of a collective. The other rank died; this one only noticed.
## How to recognise it
gloo: `Connection closed by peer`, `Connection reset by peer`, `Broken pipe`; NCCL: `remote process exited or there was
a network error`; the store: `Failed to recv, got 0 bytes`. A rank that prints this is not the cause.
## What to do
Check the rank that died first (the verdict names it). If the logs that were explained do not show it, the verdict says
so: explain the logs of all ranks together, or the run's folder. If that rank exited with code 0, the ranks disagree
about the number of steps: give each the same number of batches (`DistributedSampler(drop_last=True)`, `Join`).
"""

from __future__ import annotations

import re
import signal

from ddp_run.evidence.exception_chain import chain, raised_from
from ddp_run.evidence.exception_frames import statement
from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.judge.lost_peers import address
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.signs import Sign, in_last_words, like
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.record.events import ExceptionInfo

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP501",
    layer=Layer.FOLLOWED,
    retry=Retry(helps=True, reason="the logs do not show why the connection was lost; it may hold next time"),
    wins_over=(("native-abort", "the rank aborted because a peer is gone"),),
    unlike="together",
)
_SPEAKER = (
    r"(?:gloo|c10d|TCPStore|[Ss]ocket|pair\.cc|ProcessGroup|NCCL|nccl|UCC|MPI|(?:Read|write|writev) (?:error )?\[)"
)
_OF = rf"\A(?:(?!{_SPEAKER}).)*{_SPEAKER}.*"
"""Skips to the first speaker: trying every one would take quadratic time."""
_LOST = (
    *("onnection closed by peer", "onnection reset by peer", "Broken pipe", "ocket closed", "closed by remote peer"),
    *("onnection was closed by", "onnection was likely closed"),
)
SIGNS: tuple[Sign, ...] = (
    *(like(f"(?s){_OF}{words}") for words in _LOST),
    Sign("remote process exited or there was a network error"),
    Sign("ncclRemoteError"),
    like(r"NCCL communicator was aborted on rank \d{1,9}\.(?! *Original reason)"),
    Sign(" to recv, got 0 bytes"),  # the store's client: "failed …" up to torch 2.2, "Failed …" since
    # other runtimes, which are explicit
    Sign("Terminating process because the JAX distributed service detected fatal errors"),
    Sign("An MPI communication peer process has unexpectedly disconnected"),
    like(r"in <TCP \(closed\) [^\n]{1,300}: Stream is closed"),  # Dask
    like(r"MPI\w{1,60}\(\d{1,6}\)\.{0,80}: Process failed"),  # MPICH
    like(r"\(\d{1,6}\)\.{0,80}: Communication error with rank \d{1,9}"),
    Sign("Horovod has been shut down. This was caused by an exception on one of the ranks"),
)
_STORE_LOST = re.compile(r"^(?:Connection (?:reset|closed) by peer|Broken pipe|Connection was likely closed)")
_ASKED = re.compile(r"\bstore\.(?:get|set|add|wait|check|compare_set|delete_key|num_keys)\(")
"""A program's own call of the store has no frame of torch."""
_TORCHS = frozenset({"RuntimeError", "DistNetworkError", "DistBackendError", "DistStoreError", "DistError"})
_OTHERS = frozenset({"XlaRuntimeError", "JaxRuntimeError", "HorovodInternalError", "CommClosedError"})
_ABORTS = re.compile(r"terminate called|what\(\): |[Ww]atchdog|[Tt]erminating the process|Check failed")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a torch exception about a lost connection that ended the rank, or that the program's was raised from;
    without an exception, its last lines."""
    raised = death.exception
    if raised is not None:
        links = (link for link in chain(raised) if link is raised or raised_from(raised, link))
        lost = next(filter(_tells_of_a_loss, links), None)
        if lost is None:
            return None
        return Finding(RULE, _cause(death, attempt, lost.message), line_of(death.stderr, lost))
    hit = in_last_words(death, SIGNS, LAST_WORDS) if _may_follow(death, attempt) else None
    return hit.finding(RULE, death, _cause(death, attempt, hit.text), confidence="certain") if hit is not None else None


def _tells_of_a_loss(raised: ExceptionInfo) -> bool:
    name = raised.type.rpartition(".")[2]
    if name not in _TORCHS | _OTHERS:
        return False
    if any(sign.search(raised.message) for sign in SIGNS):
        return True
    of_torch = name != "RuntimeError" or "/torch/distributed/" in raised.traceback or _ASKED.search(statement(raised))
    return bool(of_torch and _STORE_LOST.search(raised.message))


def _may_follow(death: Death, attempt: Evidence) -> bool:
    """Whether a lost peer can explain its end: a process that aborts for that prints an uncaught exception. Without
    one, it aborted on its own, and the lines about lost connections in the shared log are its peers'. A lost peer never
    causes a crash, nor SIGKILL. Nor are those lines of one that just exits, if others aborted.
    """
    if not death.crashed:
        left = attempt.logs_only and (death.code or 0) > 0 and attempt.once(_some_aborted)
        return not (left or (attempt.logs_only and death.code == -signal.SIGKILL))
    said = death.stderr.ending(LAST_WORDS).lines
    return death.code == -signal.SIGABRT and any(_ABORTS.search(line) for line in said)


def _some_aborted(attempt: Evidence) -> bool:
    return any(death.code == -signal.SIGABRT for death in attempt.deaths)


def _cause(death: Death, attempt: Evidence, message: str) -> str:
    """Return the text with the peer's address, if the message has it and the peer may be on another host."""
    peer = address(message) if attempt.nodes > 1 or attempt.logs_only else None
    return f"{death.who} lost its connection to a peer{f' at {peer}' if peer else ''}"
