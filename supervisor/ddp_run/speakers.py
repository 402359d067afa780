"""Who wrote a line of a log that several processes wrote: what launchers and torch put before it. Pure.

Forms: torch's `[rank3]:`; torchrun's and ddp-run's `[default3]:`, `[rank0-2]:`; mpirun's `[1,3]<stderr>:`; `srun -l`'s
`3: `; kubectl's and docker compose's pod or service name; the time stamps of container runtimes before them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ddp_run.events import Rank

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RUNTIME = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? )?(?:std(?:out|err) [FP] )?"
)
_RANKS = re.compile(r"\[(?:[A-Za-z_]+?)(?P<ranks>\d+(?:[-,]\d+)*)\]: ?")
_NAMED = re.compile(r"\[?\(?(?:[Ll]ocal[_ ])?(?:rank|Rank|RANK)[ :=_#]{0,2}(?P<ranks>\d+)[\])]?:?(?=[\s\]:|]|$)")
_MPI = re.compile(r"\[\d+,(?P<ranks>\d+)\]<std(?:out|err)>:? ?")
_TORCH_INSIDE = re.compile(r"\[rank(?P<ranks>\d+)\]:")
_WATCHDOG = re.compile(r"\[(?:PG [^\]]*?)?Rank (?P<ranks>\d+)\]")
_TASK = re.compile(r"\s{0,4}(?P<task>\d{1,6}): ")
_POD = re.compile(r"\[pod/(?P<pod>[\w.\-]+)(?:/[\w.\-]+)?\] ")
_SERVICE = re.compile(r"(?P<pod>[a-z][\w.\-]*?[-_](?P<number>\d+)) +\| ?")
_AGENT = re.compile(
    r"(?:[WEIDF]\d{4} [\d:.]+ .*?torch/distributed/|(?:WARNING|ERROR|INFO|DEBUG):torch\.distributed\."
    r"|\] torch\.distributed\.(?=\S+: \[(?:WARNING|ERROR|INFO)\]))(?:run|launch|launcher|elastic|rendezvous)\b"
    r"|^\[?[WEI]\d{4} .*\] (?:\*{10,}|$)|Setting OMP_NUM_THREADS environment variable for each process"
)
_MOST = 0.6


@dataclass(frozen=True, slots=True)
class Spoken:
    """A line and who wrote it, as far as it says. `start` is where the words begin behind all that names a speaker."""

    text: str
    ranks: tuple[Rank, ...] = ()
    place: str | None = None
    """The task, pod or service it is from, where each has its own."""
    start: int = 0
    agent: bool = False


def assign(lines: Sequence[str]) -> tuple[Spoken, ...]:
    """Each line's speaker. A number before a colon counts as a task only where most lines have one (`srun -l`)."""
    marked = sum(1 for line in lines if _TASK.match(line))
    spoken = sum(1 for line in lines if line.strip())
    tasks = bool(spoken) and marked >= max(2, _MOST * spoken)
    return tuple(_speaker(line, tasks) for line in lines)


def without_colour(line: str) -> str:
    """The line without escape sequences and NULs (a shared file that one process cut short is full of them)."""
    if "\x00" in line:
        line = line.replace("\x00", "")
    return _COLOUR.sub("", line) if "\x1b" in line else line


def places(spoken: Sequence[Spoken]) -> tuple[str, ...]:
    """The tasks, pods or services that wrote, the most talkative first."""
    return tuple(name for name, _ in Counter(each.place for each in spoken if each.place).most_common())


def _speaker(line: str, tasks: bool) -> Spoken:
    start, place = 0, None
    runtime = _RUNTIME.match(line)
    if runtime and runtime.end() and _names(line, runtime.end(), tasks):
        start = runtime.end()
    for pattern in (_POD, _SERVICE, _TASK):
        if pattern is _TASK and not tasks:
            continue
        hit = pattern.match(line, start)
        if hit:
            place = hit.groupdict().get("pod") or hit["task"]
            start = hit.end()
            break
    ranks: tuple[Rank, ...] = ()
    for _ in range(2):  # torchrun's own before torch's: `[default1]:[rank1]: …`
        hit = _RANKS.match(line, start) or _MPI.match(line, start) or _NAMED.match(line, start)
        if hit is None:
            break
        ranks, start = _numbers(hit["ranks"]), hit.end()
    if not ranks:
        hit = _TORCH_INSIDE.search(line, start) or _WATCHDOG.search(line, start)
        ranks = _numbers(hit["ranks"]) if hit else ()
    return Spoken(line, ranks, place, start, _AGENT.search(line) is not None and not ranks)


def _names(line: str, start: int, tasks: bool) -> bool:
    """Whether a speaker follows the time stamp; else the stamp is the program's own."""
    following = [_RANKS, _MPI, _POD, _SERVICE, *([_TASK] if tasks else [])]
    return line.startswith("std", start - 9) or any(pattern.match(line, start) for pattern in following)


def _numbers(text: str) -> tuple[Rank, ...]:
    found: list[Rank] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        found += [Rank(number) for number in range(low, min(high, low + 4096) + 1)]
    return tuple(found)
