"""Runs the user's program as the real `__main__`, and looks at how it ends.

The program's exception is recorded on its way to the interpreter, which prints it, ends threads, runs atexit handlers
and exits as usual. Only the traceback changes: frames of this folder are taken off.
"""

import os
import sys
import time
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader, SourcelessFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, Callable

_COMMAND_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_INTERRUPTED = -2


class Unstartable(Exception):
    """Plain Python would not reach the program's first line either. `code`: what it exits with."""

    def __init__(self, code: int, cause: BaseException) -> None:
        Exception.__init__(self, str(cause))
        self.code = code
        self.cause = cause


class Program:
    """The user's program. `boot` is None if ddp-run did not say what it wants: then nothing is recorded.

    `load` gives a module of this folder; the others are those of `bootstrap.main`.
    """

    def __init__(
        self,
        boot: "Any",
        main_file: str,
        names: "dict[str, Any]",
        first_names: "list[str]",
        load: "Callable[[str], Any]",
    ) -> None:
        self._boot = boot
        self._names = names
        self._first_names = first_names
        folder = main_file[: -len("__main__.py")]
        ours = ("bootstrap.py", "program.py", "hooks.py", "own_frames.py")
        self._frames = load("own_frames").OwnFrames({main_file, *(folder + name for name in ours)})
        self._load = load
        self._told = False
        """Its failure was sent."""
        self._unwound = 0
        """The id of the last exception that was reported on its way."""
        if boot is not None:
            boot.unwinds = self._unwinds
        self._replaced = False
        """Its replacement by another program was sent."""

    def run(self, mode: str, words: "list[str]") -> None:
        """Run the program; `mode` and `words` as in bootstrap.py."""
        if mode == "exec":
            self._exec(words)
            return
        try:
            self._stamp_ends()
        except Exception:
            pass
        if mode == "run-path":
            self._run_path(words)
        else:
            self._take_over_command_line(mode, words)
            self._watch(self._module if mode == "module" else self._script, words)

    # ------------------------------------------------------------------------------- what it finds

    def _take_over_command_line(self, mode: str, words: "list[str]") -> None:
        interpreter = [sys.executable, "-u"]
        original = getattr(sys, "orig_argv", None)
        if original is not None:
            interpreter = original[: len(original) - len(words) - 2]
        self._plain = interpreter + (["-m"] if mode == "module" else []) + words
        if original is not None:
            sys.orig_argv[:] = self._plain

    def _clear_main(self) -> None:
        """Leave in `__main__` what Python puts there before the first line, in its order."""
        names = self._names
        kept = {name: names.get(name) for name in self._first_names}
        kept["__doc__"] = None
        if "__annotations__" in kept:
            kept["__annotations__"] = {}
        names.clear()
        names.update(kept)

    def _script(self, words: "list[str]") -> None:
        path = words[0]
        # Since 3.9 Python makes the script's path absolute by a prefix; 3.8 leaves it as given.
        name = path if path.startswith("/") or sys.version_info < (3, 9) else os.getcwd() + "/" + path
        sys.argv[:] = words
        self._clear_main()
        if _has_importer(name):
            sys.path.insert(0, name)
            self._run_module("__main__", False)
            return
        try:
            code = self._compile(name)
        except OSError as error:
            raise Unstartable(2, error) from error
        except Exception as error:
            raise Unstartable(1, error) from error
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
        exec(code, self._names)

    def _compile(self, name: str) -> "CodeType":
        with open(name, "rb") as file:
            source = file.read()
        self._names["__file__"] = name
        if name.endswith(".pyc") or source.startswith(MAGIC_NUMBER):
            compiled = self._names["__loader__"] = SourcelessFileLoader("__main__", name)
            return compiled.get_code("__main__")  # type: ignore[return-value]
        self._names["__loader__"] = SourceFileLoader("__main__", name)
        return compile(source, name, "exec", 0, True)

    def _module(self, words: "list[str]") -> None:
        sys.argv[:] = ["-m", *words[1:]]
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, os.getcwd())
        self._clear_main()
        for name in ("__file__", "__cached__"):  # Python 3.15 no longer sets the second
            self._names.pop(name, None)
        self._run_module(words[0], True)

    def _run_module(self, name: str, alter_argv: bool) -> None:
        import runpy

        try:
            runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]
        finally:
            self._keep_file()

    def _keep_file(self) -> None:
        """Put `__file__` back at exit: Python deletes it after a script, not after a module."""
        import atexit

        kept = [(name, self._names[name]) for name in ("__file__", "__cached__") if name in self._names]
        atexit.register(self._names.update, kept)

    # --------------------------------------------------------------------------------- how it ends

    def _watch(self, run: "Callable[[list[str]], None]", words: "list[str]") -> None:
        try:
            run(words)
            self._stamp(0)
        except Unstartable as reason:
            self._record(reason.cause, reason.code)
            # Plain Python explains it best, and nothing of the program has run yet.
            os.execv(sys.executable, self._plain)  # noqa: S606
        except SystemExit as asked:
            self._exits(asked)
            raise
        except BaseException as error:
            self._record(error, _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)
            self._frames.hide()
            raise

    def _run_path(self, words: "list[str]") -> None:
        # The caller (torch.distributed.elastic's `record`, then torch.multiprocessing) prints and exits.
        import runpy

        sys.argv[:] = words
        try:
            runpy.run_path(words[0], run_name="__main__")
            self._stamp(0)
        except SystemExit as asked:
            self._exits(asked)
            raise
        except Exception as error:
            self._record(error, 1)
            raise

    def _exits(self, asked: SystemExit) -> None:
        code = _exit_status(asked.code)
        if code:
            self._record(asked, code)
        else:
            self._stamp(0)

    def _exec(self, words: "list[str]") -> None:
        _default_signals()
        try:
            os.execvp(words[0], words)  # noqa: S606
        except OSError as error:
            missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            code = _COMMAND_NOT_FOUND if missing else _NOT_EXECUTABLE
            self._record(error.with_traceback(None), code)
            said = "command not found" if missing else "cannot execute: " + str(error.strerror)
            sys.stderr.write("ddp-run: %s: %s\n" % (words[0], said))
            sys.exit(code)

    def _stamp_ends(self) -> None:
        """Report calls of `os._exit`, and of `exec`, after which the process can no longer be seen.

        The kernel reports the end of a process when its memory is taken down, 8 to 16 ms later.
        """
        if self._boot is None:
            return
        self._say_before("_exit", self._stamp_exit)
        for name in ("execv", "execve"):  # all others call these two by their names in `os`
            self._say_before(name, self._stamp_replaced)

    def _say_before(self, name: str, say: "Callable[..., None]") -> None:
        """Have `say` called before a function of `os`, with its arguments; wrong ones are left to the function."""
        import posix

        call = getattr(os, name)

        def before(*args: "Any", **kwargs: "Any") -> "Any":
            try:
                say(*args, **kwargs)
            except Exception:
                pass
            return call(*args, **kwargs)

        before.__module__, before.__name__, before.__qualname__ = call.__module__, call.__name__, call.__qualname__
        before.__doc__ = call.__doc__
        setattr(os, name, before)
        setattr(posix, name, before)  # it is pickled by its module

    def _stamp_replaced(self, *_words: "Any", **_named: "Any") -> None:
        if not self._replaced and self._is_the_rank():
            self._replaced = True  # execvp tries one folder after another
            self._boot.say("phase", time.monotonic_ns(), phase="replaced")

    def _is_the_rank(self) -> bool:
        """Whether ddp-run listens, and this is the rank's own process: the end of a forked child is not the rank's."""
        return self._boot is not None and os.getpid() == self._boot.pid

    def _stamp_exit(self, status: int) -> None:
        """Send the exit code, and the exception whose handler calls `os._exit`, if one does."""
        code, error = status & 0xFF, sys.exc_info()[1]
        if code and error is not None and not self._told:
            self._told = self._report("failed", error, code)
        self._stamp(status)

    def _stamp(self, status: int) -> None:
        """Send the program's exit code, unless more was sent."""
        try:
            at, code = time.monotonic_ns(), status & 0xFF
            if not self._told and self._is_the_rank():
                self._told = bool(code)  # an exit handler may still turn a 0 into another code
                if code:
                    self._boot.say("failed", at, code=code, exception=None)
                else:
                    self._boot.say("finished", at)
        except Exception:
            pass

    def _record(self, error: BaseException, code: int) -> None:
        if not self._is_the_rank():
            return
        self._told = True
        self._report("failed", error, code, leave_file=True)
        try:
            if (self._boot.watch or {}).get("debug") and self._boot.described != id(error):
                self._load("debug").failed("the program", error, False)
        except Exception:
            pass

    def _unwinds(self, error: BaseException) -> None:
        """Report an exception in whose handler, or on whose way out, the program destroys its process group."""
        if self._unwound != id(error):
            self._unwound = id(error)
            code = _exit_status(error.code) if isinstance(error, SystemExit) else 1
            self._report("unwinds", error, code or 1)

    def _report(self, event: str, error: BaseException, code: int, leave_file: bool = False) -> bool:
        """Send an event with the exception, and leave torch's file of it; whether that was done."""
        at, held, done = time.monotonic_ns(), None, False
        for _ in range(3):  # a signal handler of the program may raise in it
            try:
                if not self._is_the_rank():
                    return False
                failure = self._load("failure")
                held = held or failure.HeldSignals()
                held.hold()
                message = self._boot.message(event, at, code=code)
                trace = self._frames.strip(error.__traceback__)
                shown = failure.report(self._boot, message, error, trace, self._load)
                if leave_file:
                    failure.write_error_file(shown)
                done = True
                break
            except Exception:
                pass
        try:
            if held is not None:
                held.release()
        except Exception:  # from the program's handler: the program ends with its own exception
            pass
        return done


def _has_importer(path: str) -> bool:
    """Whether Python would look for a `__main__` inside: a folder or an archive."""
    for hook in sys.path_hooks:
        try:
            sys.path_importer_cache[path] = hook(path)
            return True
        except ImportError:
            pass
    if sys.version_info >= (3, 9):
        sys.path_importer_cache[path] = None
    return False


def _exit_status(code: "object") -> int:
    """The exit code after SystemExit(code). Source: CPython's handle_system_exit, exit(3)."""
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF


def _default_signals() -> None:
    """Python ignores these two and exec passes that on; a program that torchrun starts has the defaults."""
    import _signal  # type: ignore[import-not-found]  # `signal` costs 5 ms

    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
