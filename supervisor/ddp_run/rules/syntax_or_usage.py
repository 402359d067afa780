"""The script does not parse, or the launcher was called wrongly.

## What happened
Python could not compile the script, or torch's launcher refused its own options. Nothing was trained.
## How to recognise it
`SyntaxError`, `IndentationError` or `TabError`; a `usage:` text and `error:` of torchrun with exit code 2;
`can't open file '…/python'`, where the word `python` stands before the script on the command line.
## What to do
Correct the line that is named. `ddp-run` and `torchrun` take the script itself: `ddp-run --nproc-per-node 2 train.py`,
without `python`.
"""

from __future__ import annotations

import re

from ddp_run.traceback_text import line_of
from ddp_run.verdict import Area, Death, Evidence, Finding, Retry, Rule

RULE = Rule(
    code="DDP101",
    name="syntax-or-usage",
    title="The script does not parse, or the launcher was called wrongly",
    area=Area.LAUNCH,
    retry=Retry(helps=False, reason="the same text does not parse on the next attempt either"),
    since="0.1",
    beats=("script-not-found", "bad-arguments"),
)
_TYPES = frozenset({"SyntaxError", "IndentationError", "TabError"})
_PLACE = re.compile(r" \([^()]*, line \d+\)$")
_PYTHON_AS_SCRIPT = re.compile(r"can't open file '(?:[^']*/)?(?P<word>python[\d.]*|\s*)'")
_REFUSED = re.compile(r"(?:torchrun|run\.py|launch\.py|torch\.distributed\.\w+): error: (?P<what>.+)")
_BAD_VALUE = re.compile(r"ValueError: (?P<what>Unsupported nproc_per_node value.*|.*nnodes.*format.*)")


def match(death: Death, run: Evidence) -> Finding | None:
    """A rank whose script does not compile, or whose script is the word `python`."""
    raised = death.exception
    if raised is not None and raised.type in _TYPES:
        quote = line_of(death.stderr, raised)
        place = f"{raised.file}:{raised.line}" if raised.file else "the script"
        return Finding(
            RULE,
            death.rank,
            f"{place} does not parse: {_PLACE.sub('', raised.message.partition(chr(10))[0])}",
            (quote,) if quote else (),
            (f"python -m py_compile {raised.file}",) if raised.file else (),
            exception=raised,
        )
    hit = death.stderr.last(_PYTHON_AS_SCRIPT)
    if hit is None:
        return None
    word = hit[1]["word"].strip()
    said = f"`{word}` was taken for the script" if word else "a blank was taken for the script"
    return Finding(RULE, death.rank, said, (hit[0],), ("name the script itself: ddp-run [OPTIONS] train.py [ARGS]",))


def match_launch(run: Evidence) -> Finding | None:
    """Options that torch's launcher refused."""
    hit = run.agent.log.last(_REFUSED) or run.agent.log.last(_BAD_VALUE)
    if hit is None or run.started:
        return None
    advice = ("ddp-run --help   # all options, those of torchrun included",)
    return Finding(RULE, None, f"torch's launcher refused its options: {hit[1]['what']}", (hit[0],), advice)
