"""Reads the stacks that faulthandler writes, and says in a word what a thread does there. Pure.

Form (CPython, Python/traceback.c): `Thread 0x… (most recent call first):` or `Current thread 0x… …`, since 3.14 with
the thread's name in brackets, then `  File "…", line N in f` from the innermost frame outwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ddp_run.traceback_text import is_library

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)(?: \[[^\]]*\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_OURS = "/ddp_run/rank/"


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: where it stands."""

    file: str
    line: int | None
    function: str

    @property
    def place(self) -> str:
        """`train.py:88 in step`, as a person would say it."""
        line = "" if self.line is None else f":{self.line}"
        return f"{self.file.rpartition('/')[2]}{line} in {self.function}"


class Doing(StrEnum):
    """What a thread does, as far as its Python frames tell."""

    COLLECTIVE = "waits in a collective"
    BACKWARD = "waits in backward"
    MEETING = "waits for the others to join the process group"
    DATA = "waits for data"
    SAVING = "is saving"
    LOADING = "is loading a checkpoint"
    COMPILING = "is compiling"
    FETCHING = "is fetching from the network"
    DEBUGGER = "is in a debugger"
    LOCK = "waits for a lock"
    PROCESS = "waits for another process"
    ENDING = "is shutting down"
    RUNNING = "runs"


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread's frames at one moment, the innermost first."""

    frames: tuple[Frame, ...]

    @property
    def users(self) -> Frame | None:
        """The innermost frame of the user's own code, else the innermost of all."""
        own = (frame for frame in self.frames if not is_library(frame.file) and _OURS not in frame.file)
        return next(own, self.frames[0] if self.frames else None)

    @property
    def doing(self) -> Doing:
        """What it does."""
        return _doing(self.frames)

    @property
    def operation(self) -> str | None:
        """The collective's name, where it is in one: `all_reduce`."""
        names = [frame.function for frame in self.frames if "torch/distributed/" in frame.file]
        return next((name for name in reversed(names) if name in _COLLECTIVES), None)


def dumps(text: str, main_thread: int | None) -> tuple[Stack, ...]:
    """The main thread's stack in each dump of a file, oldest first.

    A dump lists its threads in one go, the one that began last first; without the main thread's identity the last one
    is taken for it.
    """
    found: list[Stack] = []
    threads: list[tuple[int, list[Frame]]] = []
    for line in text.splitlines():
        head = _THREAD.match(line)
        if head:
            ident = int(head[1], 16)
            if any(known == ident for known, _ in threads):  # the next dump has begun
                found.append(_main(threads, main_thread))
                threads = []
            threads.append((ident, []))
            continue
        frame = _FRAME.match(line)
        if frame and threads:
            number = None if frame["line"] == "???" else int(frame["line"])
            threads[-1][1].append(Frame(frame["file"], number, frame["function"]))
    if threads:
        found.append(_main(threads, main_thread))
    return tuple(found)


def _main(threads: Sequence[tuple[int, list[Frame]]], ident: int | None) -> Stack:
    # The board's word is signed, faulthandler prints the same bits unsigned.
    wanted = None if ident is None else ident & (2**64 - 1)
    frames = next((frames for known, frames in threads if known == wanted), threads[-1][1])
    return Stack(tuple(frame for frame in frames if _OURS not in frame.file or frame.function == "init_process_group"))


_COLLECTIVES = frozenset(
    {"all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather"}
    | {"all_gather_object", "all_gather_coalesced", "gather_object", "scatter", "scatter_object_list", "barrier"}
    | {"reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "monitored_barrier", "send"}
    | {"broadcast_object_list", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"}
)
_WHERE: tuple[tuple[Doing, re.Pattern[str], frozenset[str] | None], ...] = (
    (Doing.DEBUGGER, re.compile(r"/(?:pdb|bdb|debugpy|pydevd|ipdb|IPython/terminal)[/.]"), None),
    (Doing.MEETING, re.compile(r"torch/distributed/rendezvous\.py"), None),
    (Doing.MEETING, re.compile(r"torch/distributed/"), frozenset({"_store_based_barrier", "init_process_group"})),
    (Doing.COLLECTIVE, re.compile(r"torch/distributed/"), _COLLECTIVES),
    (Doing.COMPILING, re.compile(r"torch/_(?:dynamo|inductor|functorch)/|/triton/(?:compiler|backends)/"), None),
    (Doing.SAVING, re.compile(r"torch/(?:serialization|distributed/checkpoint/\w+)\.py"), frozenset({"save", "_save"})),
    (Doing.SAVING, re.compile(r"safetensors/"), frozenset({"save_file", "save_model", "save"})),
    (
        Doing.LOADING,
        re.compile(r"torch/(?:serialization|distributed/checkpoint/\w+)\.py"),
        frozenset({"load", "_load"}),
    ),
    (Doing.DATA, re.compile(r"torch/utils/data/"), None),
    (Doing.FETCHING, re.compile(r"/(?:urllib3?|requests|httpx|httpcore|aiohttp|botocore)/|/http/client\.py"), None),
    (Doing.PROCESS, re.compile(r"/(?:subprocess|multiprocessing/(?:popen_\w+|process|connection))\.py"), None),
    (Doing.LOCK, re.compile(r"/(?:threading|queue|concurrent/futures/_base)\.py"), None),
    (
        Doing.BACKWARD,
        re.compile(r"torch/(?:autograd/\w+|_tensor)\.py"),
        frozenset({"_engine_run_backward", "backward"}),
    ),
)
_LOOKED_AT = 30


def _doing(frames: Sequence[Frame]) -> Doing:
    """What the innermost frame shows that any pattern knows; nothing special where the user's own code is innermost."""
    frames = frames[:_LOOKED_AT]
    for frame in frames:
        for doing, file, functions in _WHERE:
            if file.search(frame.file) and (functions is None or frame.function in functions):
                return doing
        if not is_library(frame.file) and _OURS not in frame.file:
            break
    loads = any("torch/utils/data/" in frame.file for frame in frames)  # a data set's own code, called by a DataLoader
    return Doing.DATA if loads else Doing.RUNNING
