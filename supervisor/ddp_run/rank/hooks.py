"""Looks at torch from inside the rank: phases, optimizer steps, collectives; and what was asked for at the start.

Nothing is imported for this: when the program imports torch, a few of its functions get a wrapper. What cannot be
observed is left alone and said once (`missed`). Wrappers pass arguments, results and exceptions through; their frames
are taken off a traceback that leaves the program (program.py).
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

C10D = "torch.distributed.distributed_c10d"
OPTIMIZER = "torch.optim.optimizer"
PARALLEL = "torch.nn.parallel.distributed"
CUDA = "torch.cuda"
SAMPLE_S = 0.25
"""How often the sampling thread runs: 30 µs, and so long a question waits for it."""
_REST_NS = 50_000_000
_LEAVE_TORCH_S = 5.0
"""Longest that the program's end waits for the sampling thread to come back from torch; it takes microseconds."""
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Hooks:
    """What is hooked into one rank. `boot`, `load` and `encode` are bootstrap.py's, `layout` is board.py.

    `wanted`: `backend` (process-group backend to use in place of the program's), `timeout_s` (for groups that the
    program makes without one), `debug` (write `[DDP-DEBUG]` lines).
    """

    def __init__(
        self, boot: "Any", layout: "Any", words: "Any", wanted: "dict[str, Any]", load: "Any", encode: "Any"
    ) -> None:
        self._boot = boot
        self._encode = encode
        self._layout = layout
        self.words = words
        self._backend: "str | None" = wanted.get("backend")
        self._timeout_s: "float | None" = wanted.get("timeout_s")
        self._debug = bool(wanted.get("debug"))
        self._lines: "Any" = load("debug") if self._debug or self._backend else None
        self._load = load
        self._c10d: "Any" = None
        """torch.distributed, once it is sampled."""
        self._grouped = False
        """A process group was asked for: it has threads of its own."""
        self._pause = allocate_lock()
        """Released, it ends the sampling thread."""
        self._pause.acquire()
        self._in_torch = allocate_lock()
        """Held while the sampling thread calls torch's C++, which releases the interpreter's lock."""
        self._resting = False
        """No sampling thread until there is a process group: the program has forked."""
        self._without_flight = False
        self._stopped = False
        self._now = time.monotonic_ns
        self._sleep = time.sleep
        self._phase_now = -1

    def install(self) -> None:
        """Wait for the program's import of torch."""
        targets: "dict[str, Callable[[ModuleType], None]]" = {
            C10D: self._on_c10d,
            OPTIMIZER: self._on_optimizer,
            PARALLEL: lambda module: self._during(module.DistributedDataParallel, "__init__", 2),
            CUDA: lambda module: self._during(module, "set_device", 1),
        }
        sys.meta_path.insert(0, self._load("after_import").AfterImport(targets, self.missed))
        os.register_at_fork(before=self._rest, after_in_child=self._in_child)

    def _in_child(self) -> None:
        """A forked child is another process: what it does is not the rank's progress."""
        self.words = memoryview(bytearray(self._layout.SIZE)).cast("q")
        self._stopped = True

    # ------------------------------------------------------------------------------------------ phases

    def phase(self, number: int) -> None:
        """The rank is now in `PHASES[number]`."""
        if number == self._phase_now or self._stopped:
            return
        self._phase_now = number
        at = self._now()
        self.words[self._layout.PHASE_AT] = at
        self.words[self._layout.PHASE] = number
        self._send("phase", at, phase=self._layout.PHASES[number])

    def _send(self, event: str, at: int, **more: str) -> None:
        try:
            self._boot.try_to_send(self._encode(self._boot.message(event, at, **more)))
        except Exception:
            pass

    def missed(self, name: str, error: BaseException) -> None:
        """Say that something cannot be observed."""
        self._send("missed", self._now(), text="%s: %s: %s" % (name, type(error).__name__, error))

    # ------------------------------------------------------------------------------------------- torch

    def _on_c10d(self, module: "ModuleType") -> None:
        from functools import wraps

        init, destroy = module.init_process_group, module.destroy_process_group
        hooks = self

        @wraps(init)
        def init_process_group(*args: "Any", **kwargs: "Any") -> "Any":
            if hooks._stopped:
                return init(*args, **kwargs)
            args, kwargs = hooks._asked_for(args, kwargs)
            hooks._go_on()
            hooks.phase(1)
            if hooks._debug:
                hooks._lines.before_init(args, kwargs)
            try:
                result = init(*args, **kwargs)
            except BaseException as error:
                if hooks._debug:
                    hooks._describe("init_process_group", error)
                raise
            hooks.phase(2)
            if hooks._debug:
                hooks._lines.after_init(module)
            hooks._note_backend(module)
            return result

        @wraps(destroy)
        def destroy_process_group(*args: "Any", **kwargs: "Any") -> "Any":
            whole = not args and kwargs.get("group") is None
            # On the way of an exception out of the program it failed where that was raised, not here.
            error = sys.exc_info()[1]
            well = error is None or (isinstance(error, SystemExit) and not error.code)
            if whole and not hooks._stopped and well:
                hooks.phase(4)
                if hooks._debug:
                    hooks._lines.say("DEBUG", "destroy_process_group")
            return destroy(*args, **kwargs)

        module.init_process_group = init_process_group  # type: ignore[attr-defined]
        module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]
        self._start_sampling(module)

    def _asked_for(self, args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> "tuple[tuple[Any, ...], dict[str, Any]]":
        """The arguments with what the user asked ddp-run for."""
        try:
            if self._backend:
                asked = args[0] if args else kwargs.get("backend")
                if asked != self._backend:
                    told = "backend %s in place of %s, as ddp-run was told" % (self._backend, asked)
                    self._lines.say("WARNING", told)
                    if args:
                        args = (self._backend, *args[1:])
                    else:
                        kwargs = dict(kwargs, backend=self._backend)
                if kwargs.get("device_id") is not None and self._backend == "gloo":
                    kwargs = dict(kwargs, device_id=None)
            if self._timeout_s and len(args) < 3 and kwargs.get("timeout") is None:
                from datetime import timedelta

                kwargs = dict(kwargs, timeout=timedelta(seconds=self._timeout_s))
        except Exception as error:
            self.missed("init_process_group", error)
        return args, kwargs

    def _on_optimizer(self, module: "ModuleType") -> None:
        """Count the steps of all optimizers; one that steps another one within its own step counts once."""
        hooks, steps, outermost = self, self._layout.STEPS, self._load("outermost").Outermost()
        known = outermost.known
        made = 0

        def stepped(optimizer: "Any", _args: "Any", _kwargs: "Any") -> None:
            nonlocal made
            if type(optimizer) not in known:
                if not outermost.look(type(optimizer)):
                    return
                if not made:
                    hooks._first_step()
            made += 1
            hooks.words[steps] = made

        module.register_optimizer_step_post_hook(stepped)

    def _first_step(self) -> None:
        self._go_on()
        self.phase(3)
        if self._debug:
            self._lines.say("DEBUG", "first optimizer step done")

    def _during(self, holder: "Any", name: str, number: int) -> None:
        """The board shows `CALLS[number]` while the function runs; asked for, `[DDP-DEBUG]` lines before and after."""
        from functools import wraps

        inner = getattr(holder, name)
        hooks, call, shown = self, self._layout.CALL, self._layout.CALLS[number]

        @wraps(inner)
        def watched(*args: "Any", **kwargs: "Any") -> "Any":
            outer, hooks.words[call] = hooks.words[call], number
            try:
                if not hooks._debug:
                    return inner(*args, **kwargs)
                return hooks._announced(shown, inner, args, kwargs)
            finally:
                hooks.words[call] = outer

        setattr(holder, name, watched)

    def _announced(self, shown: str, inner: "Any", args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> "Any":
        values = ", ".join(str(arg) for arg in args if isinstance(arg, (int, str)))
        self._lines.say("DEBUG", "before %s%s" % (shown, " %s" % values if values else ""))
        try:
            result = inner(*args, **kwargs)
        except BaseException as error:
            self._describe(shown, error)
            raise
        self._lines.say("DEBUG", "after %s" % shown)
        return result

    def _describe(self, call: str, error: BaseException) -> None:
        self._lines.call_failed(call, error)
        self._boot.described = id(error)

    # ---------------------------------------------------------------------------------------- sampling

    def _note_backend(self, module: "Any") -> None:
        try:
            config = module.get_backend_config()
            # Without a name both are in it, also where there is no NCCL.
            self.words[self._layout.NCCL] = int(
                "nccl" in config and ("gloo" not in config or module.is_nccl_available())
            )
        except Exception as error:
            self.missed("backend", error)

    def _start_sampling(self, module: "ModuleType") -> None:
        """A thread that is no Thread object: the program's count of its threads stays as it is."""
        if self._c10d is not None or self._stopped:
            return
        self._c10d = module
        try:
            import atexit

            atexit.register(self._stop)
            start_new_thread(self._sample, ())
        except Exception as error:
            self.missed("sampling thread", error)

    def _stop(self) -> None:
        """Keep the sampling thread out of C++ from here on, and see it come out.

        A thread that comes back from C++ into an interpreter that is going down is ended by pthread_exit up to Python
        3.13, which unwinds through a destructor that must not be left: "terminate called without an active exception".
        """
        if self._stopped:  # a forked child, which has no such thread and may have been forked while the lock was held
            return
        self._stopped = True
        self._in_torch.acquire(True, _LEAVE_TORCH_S)

    def _rest(self) -> None:
        """End the sampling thread before a fork: Python 3.12 and newer warn then of any thread, 3.13 of a new one."""
        if self._c10d is None or self._stopped or self._grouped or self._resting:
            return
        self._resting = True
        self._pause.release()
        deadline = self._now() + _REST_NS
        while self._samples() and self._now() < deadline:
            self._sleep(0.0005)

    def _go_on(self) -> None:
        """The program has threads that are not ours, or has done with forking, as far as can be told."""
        self._grouped = True
        if not self._resting:
            return
        self._pause.acquire(False)
        self._resting = False
        try:
            if not self._samples():
                start_new_thread(self._sample, ())
        except Exception as error:
            self.missed("sampling thread", error)

    def _samples(self) -> bool:
        return os.path.exists("/proc/self/task/%d" % self.words[self._layout.SAMPLER])

    def _sample(self) -> None:
        try:
            self._look_and_answer()
        finally:
            self.words[self._layout.SAMPLER] = 0  # the kernel may give its number to a thread of the program

    def _look_and_answer(self) -> None:
        layout, words, module = self._layout, self.words, self._c10d
        broken = False
        words[layout.SAMPLER] = get_native_id()
        while not self._stopped:
            now = self._now()
            words[layout.HEARTBEAT] = now
            if words[layout.STACKS_ASKED] > words[layout.STACKS_ANSWERED]:
                self._write_stacks(words[layout.STACKS_ASKED])
            if not self._in_torch.acquire(False):
                return
            try:
                if not broken:
                    broken = not self._count_collectives(module, now)
                if words[layout.ASKED] > words[layout.ANSWERED]:
                    self._answer(words[layout.ASKED])
            finally:
                self._in_torch.release()
            if self._pause.acquire(True, SAMPLE_S):
                return

    def _count_collectives(self, module: "Any", now: int) -> bool:
        """Whether that can be done again."""
        try:
            if module.is_initialized():
                count = module._get_default_group()._get_sequence_number_for_group()
                layout, words = self._layout, self.words
                if words[layout.COLLECTIVE] != count:
                    words[layout.COLLECTIVE] = count
                    words[layout.COLLECTIVE_AT] = now
        except Exception as error:
            self.missed("count of collectives", error)
            return False
        return True

    def _write_stacks(self, number: int) -> None:
        """All threads' stacks to live_stacks.txt. This thread has the interpreter's lock, so none of them changes."""
        try:
            file = os.open(self._boot.folder + "/live_stacks.txt", _APPEND, 0o600)
            try:
                faulthandler.dump_traceback(file, all_threads=True)
            finally:
                os.close(file)
        except Exception as error:
            self.missed("stacks", error)
        self.words[self._layout.STACKS_ANSWERED] = number

    def _answer(self, number: int) -> None:
        """Leave the flight recorder's entries as `flight.json` in the rank's folder."""
        try:
            self._load("flight").dump(self._boot.folder)
        except Exception as error:
            if not self._without_flight:
                self.missed("flight recorder", error)
            self._without_flight = True
        self.words[self._layout.ANSWERED] = number
