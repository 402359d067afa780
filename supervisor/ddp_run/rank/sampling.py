"""ddp-run's thread in a rank: it beats, writes stacks when asked, and counts collectives once torch is there.

It is not a Thread object, so the program's own count of threads stays as it is. It runs from before the program's first
line, so that a rank which never reaches torch still shows where it stands. It ends while the program forks.
"""

import faulthandler
import os
import sys
import time
from _thread import allocate_lock, get_native_id, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

    from ddp_run.rank.board import Page

SAMPLE_S = 0.25
"""How often the sampling thread runs, for 30 µs. A question waits up to this long."""
_BEGIN_S = 1.0
"""How long the main thread waits for the sampling thread to begin. It takes 0.1 ms, on a crowded machine far more."""
_END_NS = 1_000_000_000
"""How long a fork, or the program's end, waits for the thread to end, which takes as long as its beginning."""
_LEAVE_TORCH_S = 5.0
"""How long the program's end waits for the thread to return from torch; it takes microseconds."""
_LOCK_FILES = (
    ("/torch/utils/file_baton.py", ("wait",), "self", "lock_file_path"),
    ("/filelock/_api.py", ("acquire", "_poll_until_acquired"), "lock_filename", None),
    ("/filelock/_core/_acquire.py", ("_poll_until_acquired",), "lock_filename", None),  # 4.3
)
"""Loops that wait for a lock file: file, functions, and the variable that is the path or has it as an attribute."""
_INNERMOST = 6
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Sampling:
    """`load` gives a module of this folder; `missed` reports what cannot be observed."""

    def __init__(
        self, folder: "str", page: "Page", load: "Any", missed: "Callable[[str, BaseException], None]"
    ) -> None:
        self._folder = folder
        self._page = page
        self._load = load
        self._missed = missed
        self._c10d: "Any" = None
        """torch.distributed, once it is there."""
        self._grouped = False
        """The program has asked for a process group, which has its own threads."""
        self._lifetime = allocate_lock()
        """Held while the latest sampling thread should run: each has its own."""
        self._in_torch = allocate_lock()
        """Held while the thread calls torch's C++, which releases the interpreter's lock."""
        self._resting = True
        """There is no thread: the program has forked."""
        self._without_flight = False
        self._stopped = False
        self._now = time.monotonic_ns  # the program may replace the module's functions
        self._sleep = time.sleep

    def install(self) -> None:
        """Start the thread, and keep it away from the program's forks and its end."""
        import atexit

        os.register_at_fork(before=self._rest, after_in_child=self._in_child)
        atexit.register(self._stop)
        self.go_on()

    def torch_is_there(self, module: "ModuleType") -> None:
        """Count collectives from here on."""
        if self._c10d is None:
            self._c10d = module
            self.go_on()

    def group_is_there(self) -> None:
        """The program has other threads now, or is probably done with forking."""
        self._grouped = True
        self.go_on()

    def go_on(self) -> None:
        """Start the thread if none runs."""
        if self._stopped or not self._resting:
            return
        self._resting = False
        self._lifetime, begun = allocate_lock(), allocate_lock()
        self._lifetime.acquire()
        begun.acquire()
        try:
            start_new_thread(self._sample, (self._lifetime, begun))
        except Exception as error:
            self._missed("sampling thread", error)
        else:
            # The board names the thread before the program may go into C with the interpreter's lock for good.
            begun.acquire(True, _BEGIN_S)

    def _in_child(self) -> None:
        self._stopped = True  # the parent's threads are gone, and what they held stays held

    def _rest(self) -> None:
        """End the thread before a fork: Python 3.12 and newer warn of any thread then, 3.13 of a new one."""
        if not self._stopped and not self._grouped and not self._resting:
            self._resting = True
            self._end()

    def _stop(self) -> None:
        """Keep the thread out of C++ from here on, and wait until it has ended.

        Up to Python 3.13 a thread that returns from C++ into an ending interpreter is ended by pthread_exit. That
        unwinds through a destructor which may not be left: "terminate called without an active exception".
        """
        if self._stopped:
            return
        self._stopped = True
        self._in_torch.acquire(True, _LEAVE_TORCH_S)
        if not self._resting:
            self._end()

    def _end(self) -> None:
        thread = self._page.words[self._page.SAMPLER]
        self._lifetime.release()
        deadline = self._now() + _END_NS
        while thread and os.path.exists("/proc/self/task/%d" % thread) and self._now() < deadline:
            self._sleep(0.0005)

    def _sample(self, lifetime: "Any", begun: "Any") -> None:
        page, thread = self._page, get_native_id()
        page.words[page.SAMPLER] = thread
        begun.release()
        try:
            self._look_and_answer(lifetime)
        finally:
            if page.words[page.SAMPLER] == thread:
                page.words[page.SAMPLER] = 0  # the kernel may give this number to a thread of the program

    def _look_and_answer(self, lifetime: "Any") -> None:
        page, words = self._page, self._page.words
        broken = False
        while not self._stopped and lifetime.locked():
            now = self._now()
            words[page.HEARTBEAT] = now
            if words[page.STACKS_ASKED] > words[page.STACKS_ANSWERED]:
                self._write_stacks(words[page.STACKS_ASKED])
            if self._c10d is not None:
                if not self._in_torch.acquire(False):
                    return
                try:
                    if not broken:
                        broken = not self._count_collectives(self._c10d, now)
                    if words[page.ASKED] > words[page.ANSWERED]:
                        self._write_flight(words[page.ASKED])
                finally:
                    self._in_torch.release()
            if lifetime.acquire(True, SAMPLE_S):
                return

    def _count_collectives(self, module: "Any", now: int) -> bool:
        """Returns False if this torch cannot tell."""
        try:
            if module.is_initialized():
                count = module._get_default_group()._get_sequence_number_for_group()
                page, words = self._page, self._page.words
                if words[page.COLLECTIVE] != count:
                    words[page.COLLECTIVE] = count
                    words[page.COLLECTIVE_AT] = now
        except Exception as error:
            self._missed("count of collectives", error)
            return False
        return True

    def _write_stacks(self, number: int) -> None:
        """All threads' stacks to live_stacks.txt. They cannot change: this thread has the interpreter's lock."""
        page = self._page
        try:
            file = os.open(self._folder + "/live_stacks.txt", _APPEND, 0o600)
            try:
                path = _lock_file(page.words[page.MAIN_THREAD])
                if path:
                    os.write(file, b"# the main thread waits for a lock file: %s\n" % os.fsencode(path))
                faulthandler.dump_traceback(file, all_threads=True)
            finally:
                os.close(file)
        except Exception as error:
            self._missed("stacks", error)
        page.words[page.STACKS_ANSWERED] = number

    def _write_flight(self, number: int) -> None:
        """The flight recorder's entries to flight.json in the rank's folder."""
        try:
            self._load("flight").dump(self._folder)
        except Exception as error:
            if not self._without_flight:
                self._missed("flight recorder", error)
            self._without_flight = True
        self._page.words[self._page.ANSWERED] = number


def _lock_file(main_thread: int) -> "str | None":
    """The path of the lock file that a thread waits for, if a loop of `_LOCK_FILES` is among its innermost frames.

    Reads no other frame's variables: up to Python 3.12 a frame keeps the ones it was asked for, and tensors with them.
    """
    if "filelock" not in sys.modules and "torch.utils.file_baton" not in sys.modules:
        return None
    frame = sys._current_frames().get(main_thread)
    for _ in range(_INNERMOST):
        if frame is None:
            return None
        for file, functions, variable, attribute in _LOCK_FILES:
            if frame.f_code.co_name in functions and frame.f_code.co_filename.endswith(file):
                path = frame.f_locals.get(variable)
                path = path if attribute is None else vars(path).get(attribute)
                return os.path.abspath(path) if type(path) is str and "\n" not in path else None
        frame = frame.f_back
    return None
