"""The script refused its arguments.

## What happened
The script's own argument parser did not accept what stands behind the script's name on the command line.
## How to recognise it
Exit code 2, `usage: …` and `SCRIPT: error: …` as the last words of the rank; on all ranks alike.
## What to do
Correct the argument that is named. What belongs to the launcher stands before the script, what belongs to the script
behind it. Scripts written for the old `torch.distributed.launch` may lack, or insist on, `--local-rank`.
"""

from __future__ import annotations

import re

from ddp_run.verdict import Area, Death, Evidence, Finding, Retry, Rule

RULE = Rule(
    code="DDP103",
    name="bad-arguments",
    title="The script refused its arguments",
    area=Area.LAUNCH,
    retry=Retry(helps=False, reason="the same arguments are refused on the next attempt"),
    since="0.1",
)
_ARGPARSE = re.compile(r"(?P<program>[\w.\-/]+(?: \w+)?): error: (?P<what>.+)")
_CLICK = re.compile(r"^\W*Error: (?P<what>(?:No such option|Missing |Invalid value|Got unexpected).+)")
_USAGE = re.compile(r"[Uu]sage: ")
_ENDING = 200


def match(death: Death, run: Evidence) -> Finding | None:
    """Exit code 2 with a usage text and an error at the end (argparse, click)."""
    ending = death.stderr.ending(_ENDING)
    if death.code != 2 or ending.last(_USAGE) is None:
        return None
    hit = ending.last(_ARGPARSE) or ending.last(_CLICK)
    if hit is None:
        return None
    script = run.script or "the script"
    advice = (f"python {run.script} --help",) if run.script and run.script.endswith(".py") else ()
    return Finding(RULE, death.rank, f"{script} refused its arguments: {hit[1]['what']}", (hit[0],), advice)
