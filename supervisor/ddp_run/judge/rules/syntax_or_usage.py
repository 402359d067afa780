"""Syntax error, or invalid launcher options.

## What happened
Python or the shell could not read the script, or the launcher or scheduler rejected its options, or two nodes were
given the same node rank. Training never started.
## How to recognise it
`SyntaxError`, `IndentationError` or `TabError`; a `usage:` text and `error:` of torchrun with exit code 2; `can't open
file '…/python'`, if the command line has the word `python` before the script. For a shell script: `syntax error near
unexpected token`, `unbound variable`, `$'\\r': command not found` (Windows line endings); for a scheduler: options that
it rejects (`sbatch: error: Batch job submission failed: Invalid …`). mpirun: `There are not enough slots available`,
`has detected an attempt to run as root`. With several nodes: `gpu-01 and gpu-02 both say that they are node 0`.
## What to do
Fix the line named in the error. `ddp-run` and `torchrun` take the script itself: `ddp-run --nproc-per-node 2 train.py`,
without `python`. Each node needs its own `--node-rank`, from 0; without one, a node is node 0.
"""

from __future__ import annotations

import re

from ddp_run.evidence.exception_frames import statement
from ddp_run.evidence.model import TORCHS_AGENT, Death, Evidence
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.signs import Hit, Sign, anywhere, in_exception, in_whole_log, like, said_last
from ddp_run.judge.start_text import SYNTAX
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.record.events import ExceptionInfo

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP101",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the same text will fail to parse again"),
)
_TYPES = frozenset({"SyntaxError", "IndentationError", "TabError"})
_VARIABLE = re.compile(r"\$\{?(?P<name>\w+)")
_PLACE = re.compile(r" \([^()]*, line \d+\)$")
_GIVEN_TEXT = re.compile(
    r', line \d+, in [^\n]{1,400}\n(?:[^\n]{0,400}\n){1,3}\s{0,40}File "<[^">\n]{1,100}>", line \d+\n'
)
"""A running program had Python parse a text (`eval`, `ast.literal_eval`): the text is data, and the script is fine."""
_PYTHON_AS_SCRIPT = like(r"can't open file '(?:[^']*/)?(?P<word>python[\d.]*|\s*)'")
_PARSE = tuple(Sign(name, types=frozenset({name})) for name in sorted(_TYPES))
_REFUSED = tuple(
    Sign(f"{name}: error: ", rf"(?:^|[/\s]){re.escape(name)}: error: (?P<what>.+)")
    for name in ("torchrun", "run.py", "launch.py", "torch.distributed.run", "torch.distributed.launch")
)
# torch/distributed/run.py and the rendezvous parameters raise these for values that they cannot parse.
_BAD_VALUE = tuple(
    Sign(words, rf"(?:ValueError|RuntimeError): (?P<what>.{{0,300}}{re.escape(words)}.*)")
    for words in (
        "Unsupported nproc_per_node value",
        'is not in "MIN:MAX" format',
        "--local_ranks_filter must be a comma-separated list",
        "Don't use both the '--no-python' flag",
        "The port number of the rendezvous endpoint",
        "The hostname of the rendezvous endpoint",
    )
)
_CONDA = (
    like(r"(?P<what>Run 'conda init' before 'conda activate')"),
    like(r"(?P<what>Your shell has not been properly configured to use '\w{1,40} activate')"),
)
"""From conda and mamba, whose errors look like exceptions."""
_MPIRUNS = (
    like(r"(?P<what>There are not enough slots available in the system to satisfy the \d{1,9})"),
    like(r"(?P<what>\w{1,20} has detected an attempt to run as root)"),
)
"""Help texts of Open MPI and PRRTE."""
SIGNS: tuple[Sign, ...] = (*_PARSE, _PYTHON_AS_SCRIPT, *_REFUSED, *_BAD_VALUE, *SYNTAX, *_CONDA, *_MPIRUNS)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a rank whose script does not compile, or whose script is the word `python`."""
    raised = death.exception
    if raised is not None and raised.type in _TYPES and not _is_of_a_text(raised):
        place = f"{raised.file}:{raised.line}" if raised.file else "the script"
        return Finding(
            RULE,
            f"{place} does not parse: {_PLACE.sub('', raised.message.partition(chr(10))[0])}",
            line_of(death.stderr, raised),
            (f"python -m py_compile {raised.file}",) if raised.file else (),
        )
    hit = anywhere(death.stderr, (_PYTHON_AS_SCRIPT,))
    if hit is None or hit.quote is None:
        hit = said_last(death, SYNTAX) or in_exception(death, _CONDA)
        said = f"the shell or the scheduler rejected the script: {hit['what']}" if hit is not None else ""
        return None if hit is None else hit.finding(RULE, death, said)
    word = (hit["word"] or "").strip()
    said = f"`{word}` was taken for the script" if word else "a blank argument was taken for the script"
    return Finding(RULE, said, (hit.quote,), ("name the script itself: ddp-run [OPTIONS] train.py [ARGS]",))


def _is_of_a_text(raised: ExceptionInfo) -> bool:
    """Whether a running program rejects a text, or raised it itself: Pillow calls a damaged image a syntax error."""
    raised_it = raised.function is not None and statement(raised).startswith("raise ")
    return raised_it or _GIVEN_TEXT.search(raised.traceback) is not None


def match_launch(attempt: Evidence) -> Finding | None:
    """Match options that torch's launcher rejected, or two nodes with the same rank."""
    taken = attempt.rank_taken
    if taken is not None:
        numbers = f"ddp-run --node-rank=1 …   # each of the {attempt.nodes} nodes has its own number, from 0"
        return Finding(RULE, taken.said, (), (numbers,), retry=_SAME_RANKS)
    mpirun = in_whole_log(attempt, _MPIRUNS)
    if mpirun is not None and not attempt.started:
        return mpirun.finding(RULE, TORCHS_AGENT, f"mpirun did not start the job: {mpirun['what']}", _FOR_MPIRUN)
    hit = in_whole_log(attempt, _REFUSED) or in_whole_log(attempt, _BAD_VALUE)
    if hit is None or attempt.started:
        return None
    cause = f"torch's launcher rejected its options: {(hit['what'] or '').strip()[:160]}"
    return hit.finding(RULE, TORCHS_AGENT, cause, _advice(hit))


def _advice(hit: Hit) -> tuple[str, ...]:
    value = _VARIABLE.search(hit["what"] or "")
    if value is not None:
        name = value["name"]
        return (
            f'echo "{name}=${name}"   # the shell did not expand it: single quotes, or a variable of another shell',
        )
    return ("ddp-run --help   # all options, including torchrun's",)


_SAME_RANKS = Retry(helps=False, reason="the nodes will have the same ranks again")
_FOR_MPIRUN = ("mpirun --oversubscribe …   # more processes than slots; as root, in a container: --allow-run-as-root",)
