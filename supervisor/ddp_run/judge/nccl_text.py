"""Parses NCCL and RCCL errors: result code, last error, warnings. Pure.

Forms: torch's `NCCL error in: FILE:LINE, internal error, NCCL version 2.14.3` with the name of the code and `Last
error:` below (ProcessGroupNCCL.cpp, NCCLUtils.hpp), torch.cuda.nccl's `NCCL Error 5: …`, the watchdog's `NCCL error: …`
(checkForNCCLErrorsInternal), and NCCL's `HOST:PID:TID [DEVICE] FILE:LINE NCCL WARN …` (debug.cc).
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, LogText, Quote
from ddp_run.evidence.windows import AFTER, BEFORE
from ddp_run.judge.signs import Hit, Sign, ended_by, like
from ddp_run.values.typed_fields import frozen

_PHRASES = {
    "unhandled cuda error": "ncclUnhandledCudaError",
    "unhandled system error": "ncclSystemError",
    "internal error": "ncclInternalError",
    "invalid argument": "ncclInvalidArgument",
    "invalid usage": "ncclInvalidUsage",
    "remote process exited": "ncclRemoteError",
}
ERRORS = (
    Sign("NCCL error in: "),
    Sign("NCCL error: "),
    *(like(r"NCCL error\(\d+\), "), Sign("Nccl error, ")),  # Paddle
    like(r"NCCL Error \d+: "),
    like(r"Test NCCL failure \S{1,100}:\d{1,6} '"),  # nccl-tests
    like(r"\bnccl\w{1,60} failed: unhandled "),  # Horovod
    like(r"NCCL operation \w{1,60}\([^\n]{0,300}?\) failed: "),  # XLA
    like(r"NCCL_ERROR_(?:UNHANDLED|SYSTEM|INTERNAL|INVALID)_\w{1,20}: "),  # CuPy
    *(Sign(f"{code}: ") for code in _PHRASES.values()),
)
"""Signs of an NCCL error that ended a rank."""
REASONS = (Sign("NCCL WARN "), Sign("Last error:"))
"""Signs of the lines that give the reason."""


def warning_of_result(codes: str) -> Sign:
    """Return the sign of a warning after which NCCL's own call returned one of these digits.

    Of ncclResult_t (nccl.h), 2 is an error of the system and 6 one of another rank.
    """
    return like(rf"NCCL WARN [^\n]{{1,400}}\n[^\n]{{0,200}} NCCL INFO \S{{1,100}}:\d{{1,6}} -> [{codes}]\b")


_CODE = re.compile(rf"\b(?:{'|'.join(_PHRASES.values())})\b")
_PHRASE = re.compile(
    r"(?:NCCL(?: error in: [^,]{0,300},| error[:,]| error\(\d+\),| Error \d+:| failure \S{1,100} '"
    r"| operation [^\n]{0,300}?\) failed:"
    r"|_ERROR_\w{1,40}:)"
    r"|\bnccl\w{1,60} failed:)"
    r" *(?P<phrase>" + "|".join(_PHRASES) + r")",
    re.IGNORECASE,
)
_LAST_ERROR = re.compile(r"Last error:[ \t]*(?P<said>[^\n]*)(?:\n(?P<next>[^\n]*))?")
_WARN = "NCCL WARN "
_WARNER = re.compile(r"[\w.\-]:(?P<pid>\d{1,9}):\d+ \[-?\d+\] [^\[]{0,300}$")
"""The prefix of a warning: the process that prints it."""
_SPEAKER = re.compile(r"^(?:\[[A-Za-z_]*\d+\]:\s*)+")
_LEFT = re.compile(r"[Cc]onnection (?:closed|reset) by (?:remote )?peer|Broken pipe")
_NETWORK = re.compile(
    r"no socket interface found|No usable listening interface|NET/Socket : no interface found"
    r"|no device found (?:matching|after excluding)"
    r"|[Cc]onnect to \S+ (?:returned|failed|with error)|PollConnect to \S+ failed|connect returned "
    r"|Call to connect returned|exceeded (?:error )?retr|exceeded timeouts"
    r"|Call to (?:recv from|send to|connect|bind|listen|accept|getaddrinfo|getsockname)\b"
    r"|Net : |Accept failed|Proxy Call to rank \d+ failed \(Connect\)"
    r"|NET/(?:IB|OFI|Socket|UCX|RDMA)|ibv_\w+|[Gg]ot completion (?:from peer|with)|Got async event"
    r"|No route to host|Connection refused|Connection timed out|Network is unreachable|any NET plugin"
)
_MISMATCH = re.compile(r"collective mismatch error|message truncated : receiving")
_MEMORY_FILE = re.compile(r"(?:dev/shm/|shared memory)(?!.*No such file)|No space left on device")


@frozen
class NcclError:
    """An NCCL error that ended a rank.

    `reason` is the closest that NCCL gets to a cause: its last error, else its last warning; None if it printed
    neither.
    """

    code: str | None
    reason: str | None
    hit: Hit
    also: tuple[Quote, ...]

    @property
    def network(self) -> bool:
        """Whether the reason is the network, and not a peer that closed its end."""
        said = self.reason
        return said is not None and bool(_NETWORK.search(said)) and not _LEFT.search(said) and not self.mismatch

    @property
    def peer_left(self) -> bool:
        """Whether another process closed its end of a connection: a consequence."""
        if self.network or self.mismatch:
            return False
        return self.code == "ncclRemoteError" or (self.reason is not None and bool(_LEFT.search(self.reason)))

    @property
    def mismatch(self) -> bool:
        """Whether a peer sent a different size than this rank expects."""
        return self.reason is not None and bool(_MISMATCH.search(self.reason))

    @property
    def shared_memory(self) -> bool:
        """Whether shared memory is too small or not writable."""
        return self.reason is not None and bool(_MEMORY_FILE.search(self.reason))


def error_of(death: Death) -> NcclError | None:
    """Return the NCCL error that ended this rank."""
    hit = ended_by(death, ERRORS)
    if hit is None:
        return None
    text = hit.exception.message if hit.exception is not None else _around(death.stderr, hit)
    code, phrase = _CODE.search(text), _PHRASE.search(text)
    last, quote = _last_error(text), None
    if last is not None:
        quote = _line(death.stderr, last)
    elif (warned := _warning(death)) is not None:
        last, quote = warned
    name = code[0] if code else _PHRASES[phrase["phrase"].lower()] if phrase else None
    return NcclError(name, last, hit, (quote,) if quote else ())


def _around(log: LogText, hit: Hit) -> str:
    if hit.quote is None:
        return hit.text
    for index in range(len(log.lines) - 1, -1, -1):
        if log.number(index) == hit.quote.line and log.lines[index] == hit.quote.text:
            lines = log.lines[max(0, index - BEFORE) : index + AFTER]
            return "\n".join(_SPEAKER.sub("", line) for line in lines)
    return hit.quote.text


def _last_error(text: str) -> str | None:
    found = None
    for hit in _LAST_ERROR.finditer(text):
        said = hit["said"].strip() or (hit["next"] or "").strip()
        if said and not said.startswith(("Exception raised from", "frame #", "[")):
            found = said
    return found


def _warning(death: Death) -> tuple[str, Quote] | None:
    """Return NCCL's last warning; this process' own if its pid is known and precedes a warning."""
    said = [
        (hit["pid"] if (hit := _WARNER.search(before)) is not None else None, words.strip(), log.quote(index))
        for log in (death.nccl, death.stderr)
        for index, line in enumerate(log.lines)
        if _WARN in line
        for before, _, words in (line.partition(_WARN),)
        if words
    ]
    own = [each for each in said if death.pid is not None and each[0] == str(death.pid)]
    telling = [each for each in own or said if not _LEFT.search(each[1])] or own or said
    return telling[-1][1:] if telling else None


def _line(log: LogText, words: str) -> Quote | None:
    for index in range(len(log.lines) - 1, -1, -1):
        if words in log.lines[index]:
            return log.quote(index)
    return None
