"""Reads the answer of NCCL's RAS ("VERBOSE STATUS"), and finds the ranks that are missing or behind. Pure.

RAS is a thread in every process that has an NCCL communicator (NCCL 2.24 and newer). It answers for all nodes, even
while the rank is stuck. Wordings: src/ras/client_support.cc of 2.24 to 2.30. Up to 2.25 all operations are counted
together, later each kind separately. 2.24 lists missing ranks by number only, later versions with their processes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddp_run.record.events import Rank
from ddp_run.values.words import named_ranks

_PROCESS = r"process (?P<pid>\d{1,9}) on node (?P<node>\S+)"
_GROUP = re.compile(r"^\s*(?P<group>\d{1,9})\s+\d+\s+\d+\s+[\d-]+\s+(?P<size>\d{1,9})\s+\d+\s+[A-Z]+\s+[A-Z,]+\s*")
_TOTALS = re.compile(r"^\s*\d+(?:\s+\d+\s+\d+)?\s+(?P<processes>\d{1,9})\s+\d+\s*")
_COMMUNICATOR = re.compile(r"#(?P<group>\d{1,9})-\d+ \([0-9a-f]+\) (?:INCOMPLETE|MISMATCH)")
_LOST = re.compile(r"  P" + _PROCESS[1:] + r" managing GPU")
_ABSENT = re.compile(r"  Missing communicator data from (?P<count>\d{1,9}) rank")
_ABSENT_RANKS = re.compile(r"  The missing ranks?: (?P<ranks>[\d, ]+)")
_KIND = re.compile(r"  Communicator ranks have different (?P<kind>\w+|collective) operation counts")
_COUNT = re.compile(
    r"  (?:(?P<ranks>\d{1,9}) ranks have|Rank (?P<rank>\d{1,9}) has) "
    r"(?:launched up to operation (?P<count>\d{1,20})\b|not launched any operations)"
    rf"(?: -- GPU .{{0,200}}?managed by {_PROCESS})?"
)
_MEMBER = re.compile(rf"  Rank (?P<rank>\d{{1,9}}) -- (?:GPU .{{0,200}}?managed by {_PROCESS}|\[)")
_MOST_QUOTES = 12


@dataclass(frozen=True, slots=True)
class Process:
    """A process with ranks, as RAS names it. `node` is an address."""

    pid: int
    node: str


@dataclass(frozen=True, slots=True)
class Member:
    """A rank by its number in a communicator, which may differ from its number in the job."""

    number: int
    process: Process | None


@dataclass(slots=True)
class Count:
    """`ranks` of the communicator's ranks have launched `launched` operations. `members`: those that are named."""

    launched: int
    ranks: int
    members: list[Member]


@dataclass(slots=True)
class Communicator:
    """A communicator with a problem. `absent_ranks`: how many ranks did not answer; `absent`: those that are named.

    `counts`: by kind of operation (`AllReduce`; `collective` before NCCL 2.26), for kinds in which the ranks differ.
    """

    size: int | None
    absent_ranks: int = 0
    absent: list[Member] = field(default_factory=list)
    counts: dict[str, list[Count]] = field(default_factory=dict)
    _of_kind: list[Count] | None = None
    """The counts that are being read."""

    @property
    def members(self) -> tuple[Member, ...]:
        """All ranks that are named."""
        counted = [member for counts in self.counts.values() for count in counts for member in count.members]
        return (*self.absent, *counted)

    def take(self, line: str) -> None:
        """Read the next of the lines about it."""
        if said := _ABSENT.match(line):
            self.absent_ranks = int(said["count"])
        elif said := _ABSENT_RANKS.match(line):
            self.absent += [Member(int(number), None) for number in re.findall(r"\b\d{1,9}\b", said["ranks"])]
        elif said := _KIND.match(line):
            self._of_kind = self.counts.setdefault(said["kind"], [])
        elif said := _MEMBER.match(line):
            (self._of_kind[-1].members if self._of_kind else self.absent).append(_member(said))
        elif self._of_kind is not None and (said := _COUNT.match(line)):
            members = [_member(said)] if said["rank"] else []
            self._of_kind.append(Count(int(said["count"] or 0), int(said["ranks"] or 1), members))


@dataclass(frozen=True, slots=True)
class Report:
    """What RAS said. `dead`: processes that it has not reached for a minute; `silent`: those that did not answer now.

    `in_all`: how many processes RAS counts in the job. `quotes`: its own lines about what is wrong.
    """

    communicators: tuple[Communicator, ...] = ()
    dead: tuple[Process, ...] = ()
    silent: tuple[Process, ...] = ()
    in_all: int | None = None
    quotes: tuple[str, ...] = ()

    @property
    def processes(self) -> tuple[Process, ...]:
        """All processes that are named."""
        members = [member for each in self.communicators for member in each.members]
        return (*self.dead, *self.silent, *(member.process for member in members if member.process is not None))


@dataclass(frozen=True, slots=True)
class Missing:
    """The ranks that the others wait for, if RAS leaves no doubt. `said`: a sentence, but for who waits.

    `gone`: their processes can no longer be reached.
    """

    ranks: tuple[Rank, ...]
    said: str
    gone: bool = False


def read(text: str) -> Report:
    """Parse an answer, which may be cut off. Returns an empty report for any other text."""
    sizes: dict[int, int] = {}
    in_all: int | None = None
    communicators: list[Communicator] = []
    lost: dict[str, list[Process]] = {"DEAD": [], "INCOMPLETE": []}
    quotes: list[str] = []
    block: Communicator | list[Process] | None = None
    told = False
    above = ""
    for line in text.splitlines():
        if line in ("Errors", "Warnings"):
            told, block = True, None
        elif not told:
            if row := _GROUP.fullmatch(line):
                sizes[int(row["group"])] = int(row["size"])
            elif above.startswith("(total)") and (row := _TOTALS.fullmatch(line)):
                in_all = int(row["processes"])
            above = line
        elif line.strip() and not line.startswith("="):
            quotes.append(line)
            if head := _COMMUNICATOR.match(line):
                communicators.append(block := Communicator(sizes.get(int(head["group"]))))
            elif not line.startswith(" "):
                block = lost.get(line)
            elif isinstance(block, Communicator):
                block.take(line)
            elif block is not None and (named := _LOST.match(line)):
                block.append(Process(int(named["pid"]), named["node"]))
    if len(quotes) > _MOST_QUOTES:
        quotes[_MOST_QUOTES:] = [f"… {len(quotes) - _MOST_QUOTES} more lines"]
    return Report(tuple(communicators), tuple(lost["DEAD"]), tuple(lost["INCOMPLETE"]), in_all, tuple(quotes))


def _member(said: re.Match[str]) -> Member:
    process = Process(int(said["pid"]), said["node"]) if said["pid"] else None
    return Member(int(said["rank"]), process)


# -------------------------------------------------------------------------------------- who is missing


def missing(report: Report, pids: Mapping[int, Rank], here: frozenset[str], world_size: int) -> Missing | None:
    """The ranks that the report shows to be missing or behind; None if there is any doubt.

    `pids`: this node's ranks; `here`: the names that the report uses for this host. RAS numbers ranks within a
    communicator: this node's are identified by their processes, others only in a communicator of all ranks.
    """
    names = _Names(pids, here, world_size)
    absent = _absent(report, names)
    if absent is not None:
        return absent
    found = {_behind(each, names) for each in report.communicators if each.counts}
    return found.pop() if len(found) == 1 else None


def is_of(report: Report, pids: Mapping[int, Rank], here: frozenset[str], world_size: int) -> bool:
    """Whether the report is about these ranks: jobs on one host may share the port, and any of them may answer."""
    named = [each.pid for each in report.processes if each.node in here]
    return any(pid in pids for pid in named) if named else report.in_all in (None, world_size)


@dataclass(frozen=True, slots=True)
class _Names:
    pids: Mapping[int, Rank]
    here: frozenset[str]
    world_size: int

    def ranks(self, members: Sequence[Member], size: int | None) -> tuple[Rank, ...] | None:
        """Their ranks in the job; None if one of them is uncertain."""
        found = []
        for member in members:
            process = member.process
            rank: Rank | None = Rank(member.number) if size == self.world_size else None
            if process is not None and process.node in self.here:
                own = self.pids.get(process.pid)
                rank = own if rank is None or rank == own else None
            elif process is not None and rank in self.pids.values():
                rank = None
            if rank is None:
                return None
            found.append(rank)
        return tuple(sorted(found))


def _absent(report: Report, names: _Names) -> Missing | None:
    """Ranks whose processes do not answer, in the largest communicator that says so."""
    for each in sorted(report.communicators, key=lambda each: -(each.size or 0)):
        if not each.absent_ranks or len(each.absent) != each.absent_ranks:
            continue
        ranks = names.ranks(each.absent, each.size)
        if ranks is None:
            return None
        known = [member.process for member in each.absent if member.process is not None]
        if len(known) < len(each.absent):
            known, gone = [*report.dead, *report.silent], bool(report.dead) and not report.silent
        else:
            gone = all(process in report.dead for process in known)
        how = "can no longer be reached" if gone else f"{'does' if len(ranks) == 1 else 'do'} not respond"
        return Missing(ranks, f"{named_ranks(ranks)}{_whose(known)} {how}, according to NCCL RAS", gone)
    return None


def _behind(each: Communicator, names: _Names) -> Missing | None:
    """The ranks that have launched fewer operations than the others, if they are the same for every kind."""
    found: Missing | None = None
    for kind, counts in each.counts.items():
        most = max((count.launched for count in counts), default=0)
        less = [count for count in counts if count.launched < most]
        if not less or any(len(count.members) != count.ranks for count in less):
            return None
        members = [member for count in less for member in count.members]
        ranks = names.ranks(members, each.size)
        if ranks is None or (found is not None and found.ranks != ranks):
            return None
        operations = "operations" if kind == "collective" else kind
        fewest = min(count.launched for count in less)
        whose = _whose([member.process for member in members if member.process is not None])
        said = f"{named_ranks(ranks)}{whose} launched {fewest} {operations} where others launched {most}"
        found = found or Missing(ranks, f"{said}, according to NCCL RAS")
    return found


def _whose(processes: Sequence[Process]) -> str:
    """` (process 4242 on 10.0.0.2)`."""
    if len(processes) == 1:
        return f" (process {processes[0].pid} on {processes[0].node})"
    nodes = sorted({each.node for each in processes})
    return f" (on {', '.join(nodes[:4])}{', …' if len(nodes) > 4 else ''})" if nodes else ""
