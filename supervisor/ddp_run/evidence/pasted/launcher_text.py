"""Parses how ranks ended from messages of launchers other than torch's agent. Pure.

Sources: SLURM's `srun` and `slurmstepd` (src/srun, src/slurmd/slurmstepd), LSF's report of a job (bsub without -N),
Open MPI's mpirun (orte/prrte help texts), MPICH's and Intel's (hydra), torch.multiprocessing.spawn, DeepSpeed's
launch.py, MosaicML composer's launcher, Lightning's (strategies/launchers/subprocess_script.py), that of
text-generation-inference, and docker compose and the shell's own words (POSIX sh, bash `strsignal`), which come without
a rank.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ddp_run.evidence.literals import longest
from ddp_run.record.events import Rank

_LSF_FIRST = re.compile(r"(?:Sender: LSF System <|Job <[^>\n]{0,200}> was submitted from host <)")
_LSF_LAST = ("The output (if any)", "Read file <")
_LSF_LINES = 400
_TASKS = re.compile(r"(?<![\d\-])(\d{1,9})(?:-(\d{1,9}))?(?![\d\-])")
_MOST_TASKS = 4096
_MOST_ENDS = 4096
_ONE_HOST = re.compile(r"WORLD INFO DICT: \{'[^'\n]{1,255}': \[[\d, ]{1,9999}\]\}")
"""DeepSpeed's launch.py, where a local rank is the rank."""
_CUT = (241, 245, 247, 250)
"""Python's negative code for a signal, cut to 8 bits."""
_STOPS = "srun: Terminating StepId="
_STOPPED = (-signal.SIGTERM, -signal.SIGKILL)
_WORDS = {
    "killed": signal.SIGKILL,
    "segmentation fault": signal.SIGSEGV,
    "aborted": signal.SIGABRT,
    "bus error": signal.SIGBUS,
    "terminated": signal.SIGTERM,
    "hangup": signal.SIGHUP,
    "floating point exception": signal.SIGFPE,
    "illegal instruction": signal.SIGILL,
    "out of memory": signal.SIGKILL,
}


@dataclass(frozen=True, slots=True)
class Ended:
    """One end. `index` is the line that reports it; `rank` is None if the line does not name one."""

    index: int
    rank: Rank | None
    code: int
    host: str | None = None
    told: bool = False
    """SLURM ended it, because another task had failed."""


def ends(lines: Sequence[str]) -> tuple[Ended, ...]:
    """Return every end with a code other than 0, in order."""
    found: list[Ended] = []
    whole = "\n".join(lines)
    forms = [(words, form) for words, form in _FORMS if words in whole]
    one_host = _ONE_HOST.search(whole) is not None
    failed = stopping = False
    for index, line in enumerate(lines if forms else ()):
        hits = (_search(form, lines, index) for words, form in forms if words in line)
        hit = next((hit for hit in hits if hit is not None), None)
        code = _code(hit) if hit is not None else 0
        stopping = stopping or (failed and _STOPS in line)
        if hit is not None and code:
            failed = failed or code not in _STOPPED
            ranks = islice(_ranks(hit, one_host), max(1, _MOST_ENDS - len(found)))
            host, told = hit.groupdict().get("host"), stopping and code in _STOPPED
            found += [Ended(index, rank, code, host, told) for rank in ranks]
    return tuple(found)


def _search(form: re.Pattern[str], lines: Sequence[str], index: int) -> re.Match[str] | None:
    """Find the form in a line; if it has two lines, in this one and the next."""
    return form.search(lines[index] if r"\n" not in form.pattern else "\n".join(lines[index : index + 2]))


def _ranks(hit: re.Match[str], one_host: bool) -> Iterator[Rank | None]:
    said = hit.groupdict()
    named = said.get("ranks") or (said.get("local") if one_host else None)
    if named is None:
        yield None
    for first, last in _TASKS.findall(named or ""):
        yield from map(Rank, range(int(first), min(int(last or first), int(first) + _MOST_TASKS) + 1))


def _code(hit: re.Match[str]) -> int:
    """Return the exit code, negative for a signal, which may be named or told in a shell's or SLURM's way."""
    said = hit.groupdict()
    if name := said.get("signal"):
        return -int(name) if name.isdigit() else -int(getattr(signal, name, 0))
    if how := said.get("how"):
        return -_WORDS[how.lower()]
    code = int(said["code"])
    if 128 < code < 160:
        return 128 - code
    return code - 256 if code in _CUT else code


def report(lines: Sequence[str]) -> set[int]:
    """Return the line indexes of LSF's report in a job's output: user and host, script, end, resource use."""
    found: set[int] = set()
    start: int | None = None
    for index, line in enumerate(lines):
        if _LSF_FIRST.match(line):
            start = index
        elif start is not None and (line.startswith(_LSF_LAST) or index - start > _LSF_LINES):
            found.update(range(start, index + 1) if line.startswith(_LSF_LAST) else ())
            start = None
    return found


_HOW = (
    r"(?P<how>Killed|Segmentation fault|Aborted|Bus error|Terminated|Hangup|Floating point exception|Out Of Memory"
    r"|Illegal instruction)"
)
_SHELL = (
    r"(?:^(?=\w+(?:\s*$|\s{2,}))|(?<=\])(?=Killed\s{0,9}$)"
    r"|: line \d{1,9}: +\d{1,9} |(?:^|\s)\[\d{1,9}\][+\-]? +)"
)
"""bash: the word alone, also after a progress bar that it cuts off, `run.sh: line 3: 4711 Killed …`, `[1]+ Killed
…`."""
_COMMAND = r"(?=\s*$|\s[^\n]{0,400}(?:python|train|run|launch|\.sh\b|\.py\b|deepspeed|accelerate|mpi|\$))"
"""What a shell says was ended: a helper's end (a monitor, a copy) isn't a rank's."""
_CODE = r"(?:exit )?code (?P<code>-?\d{1,9})\b"
_RANK = r"(?P<ranks>\d{1,9})"
_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (longest(form), re.compile(form))
    for form in (
        r"^(?:[\w.\-]{1,60}: |[\W\dTZ]{1,40})?srun: error: (?P<host>[\w.\-]+): tasks? (?P<ranks>\d[\d,\-]*): "
        rf"(?:{_HOW}|Exited with exit code (?P<code>\d{{1,9}})\b)",
        rf"process rank {_RANK} with PID \d{{1,9}} on node (?P<host>[\w.\-]{{1,255}}) exited on[ \n]"
        r"signal (?P<signal>\d{1,3})\b",
        rf"Process name: \[(?:\[\d+,\d+\]|[\w.\-]+@\d+),{_RANK}\][^\n]{{0,99}}\n"
        r"[^\n]{0,40}Exit code: +(?P<code>\d{1,9})\b",
        rf"process {_RANK} terminated with (?:exit code (?P<code>\d{{1,9}})\b|signal (?P<signal>SIG\w+))",
        rf"Process rank {_RANK} exited with {_CODE}",
        rf"\[rank: {_RANK}\] Child process with PID \d{{1,9}} terminated with {_CODE}\.",
        rf"[Rr]ank {_RANK} crashed with {_CODE}",
        rf"\b[Rr]ank {_RANK} (?:ended|failed|died|returned|terminated) with (?:exit )?(?:code|status) "
        r"(?P<code>\d{1,3})\b",
        # supervisord's
        r"exited: [\w.\-:]{1,100} \((?:terminated by (?P<signal>SIG\w+)|exit status (?P<code>\d{1,3}); not expected)",
        r"^= {1,9}KILLED BY SIGNAL: (?P<signal>\d{1,2}) \(",
        r"^\[[\d :\-]{10,30}\] Exit code: -(?P<signal>6|7|9|11)$",
        r"WITH THE EXIT STRING: [\w ]{1,60}\(signal (?P<signal>\d{1,2})\)",
        # subprocess.CalledProcessError, of a launcher whose frames are cut off
        r"Command .{0,4000}\bpython.{0,4000} died with <Signals\.\w{3,12}: (?P<signal>\d{1,2})>",
        r"process was signaled to shutdown with signal (?P<signal>\d{1,2})\b",
        # a program's own handlers: libpsm2's and libfabric's; glog's, which Paddle uses, and folly's; absl's, Ray's
        r"^\S{1,80}:\d{1,9} terminated with signal (?P<signal>\d{1,2}) at PC=",
        r"\*\*\* (?:Signal \d{1,3} \()?(?P<signal>SIG[A-Z]{2,9})\)? \(@?0x[0-9a-f]{1,16}\) received by PID \d",
        r"\*\*\* (?P<signal>SIG[A-Z]{2,9}) received at time=\d",
        r"^(?:(?P<host>[\w.\-]{1,100}[-_]\d{1,4}) )?exited with code (?P<code>\d{1,3})\s*$",
        r"^Exited with exit code (?P<code>\d{1,3})\.\s*$",
        r"(?:'--local_rank=(?P<local>\d{1,9})'.{0,4000})?exits with return code = (?P<code>-?\d{1,9})\b",
        rf"\b[Rr]ank {_RANK}(?: \(?pid[ =:]\d{{1,9}}\)?)?(?::|:? has)? exit(?:ed|s)?(?: with)?"
        r"(?: (?:exit )?(?:code|status))?[ =:]{1,2}(?P<code>-?\d{1,3})\b",
        rf"(?:^|[\s:]){_HOW} +\(core dumped\)(?!\))",
        rf"{_SHELL}(?P<how>Killed){_COMMAND}",
        rf"{_SHELL}(?P<how>Terminated){_COMMAND}",
    )
)
"""Groups: `ranks`, `host`, and the end by its `code`, its `signal` or the system's words for one (`how`)."""
WORDS = tuple(words for words, _form in _FORMS)
"""What a line must contain to be one of these."""
