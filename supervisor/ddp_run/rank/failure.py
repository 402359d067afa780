"""Reports to ddp-run and torch how the program failed. Loaded only then, so it may import what it needs."""

import _signal  # type: ignore[import-not-found]  # `signal` costs 5 ms
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Callable, Iterator

MOST_MESSAGE = 8 * 1024
MOST_TRACEBACK = 64 * 1024
MOST_DATAGRAM = 190 * 1024
"""The reader takes 256 KiB; a socket's buffer holds 208 KiB by default. In JSON one byte takes six at worst."""
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


def report(
    boot: "Any",
    message: "dict[str, Any]",
    error: BaseException,
    trace: "TracebackType | None",
    load: "Callable[[str], Any]",
) -> "dict[str, Any]":
    """Send a message to ddp-run with the exception; return what it says of that.

    `trace`: the traceback without our frames; `load` gives a module of this folder.
    """
    _import_from_standard_library()
    shown = describe(error, trace)
    if "torch.nn.parallel.distributed" in sys.modules:
        try:
            shown["unused"] = load("reducer").unused(error, is_users)
        except Exception:  # the message has the numbers
            pass
    _send(boot, message, shown)
    return shown


class HeldSignals:
    """Signals that must not end a report: it takes tens of milliseconds on a busy host.

    The agent sends SIGTERM as soon as it sees another rank fail. If that ended this one, which may have failed first,
    nobody would know why. So SIGTERM waits until the report is sent.

    Torch's handler for SIGCHLD raises if a DataLoader's worker has died. A rank that lost its connection to that worker
    is often here by then, as the kernel closes a dead process's sockets before it signals the parent. So no handler for
    SIGCHLD runs meanwhile.
    """

    def __init__(self) -> None:
        self._came: "list[int]" = []
        self._replaced: "list[tuple[int, Any]]" = []

    def hold(self) -> None:
        """A handler that is already due may raise here; then call it again. Only the main thread can."""
        for number, handler in ((_signal.SIGTERM, self._note), (_signal.SIGCHLD, _signal.SIG_DFL)):
            before = _signal.getsignal(number)
            if callable(before) or (number, before) == (_signal.SIGTERM, _signal.SIG_DFL):
                self._replaced.append((number, before))
                try:
                    _signal.signal(number, handler)
                except ValueError:  # another thread
                    self._replaced.pop()

    def _note(self, number: int, _frame: object) -> None:
        self._came.append(number)

    def release(self) -> None:
        """Restore the handlers. A SIGTERM that came meanwhile takes effect now."""
        while self._replaced:
            _signal.signal(*self._replaced.pop())
        if self._came:
            os.kill(os.getpid(), self._came[0])


def _send(boot: "Any", message: "dict[str, Any]", shown: "dict[str, Any]") -> None:
    import json

    for exception in (shown, dict(shown, traceback=shown["traceback"][-4096:])):
        datagram = json.dumps(dict(message, exception=exception)).encode()
        if len(datagram) <= MOST_DATAGRAM:
            try:
                boot.send(datagram)
            except OSError:
                pass
            break


def _import_from_standard_library() -> None:
    """Load what is needed below, not a `json.py` or `traceback.py` from the program's folder."""
    paths = sys.path[:]
    sys.path[:] = [path for path in paths if _in_standard_library(path + os.sep)]
    try:
        import json  # noqa: F401
        import traceback  # noqa: F401
    finally:
        sys.path[:] = paths


def describe(error: BaseException, trace: "TracebackType | None") -> "dict[str, Any]":
    """The fields of `ddp_run.record.events.ExceptionInfo`."""
    file, line, function = _place(error, trace)
    return {
        "type": _type_name(error),
        "message": _cut(_text(error), MOST_MESSAGE),
        "file": file,
        "line": line,
        "function": function,
        "traceback": _cut(_printed(error, trace), MOST_TRACEBACK),
    }


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return "%s.%s" % (kind.__module__, kind.__qualname__)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"  # CPython's words


def _printed(error: BaseException, trace: "TracebackType | None") -> str:
    try:
        from traceback import TracebackException

        return "".join(TracebackException(type(error), error, trace).format())
    except Exception:  # a program that replaced the module, or an exception that cannot be shown
        return ""


def _place(error: BaseException, trace: "TracebackType | None") -> "tuple[str | None, int | None, str | None]":
    """File, line and function of the user's innermost frame, else of the innermost of all."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno, None
    frames = list(_frames(trace))
    if not frames:
        return None, None, None
    own = [frame for frame in frames if is_users(frame[0])]
    return (own or frames)[-1]


def _frames(trace: "TracebackType | None") -> "Iterator[tuple[str, int, str]]":
    while trace is not None:
        code = trace.tb_frame.f_code
        yield code.co_filename, trace.tb_lineno, code.co_name
        trace = trace.tb_next


def is_users(file: str) -> bool:
    """Whether the file is the user's: not Python's own, an installed package's, ddp-run's, made up, or Cython's source,
    whose path leads nowhere."""
    ours_or_none = file.startswith("<") or "/ddp_run/training/" in file or file.endswith((".pyx", ".pxd", ".pxi"))
    return not (ours_or_none or _in_standard_library(file) or any(part in file for part in _PACKAGES))


def _in_standard_library(file: str) -> bool:
    return file.startswith(_STANDARD_LIBRARY) and not any(part in file for part in _PACKAGES)


def _cut(text: str, most: int) -> str:
    """At most `most` bytes of UTF-8: the first quarter, and the end, where the cause is."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > most:
        mark = b"\n[...]\n"
        start = most // 4
        data = data[:start] + mark + data[len(data) - (most - start - len(mark)) :]
    return data.decode("utf-8", "ignore")


def write_error_file(shown: "dict[str, Any]") -> None:
    """Write what torch's ErrorHandler.record_exception writes (torch 2.13), unless the program did: the agent shows it.

    The file appears whole or not at all: the agent fails on half a file, and its SIGTERM may come at any time.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.exists(path):
        return
    import json

    extra = {"py_callstack": shown["traceback"], "timestamp": str(int(time.time()))}
    if shown.get("unused"):
        extra["unused"] = shown["unused"]
    said = "%s: %s" % (shown["type"].rpartition(".")[2], shown["message"])
    message = {"message": {"message": said, "extraInfo": extra}}
    try:
        with open(path + ".part", "w") as file:
            json.dump(message, file)
        os.rename(path + ".part", path)
    except OSError:
        pass
