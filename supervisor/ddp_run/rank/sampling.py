"""The thread of ddp-run's in a rank: it beats, writes stacks when asked, counts collectives once torch is there.

It is no Thread object: the program's count of its threads stays as it is. It runs from before the program's first line
on, so that a rank that never gets as far as torch shows where it is; and it is away while the program forks.
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

SAMPLE_S = 0.25
"""How often the sampling thread runs: 30 µs, and so long a question waits for it."""
_BEGIN_S = 1.0
"""How long the main thread waits for the sampling thread to begin. It takes 0.1 ms, on a crowded machine far more."""
_END_NS = 1_000_000_000
"""How long a fork, or the program's end, waits for it to be gone, which takes as long."""
_LEAVE_TORCH_S = 5.0
"""Longest that the program's end waits for the sampling thread to come back from torch; it takes microseconds."""
_LOCK_FILES = (
    ("/torch/utils/file_baton.py", ("wait",), "self", "lock_file_path"),
    ("/filelock/_api.py", ("acquire", "_poll_until_acquired"), "lock_filename", None),
)
"""Loops that wait for a lock file: the variable that has its path, or has it as this attribute."""
_INNERMOST = 6
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Sampling:
    """`layout` is board.py, `words` the board; `missed` says what cannot be observed."""

    def __init__(
        self, folder: "str", layout: "Any", words: "Any", load: "Any", missed: "Callable[[str, BaseException], None]"
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._words = words
        self._load = load
        self._missed = missed
        self._c10d: "Any" = None
        """torch.distributed, once it is there."""
        self._grouped = False
        """A process group was asked for: it has threads of its own."""
        self._lifetime = allocate_lock()
        """Held while the latest sampling thread should run: each has its own."""
        self._in_torch = allocate_lock()
        """Held while the sampling thread calls torch's C++, which releases the interpreter's lock."""
        self._resting = True
        """There is no sampling thread: the program has forked."""
        self._without_flight = False
        self._stopped = False
        self._now = time.monotonic_ns
        self._sleep = time.sleep

    def install(self) -> None:
        """Begin, and be away when the program forks and when it ends."""
        import atexit

        os.register_at_fork(before=self._rest, after_in_child=self._in_child)
        atexit.register(self._stop)
        self.go_on()

    def torch_is_there(self, module: "ModuleType") -> None:
        """From here on collectives are counted."""
        if self._c10d is None:
            self._c10d = module
            self.go_on()

    def group_is_there(self) -> None:
        """The program has threads that are not ours, or has done with forking, as far as can be told."""
        self._grouped = True
        self.go_on()

    def go_on(self) -> None:
        """Have the thread run, after a rest too."""
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
        self._stopped = True  # no thread of the parent's is there, and what it held stays held

    def _rest(self) -> None:
        """End the thread before a fork: Python 3.12 and newer warn then of any thread, 3.13 of a new one."""
        if not self._stopped and not self._grouped and not self._resting:
            self._resting = True
            self._end()

    def _stop(self) -> None:
        """Keep the thread out of C++ from here on, and see it come out and end.

        A thread that comes back from C++ into an interpreter that is going down is ended by pthread_exit up to Python
        3.13, which unwinds through a destructor that must not be left: "terminate called without an active exception".
        """
        if self._stopped:
            return
        self._stopped = True
        self._in_torch.acquire(True, _LEAVE_TORCH_S)
        if not self._resting:
            self._end()

    def _end(self) -> None:
        thread = self._words[self._layout.SAMPLER]
        self._lifetime.release()
        deadline = self._now() + _END_NS
        while thread and os.path.exists("/proc/self/task/%d" % thread) and self._now() < deadline:
            self._sleep(0.0005)

    def _sample(self, lifetime: "Any", begun: "Any") -> None:
        thread = get_native_id()
        self._words[self._layout.SAMPLER] = thread
        begun.release()
        try:
            self._look_and_answer(lifetime)
        finally:
            if self._words[self._layout.SAMPLER] == thread:
                self._words[self._layout.SAMPLER] = 0  # the kernel may give its number to a thread of the program

    def _look_and_answer(self, lifetime: "Any") -> None:
        layout, words = self._layout, self._words
        broken = False
        while not self._stopped and lifetime.locked():
            now = self._now()
            words[layout.HEARTBEAT] = now
            if words[layout.STACKS_ASKED] > words[layout.STACKS_ANSWERED]:
                self._write_stacks(words[layout.STACKS_ASKED])
            if self._c10d is not None:
                if not self._in_torch.acquire(False):
                    return
                try:
                    if not broken:
                        broken = not self._count_collectives(self._c10d, now)
                    if words[layout.ASKED] > words[layout.ANSWERED]:
                        self._answer(words[layout.ASKED])
                finally:
                    self._in_torch.release()
            if lifetime.acquire(True, SAMPLE_S):
                return

    def _count_collectives(self, module: "Any", now: int) -> bool:
        """Whether that can be done again."""
        try:
            if module.is_initialized():
                count = module._get_default_group()._get_sequence_number_for_group()
                layout, words = self._layout, self._words
                if words[layout.COLLECTIVE] != count:
                    words[layout.COLLECTIVE] = count
                    words[layout.COLLECTIVE_AT] = now
        except Exception as error:
            self._missed("count of collectives", error)
            return False
        return True

    def _write_stacks(self, number: int) -> None:
        """All threads' stacks to live_stacks.txt. This thread has the interpreter's lock, so none of them changes."""
        try:
            file = os.open(self._folder + "/live_stacks.txt", _APPEND, 0o600)
            try:
                path = _lock_file(self._words[self._layout.MAIN_THREAD])
                if path:
                    os.write(file, b"# the main thread waits for a lock file: %s\n" % os.fsencode(path))
                faulthandler.dump_traceback(file, all_threads=True)
            finally:
                os.close(file)
        except Exception as error:
            self._missed("stacks", error)
        self._words[self._layout.STACKS_ANSWERED] = number

    def _answer(self, number: int) -> None:
        """Leave the flight recorder's entries as `flight.json` in the rank's folder."""
        try:
            self._load("flight").dump(self._folder)
        except Exception as error:
            if not self._without_flight:
                self._missed("flight recorder", error)
            self._without_flight = True
        self._words[self._layout.ANSWERED] = number


def _lock_file(main_thread: int) -> "str | None":
    """The path of the lock file that a thread waits for, where one of `_LOCK_FILES` is among its innermost frames.

    No other frame's variables are read: up to Python 3.12 a frame keeps what it was asked for, so tensors would live
    longer.
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
