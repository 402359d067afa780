"""Nodes differ in a way that breaks jobs.

## What happened
Before the ranks started, node 0 compared the facts that all nodes reported. They differ in something that must be the
same on all nodes of a job, and `--preflight strict` refuses such a job. The program never started.
## How to recognise it
`nodes differ in torch: 2.13.0 on node 0 (gpu-01), 2.12.1 on node 1 (gpu-02) (--preflight strict)`, exit code 78. These
differences break jobs: another version of torch, of its CUDA or of NCCL, another minor version of Python, another
script, or another value of `NCCL_ALGO`, `NCCL_PROTO`, `NCCL_NET`, `NCCL_IB_DISABLE`, NCCL's buffer sizes or
`TORCH_DISTRIBUTED_DEBUG`. All other differences only cause a warning.
## What to do
`nodes/facts.txt` in node 0's run folder has the whole comparison. Make the nodes identical: the same environment or
image, the same checkout, the same exports in the job's script. `ddp-run --dry-run …` shows what a node reports to the
others, without starting a job: compare two nodes' outputs with `diff`. With `--preflight auto`, differences only cause
a warning.
"""

from __future__ import annotations

from ddp_run.evidence.model import TORCHS_AGENT, Evidence
from ddp_run.judge.signs import anywhere, like
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.record import file_names

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP105",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the nodes will still differ"),
)
_REFUSED = like(r"error\[DDP105\]: (?P<said>nodes differ in [^\n]{1,1000}? \(--preflight strict\))")
"""ddp-run's own message, in a pasted log."""
SIGNS = (_REFUSED,)
_ALIKE = "make the nodes identical, or use --preflight auto, which only warns"


def match_launch(attempt: Evidence) -> Finding | None:
    """Match a job that was refused because of differences between its nodes."""
    if attempt.logs_only:
        return _in_text(attempt)
    compared = attempt.unlike
    if compared is None or not compared.refused or not compared.breaking:
        return None
    first, *others = compared.breaking
    more = f", and in {len(others)} more" if others else ""
    facts = attempt.path(f"{file_names.NODES}/{file_names.FACTS}")
    advice = (f"cat {facts}   # the full comparison", _ALIKE)
    return Finding(RULE, f"nodes differ in {first}{more} (--preflight strict)", (), advice)


def _in_text(attempt: Evidence) -> Finding | None:
    hit = anywhere(attempt.agent.log, SIGNS)
    return None if hit is None else hit.finding(RULE, TORCHS_AGENT, hit["said"], (_ALIKE,))
