"""Segmentation fault (SIGSEGV).

## What happened
Compiled code (an extension, a driver, torch itself) accessed invalid memory; the kernel killed the process.
## How to recognise it
Killed by SIGSEGV (exit code -11 in torchrun, 139 in a shell), no Python traceback; faulthandler's `Fatal Python error:
Segmentation fault` with the Python stack at that moment.
## What to do
The innermost line of the stack names the call that crashed. Check that its package is compatible with the installed
torch and CUDA, and rerun with `num_workers=0` and without compiled extensions to find the culprit.
`TORCH_DISTRIBUTED_DEBUG=DETAIL` crashes DistributedDataParallel over gloo (seen with torch 2.13): unset it.
"""

from __future__ import annotations

import signal

from ddp_run.evidence.crash_text import crash_of
from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.advice import by_core, by_phase
from ddp_run.judge.crash_lines import crash_lines
from ddp_run.judge.signs import Sign, like
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP610",
    layer=Layer.ENDED,
    retry=Retry(helps=False, reason="native code usually crashes again on the same input"),
    unlike="loading",
    end="crashed",
)
SIGNS = (
    Sign("Fatal Python error: Segmentation fault"),
    Sign("Caught signal 11 (Segmentation fault"),
    Sign("Signal: Segmentation fault (11)"),
    Sign("Segmentation fault", r"^Segmentation fault\s*$|Segmentation fault \(core dumped\)"),  # a shell's
    Sign("!!!!!!! Segfault encountered !!!!!!!"),
    like(r"\w\[\d{1,9}\]: segfault at [0-9a-f]{1,16} ip "),  # the kernel's
    like(r"traps: [^\n]{1,40}\[\d{1,9}\] general protection"),
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match SIGSEGV, unless the rank was exiting after an exception: torch's threads may crash a process then."""
    if death.code != -signal.SIGSEGV or death.crashed_on_the_way_out:
        return None
    crash = crash_of(death)
    where = crash.where if crash is not None else ""
    shown = crash_lines(death, attempt, SIGNS)
    return Finding(RULE, f"{death.who} crashed in native code{where}", shown, _advice(death, attempt))


def _advice(death: Death, attempt: Evidence) -> tuple[str, ...]:
    advice = ["echo $TORCH_DISTRIBUTED_DEBUG   # DETAIL crashes DistributedDataParallel over gloo: unset it"]
    if death.stack.lines:
        advice.insert(0, f"cat {attempt.path(death.stack.source)}   # Python stack at the crash")
    return (*advice, *by_phase(death), *by_core(death))
