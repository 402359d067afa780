"""Memory and use of this node's NVIDIA GPUs, and which rank is on which GPU.

A separate process asks NVML; `gpu_probe` says why, and in what form it answers. Nothing here waits: a question is one
byte into a pipe, the answer is read once it has come, and a process that doesn't answer is killed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

from ddp_run.observe.close_look import GpuUse
from ddp_run.observe.process_look import in_first_pid_namespace
from ddp_run.record.events import GpuSampled, LocalRank, MonotonicNs, Noted, Rank
from ddp_run.values.helper_process import HelperProcess, spawn
from ddp_run.values.process_table import environs, look

FIRST_LOOK_S = 1.0
LOOK_S = 10.0
"""Between two looks: short at first, when memory grows fastest."""
WAIT_S = 1.0
"""How long the end of an attempt waits for the look that a death asked for."""
_ANSWER_S = 15.0
_FIRST_ANSWER_S = 90.0
"""Without nvidia-persistenced, starting NVML wakes every GPU, which takes seconds each."""
_FRESH_S = 5.0
"""A look up to this old still shows how busy a GPU is."""
_CHANGE = 0.1
_SMALL = 64 << 20
"""Changes below this many bytes are not worth a line."""
_AT_LEAST_EVERY_S = 300.0
_MOST_SAMPLES = 2000
"""Per attempt, in the journal. The last sample before a death and the one at it are written in any case."""
_MOST_PROCESSES = 64
_PROGRAM = Path(__file__).parents[1] / "gpu_probe.py"
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
"""The driver's device, and WSL's."""
_NONE = ("", "-1", "NoDevFiles")
_ANCESTORS = 8
_SECOND = 1_000_000_000


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether this job seems to have NVIDIA GPUs, judging by CUDA_VISIBLE_DEVICES and the driver's device files."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return visible not in _NONE and (visible is not None or any(Path(path).exists() for path in _DEVICES))


@final
@dataclass(slots=True)
class GpuWatch:
    """The process that asks NVML, and what it has answered."""

    process: HelperProcess
    said_why: bool = False
    """It has reported why it cannot ask, and ends."""
    _asked_at: MonotonicNs | None = None
    """When the question was asked that has no answer yet."""
    _answered: bool = False
    _wanted: bool = False
    """Write the next sample, whatever it shows."""
    _latest: GpuSampled | None = None
    _written: GpuSampled | None = None
    _lines: int = 0
    _own_pids: bool = False
    _environ: dict[int, dict[str, str] | None] = field(default_factory=dict)
    """Each rank's environment, by pid; None if it cannot be read."""

    @classmethod
    def start(cls) -> Self:
        """Start the process. Raises OSError."""
        # -P: the names of ddp-run's own modules must not hide others
        watch = cls(spawn([sys.executable, "-P", str(_PROGRAM)], outlives_us=False))
        watch._own_pids = in_first_pid_namespace()  # in others NVML may give the host's pids, or none
        return watch

    def ask(self, at: MonotonicNs) -> None:
        """Ask for a look, unless one is pending."""
        if self._asked_at is not None:
            return
        if self.process.tell(b"?"):  # otherwise it has ended, which `read` will report
            self._asked_at = at

    def ask_again(self, at: MonotonicNs) -> None:
        """Ask if the last look is more than a second old."""
        if self._latest is None or at - self._latest.at > _SECOND:
            self.ask(at)

    def at_death(self, at: MonotonicNs) -> list[GpuSampled]:
        """The last look, if it was not returned yet. Also asks for one now: a failing rank still has its memory."""
        held = [self._latest] if self._latest is not None and self._latest is not self._written else []
        self._written = self._latest
        self._wanted = True
        self.ask(at)
        return held

    def awaited_s(self, at: MonotonicNs) -> float:
        """Seconds left to wait for the look that a death asked for; 0 once it has come."""
        if not self._wanted or self._asked_at is None:
            return 0.0
        return max(0.0, WAIT_S - (at - self._asked_at) / _SECOND)

    def is_silent(self, at: MonotonicNs) -> bool:
        """Whether a question has waited too long for its answer."""
        most_s = _ANSWER_S if self._answered else _FIRST_ANSWER_S
        return self._asked_at is not None and at - self._asked_at > most_s * _SECOND

    def read(
        self, at: MonotonicNs, started: Mapping[Rank, int], alive: Sequence[Rank]
    ) -> tuple[list[GpuSampled | Noted], bool]:
        """The events worth recording since the last call, and whether the process has ended.

        `started`: the pids of all ranks, including dead ones, which NVML may still list.
        """
        events: list[GpuSampled | Noted] = []
        lines, over = self.process.lines()
        for line in lines:
            answer = json.loads(line)
            if "note" in answer:
                self.said_why = answer["last"]
                events.append(Noted(at, answer["note"]))
                continue
            self._asked_at, self._answered = None, True
            self._latest = self._sample(answer, started, alive)
            if self._is_worth(self._latest):
                self._written = self._latest
                events.append(self._latest)
        return events, over

    def use(self, at: MonotonicNs, local_ranks: Mapping[Rank, LocalRank]) -> tuple[GpuUse, ...]:
        """How busy the ranks' GPUs were at the last look, if it is recent."""
        if self._latest is None or at - self._latest.at > _FRESH_S * _SECOND:
            return ()
        return tuple(use for rank, local in sorted(local_ranks.items()) for use in use_of(self._latest, rank, local))

    def _is_worth(self, sample: GpuSampled) -> bool:
        asked_for, self._wanted = self._wanted, False
        if asked_for or not sample.gpus:
            return bool(sample.gpus)
        if self._written is not None and not differs(self._written, sample):
            return False
        self._lines += 1
        return self._lines <= _MOST_SAMPLES

    # ---------------------------------------------------------------------------- whose is what

    def _sample(self, answer: Mapping[str, Any], started: Mapping[Rank, int], alive: Sequence[Rank]) -> GpuSampled:
        processes = [tuple(process) for process in answer["processes"]]
        by_pid = {pid: rank for rank, pid in started.items()}
        self._own_pids = self._own_pids or any(pid in by_pid for pid, *_ in processes)
        members = {pid: _member(pid, by_pid) if self._own_pids else None for pid, *_ in processes}
        names = [name for _, _, name, *_ in answer["devices"]]
        numbers = {uuid: index for index, uuid, *_ in answer["devices"]}
        unread = [started[rank] for rank in alive if started[rank] not in self._environ]
        self._environ |= {**dict.fromkeys(unread), **environs(unread)}
        visible = tuple(self._visible(started[rank], numbers, names, whole=answer["whole"]) for rank in alive)
        seen = {index for order in visible for index in order or ()}
        seen |= {on for pid, on, _ in processes if members[pid] is not None}
        devices = [device for device in answer["devices"] if device[0] in seen or None in visible]
        shown = {device[0] for device in devices}
        # if there are too many processes, keep the job's, then the largest
        processes = sorted(
            (process for process in processes if process[1] in shown),
            key=lambda process: (members[process[0]] is None, -(process[2] or 0)),
        )[:_MOST_PROCESSES]
        return GpuSampled(
            at=MonotonicNs(answer["at"]),
            gpus=tuple(device[0] for device in devices),
            uuids=tuple(device[1] for device in devices),
            used=tuple(device[3] for device in devices),
            free=tuple(device[4] for device in devices),
            total=tuple(device[5] for device in devices),
            busy=tuple(device[6] for device in devices),
            pids=tuple(pid for pid, _, _ in processes),
            on=tuple(on for _, on, _ in processes),
            held=tuple(held for _, _, held in processes),
            names=tuple(_name(pid) if self._own_pids else "" for pid, _, _ in processes),
            members=tuple(members[pid] for pid, _, _ in processes),
            own_pids=self._own_pids,
            ranks=tuple(alive),
            visible=visible,
        )

    def _visible(
        self, pid: int, numbers: Mapping[str, int], names: Sequence[str], *, whole: bool
    ) -> tuple[int, ...] | None:
        known = self._environ[pid]
        if known is None:
            return None
        ordered = whole and (known.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(set(names)) <= 1)
        return visible_gpus(known.get("CUDA_VISIBLE_DEVICES"), numbers, ordered=ordered)


def visible_gpus(value: str | None, numbers: Mapping[str, int], *, ordered: bool) -> tuple[int, ...] | None:
    """NVML's numbers of the GPUs that a process sees, in torch's order; None if that is unknown.

    `value`: its CUDA_VISIBLE_DEVICES. `numbers`: NVML's numbers by UUID. `ordered`: CUDA counts by bus, as NVML does;
    by default it puts the fastest first. Source: CUDA programming guide, CUDA environment variables.
    """
    if value is None:
        return tuple(sorted(numbers.values())) if ordered else None
    found: list[int] = []
    for word in map(str.strip, value.split(",")):
        if word.startswith("GPU-"):
            hits = [number for uuid, number in numbers.items() if uuid.startswith(word)]
            if len(hits) != 1:
                return None
            found += hits
        elif word.isdigit() and ordered:
            if int(word) not in numbers.values():
                break  # CUDA ignores an invalid device and all that follow it
            found.append(int(word))
        elif word in _NONE:
            break
        else:
            return None
    return tuple(found)


def differs(old: GpuSampled, new: GpuSampled) -> bool:
    """Whether a sample shows something new. How busy a GPU is doesn't count: it changes all the time."""
    if new.at - old.at >= _AT_LEAST_EVERY_S * _SECOND:
        return True
    if (old.gpus, old.ranks, old.visible, old.own_pids) != (new.gpus, new.ranks, new.visible, new.own_pids):
        return True
    if set(zip(old.pids, old.on, strict=True)) != set(zip(new.pids, new.on, strict=True)):
        return True
    return any(abs(one - other) > max(_SMALL, _CHANGE * one) for one, other in zip(old.used, new.used, strict=True))


def use_of(sample: GpuSampled, rank: Rank, local_rank: LocalRank) -> tuple[GpuUse, ...]:
    """How busy the GPUs are that NVML lists the rank on; if it lists none, the one implied by the local rank."""
    listed = sorted({on for on, member in zip(sample.on, sample.members, strict=True) if member == rank})
    order = sample.visible[sample.ranks.index(rank)] if rank in sample.ranks else None
    meant = order[local_rank : local_rank + 1] if order else ()
    busy = dict(zip(sample.gpus, sample.busy, strict=True))
    found = ((number, busy.get(number)) for number in listed or meant)
    return tuple(GpuUse(rank, number, share, bool(listed)) for number, share in found if share is not None)


def _member(pid: int, by_pid: Mapping[int, Rank]) -> Rank | None:
    """The rank that a process is or descends from."""
    for _ in range(_ANCESTORS):
        if pid in by_pid:
            return by_pid[pid]
        process = look(pid)
        if process is None:
            return None
        pid = process.parent
    return None


def _name(pid: int) -> str:
    process = look(pid)
    return process.name.decode(errors="replace") if process is not None else ""
