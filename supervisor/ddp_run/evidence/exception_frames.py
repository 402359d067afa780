"""Where an exception was raised, and what caught it, as the frames of its traceback show. Pure."""

from __future__ import annotations

import builtins
import re
from itertools import takewhile

from ddp_run.evidence.traceback_text import FRAME, HEADER, OF_A_RANK, is_library
from ddp_run.record.events import ExceptionInfo

OF_RANKS = re.compile(
    rf"^(?:{re.escape(OF_A_RANK)}|(?:[\w.]{{1,99}}: ){{1,2}}['\"]?On WorkerInfo\(id=)(\d{{1,9}})"
    rf"(?:\)|, name=[^\n]{{1,300}}?\):(?:\n[^\n]*\n{re.escape(HEADER)}:)?)",
    re.MULTILINE,
)
"""What torch raises on all ranks, or on a caller, and of which rank it tells."""
_MODULE = "<module>"
_GIVEN = re.compile(r"<(?!string>|stdin>|frozen |ipython|command|cell)")
_CATCHES = re.compile(r"/(?:uvicorn|hypercorn|gunicorn|starlette|aiohttp|tornado|flask|werkzeug|django|optuna)/")
"""Servers log the exception of a request, and sweeps that of a trial, and go on."""
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_CAUGHT = re.compile(r"[({ ](?:e|ex|exc|err|error|exception)(?:[!)},]|$)")
"""The names under which programs catch an exception, as an argument or in an f-string."""
_BY_OTHERS = (ConnectionError, TimeoutError, InterruptedError, ChildProcessError)
_FOR_ANYTHING = frozenset({"AssertionError", "Exception", "RuntimeError", "ValueError"})
"""Python's own classes that programs raise for anything."""


def is_own(exception: ExceptionInfo) -> bool:
    """Whether the program's own code raised it, and its class says nothing: its words may mean anything.

    That is a class of a module that isn't Python's, or one that is raised for anything.
    """
    name = exception.type.rpartition(".")[2]
    says_nothing = "." in exception.type or name in _FOR_ANYTHING
    return of_main(exception) or (says_nothing and raised_by_program(exception, f"{name}("))


def of_main(exception: ExceptionInfo) -> bool:
    """Whether the program's own code raised a class without a module that isn't Python's: one of its main module."""
    own = "." not in exception.type and not hasattr(builtins, exception.type)
    return own and raised_by_program(exception, f"{exception.type}(")


def raised_by_program(exception: ExceptionInfo, what: str = "") -> bool:
    """Whether a `raise` in the program's own code raised it; `what`: how the words after that begin."""
    shown = frames(exception.traceback)
    return bool(shown) and not is_library(shown[-1][0]) and statement(exception).startswith(f"raise {what}")


def begins_in_function(exception: ExceptionInfo) -> bool:
    """Whether its traceback begins in a function of the program, or of what runs parts of it: that caught it."""
    file, function = outermost(exception)
    return function not in (None, _MODULE) and (not is_library(file) or runs_on(exception))


def runs_on(exception: ExceptionInfo) -> bool:
    """Whether what caught and printed it goes on: a server, or a sweep. A program's own function may end it then."""
    return _CATCHES.search(outermost(exception)[0]) is not None


def begins_at_module(exception: ExceptionInfo) -> bool:
    """Whether its traceback begins where a program does, as when nothing caught it."""
    return outermost(exception)[1] == _MODULE


def of_given_code(exception: ExceptionInfo) -> bool:
    """Whether it ended text that a program ran as code, under a name like `<candidate>`, and not the program: of names
    like that only Python's own, and a notebook's, show an end."""
    return _GIVEN.match(outermost(exception)[0]) is not None


def of_a_command(exception: ExceptionInfo) -> bool:
    """Whether it ended an installed command, such as `tensorboard`: no rank's program, if another one failed."""
    file, function = outermost(exception)
    return function == _MODULE and "/bin/" in file


def lost_its_parent(exception: ExceptionInfo) -> bool:
    """Whether a child of multiprocessing could not read what its parent should have sent: the parent failed first.

    Source: multiprocessing/spawn.py, `_main`.
    """
    if exception.type.rpartition(".")[2] not in ("EOFError", "UnpicklingError"):
        return False
    innermost = frames(exception.traceback)[-1:]
    return any(file.endswith("multiprocessing/spawn.py") and function == "_main" for file, function in innermost)


def by_others(exception: ExceptionInfo) -> bool:
    """Whether its class is Python's for what another process did."""
    known = getattr(builtins, exception.type, None)
    return isinstance(known, type) and issubclass(known, _BY_OTHERS)


def in_exit(exception: ExceptionInfo) -> bool:
    """Whether a `with` block raised it as it was left."""
    return not functions(exception).isdisjoint(("__exit__", "__aexit__"))


def in_collective(exception: ExceptionInfo) -> bool:
    """Whether a collective of torch.distributed raised it, which needs all ranks."""
    return any(file.endswith(_COLLECTIVES) for file, _function in frames(exception.traceback)[-1:])


def reports_another(exception: ExceptionInfo) -> bool:
    """Whether the statement that failed was to report an exception that it had caught."""
    source = statement(exception)
    return not source.startswith("raise ") and _CAUGHT.search(source) is not None


def functions(exception: ExceptionInfo) -> set[str | None]:
    """Return the functions of its frames."""
    return {function for _file, function in frames(exception.traceback)}


def statement(exception: ExceptionInfo) -> str:
    """Return the source lines that raised it, without the marks below them; empty if its traceback shows none."""
    lines = exception.traceback.splitlines()
    at = [index for index, line in enumerate(lines) if FRAME.match(line)]
    below = lines[at[-1] + 1 :] if at else lines  # of one that is cut off, perhaps just the statement
    shown = takewhile(lambda line: line.startswith(("    ", "\t")), below)
    return "\n".join(line.strip() for line in shown if line.strip(" ~^"))


def outermost(exception: ExceptionInfo) -> tuple[str, str | None]:
    """Return file and function of the first frame, "" and None if there is none."""
    return next(iter(frames(exception.traceback)), ("", None))


def frames(text: str) -> list[tuple[str, str | None]]:
    """Return file and function of each frame of a traceback's last exception."""
    return [(frame["file"], frame["function"]) for frame in shown_frames(text)]


def shown_frames(text: str) -> list[re.Match[str]]:
    """Return the matches of `FRAME` in a traceback's last exception, outermost first."""
    others = OF_RANKS.search(text, 1)
    lines = text[: others.start() if others is not None else None].splitlines()
    begin = max((index for index, line in enumerate(lines) if line.startswith(HEADER)), default=0)
    return [frame for line in lines[begin:] if (frame := FRAME.match(line))]
