"""Nodes differ in a way that breaks jobs.

## What happened
Before the ranks started, node 0 compared what all nodes said of themselves. They differ in something in which the nodes
of a job must agree, and `--preflight strict` refuses such a job. Nothing of the program ran.
## How to recognise it
`nodes differ in torch: 2.13.0 on node 0 (gpu-01), 2.12.1 on node 1 (gpu-02) (--preflight strict)`, exit code 78. These
differences break jobs: another version of torch, of its CUDA or of NCCL, another minor version of Python, another
script, or another value of `NCCL_ALGO`, `NCCL_PROTO`, `NCCL_NET`, `NCCL_IB_DISABLE`, NCCL's buffer sizes or
`TORCH_DISTRIBUTED_DEBUG`. All others are warned of only.
## What to do
`nodes/facts.txt` in node 0's run folder has the whole comparison. Make the nodes alike: the same environment or image,
the same checkout, the same exports in the job's script. `ddp-run --dry-run …` on a node shows what that node tells the
others, without a job: compare two of these with `diff`. With `--preflight auto`, differences are only warned of.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Evidence
from ddp_run.judge.signs import Sign, anywhere
from ddp_run.judge.verdict import Area, Finding, Retry, Rule
from ddp_run.record import file_names

RULE = Rule(
    code="DDP105",
    name="unlike-nodes",
    title="Nodes differ in a way that breaks jobs",
    area=Area.LAUNCH,
    retry=Retry(helps=False, reason="the nodes will still differ"),
    since="0.1",
)
_REFUSED = Sign(
    "(--preflight strict)",
    re.compile(r"error\[DDP105\]: (?P<said>nodes differ in [^\n]{1,1000}? \(--preflight strict\))"),
)
"""ddp-run's own words, in a pasted log."""
SIGNS = (_REFUSED,)
_ALIKE = "make the nodes alike, or use --preflight auto, which only warns"


def match_launch(attempt: Evidence) -> Finding | None:
    """The nodes were compared, and the job was ended for what was found."""
    if attempt.logs_only:
        return _in_text(attempt)
    compared = attempt.unlike
    if compared is None or not compared.refused or not compared.breaking:
        return None
    first, *others = compared.breaking
    more = f", and in {len(others)} more" if others else ""
    facts = attempt.path(f"{file_names.NODES}/{file_names.FACTS}")
    advice = (f"cat {facts}   # all that was compared", _ALIKE)
    return Finding(RULE, None, f"nodes differ in {first}{more} (--preflight strict)", (), advice)


def _in_text(attempt: Evidence) -> Finding | None:
    hit = anywhere(attempt.agent.log, SIGNS)
    if hit is None or hit.quote is None:
        return None
    return Finding(RULE, None, hit["said"] or "", (hit.quote,), (_ALIKE,))
