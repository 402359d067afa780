"""Aborted in native code (SIGABRT).

## What happened
Compiled code called `abort()`: a failed assertion, an uncaught C++ exception, or a corrupted heap.
## How to recognise it
Killed by SIGABRT (exit code -6, 134 in a shell); often `terminate called …`, `what(): …`, `Assertion … failed`,
`free(): invalid pointer` or `double free or corruption` just before.
## What to do
The last lines before the abort say what went wrong. Find the package that prints them, and check that its version is
compatible with the installed torch.
"""

from __future__ import annotations

import re
import signal

from ddp_run.evidence.crash_text import crash_of
from ddp_run.evidence.launcher_exceptions import tells_of_a_program
from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.judge.advice import by_core, by_phase
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.signs import Hit, Sign, anywhere, like
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP611",
    layer=Layer.ENDED,
    retry=Retry(helps=False, reason="the same check usually fails on the same input"),
    unlike="loading",
    end="crashed",
)
_NO_REASON = "terminate called"
"""C++ prints this before the reason, if it prints one."""
_WHAT = (Sign("what():  ", r"what\(\):\s+(?P<what>.+)"),)
_LAST_WORDS = (
    *(
        Sign(words, rf"(?P<what>{re.escape(words)}.*)")
        for words in (
            *(_NO_REASON, "free(): ", "malloc(): ", "realloc(): ", "double free or corruption"),
            *("corrupted size", "corrupted double-linked", "Fatal Python error: "),
        )
    ),
    like(r"^(?P<what>(?>.*?Assertion `).*failed.*)"),
    like(r"^(?P<what>.*Assertion failed.*)"),
    like(r"(?P<what>\*\*\* .{1,80} detected \*\*\*: terminated)"),
)
SIGNS: tuple[Sign, ...] = (*_WHAT, *_LAST_WORDS)
SYMPTOMS = (like(r"\*\*\* Error in `[^'\n]{1,200}': (?:malloc|free|realloc|calloc|double free|corrupted|munmap)"),)
"""glibc's before 2.26."""


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match SIGABRT, unless the rank was exiting after an exception: torch's threads may crash a process then."""
    if death.code != -signal.SIGABRT or death.crashed_on_the_way_out:
        return None
    ending = death.stderr.ending(LAST_WORDS)
    hit = anywhere(ending, _WHAT) or anywhere(ending, _LAST_WORDS)
    says_why, crash = hit is not None and hit.sign.words != _NO_REASON, crash_of(death)
    if attempt.logs_only and crash is None and _raised_before(death, hit):
        return None
    said = f": {(hit['what'] or '').strip()[:160]}" if hit else ""
    said = crash.where + (said if hit and crash.what not in said else "") if crash is not None else said
    quotes = [hit.quote] if hit is not None and hit.quote is not None else []
    quotes += [quote for quote in (crash.quotes if crash is not None else ()) if quote not in quotes]
    advice = (f"cat {attempt.path(death.stack.source)}   # Python stack at the abort",) if death.stack.lines else ()
    return Finding(
        RULE,
        f"{death.who} aborted in native code{said}",
        tuple(quotes),
        (*advice, *by_phase(death), *by_core(death)),
        # a process that aborts on purpose (a watchdog) prints why, but an incomplete log may lack it
        "certain" if says_why or crash is not None or not attempt.logs_only else "likely",
    )


def _raised_before(death: Death, hit: Hit | None) -> bool:
    """Whether the text shows an exception that ended the program, followed by native code's message or none at all."""
    if death.exception is None or tells_of_a_program(death.exception):
        return False
    if hit is None or hit.quote is None:
        return True
    return any((shown.line or 0) < (hit.quote.line or 0) for shown in line_of(death.stderr, death.exception))
