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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ddp_run.record.events import Rank

_LSF_FIRST = re.compile(r"(?:Sender: LSF System <|Job <[^>\n]{0,200}> was submitted from host <)")
_LSF_LAST = ("The output (if any)", "Read file <")
_LSF_LINES = 400
_MPI_NAME = re.compile(r"Process name: \[(?:\[\d+,\d+\]|[\w.\-]+@\d+),(\d{1,9})\]")
_MPI_CODE = re.compile(r"Exit code: +(\d{1,9})\b")
_PRRTE_RANK = re.compile(r"process rank (?P<rank>\d{1,9}) with PID \d{1,9} on node (?P<host>[\w.\-]{1,255}) exited on$")
_PRRTE_SIGNAL = re.compile(r"signal (\d{1,2})\b")
_TASKS = re.compile(r"(?<![\d\-])(\d{1,9})(?:-(\d{1,9}))?(?![\d\-])")
_MOST_TASKS = 4096
_MOST_ENDS = 4096
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


def ends(lines: Sequence[str]) -> tuple[Ended, ...]:
    """Return every end with a code other than 0, in order; at most one per rank."""
    found: list[Ended] = []
    told: set[tuple[Rank | None, int, str | None]] = set()
    whole = "\n".join(lines)
    forms = [form for form in _FORMS if form[0] in whole]
    for index, line in enumerate(lines if forms else ()):
        for words, pattern, read in forms:
            hit = pattern.search(line) if words in line else None
            if hit is not None:
                for rank, code, host in read(hit):
                    if code and (rank is None or ((rank, code, host) not in told and len(told) < _MOST_ENDS)):
                        told.add((rank, code, host))
                        found.append(Ended(index, rank, code, host))
                break
    if "Process name: [" in whole:
        found += _first_of_mpirun(lines)
    if " exited on\n" in whole:
        found += _signals_of_prrte(lines)
    return tuple(found)


def _first_of_mpirun(lines: Sequence[str]) -> list[Ended]:
    """`Process name: [[1234,1],2]` and, below it, `Exit code: 3`: the first process with a code other than 0."""
    found = []
    for index, line in enumerate(lines[:-1]):
        name = _MPI_NAME.search(line)
        code = _MPI_CODE.search(lines[index + 1]) if name else None
        if name and code and int(code[1]):
            found.append(Ended(index + 1, Rank(int(name[1])), int(code[1])))
    return found


def _signals_of_prrte(lines: Sequence[str]) -> list[Ended]:
    """`… process rank 2 with PID 4711 on node a exited on` and, below it, `signal 9 (Killed).`"""
    found = []
    for index, line in enumerate(lines[:-1]):
        named = _PRRTE_RANK.search(line) if line.endswith(" exited on") else None
        number = _PRRTE_SIGNAL.match(lines[index + 1]) if named else None
        if named and number:
            found.append(Ended(index + 1, Rank(int(named["rank"])), -int(number[1]), named["host"]))
    return found


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


_Read = Callable[[re.Match[str]], Iterable[tuple[Rank | None, int, str | None]]]


def _srun(hit: re.Match[str]) -> Iterable[tuple[Rank | None, int, str | None]]:
    code = int(hit["code"]) if hit["code"] else _code(hit["how"])
    code = code - 256 if code in (247, 241, 250, 245) else code  # a negative code in Python, cut to 8 bits
    code = 128 - code if 128 < code < 160 else code
    for first, last in _TASKS.findall(hit["tasks"]):
        for task in range(int(first), min(int(last or first), int(first) + _MOST_TASKS) + 1):
            yield Rank(task), code, hit["host"]


def _numbered(hit: re.Match[str]) -> Iterable[tuple[Rank | None, int, str | None]]:
    groups = hit.groupdict()
    if groups.get("signal"):
        yield Rank(int(hit["rank"])), -_number(hit["signal"]), groups.get("host")
    else:
        yield Rank(int(hit["rank"])), int(hit["code"]), groups.get("host")


def _nameless(hit: re.Match[str]) -> Iterable[tuple[Rank | None, int, str | None]]:
    yield None, _code(hit["how"]) if hit["how"] else int(hit["code"]), None


def _signalled(hit: re.Match[str]) -> Iterable[tuple[Rank | None, int, str | None]]:
    yield None, -int(hit["signal"]), None


def _shells(hit: re.Match[str]) -> Iterable[tuple[Rank | None, int, str | None]]:
    code = int(hit["code"])
    yield None, 128 - code if 128 < code < 160 else code, None


def _number(name: str) -> int:
    return int(name) if name.isdigit() else int(getattr(signal, name, 0))


def _code(word: str) -> int:
    return -int(_WORDS.get(word.lower(), 0))


_HOW = r"(?P<how>Killed|Segmentation fault|Aborted|Bus error|Terminated|Hangup|Floating point exception|Out Of Memory)"
_SHELL = (
    r"(?:^(?=\w+(?:\s*$|\s{2,}))|(?<=\])(?=Killed\s{0,9}$)"
    r"|: line \d{1,9}: +\d{1,9} |(?:^|\s)\[\d{1,9}\][+\-]? +)"
)
"""bash: the word alone, also after a progress bar that it cuts off, `run.sh: line 3: 4711 Killed …`, `[1]+ Killed
…`."""
_COMMAND = r"(?=\s*$|\s[^\n]{0,400}(?:python|train|run|launch|\.sh\b|\.py\b|deepspeed|accelerate|mpi|\$))"
"""What a shell says was ended: a helper's end (a monitor, a copy) isn't a rank's."""
_FORMS: tuple[tuple[str, re.Pattern[str], _Read], ...] = (
    (
        "srun: error:",
        re.compile(
            r"srun: error: (?P<host>[\w.\-]+): tasks? (?P<tasks>\d[\d,\-]*): "
            rf"(?:{_HOW}|Exited with exit code (?P<code>\d{{1,9}})\b)"
        ),
        _srun,
    ),
    (
        "exited on signal",
        re.compile(
            r"process rank (?P<rank>\d{1,9}) with PID \d+ on node (?P<host>[\w.\-]+) exited on signal"
            r" (?P<signal>\d{1,3})\b"
        ),
        _numbered,
    ),
    (
        "terminated with",
        re.compile(
            r"process (?P<rank>\d{1,9}) terminated with (?:exit code (?P<code>\d{1,9})\b|signal (?P<signal>SIG\w+))"
        ),
        _numbered,
    ),
    (
        "Process rank",
        re.compile(r"Process rank (?P<rank>\d{1,9}) exited with (?:exit )?code (?P<code>-?\d{1,9})\b"),
        _numbered,
    ),
    (
        "Child process with PID",
        re.compile(
            r"\[rank: (?P<rank>\d{1,9})\] Child process with PID \d{1,9} terminated with code (?P<code>-?\d{1,9})\."
        ),
        _numbered,
    ),
    (
        "crashed with exit code",
        re.compile(r"[Rr]ank (?P<rank>\d{1,9}) crashed with exit code (?P<code>-?\d{1,9})\b"),
        _numbered,
    ),
    ("KILLED BY SIGNAL: ", re.compile(r"^= {1,9}KILLED BY SIGNAL: (?P<signal>\d{1,2}) \("), _signalled),
    ("] Exit code: -", re.compile(r"^\[[\d :\-]{10,30}\] Exit code: -(?P<signal>6|7|9|11)$"), _signalled),
    ("EXIT STRING: ", re.compile(r"WITH THE EXIT STRING: [\w ]{1,60}\(signal (?P<signal>\d{1,2})\)"), _signalled),
    (
        "died with <Signals.",  # subprocess.CalledProcessError, of a launcher whose frames are cut off
        re.compile(r"Command .{0,4000}\bpython.{0,4000} died with <Signals\.\w{3,12}: (?P<signal>\d{1,2})>"),
        _signalled,
    ),
    (
        "signaled to shutdown",
        re.compile(r"process was signaled to shutdown with signal (?P<signal>\d{1,2})\b"),
        _signalled,
    ),
    (
        "exited with code",
        re.compile(r"^(?:[\w.\-]{1,100}[-_]\d{1,4} )?exited with code (?P<code>\d{1,3})\s*$(?P<how>)"),
        _shells,
    ),
    ("Exited with exit code", re.compile(r"^Exited with exit code (?P<code>\d{1,3})\.\s*$(?P<how>)"), _nameless),
    ("return code =", re.compile(r"exits with return code = (?P<code>-?\d{1,9})\b(?P<how>)"), _nameless),
    ("core dumped", re.compile(rf"(?:^|[\s:]){_HOW} +\(core dumped\)(?P<code>)"), _nameless),
    ("Killed", re.compile(_SHELL + rf"(?P<how>Killed)(?P<code>){_COMMAND}"), _nameless),
    ("Terminated", re.compile(_SHELL + rf"(?P<how>Terminated)(?P<code>){_COMMAND}"), _nameless),
)
