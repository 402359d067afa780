"""The facts known after an attempt: the logs, each rank's end, and `Evidence`, which contains them.

Values only: nothing here opens a file or queries the system. `ddp_run.evidence.gather` fills it, rules read it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import field, replace
from re import Match, Pattern
from typing import Literal, TypeVar, cast

from ddp_run.evidence.resources import GpuLook, MemoryTrend
from ddp_run.record.events import (
    EndpointTaken,
    ExceptionInfo,
    LocalRank,
    MonotonicNs,
    NodeRankTaken,
    NodesCompared,
    NotEnded,
    Rank,
    SpaceCounted,
    StallSeen,
)
from ddp_run.values.redaction import redact_value
from ddp_run.values.typed_fields import frozen

Found = TypeVar("Found")
UNORDERED = 2**63
"""`Death.order` of a rank whose time of failure is unknown."""
_CRASHES = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
_STOP_TYPES = frozenset({"KeyboardInterrupt", "SystemExit", "SignalException"})
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
Phase = Literal["launch", "before-init", "init", "after-init", "training", "shutdown"]


@frozen
class Quote:
    """A line that proves something: its position and text. `line` counts from 1; None if unknown."""

    source: str
    line: int | None
    text: str


@frozen
class LogText:
    """The part of a log that was read: all, its end, or one speaker's lines.

    `first_line` is the number of its first line (from 1). If lines were left out, `numbers` has the number of each
    line.
    """

    source: str
    lines: tuple[str, ...] = ()
    first_line: int | None = 1
    numbers: tuple[int, ...] | None = None

    def number(self, index: int) -> int | None:
        """Return the number, from 1, in the file of the line at `index` of `lines`; None if it was not counted."""
        if self.numbers is not None:
            return self.numbers[index]
        return None if self.first_line is None else self.first_line + index

    def quote(self, index: int) -> Quote:
        """Return the line at `index` of `lines`, with its address."""
        return Quote(self.source, self.number(index), self.lines[index])

    def ending(self, count: int) -> LogText:
        """Return the last `count` lines with their numbers."""
        skipped = max(0, len(self.lines) - count)
        first = None if self.first_line is None else self.first_line + skipped
        return LogText(self.source, self.lines[skipped:], first, self.numbers and self.numbers[skipped:])

    def last(self, pattern: Pattern[str]) -> tuple[Quote, Match[str]] | None:
        """Return the last line that matches the pattern."""
        for index in range(len(self.lines) - 1, -1, -1):
            found = pattern.search(self.lines[index])
            if found:
                return self.quote(index), found
        return None

    def first(self, pattern: Pattern[str]) -> tuple[Quote, Match[str]] | None:
        """Return the first line that matches the pattern."""
        return next(((self.quote(k), hit) for k, line in enumerate(self.lines) if (hit := pattern.search(line))), None)


@frozen
class Death:
    """One rank's end and everything known about it: a failure, unless it exited with 0.

    `code` is Python's convention (negative: signal); None: unknown. `failed_at` is the stamp taken inside the rank when
    its program failed, `died_at` the kernel's report of its end; the earlier of the two orders deaths. `signals_sent`
    are the signals that ddp-run or the agent had sent to it before it died (the agent's are inferred: it signals all
    others once one has died). `rank` is None if a log does not show it. `only_printed`: its program had caught its
    `exception` and printed it, and may have ended for another reason.
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
    only_printed: bool = False
    signals_sent: tuple[int, ...] = ()
    stderr: LogText = field(default_factory=lambda: LogText(""))
    stdout: LogText = field(default_factory=lambda: LogText(""))
    stack: LogText = field(default_factory=lambda: LogText(""))
    """The output of faulthandler on a fatal signal."""
    phase: Phase | None = None
    """The last phase that it reported; None if it could not."""
    step: int | None = None
    """The optimizer steps that it had made; None if they were not counted."""
    call: str | None = None
    """The torch call that it was in at the last inspection: `torch.cuda.set_device`."""
    nccl: LogText = field(default_factory=lambda: LogText(""))
    """NCCL's output in its own file."""
    memory: MemoryTrend | None = None
    """Its memory use, if it was inspected at least once."""
    gpus: GpuLook | None = None
    """The GPUs at the last inspection, if any."""
    core: str | None = None
    """The file of its core dump, or the core_pattern (`|program`) that shows who received it; None: no dump seen."""
    name: str | None = None
    """The name of the process if it is not a rank."""

    @property
    def where(self) -> str:
        """The user's line in its exception: ` (train.py:88)`; empty if there is none."""
        return self.exception.where if self.exception is not None else ""

    @property
    def killed_without_exception(self) -> bool:
        """A signal ended it and no exception is known, so its last output need not explain the end."""
        return self.exception is None and (self.code or 0) < 0

    @property
    def killed_by_another(self) -> bool:
        """The same, unless it aborted itself, as native code does after it has said why."""
        return self.killed_without_exception and self.code != -signal.SIGABRT

    @property
    def crashed_on_the_way_out(self) -> bool:
        """Its program failed with an exception, and native code then crashed during interpreter shutdown."""
        return self.exception is not None and self.failed_at is not None and self.crashed

    @property
    def crashed(self) -> bool:
        """A signal ended it that the process itself caused."""
        return -(self.code or 0) in _CRASHES

    @property
    def ended_from_outside(self) -> bool:
        """A signal ended it that others send, maybe long after its last output."""
        return -(self.code or 0) in _FROM_OUTSIDE

    @property
    def obeyed(self) -> bool:
        """It raised what programs raise to obey a signal, or call `sys.exit` with. No exception at all counts, too."""
        return self.exception is None or self.exception.type.rpartition(".")[2] in _STOP_TYPES

    @property
    def own_code(self) -> int | None:
        """Its exit code, if it had not been told to end: a handler may turn a signal into 128 + its number."""
        code = self.code or 0
        told = -code in self.signals_sent or (self.obeyed and code - 128 in self.signals_sent)
        return None if told else self.code

    @property
    def who(self) -> str:
        """The rank as text."""
        return self.name or ("a rank" if self.rank is None else f"rank {self.rank}")

    @property
    def trend(self) -> tuple[Quote, ...]:
        """What was seen of its memory, as evidence."""
        return () if self.memory is None else (Quote("memory", None, f"{self.who}: {self.memory.words}"),)

    @property
    def watched(self) -> bool:
        """ddp-run saw its end, and no other rank wrote to its log."""
        return self.order != UNORDERED

    @property
    def order(self) -> int:
        """When it failed, for sorting; unknown sorts last."""
        stamps = [stamp for stamp in (self.failed_at, self.died_at) if stamp is not None]
        return min(stamps, default=UNORDERED)


TORCHS_AGENT = Death(rank=None, name="torch's agent")
"""What started the ranks, where only its text is known."""


@frozen
class SummaryEntry:
    """One failure as printed in a ChildFailedError."""

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
    """How the agent ended, its output and the exception at its end. `killed_by_us`: ddp-run sent it SIGKILL."""

    code: int | None = None
    log: LogText = field(default_factory=lambda: LogText(""))
    killed_by_us: bool = False
    at: MonotonicNs | None = None
    """When it was reaped."""
    summary: tuple[SummaryEntry, ...] = ()
    exception: ExceptionInfo | None = None

    @property
    def own_failure(self) -> Death | None:
        """The agent's end, judged by its output like a rank's; None if the output only reports on ranks.

        A signal does not show why it was sent.
        """
        if (self.code or 0) <= 0 or self.summary:
            return None
        return replace(TORCHS_AGENT, code=self.code, stderr=self.log, exception=self.exception)


@frozen
class Evidence:
    """Everything that rules may see of one attempt."""

    attempt: int = 0
    attempts: int = 1
    deaths: tuple[Death, ...] = ()
    """Ranks that ended with anything but 0, earliest first."""
    clean_exits: tuple[Death, ...] = ()
    """Ranks that exited with 0, earliest first; `died_at` is the end of their program, where they reported it."""
    started: int = 0
    """The number of ranks that reported their start."""
    world_size: int | None = None
    agent: AgentEnd = field(default_factory=AgentEnd)
    stop_signal: int | None = None
    """The first signal that told ddp-run to stop, if any."""
    stop_at: MonotonicNs | None = None
    phase: Phase | None = None
    """The phase that all ranks of this node had reached when a signal told ddp-run to stop, or at the end, and the
    optimizer steps of each; None if unknown."""
    step: int | None = None
    host_oom_kills: int | None = None
    """Kills by the kernel's out-of-memory killer during this attempt, on the host."""
    cgroup_oom_kills: int | None = None
    """The same in our own memory cgroup."""
    stall: StallSeen | None = None
    """The observation of a job that made no progress until the end of the attempt."""
    hung_s: float | None = None
    """The job was terminated after this many seconds without progress (--hang-timeout)."""
    hung_at: MonotonicNs | None = None
    not_ended: tuple[NotEnded, ...] = ()
    """Processes that SIGKILL had not ended by the end of the attempt."""
    survivors: tuple[Death, ...] = ()
    """The ranks among them; their codes are None."""
    kernel: LogText = field(default_factory=lambda: LogText(""))
    """The kernel's log during the attempt, if readable."""
    kernel_pids: bool = False
    """The pids in the kernel's log match this job's: it does not run in a separate pid namespace."""
    space: tuple[SpaceCounted, ...] = ()
    """Free space when the first rank failed: /dev/shm, the run's folder, temporary files, the working directory."""
    master_port: int | None = None
    """The port that ddp-run gave the agent; None if torch chose it."""
    script: str | None = None
    nodes: int = 1
    all_nodes_ended_well: bool = False
    folder: str | None = None
    host: str | None = None
    rank_taken: NodeRankTaken | None = None
    """Another node had this node's rank, so the job was not started."""
    endpoint_taken: EndpointTaken | None = None
    """Another program had the rendezvous' endpoint, so the job was not started."""
    unlike: NodesCompared | None = None
    """The differences between the job's nodes, if they were compared here."""
    logs_only: bool = False
    """Read from logs of any launcher: no journal shows how the job ended."""
    _found: dict[tuple[object, ...], object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, look: Callable[..., Found], *given: object) -> Found:
        """Return the result of `look(self, *given)`, cached: rules run for each rank, and all logs are long."""
        key = (look, *given)
        if key not in self._found:
            self._found[key] = look(self, *given)
        return cast(Found, self._found[key])

    def without_secrets(self) -> Evidence:
        """Return a copy whose exceptions are redacted before a rule quotes them."""
        raised = (self.agent.exception, *(death.exception for death in self.deaths))
        distinct = tuple({id(each): each for each in raised if each is not None}.values())  # many ranks may share one
        shown = redact_value(distinct)
        if shown is distinct:
            return self
        hidden = {id(each): redacted for each, redacted in zip(distinct, shown, strict=True)}
        deaths = tuple(replace(death, exception=hidden.get(id(death.exception))) for death in self.deaths)
        return replace(self, deaths=deaths, agent=replace(self.agent, exception=hidden.get(id(self.agent.exception))))

    def path(self, source: str) -> str:
        """Return a log's path in a form that can be pasted: absolute if the run's folder is known."""
        return source if self.folder is None else f"{self.folder}/{source}"

    def space_of(self, path: str) -> SpaceCounted | None:
        """Return the free space there. Only for the inspected paths themselves: a subfolder may be another mount."""
        return next((space for space in self.space if space.path == path), None)

    def kernel_line(self, pid: int | None) -> Quote | None:
        """Return the kernel's last line about this process: "python[731]: segfault at …", "traps: python[731] …"."""
        return self._kernel_says(rf"\[{pid}\]", pid)

    def killed_for_memory(self, pid: int | None) -> Quote | None:
        """Return the kernel's own line which says that its out-of-memory killer ended this process."""
        return self._kernel_says(rf"{_KILLED}{pid}\b", pid)

    def spared_for_memory(self, pid: int | None) -> bool:
        """Whether the kernel's out-of-memory killer did not kill this process: the kernel names every process it kills.

        Unknown if it may have named a thread of the process (vm.oom_kill_allocating_task).
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
"""Source: mm/oom_kill.c, __oom_kill_process: one line for each process, exempt from rate limits."""
