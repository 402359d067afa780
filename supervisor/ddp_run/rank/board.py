"""A page of shared memory in which a rank says where it stands: numbers that ddp-run reads while the rank is stuck.

One writer, the rank; `ddp_run/observe/boards.py` reads and knows the same layout (a test compares them). A file of
4 KiB in ddp-run's own private folder (in /dev/shm, else where its socket is), 64-bit words in the machine's byte order.
Writing one costs about 50 ns, no system call.
"""

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIZE = 4096
SHARED_MEMORY = "/dev/shm"  # noqa: S108
HIGHEST_LOW = 1001
"""Descriptors up to here are left to the program; those for stacks end here too."""
VERSION = 1

VERSION_WORD = 0
PID = 1
PHASE = 2
PHASE_AT = 3
"""When the phase began; all times are nanoseconds of CLOCK_MONOTONIC."""
STEPS = 4
"""Optimizer steps so far, of all optimizers. When they were made is for the reader to see: a clock costs more."""
COLLECTIVE = 5
"""The default group's own count of collectives, as sampled."""
COLLECTIVE_AT = 6
"""When it was seen to have changed."""
HEARTBEAT = 7
"""When the sampling thread ran last: it stands still where another thread holds the interpreter's lock."""
STACKS_READY = 8
"""The number of the signal that writes the stacks, once it is handled; 0 before."""
ASKED = 9
"""Written by ddp-run: how often it has asked for the flight recorder's entries."""
ANSWERED = 10
"""How many of those were answered."""
MAIN_THREAD = 11
"""The main thread's identity, as faulthandler prints it."""
SAMPLER = 12
"""The sampling thread's id, as the kernel has it: what it does says nothing of the program."""
CALL = 13
"""The call of torch's that the main thread is in, of CALLS; 0 for none."""
NCCL = 14
"""1 where the default group uses NCCL, be it beside others."""
STACKS_ASKED = 15
"""Written by ddp-run: how often it has asked for the stacks of all threads."""
STACKS_ANSWERED = 16
"""How many of those the sampling thread has answered."""

PHASES = ("before-init", "init", "after-init", "training", "shutdown")
CALLS = ("", "torch.cuda.set_device", "DistributedDataParallel()")


def open_board(folder: "str", restart: int, rank: int) -> "Any":
    """A new board as a memoryview of 64-bit words, `folder` being that of the socket. Raises OSError: no room."""
    shared = SHARED_MEMORY + "/" + os.path.basename(folder)
    try:
        if shared != folder and _is_private(shared):
            return _started(_in_file(shared, restart, rank))
    except OSError:
        pass
    return _started(_in_file(folder, restart, rank))


def unseen_board() -> "Any":
    """The same in this process' own memory: nobody reads it."""
    return _started(bytearray(SIZE))


def _is_private(folder: "str") -> bool:
    """Whether ddp-run can have made it: anybody may make a folder of that name in a place that all write to."""
    seen = os.lstat(folder)
    return seen.st_mode & 0o170077 == 0o040000 and seen.st_uid == os.geteuid()


def _in_file(folder: "str", restart: int, rank: int) -> "Any":
    path = "%s/board_%d_%d" % (folder, restart, rank)
    try:
        os.unlink(path)  # of an earlier attempt: ddp-run may still look at that one
    except OSError:
        pass
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            _take_room(descriptor)
        except OSError:
            os.unlink(path)
            raise
        return _mapped(descriptor)
    finally:
        os.close(descriptor)


def _take_room(descriptor: int) -> None:
    """Blocks of its own: a page of a full file system that has none ends the process when it is written (SIGBUS)."""
    try:
        os.posix_fallocate(descriptor, 0, SIZE)
    except OSError as error:
        import errno

        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.pwrite(descriptor, bytes(SIZE), 0)


def _started(memory: "Any") -> "Any":
    words = memoryview(memory).cast("q")
    words[PID] = os.getpid()
    words[MAIN_THREAD] = get_ident()
    words[VERSION_WORD] = VERSION
    return words


def _mapped(descriptor: int) -> "Any":
    """The file as shared memory, without a low descriptor: the program's own files are to keep their numbers.

    Python keeps a copy of the descriptor, the lowest that is free; since 3.13 it can be told not to.
    """
    import mmap

    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, SIZE, trackfd=False)
    taken = [descriptor]
    try:
        while taken[-1] < HIGHEST_LOW:
            taken.append(os.dup(descriptor))
    except OSError:  # no more descriptors: then a low one
        _close(taken[1:])
        taken = taken[:1]
    try:
        return mmap.mmap(descriptor, SIZE)
    finally:
        _close(taken[1:])


def _close(descriptors: "list[int]") -> None:
    for each in descriptors:
        os.close(each)
