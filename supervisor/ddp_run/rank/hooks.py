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
        self._stopped = False
        self._now = time.monotonic_ns
        self._phase_now = -1
        self._sampling: "Any" = load("sampling").Sampling(boot.folder, layout, words, load, self.missed)

    def install(self) -> None:
        """Wait for the program's import of torch."""
        targets: "dict[str, Callable[[ModuleType], None]]" = {
            C10D: self._on_c10d,
            OPTIMIZER: self._on_optimizer,
            PARALLEL: lambda module: self._during(module.DistributedDataParallel, "__init__", 2),
            CUDA: lambda module: self._during(module, "set_device", 1),
        }
        sys.meta_path.insert(0, self._load("after_import").AfterImport(targets, self.missed))
        os.register_at_fork(after_in_child=self._in_child)
        self._sampling.install()

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
            hooks._sampling.group_is_there()
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
        self._sampling.torch_is_there(module)

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
        self._sampling.group_is_there()
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

    def _note_backend(self, module: "Any") -> None:
        try:
            config = module.get_backend_config()
            # Without a name both are in it, also where there is no NCCL.
            self.words[self._layout.NCCL] = int(
                "nccl" in config and ("gloo" not in config or module.is_nccl_available())
            )
        except Exception as error:
            self.missed("backend", error)
