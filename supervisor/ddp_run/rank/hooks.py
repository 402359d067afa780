"""Looks at torch from inside the rank: phases, optimizer steps, collectives; and what was asked for at the start.

Nothing is imported for this: when the program imports torch, a few of its functions get a wrapper. What cannot be
observed is left alone and said once (`missed`). Wrappers pass arguments, results and exceptions through; their frames
are taken off a traceback that leaves the program (program.py).
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

C10D = "torch.distributed.distributed_c10d"
OPTIMIZER = "torch.optim.optimizer"
PARALLEL = "torch.nn.parallel.distributed"
CUDA = "torch.cuda"
SAMPLE_S = 1.0


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
        self._load = load
        self._sampling = False
        self._stopped = False
        self._now = time.monotonic_ns
        self._sleep = time.sleep
        self._phase_now = -1

    def install(self) -> None:
        """Wait for the program's import of torch."""
        targets: "dict[str, Callable[[ModuleType], None]]" = {C10D: self._on_c10d, OPTIMIZER: self._on_optimizer}
        if self._debug:
            targets[PARALLEL] = self._on_parallel
            targets[CUDA] = self._on_cuda
        sys.meta_path.insert(0, _AfterImport(targets, self._missed))
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        """A forked child is another process: what it does is not the rank's progress."""
        self.words = memoryview(bytearray(8 * 16)).cast("q")
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
        self._send({"event": "phase", "at": at, "phase": self._layout.PHASES[number]})

    def _send(self, message: "dict[str, Any]") -> None:
        try:
            message = dict(message, rank=self._boot.rank, restart=self._boot.restart)
            self._boot.try_to_send(self._encode(message))
        except Exception:
            pass

    def _missed(self, name: str, error: BaseException) -> None:
        self._send({"event": "missed", "at": self._now(), "text": "%s: %s: %s" % (name, type(error).__name__, error)})

    def _say(self, kind: str, text: str) -> None:
        """One `[DDP-…]` line on stderr, at once."""
        try:
            sys.stderr.write("[DDP-%s] %s\n" % (kind, text))
            sys.stderr.flush()
        except Exception:
            pass

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
            hooks.phase(1)
            if hooks._debug:
                hooks._load("debug").before_init(hooks._say, args, kwargs)
            try:
                result = init(*args, **kwargs)
            except BaseException as error:
                if hooks._debug:
                    hooks._load("debug").init_failed(hooks._say, error)
                raise
            hooks.phase(2)
            if hooks._debug:
                hooks._load("debug").after_init(hooks._say, module)
            hooks._start_sampling(module)
            return result

        @wraps(destroy)
        def destroy_process_group(*args: "Any", **kwargs: "Any") -> "Any":
            whole = not args and kwargs.get("group") is None
            if whole and not hooks._stopped:
                hooks.phase(4)
                if hooks._debug:
                    hooks._say("DEBUG", "destroy_process_group")
            return destroy(*args, **kwargs)

        module.init_process_group = init_process_group  # type: ignore[attr-defined]
        module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]

    def _asked_for(self, args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> "tuple[tuple[Any, ...], dict[str, Any]]":
        """The arguments with what the user asked ddp-run for."""
        try:
            if self._backend:
                asked = args[0] if args else kwargs.get("backend")
                if asked != self._backend:
                    self._say("WARNING", "backend %s in place of %s, as ddp-run was told" % (self._backend, asked))
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
            self._missed("init_process_group", error)
        return args, kwargs

    def _on_optimizer(self, module: "ModuleType") -> None:
        """Count the steps of all optimizers; one that steps another one within its own step counts once."""
        hooks, steps = self, self._layout.STEPS
        outer = 0  # the id of the optimizer whose step began; it stays there where that step raised

        def begins(optimizer: "Any", _args: "Any", _kwargs: "Any") -> None:
            nonlocal outer
            if not outer:
                outer = id(optimizer)

        def stepped(optimizer: "Any", _args: "Any", _kwargs: "Any") -> None:
            nonlocal outer
            if outer != id(optimizer) and _within_another_step():
                return
            outer = 0
            words = hooks.words
            words[steps] += 1
            if words[steps] == 1:
                hooks.phase(3)
                if hooks._debug:
                    hooks._say("DEBUG", "first optimizer step done")

        module.register_optimizer_step_pre_hook(begins)
        module.register_optimizer_step_post_hook(stepped)

    def _on_parallel(self, module: "ModuleType") -> None:
        self._announce(module.DistributedDataParallel, "__init__", "DistributedDataParallel()")

    def _on_cuda(self, module: "ModuleType") -> None:
        self._announce(module, "set_device", "torch.cuda.set_device")

    def _announce(self, holder: "Any", name: str, shown: str) -> None:
        """`[DDP-DEBUG]` lines before and after a call."""
        from functools import wraps

        inner = getattr(holder, name)
        hooks = self

        @wraps(inner)
        def announced(*args: "Any", **kwargs: "Any") -> "Any":
            values = ", ".join(str(arg) for arg in args if isinstance(arg, (int, str)))
            hooks._say("DEBUG", "before %s%s" % (shown, " %s" % values if values else ""))
            try:
                result = inner(*args, **kwargs)
            except BaseException as error:
                hooks._say("ERROR", "%s failed: %s: %s" % (shown, type(error).__name__, error))
                raise
            hooks._say("DEBUG", "after %s" % shown)
            return result

        setattr(holder, name, announced)

    # ---------------------------------------------------------------------------------------- sampling

    def _start_sampling(self, module: "ModuleType") -> None:
        """A thread that is no Thread object: the program's count of its threads stays as it is.

        It begins after the process group is made, whose own threads run already.
        """
        if self._sampling or self._stopped:
            return
        self._sampling = True
        try:
            import atexit
            from _thread import start_new_thread

            # A thread that comes back from C++ into an interpreter that is going down ends the process by abort.
            atexit.register(self._stop)
            start_new_thread(self._sample, (module,))
        except Exception as error:
            self._missed("sampling thread", error)

    def _stop(self) -> None:
        self._stopped = True

    def _sample(self, module: "ModuleType") -> None:
        layout, words = self._layout, self.words
        broken = False
        while not self._stopped:
            now = self._now()
            words[layout.HEARTBEAT] = now
            if not broken:
                try:
                    self._count_collectives(module, now)
                except Exception as error:
                    broken = True
                    self._missed("count of collectives", error)
            if words[layout.ASKED] > words[layout.ANSWERED]:
                self._answer(words[layout.ASKED])
            self._sleep(SAMPLE_S)

    def _count_collectives(self, module: "Any", now: int) -> None:
        if not module.is_initialized():
            return
        count = module._get_default_group()._get_sequence_number_for_group()
        layout, words = self._layout, self.words
        if words[layout.COLLECTIVE] != count:
            words[layout.COLLECTIVE] = count
            words[layout.COLLECTIVE_AT] = now

    def _answer(self, number: int) -> None:
        """Leave the flight recorder's entries as `flight.json` in the rank's folder."""
        try:
            self._load("flight").dump(self._boot.folder)
        except Exception as error:
            self._missed("flight recorder", error)
        self.words[self._layout.ANSWERED] = number


def _within_another_step() -> bool:
    """Whether the caller of the calling hook, torch's wrapper of a step, runs inside another such wrapper."""
    frame = sys._getframe(2)
    code = frame.f_code
    above = frame.f_back
    while above is not None and above.f_code is not code:
        above = above.f_back
    return above is not None


class _AfterImport:
    """A finder that finds nothing itself: it lets the others find a module and looks at it once it is imported.

    It leaves sys.meta_path when all that it waits for has come.
    """

    def __init__(
        self, targets: "dict[str, Callable[[ModuleType], None]]", missed: "Callable[[str, BaseException], None]"
    ) -> None:
        self._targets = targets
        self._missed = missed

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """The spec that the other finders give, its loader prepared; None for all other modules."""
        if name not in self._targets:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self._prepare(name, spec.loader)
                return spec
        return None

    def _prepare(self, name: str, loader: "Any") -> None:
        execute = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            try:
                del loader.exec_module
            except AttributeError:
                pass
            execute(module)
            look = self._targets.pop(name, None)
            if not self._targets:
                try:
                    sys.meta_path.remove(self)
                except ValueError:
                    pass
            if look is not None:
                try:
                    look(module)
                except Exception as error:
                    self._missed(name, error)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            self._targets.pop(name, None)
