"""Finds failures that the text itself shows as over: before new workers, in passed tests, in single server requests.
Pure.

Sources: torch/distributed/elastic/agent/server/api.py (`Worker group FAILED. 2/3 attempts left; will restart worker
group`), pytest's last line (`=== 3 passed in 0.10s ===`, with -q without `=`), uvicorn's request log, vLLM's messages
about a lost engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddp_run.evidence import childfailed, exception_frames, traceback_text
from ddp_run.evidence.lines_with import lines_with
from ddp_run.evidence.pasted import launcher_text, started_again
from ddp_run.evidence.pasted.spoken_text import SpokenText
from ddp_run.evidence.traceback_text import HEADER
from ddp_run.evidence.went_on import WentOn, is_native
from ddp_run.evidence.windows import VERY_LAST

_RESTART = "; will restart worker group"
_TESTS = " passed"
_PASSED = re.compile(
    r"(?:(?<!=)={3,200} |^)(?:[1-9]\d{0,6} passed)(?:, \d{1,6} (?:skipped|deselected|warnings?|xfailed|xpassed))*"
    r" in \d[\d.]{0,9} ?s|\b[1-9]\d{0,6} passed, 0 failed in \d"
)
_RAN = re.compile(r"Ran [1-9]\d{0,6} tests? in \d[\d.]{0,9}s$")
_NONE_FAILED = re.compile(r"# fail {1,9}0\s*$")
_ANSWERED = re.compile(r'"(?:POST /\S{0,200}|GET /health\w{0,20}) HTTP/\d(?:\.\d)?" 20\d\b')
_REFUSED = re.compile(r'"POST /\S{0,200} HTTP/\d(?:\.\d)?" 4\d\d\b|ValidationError: ')
"""A server that answers after it rejected a request goes on, unless it lost its engine. A started answer is logged
late, and may never end."""
_LOST = re.compile(
    r"Engine ?(?:Core|Dead)[^\n]{0,40}(?:Error|died|dead|failed)|^Process \S{1,80}:$|\b[Pp]roc(?:ess)?\w{0,20} died",
    re.M,
)


_ACCOUNTED = re.compile(
    r"(?:^\s{0,40}(?P<job>\d[\w.+\[\]\-]{0,40})\s.{0,200})?"
    r"\b(?P<state>COMPLETED|FAILED|CANCELLED\S{0,12}|TIMEOUT|OUT_OF_ME\S{0,5}|NODE_FAIL|PREEMPTED)"
    r"\s{1,30}(?:ExitCode=)?\d{1,3}:\d{1,3}\b"
)
"""A row of SLURM's `sacct`, or of its plugin that writes down jobs: how a job and its steps ended. `sacct -D` has a row
for each run of a job that was requeued; the last one counts."""
_WITH_0 = re.compile(
    r"(?<![(\w])(?:exit(?:ed|s|ing)?(?: with)?(?: (?:code|status)(?: of [\w./-]{1,40})?)?|exit_?code"
    r"|return(?:ed|s)?(?: code)?|rc)"
    r"[ :=]{1,3}0\b(?![.:\d])|\bProcess \d{1,9} exits successfully\b"  # DeepSpeed's launch.py
    r"|\bReporting training SUCCESS\b|^Job succeeded\s*$"  # SageMaker's, GitLab's
    r"|\b(?:ended|finished|left) with 0\W{0,3}$"
    r"|\b(?:done|ended|finished)\W{0,3}(?:with )?(?:exit )?(?:code|status|rc)[ :=]{1,3}0\b"
)
"""What started the program says how it ended."""
_ASKED = re.compile(r"(?:^|[\s;])echo \$\?\s*$")
"""A shell's prompt; the code is in the next line."""
_SOME_FAILED = re.compile(
    r"\b[1-9]\d{0,6} of \d{1,7} [^\n]{0,40}\bfailed\b|^\S{1,100} exited with code [1-9]\d{0,2}\s*$"
)
"""Also of several containers, as Docker Compose reports their ends."""
_STATE = re.compile(
    r"(?i:\bjob)[^\n]{0,40}?[Ss]tate(?:[:=] ?| )(?P<of_job>[A-Z_]{4,20})\b"
    r"|(?:exit_?code|ExitCode)[:=] ?\d{1,3}\b[^\n]{0,10}? [Ss]tate[:=] ?(?P<with_code>[A-Z_]{4,20})\b"
)
"""A job's, as schedulers and their epilogs print it."""

_NO_PORT = "server socket has failed to listen"
_OF_AGENT = "torch/distributed/elastic/rendezvous/"
"""Only the agent calls what is there; a rank's own is torch/distributed/rendezvous.py."""
_FINISHED = "worker group successfully finished"
"""torch's agent, once all its ranks have ended with 0 (elastic/agent/server/api.py)."""
_SLURM = ("srun: ", "slurmstepd: ")
_STEP = re.compile(
    r"(?:Terminating |Detected \d{1,6} oom[_-]kill events? in )StepId=(\d{1,12}\.\d{1,9})"
    r"|\*\*\* STEP (\d{1,12}\.\d{1,9}) "
)
"""srun's and slurmstepd's lines about a step that failed."""


def until(spoken: SpokenText) -> int:
    """Return the index after the last line that says so; 0 if none does."""
    failed = _failed_ranks(spoken)
    begun = started_again.at(spoken, failed | _ends(spoken))
    if any("COMPLETED" in line for line in spoken.lines):
        rows = [(index, row) for index, line in enumerate(spoken.lines) if (row := _ACCOUNTED.search(line))]
        last = {row["job"] or index: row["state"] for index, row in rows}
        if rows and set(last.values()) == {"COMPLETED"}:
            return max(rows[-1][0] + 1, begun)
        found = ((index, _STATE.search(line)) for index, line in enumerate(spoken.lines) if "tate" in line)
        states = [(index, hit[hit.lastgroup or 0]) for index, hit in found if hit is not None]
        if states and states[-1][1] == "COMPLETED":
            return states[-1][0] + 1
    passed = [index for index, line in enumerate(spoken.lines) if _TESTS in line and _PASSED.search(line)]
    passed += _all_passed(spoken.lines)
    told_0 = -1 if spoken.index.one_by_one else told_of_0(spoken)  # of several files, it is the last one's
    reported = max(failed, default=-1)
    again = _ran_again(spoken, reported, told_0) if reported >= 0 else _left_with_0(spoken, told_0)
    over = _not_started(spoken), _restarted(spoken), _served(spoken), again, _next_step(spoken), begun
    return max([*over, *(index + 1 for index in passed)])


def _all_passed(lines: Sequence[str]) -> Iterator[int]:
    """Yield the lines that say that all tests of a run of unittest passed: `OK`, a blank line below their number; and
    the last line of TAP's counts if none failed: `# pass 4`, then `# fail 0`."""
    for index in lines_with(("Ran ", "# fail"), lines):
        if _RAN.match(lines[index]) and "".join(lines[index + 1 : index + 3]).strip()[:2] == "OK":
            yield index + 2
        elif _NONE_FAILED.search(lines[index]) and "# pass" in lines[index - 1]:
            yield index


def _left_with_0(spoken: SpokenText, told: int) -> int:
    """Return the index after the line that tells (`told_of_0`) that the program exited with 0, if no launcher reports
    another end, and the log shows only errors that it caught; else 0. A pipe's last command may hide another code."""
    if told < 0:
        return 0
    raised = [each.info for each in traceback_text.find(spoken.lines) if each.final]
    caught = not any(map(exception_frames.begins_at_module, raised))
    return told + 1 if caught and not any(map(is_native, spoken.lines)) else 0


def told_of_0(spoken: SpokenText) -> int:
    """Return the index of a last line that says that the program exited with 0; -1 if none does."""
    lines = spoken.lines
    last = range(len(lines) - 1, max(0, len(lines) - VERY_LAST) - 1, -1)
    if any(_SOME_FAILED.search(lines[k]) for k in last):
        return -1
    shown = (k for k in last if _WITH_0.search(lines[k]) or (lines[k].strip() == "0" and _ASKED.search(lines[k - 1])))
    return next(shown, -1)


def _restarted(spoken: SpokenText) -> int:
    """Return the index after the last start of new workers, unless only output of the old ones follows.

    If the new ones finished, it is the index after the line that says so.
    """
    last, finished = _last(spoken.lines, _RESTART), _last(spoken.lines, _FINISHED)
    if 0 <= last < finished:
        return finished + 1
    if last < 0:
        return 0
    return last + 1 if last < spoken.running_at() or _after(spoken, last).progress >= 0 else 0


def _not_started(spoken: SpokenText) -> int:
    """Return the index of the last traceback of a torchrun that could not open its port, and so started no rank; else
    0. What ranks print above it is of an earlier start."""
    above = spoken.lines[: _last(spoken.lines, _NO_PORT) + 1]
    begun = _last(above, HEADER)
    return begun if begun >= 0 and any(_OF_AGENT in line for line in above[begun:]) else 0


def _last(lines: Sequence[str], words: str) -> int:
    """Return the index of the last line with these words; -1 if none has them."""
    return next((index for index in range(len(lines) - 1, -1, -1) if words in lines[index]), -1)


def _ran_again(spoken: SpokenText, last: int, told_0: int) -> int:
    """Return the index after the last report of a failed rank if a later job in the same log ended well, else 0.

    Each node's agent prints a box, and logs of nodes may be concatenated: a later failure may be of the same job.
    """
    went_on = _after(spoken, last)
    well = went_on.ended_well >= 0 or told_0 > last
    return last + 1 if went_on.progress >= 0 and well else 0


def _failed_ranks(spoken: SpokenText) -> set[int]:
    """Return the lines in which a launcher reports a failed rank."""
    return childfailed.boxes(spoken.lines) | {each.index for each in launcher_text.ends(spoken.lines)}


def _ends(spoken: SpokenText) -> set[int]:
    """Return the other lines that show an end: uncaught exceptions, and that the job was told to stop."""
    told = {k for k, line in enumerate(spoken.lines) if "CANCELLED AT " in line or childfailed.says_stopped(line)}
    raised = (each for each in traceback_text.find(spoken.lines) if each.final)
    return told | {each.index for each in raised if exception_frames.begins_at_module(each.info)}


def _next_step(spoken: SpokenText) -> int:
    """Return the index after the last line about a SLURM step that failed, if a later one made progress and failed
    again; else 0."""
    lines = enumerate(spoken.lines)
    told = [(index, hit[1] or hit[2]) for index, line in lines if "S" in line and (hit := _STEP.search(line))]
    over = max((index + 1 for index, step in told if step != told[-1][1]), default=0)
    if over == 0 or _after(spoken, over - 1).progress < 0:
        return 0
    others = (index for index in range(over, len(spoken.lines)) if not spoken.lines[index].startswith(_SLURM))
    return next(others, over)


def _after(spoken: SpokenText, line: int) -> WentOn:
    """Return where programs went on behind this line."""
    after = [index for index in range(line + 1, len(spoken.lines)) if not spoken.by[index].agent]
    return WentOn([spoken.lines[index][spoken.by[index].start :] for index in after])


def _served(spoken: SpokenText) -> int:
    """Return the index after the last answered request if one was rejected, unless the server had lost its engine."""
    answered = [index for index, line in enumerate(spoken.lines) if " HTTP/" in line and _ANSWERED.search(line)]
    if not answered or not any(_REFUSED.search(line) for line in spoken.lines):
        return 0
    lost = any(map(_LOST.search, spoken.without_names()))
    return 0 if lost else answered[-1] + 1
