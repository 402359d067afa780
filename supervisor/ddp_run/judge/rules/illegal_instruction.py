"""Illegal instruction (SIGILL).

## What happened
The rank reached an instruction that its CPU does not have. Usually a package was compiled for a newer CPU, with AVX2,
AVX-512 or FMA. A compiler also puts an invalid instruction where code must never arrive, as a trap.
## How to recognise it
Killed by SIGILL (exit code -4 in torchrun, 132 in a shell), often at an `import`. The kernel's log names the library:
`traps: python[731] trap invalid opcode ip:… in libexample.so[…]`.
## What to do
- `lscpu | grep -E 'Model name|Flags'` on this host and on one where it works. Old or emulated CPUs (`-cpu qemu64`) lack
  AVX. Rent another host, or let the virtual machine pass its host's CPU through.
- Install a build of that library for this CPU, or build it here: an extension compiled with `-march=native` on another
  host, or kept in a shared `~/.cache`, brings that host's instructions along.
"""

from __future__ import annotations

import re
import signal

from ddp_run.evidence.crash_text import crash_of
from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.advice import by_core
from ddp_run.judge.crash_lines import crash_lines
from ddp_run.judge.signs import Sign, like
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP612",
    layer=Layer.ENDED,
    retry=Retry(helps=False, reason="the same CPU meets the same instruction again"),
    unlike="loading",
    end="crashed",
)
SIGNS = (
    Sign("Fatal Python error: Illegal instruction"),
    Sign("Caught signal 4 (Illegal instruction"),
    Sign("Signal: Illegal instruction (4)"),
    Sign("Illegal instruction", r"^Illegal instruction\s*$|Illegal instruction +\(core dumped\)"),  # a shell's
    like(r"traps: [^\n]{1,40}\[\d{1,9}\] trap invalid opcode ip:"),  # the kernel's
)
_LIBRARY = re.compile(r" trap invalid opcode [^\n]{1,200}? in (?P<file>[^\s\[]{1,200})\[")
"""The kernel's form: arch/x86/kernel/traps.c, print_vma_addr."""


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match SIGILL, unless the rank was exiting after an exception."""
    if death.code != -signal.SIGILL or death.crashed_on_the_way_out:
        return None
    crash, shown = crash_of(death), crash_lines(death, attempt, SIGNS)
    library = next((hit["file"] for quote in shown if (hit := _LIBRARY.search(quote.text))), None)
    of = f" of {library}" if library is not None else ""
    where = crash.where if crash is not None else ""
    advice = ("lscpu | grep -E 'Model name|Flags'   # does this CPU have what the library was compiled for?",)
    return Finding(RULE, f"{death.who} met an illegal instruction{of}{where}", shown, (*advice, *by_core(death)))
