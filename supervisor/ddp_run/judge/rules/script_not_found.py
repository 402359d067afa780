"""Script or module not found.

## What happened
The script or module to run does not exist.
## How to recognise it
`can't open file '…': [Errno 2] No such file or directory` with exit code 2, or, with `-m`, `No module named …` and
`Error while finding module specification`; on all ranks, before the program's first line. For a program: `torchrun:
command not found` (exit code 127), `bad interpreter`, `executable file not found in $PATH`, slurmstepd's `execve(): …:
No such file or directory`.
## What to do
Check the path relative to the working directory. With `-m`, use the dotted module name and start from the folder above
the package. A program that the shell does not find: the environment was not activated in the job, or the container
has none.
"""

from __future__ import annotations

import re
import shlex

from ddp_run.evidence.launcher_exceptions import tells_of_a_program
from ddp_run.evidence.model import TORCHS_AGENT, Death, Evidence
from ddp_run.judge.signs import Hit, anywhere, every, in_whole_log, like, meaning, said_last, survived
from ddp_run.judge.start_text import NO_PROGRAM
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP102",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the file will still be missing"),
)
_SCRIPT = like(
    r"can't open file '(?P<path>[^']*)': \[Errno 2\]",
    cause="script {path} not found",
    advice=("ls -l {path}",),
)
_IN_CONTAINER = like(  # Docker, Apptainer and other runtimes, about a container's program (Go, os/exec)
    r"\"(?P<path>[^\"\n]{1,400})\": executable file not found in \$PATH",
    cause="program {path} not found in the container",
    advice=("command -v {path}   # inside the container",),
)
_EXECVE = like(  # slurmstepd
    r"error: execve\(\): (?P<path>[^\n]{1,1000}): (?:No such file or directory|not found)",
    cause="script {path} not found",
    advice=("ls -l {path}",),
)
_PYTHON = r"(?:^|[/\\ ])python[\d.]*(?:: |\.exe:? )"
_MODULE = meaning(
    like(rf"{_PYTHON}Error while finding module specification for '(?P<module>[^']+)'"),
    like(rf"{_PYTHON}No module named '?(?P<module>[\w.]+)"),
    cause="module {module} not found",
    advice=("python -c 'import importlib.util as u; print(u.find_spec(\"{module}\"))'   # None: not in this folder",),
)
_NOT_EXECUTABLE = like(
    r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^']*)'",
    cause="program {path} not found",
    advice=("ls -l {path}",),
)
_STARTING = re.compile(r"torch/distributed/elastic/multiprocessing/")
_FRAMES = 16
"""The lines between the agent's frame that starts a program and the exception."""
SIGNS = (_SCRIPT, *_MODULE, _NOT_EXECUTABLE, _IN_CONTAINER, _EXECVE, *NO_PROGRAM)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Printed by Python before a program begins."""
    hit = anywhere(death.stderr, (_SCRIPT,)) or anywhere(death.stderr, (_IN_CONTAINER,))
    if hit is not None and survived(death.stderr, hit):
        return None  # one of several commands
    if hit is None and death.exception is None:
        hit = in_whole_log(attempt, (_EXECVE,)) if attempt.logs_only else None
    if hit is None and death.exception is not None and not tells_of_a_program(death.exception):
        return None  # Python was missing in a program started by another one
    hit = hit or anywhere(death.stderr, _MODULE)
    return _no_command(death, said_last(death, NO_PROGRAM)) if hit is None else hit.finding(RULE, death)


def match_launch(attempt: Evidence) -> Finding | None:
    """Match an agent that cannot start the program itself (`--no-python`)."""
    if attempt.started or attempt.deaths:
        return None
    lines = attempt.agent.log.lines
    for hit in reversed(every(attempt.agent.log, _NOT_EXECUTABLE)):
        if any(_STARTING.search(line) for line in lines[max(0, hit.index - _FRAMES) : hit.index]):
            return hit.finding(RULE, TORCHS_AGENT)
    return None


def _no_command(death: Death, hit: Hit | None) -> Finding | None:
    if hit is None:
        return None
    name = hit["path"] or next(filter(None, hit.match.groupdict().values()), None)
    cause = f"program {name} not found" if name else "the program to start was not found"
    advice = (
        f"command -v {shlex.quote(name)}   # in the job's own environment: modules, container, venv" if name else ""
    )
    return hit.finding(RULE, death, cause, (advice,) if advice else ())
