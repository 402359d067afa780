"""What is known after an attempt: the logs that were read, each rank's end, and `Evidence` that holds them together.

Values only: nothing here opens a file or asks the system. `ddp_run.evidence.gather` fills it; rules look at it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import field, replace
from re import Match, Pattern
from typing import Literal, TypeVar, cast

from ddp_run.record.events import (
    ExceptionInfo,
    LocalRank,
    MonotonicNs,
    NodeRankTaken,
    NodesCompared,
    NotEnded,
    Rank,
    StallSeen,
)
from ddp_run.record.resources import GpuLook, MemoryTrend, Space
from ddp_run.values.redaction import redact_value
from ddp_run.values.typed_fields import frozen

Found = TypeVar("Found")
UNORDERED = 2**63
"""`Death.order` of a rank of which nobody knows when it failed."""
_CRASHES = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
Phase = Literal["launch", "before-init", "init", "after-init", "training", "shutdown"]


@frozen
class Quote:
    """A line that proves something: where it stands and what it says. `line` counts from 1, null if not known."""

    source: str
    line: int | None
    text: str


@frozen
class LogText:
    """The part of a log that was read: whole, its end, or one speaker's lines of it.

    `first_line` is the number of its first line (from 1); where lines were left out, `numbers` has that of each.
    """

    source: str
    lines: tuple[str, ...] = ()
    first_line: int | None = 1
    numbers: tuple[int, ...] | None = None

    def number(self, index: int) -> int | None:
        """The number, from 1, that the line at `index` of `lines` has in the file; null if it was not counted."""
        if self.numbers is not None:
            return self.numbers[index]
        return None if self.first_line is None else self.first_line + index

    def quote(self, index: int) -> Quote:
        """The line at `index` of `lines`, with its address."""
        return Quote(self.source, self.number(index), self.lines[index])

    def ending(self, count: int) -> LogText:
        """The last `count` lines, numbers kept."""
        skipped = max(0, len(self.lines) - count)
        first = None if self.first_line is None else self.first_line + skipped
        return LogText(self.source, self.lines[skipped:], first, self.numbers and self.numbers[skipped:])

    def last(self, pattern: Pattern[str]) -> tuple[Quote, Match[str]] | None:
        """The last line that the pattern is found in."""
        for index in range(len(self.lines) - 1, -1, -1):
            found = pattern.search(self.lines[index])
            if found:
                return self.quote(index), found
        return None

    def first(self, pattern: Pattern[str]) -> tuple[Quote, Match[str]] | None:
        """The first line that the pattern is found in."""
        for index, line in enumerate(self.lines):
            found = pattern.search(line)
            if found:
                return self.quote(index), found
        return None


@frozen
class Death:
    """One rank's failure: everything known of it.

    `code` is Python's convention (negative: signal); null: not known. `failed_at` is the stamp taken inside the rank
    when its program failed, `died_at` the kernel's report of its end: the earlier of the two orders deaths.
    `signals_sent` are the signals that ddp-run or the agent had sent to it before it died (the agent's are inferred:
    it signals all others once one has died). `rank` is null where a log does not show it.
    """

    rank: Rank | None
    local_rank: LocalRank | None = None
    node_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    code: int | None = None
    failed_at: MonotonicNs | None = None
    died_at: MonotonicNs | None = None
    exception: ExceptionInfo | None = None
    signals_sent: tuple[int, ...] = ()
    stderr: LogText = field(default_factory=lambda: LogText(""))
    stdout: LogText = field(default_factory=lambda: LogText(""))
    stack: LogText = field(default_factory=lambda: LogText(""))
    """What faulthandler wrote on a fatal signal."""
    phase: Phase | None = None
    """The last phase that it reported; null where it could not."""
    step: int | None = None
    """Optimizer steps that it had made; null where nobody looked."""
    call: str | None = None
    """The call of torch's that it was in when it was looked at last: `torch.cuda.set_device`."""
    nccl: LogText = field(default_factory=lambda: LogText(""))
    """What NCCL wrote into its own file."""
    memory: MemoryTrend | None = None
    """What was seen of its memory, where it was looked at at least once."""
    gpus: GpuLook | None = None
    """The GPUs when it was last seen, where somebody looked."""
    core: str | None = None
    """The file of its core dump, or the core_pattern (`|program`) that tells who got the dump; null: no dump seen."""
    name: str | None = None
    """Who it is, where it is no rank."""

    @property
    def where(self) -> str:
        """The user's line that its exception shows: ` (train.py:88)`; empty where there is none."""
        return self.exception.where if self.exception is not None else ""

    @property
    def killed_without_exception(self) -> bool:
        """A signal ended it and no exception is known: what it printed before need not be the end."""
        return self.exception is None and (self.code or 0) < 0

    @property
    def crashed_on_the_way_out(self) -> bool:
        """Its program had failed with an exception, and native code then crashed while the interpreter went down."""
        return self.exception is not None and self.failed_at is not None and -(self.code or 0) in _CRASHES

    @property
    def who(self) -> str:
        """The rank in words."""
        return self.name or ("a rank" if self.rank is None else f"rank {self.rank}")

    @property
    def order(self) -> int:
        """When it failed, for ordering; unknown sorts last."""
        stamps = [stamp for stamp in (self.failed_at, self.died_at) if stamp is not None]
        return min(stamps, default=UNORDERED)


@frozen
class CleanExit:
    """A rank that ended with 0. `at`: the stamp at the end of its program, else the kernel's report of its end."""

    rank: Rank
    local_rank: LocalRank | None
    pid: int | None
    at: MonotonicNs
    host: str | None = None
    node_rank: int | None = None
    stderr: LogText = field(default_factory=lambda: LogText(""))
    phase: Phase | None = None
    step: int | None = None
    """As a Death's."""


@frozen
class SummaryEntry:
    """One failure as a ChildFailedError prints it."""

    rank: Rank
    local_rank: LocalRank | None
    host: str | None
    pid: int | None
    code: int | None
    time: str | None
    message: str
    root: bool


@frozen
class AgentEnd:
    """How the agent ended and what it wrote. `killed_by_us`: ddp-run sent it SIGKILL."""

    code: int | None = None
    log: LogText = field(default_factory=lambda: LogText(""))
    killed_by_us: bool = False
    at: MonotonicNs | None = None
    """When it was reaped."""
    summary: tuple[SummaryEntry, ...] = ()
    exception: ExceptionInfo | None = None
    """What its log ends with."""

    @property
    def own_failure(self) -> Death | None:
        """Its end, to be judged by what it wrote as a rank's is; null where that only tells of its ranks, or of none.

        A signal says nothing of why it was sent.
        """
        if (self.code or 0) <= 0 or self.summary:
            return None
        return Death(None, code=self.code, stderr=self.log, exception=self.exception, name="torch's agent")


@frozen
class Evidence:
    """All that rules may see of one attempt."""

    attempt: int = 0
    attempts: int = 1
    deaths: tuple[Death, ...] = ()
    """Ranks that ended with anything but 0, earliest first."""
    clean_exits: tuple[CleanExit, ...] = ()
    """Ranks that ended with 0, earliest first."""
    started: int = 0
    """How many ranks said hello."""
    world_size: int | None = None
    agent: AgentEnd = field(default_factory=AgentEnd)
    stop_signal: int | None = None
    """The first signal that told ddp-run to stop, where one did."""
    stop_at: MonotonicNs | None = None
    phase: Phase | None = None
    """The phase that all ranks of this node had reached, when a signal told ddp-run to stop or else at the end, and the
    optimizer steps that each had made; null where that was not seen."""
    step: int | None = None
    host_oom_kills: int | None = None
    """Kills by the kernel's out-of-memory killer during this attempt, on the host."""
    cgroup_oom_kills: int | None = None
    """The same, in our own memory cgroup."""
    stall: StallSeen | None = None
    """What was seen of a job that made no progress up to the end of the attempt."""
    hung_s: float | None = None
    """The job was ended after so many seconds without progress (--hang-timeout)."""
    hung_at: MonotonicNs | None = None
    not_ended: tuple[NotEnded, ...] = ()
    """Processes that SIGKILL had not ended when the attempt was over."""
    survivors: tuple[Death, ...] = ()
    """Those of them that are ranks; their codes are null."""
    kernel: LogText = field(default_factory=lambda: LogText(""))
    """What the kernel logged while the attempt ran, where that may be read."""
    kernel_pids: bool = False
    """The pids in the kernel's log are those of this job: it does not run in a pid namespace of its own."""
    space: tuple[Space, ...] = ()
    """Free space about when the first rank failed: /dev/shm, the run's folder, temporary files, the working directory.
    """
    master_port: int | None = None
    """The port that ddp-run gave the agent, null where torch chose it."""
    script: str | None = None
    nodes: int = 1
    all_nodes_ended_well: bool = False
    """The ranks of all nodes have ended well, as the nodes told each other."""
    folder: str | None = None
    host: str | None = None
    rank_taken: NodeRankTaken | None = None
    """Another node had this node's rank, so that the job was not started."""
    unlike: NodesCompared | None = None
    """How the nodes of the job differ, where that was compared here."""
    logs_only: bool = False
    """Read from logs of any launcher: no journal tells how the job ended."""
    _found: dict[tuple[object, ...], object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, look: Callable[..., Found], *given: object) -> Found:
        """What `look(self, *given)` finds, looked for once: rules are asked of each rank, and all logs are long."""
        key = (look, *given)
        if key not in self._found:
            self._found[key] = look(self, *given)
        return cast(Found, self._found[key])

    def without_secrets(self) -> Evidence:
        """With exceptions that are redacted before a rule cuts anything out of them."""
        agent = replace(self.agent, exception=redact_value(self.agent.exception))
        deaths = tuple(replace(each, exception=redact_value(each.exception)) for each in self.deaths)
        return replace(self, deaths=deaths, agent=agent)

    def path(self, source: str) -> str:
        """A log's address as it can be pasted: absolute where the run's folder is known."""
        return source if self.folder is None else f"{self.folder}/{source}"

    def space_of(self, path: str) -> Space | None:
        """What was free there. Only for the very paths that were asked for: a folder below may be another mount."""
        return next((space for space in self.space if space.path == path), None)

    def kernel_line(self, pid: int | None) -> Quote | None:
        """The kernel's last line about this process: "python[731]: segfault at …", "traps: python[731] …"."""
        return self._kernel_says(rf"\[{pid}\]", pid)

    def killed_for_memory(self, pid: int | None) -> Quote | None:
        """The kernel's own line that says its out-of-memory killer ended this process."""
        return self._kernel_says(rf"{_KILLED}{pid}\b", pid)

    def spared_for_memory(self, pid: int | None) -> bool:
        """The kernel names every process that its out-of-memory killer ended, and this one is not among them.

        Not known where it may have named a thread of the process (vm.oom_kill_allocating_task).
        """
        if pid is None or not self.kernel_pids:
            return False
        named = [found[1] for line in self.kernel.lines if (found := re.search(rf"{_KILLED}(\d+)", line))]
        all_named = len(named) >= max(self.host_oom_kills or 0, self.cgroup_oom_kills or 0, 1)
        threads = any("oom_kill_allocating_task" in line for line in self.kernel.lines)
        return all_named and not threads and str(pid) not in named

    def _kernel_says(self, pattern: str, pid: int | None) -> Quote | None:
        if pid is None or not self.kernel_pids:
            return None
        hit = self.kernel.last(re.compile(pattern))
        return hit[0] if hit is not None else None


_KILLED = r"\b[Kk]illed process "
"""Source: mm/oom_kill.c, __oom_kill_process: one line for each process, never left out for being one of many."""
