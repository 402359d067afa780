"""What led to an exception, as its traceback shows it: its chain, a worker's or a child's own exception. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from ddp_run.evidence.exception_frames import (
    OF_RANKS,
    frames,
    in_exit,
    is_own,
    outermost,
    raised_by_program,
    reports_another,
    shown_frames,
    statement,
)
from ddp_run.evidence.traceback_text import (
    CHAIN,
    DIRECT,
    FRAME,
    HEADER,
    PLACE,
    at,
    from_text,
    is_library,
)
from ddp_run.record.events import ExceptionInfo, Rank

_END_OF_DATA = ("StopIteration", "Empty")
_EXPECTED = frozenset(
    {
        *("FileNotFoundError", "KeyError", "IndexError", "AttributeError", "ImportError", "ModuleNotFoundError"),
        *_END_OF_DATA,
    }
)
"""Exceptions that programs expect, and handle as part of their work."""
_TRACED = "\nfrom user code:\n"
"""Above the frames of what torch.compile was tracing (torch/_dynamo/exc.py, augment_exc_message)."""
_NAMES = re.compile(r"[\w./:\-]{4,}")
_MENTIONS = re.compile(r"[a-z]{2} \"$|\b(?:about|for|like|said|saw|says?|see) '$")
"""Before words that a sentence quotes. NCCL quotes CUDA's: `Cuda failure 'out of memory'`."""


def chain(exception: ExceptionInfo) -> tuple[ExceptionInfo, ...]:
    """Return the exception, then those that led to it or that it contains, as its traceback shows them: nearest first.

    These are the exceptions that it was raised from or while handling, a DataLoader worker's exception, and the members
    of a group.
    """
    shown = {words_of(exception)}
    links = [exception]
    for info in reversed(_all_in(exception.traceback)):
        if words_of(info) not in shown:
            shown.add(words_of(info))
            links.append(info)
    return tuple(links)


def words_of(exception: ExceptionInfo) -> tuple[str, str]:
    """Return its class and the first line of its message: by these, one exception is recognised twice in a text."""
    return exception.type, exception.message.partition("\n")[0]


def origin_of(link: ExceptionInfo, exception: ExceptionInfo) -> ExceptionInfo:
    """Return an exception of a chain, or if others in it have its class and words, the first: a GPU repeats its error.

    If its own frames, which begin in the function that caught it, show none of the program's code, its position is
    taken from those who called that function, as the one that ended the chain shows them.
    """
    same = [each for each in _all_in(exception.traceback) if words_of(each) == words_of(link)]
    first = same[0] if len(same) > 1 else link
    if first.file is None or not is_library(first.file) or first is exception:
        return first
    caught, above = frames(first.traceback)[:1], shown_frames(exception.traceback)
    reached = [index for index, frame in enumerate(above) if (frame["file"], frame["function"]) in caught]
    callers = [frame for frame in above[: max(reached, default=0)] if not is_library(frame["file"])]
    if not callers:
        return first
    own = callers[-1]
    return replace(first, file=own["file"], line=int(own["line"]), function=own["function"])


@lru_cache(maxsize=16)
def _all_in(text: str) -> tuple[ExceptionInfo, ...]:
    """Return every exception that a traceback shows; cached, since each rule asks for those of every rank."""
    lines = text.splitlines()
    return tuple(printed.info for index in range(len(lines)) if (printed := at(lines, index)))


def failed_ranks(exception: ExceptionInfo | None) -> tuple[Rank, ...]:
    """Return the ranks that it was raised for: torch.distributed.checkpoint raises what failed on one on all of them,
    torch.distributed.rpc on the caller. Sources: CheckpointException; rpc/internal.py, `_run_function`."""
    return tuple(map(Rank, map(int, OF_RANKS.findall(exception.traceback)))) if exception is not None else ()


def of_failed_rank(exception: ExceptionInfo, rank: Rank | None) -> ExceptionInfo | None:
    """Return the exception of this one of these ranks, else of the first; None if there are none.

    If it is a library's own, its position is that of the call that failed on all ranks.
    """
    parts = OF_RANKS.split(exception.traceback)[1:]  # each rank, and its text
    if not parts:
        return None
    texts = dict(zip(map(int, parts[::2]), parts[1::2], strict=True))
    own = from_text(f"{HEADER}:{texts.get(-1 if rank is None else rank, parts[1])}")
    if own is None or own.file is None or not is_library(own.file):
        return own
    return replace(own, file=exception.file, line=exception.line, function=exception.function)


def interrupted(exception: ExceptionInfo) -> ExceptionInfo | None:
    """Return the KeyboardInterrupt at the start of a chain: exceptions raised while handling it are cleanup's."""
    origin = chain(exception)[-1]
    return origin if origin is not exception and origin.type == "KeyboardInterrupt" else None


def handled(exception: ExceptionInfo, *, expected: bool = False) -> ExceptionInfo | None:
    """Return the exception at the start of a chain whose handler, perhaps a clean-up, raised this one.

    None if there is none, or if programs expect it: the end of the data is where some tell their peers. `expected`:
    only the end of the data is excluded. Nothing expects what another exception was raised from, what left a `with`
    block, or what the handler was to report.
    """
    if not _raised_while_handling(exception):
        return None
    origin = chain(exception)[-1]
    left = in_exit(exception) and not raised_by_program(exception)
    unexpected = expected or _is_direct(exception, 0) or left or reports_another(exception)
    expects = _END_OF_DATA if unexpected else _EXPECTED
    if origin is exception or origin.type.rpartition(".")[2] in expects:
        return None
    return origin_of(origin, exception)


def raised_from(exception: ExceptionInfo, link: ExceptionInfo) -> bool:
    """Whether it was raised from `link` (`raise … from`), directly or by others, and not while that was handled."""
    links = _links_after(link, exception)
    return bool(links) and all(each.startswith(DIRECT) for each in links)


def _links_after(link: ExceptionInfo, exception: ExceptionInfo) -> list[str]:
    """Return what Python says between `link`, which led to the exception, and those after it."""
    name = link.type.rpartition(".")[2]
    return CHAIN.findall(exception.traceback[max(0, exception.traceback.find(f"{name}: ")) :])


def raised_again(exception: ExceptionInfo) -> bool:
    """Whether the program raised it while it handled an exception of a chain that began with `raise … from`."""
    return _is_direct(exception, 0) is True and raised_by_program(exception)


def raised_by_handler(exception: ExceptionInfo) -> bool:
    """Whether the program's own code raised it while it handled another exception: what it handled may be no cause."""
    frames = [frame["file"] for line in exception.traceback.splitlines() if (frame := FRAME.match(line)) is not None]
    return _raised_while_handling(exception) and bool(frames) and not is_library(frames[-1])


def may_be_handled(link: ExceptionInfo, exception: ExceptionInfo) -> bool:
    """Whether the program's own code was handling `link` when `exception` was raised: one begins, or ends, there."""
    file, function = outermost(link)
    handled_later = any(not each.startswith(DIRECT) for each in _links_after(link, exception))
    caught = handled_later and function is not None and not is_library(file)
    return caught or raised_by_handler(exception)


def _raised_while_handling(exception: ExceptionInfo) -> bool:
    """Whether it was raised during the handling of another, not from it."""
    return _is_direct(exception, -1) is False


def _is_direct(exception: ExceptionInfo, which: int) -> bool | None:
    """Whether this link of its chain is a `raise … from`, and not the handling of another; None if it has no links."""
    links = CHAIN.findall(exception.traceback)
    return links[which].startswith(DIRECT) if links else None


def only_mentions(said: re.Match[str]) -> bool:
    """Whether a message only mentions these words: `before a save, check for "No space left on device"`."""
    quote = _MENTIONS.search(said.string, max(0, said.start() - 8), said.start())
    return quote is not None and quote[0][-1] in said.string[said.end() :].partition("\n")[0]


def is_no_cause(link: ExceptionInfo, exception: ExceptionInfo) -> bool:
    """Whether what `link` says does not explain the end: the program asks, dealt with it, or defines its class.

    A library's words mean something else in the program's own class, whatever module and class are called.
    """
    guesses = link.message.endswith("?") and raised_by_program(link)
    return guesses or _is_of_program(link, exception) or dealt_with(link, exception)


def _is_of_program(link: ExceptionInfo, exception: ExceptionInfo) -> bool:
    """Whether the program's own code raised it, and the program's file is in the folder of its class's package.

    A library that is built from source is in no folder of installed packages either, but away from the program.
    """
    if "." not in link.type or not is_own(link):
        return False
    package, (raised_in, _function) = link.type.partition(".")[0], frames(link.traceback)[-1]
    place = re.match(rf"(.*/){re.escape(package)}(?:/|\.py$)", raised_in)
    program = next((file for file, _function in frames(exception.traceback) if not is_library(file)), "")
    return place is not None and program.startswith(place[1].removesuffix("/src/"))


def dealt_with(link: ExceptionInfo, exception: ExceptionInfo) -> bool:
    """Whether the program expected `link` and handled it, and `exception` is a failure of its fallback.

    Not if the handler itself raises, or if the message repeats a name: that reports the same failure again.
    """
    expected = link is not exception and link.type.rpartition(".")[2] in _EXPECTED
    if not expected or not raised_by_handler(exception):
        return False
    shown, source = frames(exception.traceback), statement(exception)
    raised_there = bool(shown) and shown[-1] in frames(link.traceback) and source.startswith("raise ")
    names = {name for name in _NAMES.findall(link.message) if not name.isalpha()}
    return bool(source) and not raised_there and not any(name in exception.message for name in names)


def before_last(text: str) -> ExceptionInfo | None:
    """Return the exception shown before the last one in a chained traceback: what the program was handling, for example
    as it called `sys.exit`."""
    lines = (_workers_own(text) or text).splitlines()
    chain = [index for index, line in enumerate(lines) if CHAIN.search(line)]
    return from_text("\n".join(lines[: chain[-1]])) if chain else None


def of_child(exception: ExceptionInfo) -> ExceptionInfo | None:
    """Return a child's exception as reported by torch.multiprocessing.spawn; None if there is none.

    Source: torch/multiprocessing/spawn.py, ProcessContext.join: the child's traceback is the message.
    """
    if exception.type.rpartition(".")[2] != "ProcessRaisedException":
        return None
    return from_text(exception.message)


def of_worker(exception: ExceptionInfo) -> ExceptionInfo | None:
    """Return a DataLoader worker's own exception, which the main process only raised again; None if it isn't one.

    Source: torch/_utils.py, ExceptionWrapper: `Caught KeyError in DataLoader worker process 0.`, and below that
    `Original Traceback (most recent call last):` with the worker's own.
    """
    original = _workers_own(exception.traceback or exception.message)
    return from_text(original) if original and exception.message.startswith("Caught ") else None


def _workers_own(text: str) -> str:
    """Return the traceback of the worker, which that of the main process contains; empty if there is none."""
    _, header, original = text.rpartition(f"\nOriginal {HEADER}:\n")
    return f"{HEADER}:\n{original}" if header else ""


def of_group(exception: ExceptionInfo) -> ExceptionInfo | None:
    """Return the only exception that a group contains, maybe in another group; None for others.

    Source: Lib/traceback.py, TracebackException.format: members are numbered, `+---------------- 2 ----------------`.
    """
    several = "+---------------- 2 ----------------" in exception.traceback
    shown = () if several or not exception.type.endswith("ExceptionGroup") else _all_in(exception.traceback)
    return shown[-1] if shown else None


def at_its_origin(exception: ExceptionInfo) -> ExceptionInfo:
    """Add the position where it was raised if it came from a DataLoader worker, or is about code that torch.compile was
    tracing; return the only one of a group."""
    member = of_group(exception)
    if member is not None and member.file is not None and not is_library(member.file):
        return replace(member, traceback=exception.traceback)
    traced = PLACE.finditer(exception.message.partition(_TRACED)[2])
    own = [place for place in traced if not is_library(place["file"])]
    if own:
        return replace(exception, file=own[-1]["file"], line=int(own[-1]["line"]), function=own[-1]["function"])
    raised = of_worker(exception)
    if raised is None or raised.file is None or is_library(raised.file):
        return exception
    return replace(exception, file=raised.file, line=raised.line, function=raised.function)
