"""Script rejected its arguments.

## What happened
The script's own argument parser rejected the arguments that follow the script name on the command line.
## How to recognise it
Exit code 2, `usage: …` and `SCRIPT: error: …` as the last lines of the rank; the same on all ranks. Transformers'
parser raises `ValueError: Some specified arguments are not used by the HfArgumentParser`.
## What to do
Fix the argument named in the error. Launcher options go before the script, script arguments after it. A `--local-rank`
added by the launcher is [local-rank-argument](local-rank-argument.md).
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign, anywhere, in_exception
from ddp_run.judge.verdict import Area, Finding, Retry, Rule

RULE = Rule(
    code="DDP103",
    name="bad-arguments",
    title="Script rejected its arguments",
    area=Area.LAUNCH,
    retry=Retry(helps=False, reason="the same arguments will be rejected again"),
    since="0.1",
)
_ARGPARSE = Sign(": error: ", re.compile(r"(?<![\w.\-/])(?P<program>[\w.\-/]+(?: \w+)?): error: (?P<what>.+)"))
_ARGPARSES_OWN = Sign(
    ": error: ",
    re.compile(
        r"(?<![\w.\-/])(?P<program>[\w.\-/]{1,300}): error: (?P<what>(?:argument \S{1,80}: "
        r"(?:invalid|expected|ignored explicit)"
        r"|unrecognized arguments: |the following arguments are required: )[^\n]+)"
    ),
)
_CLICK = tuple(
    Sign(f"Error: {words}", re.compile(rf"^\W*Error: (?P<what>{words}.+)"))
    for words in ("No such option", "Missing ", "Invalid value", "Got unexpected")
)
_CLAP = tuple(
    Sign(f"error: {words}", re.compile(rf"(?<![\w:])error: (?P<what>{words}[^\n]+)"))
    for words in ("a value is required for '", "unexpected argument '", "the following required arguments were not ")
)
"""Programs in Rust: https://docs.rs/clap, the text of its errors."""
_TRANSFORMERS = Sign(
    "Some specified arguments are not used by the HfArgumentParser",
    re.compile(r"(?P<what>Some specified arguments are not used by the HfArgumentParser: [^\n]*)"),
)
SIGNS: tuple[Sign, ...] = (_ARGPARSE, *_CLICK, *_CLAP, _TRANSFORMERS)
_OF_A_CHILD = re.compile(r"^Command .{1,4000} returned non-zero exit status 2\.", re.DOTALL)
"""Of subprocess.CalledProcessError: a program that the script started refused them."""
_USAGE = re.compile(r"[Uu]sage: ")
_ENDING = 200


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Exit code 2 of the rank, or of a program that it started, with a usage text and an error (argparse, click)."""
    refused = in_exception(death, (_TRANSFORMERS,))
    if refused is not None:
        return refused.finding(
            RULE, death, f"{attempt.script or 'the script'} rejected its arguments: {refused['what']}"
        )
    ending = death.stderr.ending(_ENDING)
    if death.exception is not None and _OF_A_CHILD.search(death.exception.message):
        hit = anywhere(ending, (_ARGPARSE,)) if ending.last(_USAGE) is not None else None
    elif death.code is None and death.exception is None:  # a piece of a log that shows no end
        hit = anywhere(ending, (_ARGPARSES_OWN, *_CLAP))
        if hit is None and ending.last(_USAGE) is not None:
            hit = anywhere(ending, _CLICK)
    elif death.code != 2 or ending.last(_USAGE) is None:
        return None
    else:
        hit = anywhere(ending, (*_CLAP, _ARGPARSE)) or anywhere(ending, _CLICK)
    if hit is None or hit.quote is None:
        return None
    script = attempt.script or "the script"
    advice = (f"python {attempt.script} --help",) if attempt.script and attempt.script.endswith(".py") else ()
    return Finding(RULE, death.rank, f"{script} rejected its arguments: {hit['what']}", (hit.quote,), advice)
