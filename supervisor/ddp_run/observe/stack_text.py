"""Reads the stacks that faulthandler writes, and tells what each thread is doing. Pure.

Form (CPython, Python/traceback.c): `Thread 0x… (most recent call first):` or `Current thread 0x… …`, since 3.14 with
the thread's name in brackets, then `  File "…", line N in f` from the innermost frame outwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ddp_run.evidence.traceback_text import is_library

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]{1,16})(?: \[[^\]]{0,200}\])? \(most recent call first\):")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)')
_LOCK_FILE = re.compile(r"^# the main thread waits for a lock file: (?P<path>/.*)")
"""Written by `rank/sampling.py` before a dump."""
_OURS = "/ddp_run/rank/"
_MONITOR = re.compile(r"/tqdm/_monitor\.py")
_MOST_NATIVE = 12


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack."""

    file: str
    line: int | None
    function: str

    @property
    def place(self) -> str:
        """`train.py:88 in step`."""
        line = "" if self.line is None else f":{self.line}"
        return f"{self.file.rpartition('/')[2]}{line} in {self.function}"

    @property
    def printed(self) -> str:
        """As faulthandler wrote it."""
        return f'  File "{self.file}", line {"???" if self.line is None else self.line} in {self.function}'

    @property
    def own(self) -> bool:
        """Whether it is the user's own code."""
        return not is_library(self.file) and _OURS not in self.file


class Doing(StrEnum):
    """What a thread does, judging by its Python frames."""

    COLLECTIVE = "waits in a collective"
    BACKWARD = "waits in backward"
    MEETING = "waits for other ranks to join a process group"
    DATA = "waits for data"
    SAVING = "is saving"
    LOADING = "is loading a checkpoint"
    COMPILING = "is compiling"
    FETCHING = "is fetching from the network"
    DEBUGGER = "is in a debugger"
    LOCK = "waits for a lock or a thread"
    LOCK_FILE = "waits for a lock file"
    PROCESS = "waits for another process"
    IMPORTING = "is importing a module"
    ENDING = "is shutting down"
    RUNNING = "is running"


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread's frames at one moment, the innermost first."""

    frames: tuple[Frame, ...]
    others: tuple[tuple[Frame, ...], ...] = ()
    """The other threads'."""
    lock_file: str | None = None
    """The path of the lock file that it waits for, if known."""

    @property
    def users(self) -> Frame | None:
        """The innermost frame of the user's own code, else the innermost of all."""
        return next((frame for frame in self.frames if frame.own), self.frames[0] if self.frames else None)

    @property
    def in_users_code(self) -> bool:
        """Whether the innermost Python frame is the user's own."""
        return bool(self.frames) and self.frames[0].own

    def in_same_loop(self, other: Stack) -> bool:
        """Whether both are in the same call of a user's function, perhaps on two lines of a loop."""

        def within(stack: Stack) -> tuple[object, ...]:
            at = next((index for index, frame in enumerate(stack.frames) if frame.own), len(stack.frames) - 1)
            innermost = stack.frames[at]
            return innermost.file, innermost.function, stack.frames[at + 1 :]

        return bool(self.frames and other.frames) and within(self) == within(other)

    @property
    def helped(self) -> bool:
        """Whether another thread is busy with something that takes time: the network, a file, a process, data."""
        return any(_doing(frames) in _FROM_OUTSIDE for frames in self.others)

    @property
    def monitors(self) -> int:
        """How many other threads only watch: those of progress bars."""
        return sum(any(_MONITOR.search(frame.file) for frame in frames) for frames in self.others)

    @property
    def doing(self) -> Doing:
        """What the main thread does."""
        return _doing(self.frames)

    @property
    def operation(self) -> str | None:
        """The name of the collective that it is in, if any: `all_reduce`."""
        names = [frame.function for frame in self.frames if "torch/distributed/" in frame.file]
        return next((name for name in reversed(names) if name in _COLLECTIVES), None)


def dumps(text: str, main_thread: int | None) -> tuple[Stack, ...]:
    """The main thread's stack in each dump of a file, oldest first.

    A dump lists the newest thread first. Without the main thread's identity, the last thread is assumed to be it.
    """
    found: list[Stack | None] = []
    threads: list[tuple[int, list[Frame]]] = []
    lock_file: str | None = None
    for line in text.splitlines():
        head, note = _THREAD.match(line), _LOCK_FILE.match(line)
        ident = int(head[1], 16) if head else None
        if note or any(known == ident for known, _ in threads):  # the next dump has begun
            found.append(_main(threads, main_thread, lock_file))
            threads, lock_file = [], note["path"] if note else None
        if ident is not None:
            threads.append((ident, []))
            continue
        frame = _FRAME.match(line)
        if frame and threads:
            number = None if frame["line"] == "???" else int(frame["line"])
            threads[-1][1].append(Frame(frame["file"], number, frame["function"]))
    found.append(_main(threads, main_thread, lock_file))
    return tuple(stack for stack in found if stack is not None)


def native_frames(text: str, thread: int) -> tuple[str, ...]:
    """A thread's innermost frames, native and Python, up to the user's own code.

    `text`: the output of `py-spy dump --native --json`. Raises ValueError if it is malformed or lacks the thread.
    """
    try:
        threads = json.loads(text[text.index("[") :])
        frames = next(each["frames"] for each in threads if each["os_thread_id"] == thread)
        found = []
        for frame in frames:
            line = f":{frame['line']}" if frame["line"] else ""
            found.append(f"  {frame['name']} ({frame['short_filename'] or frame['filename']}{line})")
            file = frame["filename"]
            if frame["module"] is None and (file.startswith("<") or not is_library(file)):
                break
    except (TypeError, KeyError, StopIteration, ValueError, RecursionError) as error:
        raise ValueError("no native frames") from error
    return tuple(found if len(found) <= _MOST_NATIVE else [*found[: _MOST_NATIVE - 2], "  …", found[-1]])


def is_whole(text: str) -> bool:
    """Whether the last dump is complete: its last thread, the main one, reaches the rank's first frame.

    A rank of `--run-path` is started by multiprocessing, and faulthandler cuts a stack after 100 frames.
    """
    last = text[max((found.start() for found in _THREAD.finditer(text)), default=len(text)) :]
    return last.endswith("\n") and any(
        end in last for end in (f'{_OURS}__main__.py"', '  File "<string>"', "\n  ...\n")
    )


def _main(threads: Sequence[tuple[int, list[Frame]]], ident: int | None, lock_file: str | None) -> Stack | None:
    """The main thread's stack; None if the dump was cut before it (faulthandler lists at most 100 threads)."""
    if not threads:
        return None
    # The board's word is signed; faulthandler prints the same bits unsigned.
    wanted = threads[-1][0] if ident is None else ident & (2**64 - 1)
    frames = next((frames for known, frames in threads if known == wanted), None)
    if frames is None:
        return None
    others = tuple(tuple(frames) for known, frames in threads if known != wanted)
    return Stack(tuple(frame for frame in frames if _OURS not in frame.file), others, lock_file)


_COLLECTIVES = frozenset(
    {"all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather"}
    | {"all_gather_object", "all_gather_coalesced", "gather_object", "scatter", "scatter_object_list", "barrier"}
    | {"reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "monitored_barrier", "send"}
    | {"broadcast_object_list", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"}
)
_MAKES_GROUPS = frozenset({"_store_based_barrier", "init_process_group", "new_group", "_new_process_group_helper"})
_DDP_TALKS = frozenset(
    {"_verify_param_shape_across_processes", "_sync_module_states", "_sync_params_and_buffers", "_sync_buffers"}
    | {"_sync_module_buffers", "_default_broadcast_coalesced", "_distributed_broadcast_coalesced", "_pre_forward"}
    | {"_check_global_requires_backward_grad_sync", "_verify_model_across_ranks"}
)
_CHECKPOINTS = re.compile(r"torch/(?:serialization|distributed/checkpoint/\w+)\.py|/safetensors/")
_WHERE: tuple[tuple[Doing, re.Pattern[str], re.Pattern[str] | frozenset[str] | None], ...] = (
    (Doing.DEBUGGER, re.compile(r"/(?:pdb|bdb|ipdb|debugpy|pydevd\w*)(?:\.py|/)|/IPython/terminal/"), None),
    (Doing.MEETING, re.compile(r"torch/distributed/rendezvous\.py"), None),
    (Doing.MEETING, re.compile(r"torch/distributed/(?:distributed_c10d|device_mesh)\.py"), _MAKES_GROUPS),
    (Doing.COLLECTIVE, re.compile(r"torch/distributed/"), _COLLECTIVES),
    (Doing.COLLECTIVE, re.compile(r"torch/(?:nn/parallel/distributed|distributed/utils)\.py"), _DDP_TALKS),
    (Doing.COLLECTIVE, re.compile(r"torch/distributed/_functional_collectives\.py"), None),
    (Doing.LOCK_FILE, re.compile(r"torch/utils/file_baton\.py|/filelock/"), None),
    (Doing.COMPILING, re.compile(r"torch/_inductor/|torch/_functorch/"), re.compile("compile|codegen")),
    (Doing.COMPILING, re.compile(r"/triton/(?:compiler|backends)/|torch/utils/cpp_extension\.py"), None),
    (Doing.SAVING, _CHECKPOINTS, re.compile(r"^_?save")),
    (Doing.LOADING, _CHECKPOINTS, re.compile(r"^_?load|^safe_open")),
    (Doing.DATA, re.compile(r"torch/utils/data/"), None),
    (Doing.ENDING, re.compile(r"torch/distributed/"), frozenset({"destroy_process_group", "_shutdown_backend"})),
    (Doing.ENDING, re.compile(r"/threading\.py"), frozenset({"_shutdown"})),
    (Doing.ENDING, re.compile(r"/(?:concurrent/futures/\w+|multiprocessing/util)\.py"), re.compile("_exit")),
    (
        Doing.BACKWARD,
        re.compile(r"torch/(?:autograd/\w+|_tensor)\.py"),
        frozenset({"_engine_run_backward", "backward"}),
    ),
)
_FROM_OUTSIDE = frozenset({Doing.FETCHING, Doing.PROCESS, Doing.SAVING, Doing.LOADING, Doing.DATA, Doing.COMPILING})
_FROM_OUTSIDE |= {Doing.LOCK_FILE}
_BY_MEANS_OF: tuple[tuple[Doing, re.Pattern[str]], ...] = (
    (
        Doing.FETCHING,
        re.compile(
            r"/(?:urllib3?|requests|httpx|httpcore|aiohttp|botocore|boto3|s3transfer|s3fs|gcsfs|fsspec|huggingface_hub)"
            r"/"
            r"|/http/client\.py|/(?:socket|ssl|ftplib)\.py|/google/(?:cloud|auth|resumable_media)/|/azure/|/paramiko/"
        ),
    ),
    (Doing.PROCESS, re.compile(r"/(?:subprocess|multiprocessing/(?:popen_\w+|process|connection|pool))\.py")),
    (Doing.IMPORTING, re.compile(r"^<frozen importlib\._bootstrap>")),
    (Doing.LOCK, re.compile(r"/(?:threading|queue|concurrent/futures/\w+|multiprocessing/(?:queues|synchronize))\.py")),
)
"""Libraries that others call: they count only if no caller says more."""
_COMPILER = re.compile(r"torch/_dynamo/convert_frame\.py")
"""On the stack only while torch.compile compiles, including with a user's backend."""
_LOOKED_AT = 40


def _doing(frames: Sequence[Frame]) -> Doing:
    """What the library frames called by the user's innermost frame do; RUNNING if there are none."""
    means: Doing | None = None
    for frame in frames[:_LOOKED_AT]:
        if frame.own:
            break
        for doing, file, functions in _WHERE:
            if file.search(frame.file) and _named(frame.function, functions):
                return doing
        means = means or next((doing for doing, file in _BY_MEANS_OF if file.search(frame.file)), None)
    if any(_COMPILER.search(frame.file) for frame in frames):
        return Doing.COMPILING
    if means is None and any("torch/utils/data/" in frame.file for frame in frames):
        return Doing.DATA  # a data set's code, called by a DataLoader
    return means or Doing.RUNNING


def _named(function: str, wanted: re.Pattern[str] | frozenset[str] | None) -> bool:
    if isinstance(wanted, re.Pattern):
        return wanted.search(function) is not None
    return wanted is None or function in wanted
