"""Finds who wrote each line of a shared log from the prefixes of launchers and torch. Pure.

Forms: torch's `[rank3]:`; torchrun's and ddp-run's `[default3]:`, `[rank0-2]:`; mpirun's `[1,3]<stderr>:` and, with
-prepend-rank, `[3] `; `srun -l`'s `3: `, and with a host `[node7:3]:`; kubectl's and docker compose's pod or service
name; the time stamps of container runtimes before them. A prefix of every line (pdsh's host, a CI's time) is stripped
first, which leaves the text of the processes.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import NamedTuple

from ddp_run.evidence.lines_with import lines_with
from ddp_run.evidence.pasted import common_prefix
from ddp_run.evidence.shell_prompt import PROMPT
from ddp_run.evidence.traceback_text import HEADER
from ddp_run.record.events import Rank

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ESCAPED = ("&quot;", "&lt;", "&gt;", "&#39;", "&#x27;", "&nbsp;")
"""From a page's source; `&amp;` alone may be part of any URL."""
_COLOURS_REST = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3}){0,5})?m")
"""The rest of an escape sequence whose ESC was lost in a form or a copy."""
_RANKS = re.compile(r"\[[A-Za-z_]+?(?P<ranks>\d{1,9}(?:[-,]\d{1,9})*)\]: ?")
_NAMED = re.compile(
    r"(?:\[?\(?(?:[Ll]ocal[_ ])?(?:rank|Rank|RANK)[ :=_#]{0,2}(?P<ranks>\d{1,9})[\])]?:?|\[r(?P<short>\d{1,6})\]:?)"
    r"(?=[\s\]:|]|$|, \w{1,20}=)"
)
"""As programs and their loggers name their rank: `rank 3:`, `[local_rank=3]`, `[r3]`."""
_STAMP = r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]? "
_STREAM = r"std(?:out|err) [FP] "
_MPI = (
    r"\[(?:[\w.@\-]{1,255},(?P<mpi>\d{1,9})|\d{1,9},mpirank:(?P<sagemaker>\d{1,9}),[\w.\-]{1,255})\]<std(?:out|err)>:?"
)
"""Open MPI up to 4, and from 5 on (PRRTE), then with a blank after it; in SageMaker jobs."""
_LABEL = r"\[(?P<label>[a-zA-Z][\w.\-]{0,255}:\d{1,6})\]:"
"""A host and a process number there, which is not a rank."""
_TASK = r"\s{0,4}(?P<task>\d{1,6}): "
_PREPENDED = r"\[(?P<prepended>\d{1,6})\] "
"""By `mpirun -prepend-rank` (MPICH, Intel MPI)."""
_SRUNS = re.compile(r"srun: error: [\w.\-]{1,255}: tasks? (?P<tasks>\d{1,9}(?:[,\-]\d{1,9})*): ")
_PLACES = (
    r"\[pod/(?P<pod>[\w.\-]{1,255})(?:/[\w.\-]{1,255})?\] ",
    r"(?P<service>[a-z][\w.\-]{0,100}?[-_]\d{1,9}) +\| ?",
    _LABEL,
)
_PROGRAM = (
    r"(?P<program>\[(?!(?i:debug|info|warn|warning|error|critical|notice|fatal) {0,3}\])[a-z][a-z_\-]{1,20} {0,6}\]) "
)
"""What one script puts before the lines of each program that it runs."""
TORCH_INSIDE = re.compile(r"\[rank(?P<ranks>\d{1,9})\]:")
_WATCHDOG = re.compile(
    r"\[(?:(?:PG [^\]]{0,200}?)?Rank |(?<=env:// \[)rank=(?=\d{1,9}, world_size=))(?P<ranks>\d{1,9})[\],]"
)
"""In lines of torch's watchdog; in Ray Train's, of the process that sets up its group."""
_QUOTES = re.compile(r"\b(?:INFO|DEBUG)\b[^\n]{0,200}[\s:(=]['\"`]\W{0,3}\w{0,20}\W{0,3}(?:\w{1,40}\.cpp:\d{1,6}\] )?$")
"""Before a rank's name: a logger shows what another program once wrote."""
_HEAD = re.compile(r"\bRank \d{1,9}\]:?\s{0,9}$")
_HEAD_CHARS = 40
_FILE = re.compile(
    r"==> (?P<file>[^<\n]{1,1000}) <==\s*$|={3,80} ?(?P<section>[\w./\-]{1,400}[./][\w.\-]{1,100}) ?={3,80}\s*$"
)
_FILES = ("==> ", "===", *(f"$ {command} " for command in ("cat", "head", "less", "tail")))
_TYPED = re.compile(rf"(?:{PROMPT}|\$ )(?P<command>\w{{1,40}})\b(?:[^\n|;&]{{0,200}} (?P<file>[\w./\-]{{1,300}}))?\s*$")
"""A command behind a shell's prompt; `cat`, `head`, `less` and `tail` show the file that is named last."""
_SHOWS = frozenset({"cat", "head", "less", "tail"})
_AGENT = re.compile(
    r"(?:[WEIDF]\d{4} [\d:.]+ .*?torch/distributed/|(?:WARNING|ERROR|INFO|DEBUG):torch\.distributed\."
    r"|\] torch\.distributed\.(?=\S+: \[(?:WARNING|ERROR|INFO)\]))(?:run|launch|launcher|elastic|rendezvous)\b"
    r"|^\[?[WEI]\d{4} .*\] (?:\*{10,}|$)|Setting OMP_NUM_THREADS environment variable for each process"
)
_ANY_RANKS = r"\[[A-Za-z_]+?\d{1,9}(?:[-,]\d{1,9})*\]:"
_STAMPS = re.compile(rf"{_STAMP}(?:{_STREAM})?")
_TASKED, _PREPENDS, _MPIS, _PROGRAMS = (re.compile(form) for form in (_TASK, _PREPENDED, _MPI, _PROGRAM))
_OF_SERVER = re.compile(
    r"(?:\((?:[\w.:\-]{1,60} )?(?:rank=(?P<ranks>\d{1,9}) )?pid=(?P<pid>\d{1,9})"
    r"(?:, [a-z_]{1,12}=[\w.:\-]{1,60}){0,3}\) ?){0,2}"
    r"(?:(?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./\-]{1,80}:\d{1,6}\] ?)?"
)
"""Process names of Ray and vLLM, and vLLM's logger, before each line of a traceback."""
OF_PROCESS = "pid="
"""Begins the place of such a process."""
_MOST = 0.6
_BEGINS_A_NAME = frozenset("[(rRlL")
_NUMBERS = re.compile(r"\d+")
_NUMBER = re.compile(r"[0-9]{1,9}")
_OF_RANK = re.compile(r"(?:^|[/_.\-])rank[_.\-]?(\d{1,9})(?:[/_.\-][^/]{0,40})?$")
_MOST_NAMED = 4096
"""The most ranks that one line can name."""
_MOST_REPORTS = 64
"""The most of srun's reports that are read for the numbers of tasks."""
_LAYERS = 4
_AGENT_WORDS = (
    *("torch.distributed.elastic", "torch/distributed/elastic/", "torch/distributed/launcher/", "Root Cause (first"),
    *("torch.distributed.run", "torch/distributed/run.py", "torch.distributed.launch", "torch/distributed/launch.py"),
)


class Writer(NamedTuple):
    """Who wrote a line, if named. `start` is the index in it after all speaker names."""

    ranks: tuple[Rank, ...] = ()
    place: str | None = None
    """The task, pod, service or host that it came from, if each has its own name."""
    start: int = 0
    agent: bool = False

    @property
    def task(self) -> Rank | None:
        """The number that srun or mpirun gave to the process, or that the name of its file is."""
        return Rank(int(self.place)) if self.place is not None and _NUMBER.fullmatch(self.place) else None

    @property
    def of_file(self) -> Rank | None:
        """The rank that the name of its file says; None for lines of the agent there."""
        hit = _OF_RANK.search(self.place) if self.place is not None and not self.agent else None
        return None if hit is None else Rank(int(hit[1]))


def assign(lines: Sequence[str], most_named: int = 1 << 20) -> tuple[list[str], list[Writer]]:
    """Return the lines without the prefix of every line, and each one's writer.

    A number before a colon counts as a task only if most lines have one (`srun -l`). Once the lines of several ranks
    have named `most_named` of them in total, only the first of each is kept. A task's number is a rank, unless the
    tasks are torch's agents, or torch names other ranks.
    """
    whole = "\n".join(lines)
    texts, places, before = common_prefix.without(lines, _STAMPS, partial(_before, mpi="]<std" in whole))
    if any(words in whole for words in _FILES):
        _below_names(texts, places)
    named, known, by = _Named(most_named), dict[Writer, Writer](), list[Writer]()
    for index, place in enumerate(places):
        texts[index], writer = _speaker(texts[index], place, before, named)
        by.append(known.setdefault(writer, writer))  # few write many lines
    _add_heads(texts, by)
    tasks = {each: each.task for each in known}
    numbered = any(task is not None for task in tasks.values()) and not any(word in whole for word in _AGENT_WORDS)
    if not numbered or any(each.ranks and tasks[each] not in (None, *each.ranks) for each in known):
        return texts, _ranked(by, {each: each.of_file for each in known})
    return texts, _ranked(by, tasks)


def _ranked(by: Sequence[Writer], tasks: Mapping[Writer, Rank | None]) -> list[Writer]:
    """Return the writers; those that name no rank have the one of their task."""
    ranked = {each: each._replace(ranks=(task,)) for each, task in tasks.items() if task is not None and not each.ranks}
    return [ranked.get(each, each) for each in by]


def _before(lines: Sequence[str], mpi: bool) -> re.Pattern[str]:
    """Return the pattern of one known prefix. A time stamp is the program's own, unless a speaker or a stream follows.

    A number before a colon counts if most lines have one, or if srun names each of them.
    """
    said = common_prefix.said_below(lines)
    numbered = [hit["task"] for line in said if line[:5].strip()[:1].isdigit() and (hit := _TASKED.match(line))]
    known = len(numbered) >= max(2, _MOST * len(said)) or set(numbered) <= _sruns(lines)
    places = [*_PLACES, *([_TASK] if numbered and known else [])]
    opened = (line for line in said if line.startswith("["))
    prepended = [line[hit.end() :] for line in opened if (hit := _PREPENDS.match(line)) is not None]
    if all(any(text.startswith(shown) for text in prepended) for shown in (HEADER, common_prefix.FRAME)):
        places.append(_PREPENDED)  # and not a step's number
    programs = Counter(hit["program"] for line in said if (hit := _PROGRAMS.match(line)) is not None)
    if len(programs) > 1 and programs.total() >= common_prefix.NEARLY_ALL * len(said):
        places.append(_PROGRAM)
    if mpi:
        tagged = [line[hit.end() :] for line in said if (hit := _MPIS.match(line))]
        places.append(_MPI + "(?: |$)" if all(rest[:1] in ("", " ") for rest in tagged) else _MPI)
    return re.compile(rf"(?:{_STAMP})?(?:{_STREAM}|{'|'.join(places)}|(?<= )(?={_ANY_RANKS}))")


def _sruns(lines: Sequence[str]) -> set[str]:
    """Return the numbers of the tasks whose end srun reports."""
    told = (hit["tasks"] for line in lines_with(("srun: error: ",), lines) if (hit := _SRUNS.search(lines[line])))
    return {str(task) for tasks in islice(dict.fromkeys(told), _MOST_REPORTS) for task in _numbers(tasks)}


def _below_names(texts: list[str], places: list[str | None]) -> None:
    """Give each unnamed line the file that `tail`, `head` or a script names above it: `==> rank1.log <==`, or the
    command that shows it."""
    file: str | None = None
    for index, text in enumerate(texts):
        typed = _TYPED.match(text) if "$ " in text else None
        file = file if typed is None else typed["file"] if typed["command"] in _SHOWS else None
        name = _FILE.match(text)
        if name is not None:
            file, texts[index] = name[name.lastgroup or 0], ""
            places[index] = file
        places[index] = places[index] or file


def _add_heads(texts: Sequence[str], by: list[Writer]) -> None:
    """A c10d line header without text was wrapped: the next line belongs to the same rank."""
    heads = [index for index, each in enumerate(by[:-1]) if each.ranks and _HEAD.search(texts[index][-_HEAD_CHARS:])]
    for index in heads:
        if not by[index + 1].ranks and not by[index + 1].agent:
            by[index + 1] = by[index + 1]._replace(ranks=by[index].ranks)


def without_colour(line: str) -> str:
    """Return the line without escape sequences, NULs (common if one process truncates a shared file) and CR."""
    if "\r" in line:
        line = line.rstrip("\r")
    if "\x00" in line:
        line = line.replace("\x00", "")
    if "&" in line and any(each in line for each in _ESCAPED):
        line = html.unescape(line)
    if "\u00a0" in line:  # non-breaking spaces of web pages
        line = line.replace("\u00a0", " ")
    if "\x1b" in line:
        return _COLOUR.sub("", line)
    return _COLOURS_REST.sub("", line) if "[0m" in line else line


def _speaker(line: str, place: str | None, before: re.Pattern[str], named: _Named) -> tuple[str, Writer]:
    for _ in range(_LAYERS):
        hit = before.match(line)
        if hit is None or not hit.end():
            break
        line, place = line[hit.end() :], hit[hit.lastgroup] if hit.lastgroup else place
    ranks: tuple[Rank, ...] = ()
    if line[:1] in "(EWIC" and (hit := _OF_SERVER.match(line)) is not None:
        line, place = line[hit.end() :], OF_PROCESS + hit["pid"] if hit["pid"] else place
        ranks = named.ranks(hit["ranks"]) if hit["ranks"] else ()
    start = 0
    for _ in range(2):  # torchrun's own before torch's: `[default1]:[rank1]: …`
        if line[start : start + 1] not in _BEGINS_A_NAME:
            break
        hit = _RANKS.match(line, start) or _NAMED.match(line, start)
        if hit is None:
            break
        ranks, start = named.ranks(hit[hit.lastgroup or "ranks"]), hit.end()
    quoted = False
    if not ranks and ("[rank" in line or "Rank " in line):
        hit = TORCH_INSIDE.search(line, start) or _WATCHDOG.search(line, start)
        quoted = hit is not None and _QUOTES.search(line, start, hit.start()) is not None
        ranks = named.ranks(hit["ranks"]) if hit and not quoted else ()
    agent = quoted or (
        not ranks and ("torch" in line or line[:1] in "[WEI" or "OMP_NUM" in line) and _AGENT.search(line) is not None
    )
    return line, Writer(ranks, place, start, agent)


class _Named:
    """Return the ranks that lines name, up to a total number."""

    def __init__(self, most: int) -> None:
        self._room = most

    def ranks(self, text: str) -> tuple[Rank, ...]:
        """Return each rank of `0`, `0-2` or `0,5-7`; only the first if no more can be kept."""
        if "-" not in text and "," not in text:
            return (Rank(int(text)),)
        found = _numbers(text) if self._room > 0 else _numbers(_NUMBERS.findall(text)[0])
        self._room -= len(found)
        return found


@lru_cache(maxsize=256)
def _numbers(text: str) -> tuple[Rank, ...]:
    found: dict[Rank, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        low = int(first)
        high = min(int(last or first), low + _MOST_NAMED - len(found))
        found.update((Rank(number), None) for number in range(low, high + 1))
    return tuple(found)
