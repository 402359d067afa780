"""Script rejected its arguments.

## What happened
The script's own argument parser rejected the arguments that follow the script name on the command line, or the file
that stands for them.
## How to recognise it
Exit code 2, `usage: …` and `SCRIPT: error: …` as the last lines of the rank; the same on all ranks. Transformers'
parser raises `ValueError: Some specified arguments are not used by the HfArgumentParser`; Hydra says `Could not
override 'trainer.max_epoch'`, Fire `ERROR: Could not consume arg: --epochs`, jsonargparse `error: Parser key "model":`,
YACS `Non-existent config key: MODEL.FOO`. An exception raised while arguments are checked (`validate_args`,
`get_train_args`) counts too, as likely.
## What to do
Fix the argument named in the error. Launcher options go before the script, script arguments after it. A `--local-rank`
added by the launcher is [local-rank-argument](local-rank-argument.md).
"""

from __future__ import annotations

import re

from ddp_run.evidence.exception_frames import statement
from ddp_run.evidence.model import Death, Evidence, LogText
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.judge import missing_text
from ddp_run.judge.package_text import missing_package, wrong_version
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.signs import Hit, Sign, anywhere, every, in_exception, in_itself, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.record.events import ExceptionInfo

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP103",
    layer=Layer.REPORTED,
    retry=Retry(helps=False, reason="the same arguments will be rejected again"),
)
FRAMES = re.compile(r"/argparse\.py (?:error|exit)")
_ARGPARSE = like(r"(?<![\w.\-/])(?P<program>[\w.\-/]+(?: \w+)?): error: (?P<what>.+)")
_ARGPARSES_OWN = like(
    r"(?<![\w.\-/])(?P<program>[\w.\-/]{1,300}): error: (?P<what>(?:argument \S{1,80}: "
    r"(?:invalid|expected|ignored explicit)"
    r"|unrecognized arguments: |the following arguments are required: )[^\n]+)"
)
_CLICK = tuple(
    Sign(f"Error: {words}", rf"^\W*Error: (?P<what>{words}.+)")
    for words in ("No such option", "Missing ", "Invalid value", "Got unexpected")
)
_CLAP = tuple(
    Sign(f"error: {words}", rf"(?<![\w:])error: (?P<what>{words}[^\n]+)")
    for words in ("a value is required for '", "unexpected argument '", "the following required arguments were not ")
)
"""Programs written in Rust: https://docs.rs/clap, the text of its errors."""
_RAISED = (
    like(r"Some \w+(?: \w+)? are not used by the HfArgumentParser: [^\n]*"),
    like(r"Unknown arguments from config file: [^\n]*"),  # TRL
    like(r"remaining_argv: \[[^\n]*"),  # ms-swift
    like(r"Non-existent (?:config )?key: [\w.]{1,200}"),  # YACS, detectron2
    like(r"'[^'\n]{1,200}' is not a valid YOLO argument"),
    like(r"Could not override '[^'\n]{1,300}'"),  # Hydra
    like(r"Could not append to config[^\n]*"),
    like(r"LexerNoViableAltException: [^\n]{1,300}"),
    like(r"See https://hydra\.cc/docs/\S{1,60}/override_grammar"),
    like(r"Command-line overrides must be in the form of key=value[^\n]*"),
    like(r"Override list has odd length[^\n]*"),
)
"""Python parsers that raise for rejected arguments."""
_PRINTED = meaning(
    like(r"^\W{0,9}(?P<what>Could not override '[^'\n]{1,300}')"),
    like(r"^\W{0,9}(?P<what>Could not append to config[^\n]{0,300})"),
    like(r"^\W{0,9}(?P<what>You must specify '[^'\n]{1,200}', e\.g, [^\n]{1,200})"),
    like(r"^(?P<what>Key '[^'\n]{1,200}' is not in struct)"),
    like(r"^\W{0,9}(?P<what>See https://hydra\.cc/docs/\S{1,60}/override_grammar\S{0,30} for details)"),
    like(r"ERROR: (?P<what>Could not consume arg: [^\n]{1,300})"),  # Fire
    like(r"ERROR: (?P<what>The function received no value for the required arg[^\n]{1,300})"),
    like(r"error: (?P<what>Parser key [^\n]{1,300})"),  # jsonargparse
    like(r"error: (?P<what>Key '[^'\n]{1,300}' is not expected)"),
    like(r"error: (?P<what>Option '[^'\n]{1,300}' is not accepted)"),
    like(r"^Error: ArgumentValidation\(\"(?P<what>[^\n]{1,300}?)\"?\)$"),  # TGI's launcher
    like(r"[│|] (?P<what>Unrecognized options?: [^\n│|]{1,300})"),  # tyro
    like(r"[│|] (?P<what>Argument --[\w.\-]{1,100}: invalid [^\n│|]{1,300})"),
    likely=True,
)
"""Parsers that print the rejected argument and exit: Hydra with code 1, the others with 2."""
SIGNS: tuple[Sign, ...] = (_ARGPARSE, *_CLICK, *_CLAP, *_RAISED, *_PRINTED)
_CHECKS = re.compile(
    r'^  File "[^"\n]{1,400}", line \d{1,9}, in _?(?:(?:parse|validate|get)_(?:\w{1,60}_)?arg\w{0,60}'
    r"|(?:check|verify)_args|parse_(?:dict|yaml_file|json_file)|validate_launch_command)\n",
    re.MULTILINE,
)
"""Names of functions that read or check a program's arguments."""
_FRAME = re.compile(r'^  File "[^"\n]{1,400}", line \d{1,9}, in [^\n]{1,200}\n', re.MULTILINE)
_OPTION = re.compile(r"^[`'\"]?--[a-z][\w\-]{1,60}")
_NEAR = 4
"""Such a function must be among this many innermost frames."""
_REFUSALS = frozenset({"ValueError", "AssertionError"})
_OF_A_CHILD = re.compile(r"^Command .{1,4000} returned non-zero exit status 2\.", re.DOTALL)
"""For subprocess.CalledProcessError: a program that the script started rejected the arguments."""
_USAGE = re.compile(r"[Uu]sage: ")
_USAGES_CODE = 2


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match exit code 2 of the rank, or of a program it started, with a usage text and an error (argparse, click)."""
    refused = in_exception(death, _RAISED)
    if refused is not None:
        said = refused.match[0]
        return refused.finding(RULE, death, f"{attempt.script or 'the script'} rejected its arguments: {said}")
    if death.exception is not None and _is_refusal(death.exception) and not _names_something_else(death):
        return _checked(death, attempt, death.exception)
    hit = _printed(death)
    if hit is None:
        return None
    cause = f"{attempt.script or 'the script'} rejected its arguments: {hit['what']}"
    advice = (f"python {attempt.script} --help",) if attempt.script and attempt.script.endswith(".py") else ()
    return hit.finding(RULE, death, cause, advice)


def _printed(death: Death) -> Hit | None:
    """Find what a parser printed before it ended this program, or one that this program started."""
    ending = death.stderr.ending(LAST_WORDS)
    usage = ending.last(_USAGE) is not None
    raised = death.exception
    if raised is not None and _OF_A_CHILD.search(raised.message):
        return anywhere(ending, (_ARGPARSE,)) if usage else None
    hit = None
    if death.code is None and raised is None:  # an excerpt of a log that shows no end
        hit = anywhere(ending, (_ARGPARSES_OWN, *_CLAP)) or _with_its_usage(ending)
        hit = hit or (anywhere(ending, _CLICK) if usage else None)
    elif death.code == _USAGES_CODE and usage:
        hit = _with_its_usage(ending) or anywhere(ending, (*_CLAP, _ARGPARSE)) or anywhere(ending, _CLICK)
    left = raised is None or raised.type == "SystemExit"
    return hit or (anywhere(ending, _PRINTED) if left and not death.killed_without_exception else None)


def _with_its_usage(ending: LogText) -> Hit | None:
    """argparse prints the program's name in both lines: other tools print `error:`, too."""
    for hit in reversed(every(ending, _ARGPARSE)):
        if ending.last(re.compile(rf"[Uu]sage: {re.escape(hit['program'] or '')}(?!\S)")) is not None:
            return hit
    return None


def _is_refusal(raised: ExceptionInfo) -> bool:
    """Whether the message starts with an option, or comes from code that checks arguments."""
    last = [found.end() for found in _FRAME.finditer(raised.traceback)][-_NEAR:]
    if not last or raised.type.rpartition(".")[2] not in _REFUSALS:
        return False
    if not statement(raised).startswith(("raise", "assert")):
        return False
    checks = [found.end() for found in _CHECKS.finditer(raised.traceback)]
    return (bool(checks) and checks[-1] >= last[0]) or _OPTION.search(raised.message) is not None


def _names_something_else(death: Death) -> bool:
    """An option may be valid although the file it names is missing."""
    found = in_itself(death, missing_text.SIGNS) or missing_package(death) or wrong_version(death)
    return found is not None


def _checked(death: Death, attempt: Evidence, raised: ExceptionInfo) -> Finding:
    said = raised.message.partition("\n")[0][:200]
    cause = f"{attempt.script or 'the script'} rejected its arguments{raised.where}: {said}"
    return Finding(RULE, cause, line_of(death.stderr, raised), confidence="likely")
