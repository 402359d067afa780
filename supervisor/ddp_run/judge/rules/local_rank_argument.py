"""Script does not accept --local-rank.

## What happened
A launcher (`torch.distributed.launch` without `--use-env`, DeepSpeed's) passed `--local-rank=N` to every rank (torch up
to 1.13: `--local_rank=N`), and the script's own argument parser does not know that option, or only its other spelling;
or the script requires an option that torchrun and ddp-run do not pass.
## How to recognise it
`error: unrecognized arguments: --local-rank=0` (or `--local_rank=0`); `error: the following arguments are required:
--local_rank`. Exit code 2 on all ranks.
## What to do
- Start it with ddp-run or torchrun, which pass no such option, and read `int(os.environ["LOCAL_RANK"])` in the script.
- If the script must keep the option, accept both spellings: `parser.add_argument("--local-rank", "--local_rank",
  type=int, default=int(os.environ.get("LOCAL_RANK", 0)))`.
"""

from __future__ import annotations

from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.judge.signs import anywhere, in_exception, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP104",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the same arguments will be rejected again"),
)
_OPTION = r"(?P<option>--local[-_]rank)\b"
_PRINTED = (
    *meaning(
        like(rf"unrecognized arguments: [^\n]{{0,400}}?{_OPTION}"),
        like(rf"No such option: {_OPTION}"),
        cause="does not accept {option}, which its launcher passed",
    ),
    like(
        rf"the following arguments are required: [^\n]{{0,400}}?{_OPTION}",
        cause="requires {option}, which ddp-run and torchrun do not pass",
    ),
)
_RAISED = (
    like(
        rf"are not used by the HfArgumentParser: [^\n]{{0,400}}?{_OPTION}",
        cause="does not accept {option}, which its launcher passed",
    ),
)
SIGNS = (*_PRINTED, *_RAISED)
_ADVICE = (
    'local_rank = int(os.environ["LOCAL_RANK"])   # in the script, instead of the option',
    'parser.add_argument("--local-rank", "--local_rank", type=int, default=0)   # if the option must stay',
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match the error of argparse, click or transformers about that very option, at the end."""
    hit = in_exception(death, _RAISED)
    if hit is None and death.code in (2, None):
        hit = anywhere(death.stderr.ending(LAST_WORDS), _PRINTED)
    cause = f"{attempt.script or 'the script'} {hit.says(death)}" if hit is not None else ""
    return None if hit is None else hit.finding(RULE, death, cause, _ADVICE, confidence="certain")
