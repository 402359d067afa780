"""Looks at torch from inside the rank: phases, optimizer steps, collectives; and does what `--ddp-*` options ask for.

Nothing is imported for this: once the program imports torch, a few of torch's functions get a wrapper. What cannot be
observed is left alone and reported once (`missed`). Wrappers pass arguments, results and exceptions through; their
frames are taken off a traceback that leaves the program (program.py).
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

    from ddp_run.rank.board import Page

_LOOKS = 16
"""Steps of a class at which the stack is looked at: a class that steps alone and within another does both by then."""


class Hooks:
    """What is hooked into one rank. `board` is board.py, `load` gives a module of this folder.

    `wanted`: `backend` (process-group backend to use in place of the program's), `timeout_s` (for groups that the
    program makes without one), `debug` (write `[DDP-DEBUG]` lines).
    """

    def __init__(self, boot: "Any", board: "Any", page: "Page", wanted: "dict[str, Any]", load: "Any") -> None:
        self._boot = boot
        self._board = board
        self._page = page
        self._backend: "str | None" = wanted.get("backend")
        self._timeout_s: "float | None" = wanted.get("timeout_s")
        self._debug = bool(wanted.get("debug"))
        self._lines: "Any" = load("debug") if self._debug or self._backend else None
        self._stopped = False
        self._now = time.monotonic_ns
        self._phase_now = -1
        self._sampling: "Any" = load("sampling").Sampling(boot.folder, page, load, self.missed)

    def install(self) -> None:
        """Wait for the program's import of torch."""
        targets: "dict[str, Callable[[ModuleType], None]]" = {
            "torch.distributed.distributed_c10d": self._on_c10d,
            "torch.optim.optimizer": self._on_optimizer,
            "torch.nn.parallel.distributed": lambda module: self._during(module.DistributedDataParallel, "__init__", 2),
            "torch.cuda": lambda module: self._during(module, "set_device", 1),
            "torch": self._on_torch,
        }
        self._finder = AfterImport(targets, self.missed)
        sys.meta_path.insert(0, self._finder)
        os.register_at_fork(after_in_child=self._in_child)
        self._sampling.install()

    def _in_child(self) -> None:
        """A forked child is another process: what it does is not the rank's progress."""
        self._page.hide()
        self._stopped = True

    def phase(self, number: int) -> None:
        """The rank is now in `PHASES[number]`."""
        if number == self._phase_now or self._stopped:
            return
        self._phase_now = number
        at = self._now()
        self._page.words[self._page.PHASE_AT] = at
        self._page.words[self._page.PHASE] = number
        self._boot.say("phase", at, phase=self._board.PHASES[number])

    def missed(self, name: str, error: BaseException) -> None:
        """Report that something cannot be observed."""
        self._boot.say("missed", self._now(), text="%s: %s: %s" % (name, type(error).__name__, error))

    def _on_torch(self, _module: "ModuleType") -> None:
        self._finder.look_at_loaded()  # a warm rank's torch comes at once (warm.py)

    # -------------------------------------------------------------------------------- process groups

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
            # While an exception leaves the program, it failed where that was raised, not here.
            error = sys.exc_info()[1]
            well = error is None or (isinstance(error, SystemExit) and not error.code)
            if whole and not hooks._stopped and not well:
                hooks._boot.unwinds(error)
            elif whole and not hooks._stopped:
                hooks.phase(4)
                if hooks._debug:
                    hooks._lines.say("DEBUG", "destroy_process_group")
            return destroy(*args, **kwargs)

        _replace(module, "init_process_group", init_process_group)
        _replace(module, "destroy_process_group", destroy_process_group)
        self._sampling.torch_is_there(module)

    def _asked_for(self, args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> "tuple[tuple[Any, ...], dict[str, Any]]":
        """The arguments, changed as the user asked ddp-run to."""
        try:
            if self._backend:
                asked = args[0] if args else kwargs.get("backend")
                if asked != self._backend:
                    said = "backend %s in place of %s, as ddp-run was told" % (self._backend, asked)
                    self._lines.say("WARNING", said)
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

    def _note_backend(self, module: "Any") -> None:
        try:
            config = module.get_backend_config()
            # A group made without a backend's name lists both, even if there is no NCCL.
            uses = "nccl" in config and ("gloo" not in config or module.is_nccl_available())
            self._page.words[self._page.NCCL] = int(uses)
        except Exception as error:
            self.missed("backend", error)

    # --------------------------------------------------------------------------------------- optimizers

    def _on_optimizer(self, module: "ModuleType") -> None:
        """Count the steps of all optimizers. One that steps another within its own step counts once."""
        page, steps, outermost = self._page, self._page.STEPS, Outermost()
        known = outermost.known
        first_step = self._first_step
        made = 0

        def stepped(optimizer: "Any", _args: "Any", _kwargs: "Any") -> None:
            nonlocal made
            if type(optimizer) not in known:
                if not outermost.look(type(optimizer)):
                    return
                if not made:
                    first_step()
            made += 1
            page.words[steps] = made

        module.register_optimizer_step_post_hook(stepped)

    def _first_step(self) -> None:
        self._sampling.group_is_there()
        self.phase(3)
        if self._debug:
            self._lines.say("DEBUG", "first optimizer step done")

    # ------------------------------------------------------------------------------------- other calls

    def _during(self, holder: "Any", name: str, number: int) -> None:
        """Show `CALLS[number]` on the board while the function runs; with `debug`, write a line before and after."""
        from functools import wraps

        inner = getattr(holder, name)
        hooks, page, call, shown = self, self._page, self._page.CALL, self._board.CALLS[number]

        @wraps(inner)
        def watched(*args: "Any", **kwargs: "Any") -> "Any":
            outer, page.words[call] = page.words[call], number
            try:
                if not hooks._debug:
                    return inner(*args, **kwargs)
                return hooks._announced(shown, inner, args, kwargs)
            finally:
                page.words[call] = outer

        _replace(holder, name, watched)

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
        self._lines.failed(call, error, True)
        self._boot.described = id(error)


def _replace(holder: "Any", name: str, wrapper: "Any") -> None:
    """Put the wrapper in the function's place, and where modules have taken the function from there."""
    inner = getattr(holder, name)
    setattr(holder, name, wrapper)
    for module in list(sys.modules.values()):
        names = module.__dict__ if type(module) is type(sys) else {}
        if names.get(name) is inner:
            names[name] = wrapper


class AfterImport:
    """A finder that lets the others find a module, and looks at it once it is imported.

    It leaves sys.meta_path when all modules that it waits for have come.
    """

    def __init__(
        self, targets: "dict[str, Callable[[ModuleType], None]]", missed: "Callable[[str, BaseException], None]"
    ) -> None:
        self._targets = targets
        self.missed = missed

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """The spec that the other finders give, with its loader prepared; None for modules that nobody waits for."""
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
            self._look(name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            self._targets.pop(name, None)

    def look_at_loaded(self) -> None:
        """Look at those that came without being looked for."""
        for name in [name for name in self._targets if name in sys.modules]:
            self._look(name, sys.modules[name])

    def _look(self, name: str, module: "ModuleType") -> None:
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
                self.missed(name, error)


class Outermost:
    """Tells a program's own optimizer steps from those that another optimizer makes within its step.

    ZeroRedundancyOptimizer does so, for example. Looking at the stack takes 2 to 4 µs, longer the deeper it is. So it
    is done only for the first steps of a class, and again for all classes when a new one comes. Once a step was seen
    within another, it is always done. What stays: an optimizer of a known class may later be put into another one. Its
    steps within the first step of that one are counted too.
    """

    def __init__(self) -> None:
        self.known: "list[type]" = []
        """Classes that need no more looks. A list, because a class need not be hashable."""
        self._looks: "dict[int, int]" = {}
        self._nested = False

    def look(self, kind: type) -> bool:
        """Whether the step whose hook calls this is not within another one. `kind`: its optimizer's class."""
        if _within_another_step():
            self._nested = True
            self.known.clear()
            return False
        if id(kind) not in self._looks:
            self.known.clear()
            self._looks = dict.fromkeys([*self._looks, id(kind)], 0)
        self._looks[id(kind)] += 1
        if self._looks[id(kind)] == _LOOKS and not self._nested:
            self.known.append(kind)
        return True


def _within_another_step() -> bool:
    """Whether torch's wrapper of a step, which called the hook, runs inside another such wrapper."""
    frame = sys._getframe(3)
    code = frame.f_code
    above = frame.f_back
    while above is not None and above.f_code is not code:
        above = above.f_back
    return above is not None
