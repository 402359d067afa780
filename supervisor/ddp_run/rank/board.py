"""The board: a page of shared memory in which a rank says where it stands, so ddp-run can read it while it is stuck.

A file of 4 KiB in ddp-run's private folder: in /dev/shm, or beside ddp-run's socket. The rank writes 64-bit words in
the machine's byte order, about 50 ns each, without a system call. `ddp_run/observe/boards.py` reads them.
"""

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SHARED_MEMORY = "/dev/shm"  # noqa: S108
_HIGH = 1001
"""Lower descriptors are left to the program. This one is for stacks."""

PHASES = ("before-init", "init", "after-init", "training", "shutdown")
REPLACED = "replaced"
"""Sent in place of a phase, and on no board: the process runs another program from here on."""
CALLS = ("", "torch.cuda.set_device", "DistributedDataParallel()")


class Page:
    """`words`: the page. The numbers say which word is which; times are nanoseconds of CLOCK_MONOTONIC."""

    SIZE = 4096
    VERSION = 1

    VERSION_WORD = 0
    PID = 1
    PHASE = 2
    """Index in PHASES."""
    PHASE_AT = 3
    """When the phase began."""
    STEPS = 4
    """Optimizer steps so far, of all optimizers. Without a time: reading a clock costs more than the rest."""
    COLLECTIVE = 5
    """The default group's own count of collectives, as sampled."""
    COLLECTIVE_AT = 6
    """When that count was seen to have changed."""
    HEARTBEAT = 7
    """When the sampling thread last ran. It stands still while another thread holds the interpreter's lock."""
    STACKS_READY = 8
    """The number of the signal that writes the stacks, once it has a handler; 0 before."""
    ASKED = 9
    """Written by ddp-run: how often it has asked for the flight recorder's entries."""
    ANSWERED = 10
    """How many of those questions were answered."""
    MAIN_THREAD = 11
    """The main thread's identity, as faulthandler prints it."""
    SAMPLER = 12
    """The sampling thread's id, as the kernel has it: ddp-run's thread, not the program's."""
    CALL = 13
    """Index in CALLS of the call that the main thread is in; 0 for none."""
    NCCL = 14
    """1 if the default group uses NCCL, alone or beside others."""
    STACKS_ASKED = 15
    """Written by ddp-run: how often it has asked for the stacks of all threads."""
    STACKS_ANSWERED = 16
    """How many of those questions the sampling thread has answered."""

    def __init__(self, memory: "Any") -> None:
        self.words = memoryview(memory).cast("q")
        self.words[self.PID] = os.getpid()
        self.words[self.MAIN_THREAD] = get_ident()
        self.words[self.VERSION_WORD] = self.VERSION

    def hide(self) -> None:
        """Write to private memory from here on."""
        self.words = memoryview(bytearray(self.SIZE)).cast("q")


def open_page(folder: "str", restart: int, rank: int) -> Page:
    """A new page for this rank. `folder`: the one with ddp-run's socket. Raises OSError if there is no room."""
    shared = SHARED_MEMORY + "/" + os.path.basename(folder)
    try:
        if shared != folder and is_private(shared):
            return Page(_in_file(shared, restart, rank))
    except OSError:
        pass
    return Page(_in_file(folder, restart, rank))


def unseen_page() -> Page:
    """A page in this process's own memory, which nobody reads."""
    return Page(bytearray(Page.SIZE))


def is_private(folder: "str") -> bool:
    """Whether this user made it for itself: in /dev/shm anybody may make a folder with that name. Raises OSError."""
    seen = os.lstat(folder)
    return seen.st_mode & 0o170077 == 0o040000 and seen.st_uid == os.geteuid()


def _in_file(folder: "str", restart: int, rank: int) -> "Any":
    path = "%s/board_%d_%d" % (folder, restart, rank)
    try:
        os.unlink(path)  # an earlier attempt's: ddp-run may still look at it
    except OSError:
        pass
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _take_room(descriptor)
        return _mapped(descriptor)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _take_room(descriptor: int) -> None:
    """Allocate the file's blocks: writing to a page without one ends the process if the disk is full (SIGBUS)."""
    try:
        os.posix_fallocate(descriptor, 0, Page.SIZE)
    except OSError as error:
        import errno

        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.pwrite(descriptor, bytes(Page.SIZE), 0)


def _mapped(descriptor: int) -> "Any":
    """The file as shared memory, with no low descriptor left open: the program's own files keep their numbers.

    Python keeps a copy of the descriptor, the lowest free one. Since 3.13 it can be told not to.
    """
    import mmap

    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, Page.SIZE, trackfd=False)
    taken = [descriptor]
    try:
        while taken[-1] < _HIGH:
            taken.append(os.dup(descriptor))
    except OSError:  # no descriptors left: use a low one
        while len(taken) > 1:
            os.close(taken.pop())
    try:
        return mmap.mmap(descriptor, Page.SIZE)
    finally:
        for each in taken[1:]:
            os.close(each)
