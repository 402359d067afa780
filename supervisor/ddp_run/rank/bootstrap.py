"""Set-up of a rank before its program starts. A step that fails is skipped: it is never an error in the job.

Modes, the first argument of `__main__.py`:
  script PATH ARGS…    as `python -u PATH ARGS…`
  module NAME ARGS…    as `python -u -m NAME ARGS…`
  run-path PATH ARGS…  as torchrun's --run-path, which runs this in a multiprocessing child by runpy.run_path
  exec PROGRAM ARGS…   as torchrun's --no-python

What ddp-run wants arrives in one variable, DDP_RUN_BOOT (JSON, written by ddp_run/agent/logs_specs.py), which is gone
before the program starts. Cost: tests/bench/bench_bootstrap.py. With DDP_RUN_SERVE (warm.py) it goes on in forks only.
"""

import os
import sys
import time
from _frozen_importlib_external import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

    from ddp_run.rank.board import Page

VARIABLE = "DDP_RUN_BOOT"
SERVER_VARIABLE = "DDP_RUN_SERVE"
SEND_TIMEOUT_S = 0.5
"""A Unix datagram queue holds few messages (net.unix.max_dgram_qlen: 10). A reader that is alive empties it soon."""
HIGH_DESCRIPTOR = 1000
STACKS_SIGNAL = 5
"""Above SIGRTMIN. The first few belong to the C library and, by habit, to container runtimes."""
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_folder = ""


class Boot:
    """What is known about this rank. Times are nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self, wanted: "dict[str, Any]") -> None:
        environ = os.environ
        self.pid = os.getpid()
        self.socket: "str" = wanted.get("socket") or ""
        self.folder: "str" = wanted.get("folder") or ""
        self.relative: "str" = wanted.get("relative") or ""
        """`folder` within the run's, which names the attempt, the start of the ranks in it, and the rank."""
        self.links: "list[str]" = wanted.get("links") or []
        self.nccl_debug_file: "str | None" = wanted.get("nccl_debug_file")
        self.restore: "dict[str, str | None]" = wanted.get("restore") or {}
        self.agent: "int | None" = wanted.get("agent")
        self.watch: "dict[str, Any] | None" = wanted.get("watch")
        self.cold: "str | None" = wanted.get("cold")
        """Why the ranks are not warm, although the user asked for that; one rank says it."""
        self.described = 0
        """The id of the exception that `[DDP-ERROR]` lines have described."""
        self.unwinds: "Callable[[BaseException], None]"
        """Reports an exception on its way through the program; program.py sets it."""
        self.rank = int(environ.get("RANK", "-1"))
        self.local_rank = int(wanted.get("local_rank", environ.get("LOCAL_RANK", "-1")))
        self.restart = int(wanted.get("restart", environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
        self.world_size = int(environ.get("WORLD_SIZE", "0"))
        self.local_world_size = int(environ.get("LOCAL_WORLD_SIZE", "0"))
        self.group_rank = int(environ.get("GROUP_RANK", "0"))
        self.group_world_size = int(environ.get("GROUP_WORLD_SIZE", "0"))

    def message(self, event: str, at: int, **more: "Any") -> "dict[str, Any]":
        """A message to ddp-run: what happened, when, and to which rank."""
        return dict({"event": event, "at": at, "folder": self.relative}, **more)

    def say(self, event: str, at: int, **more: "Any") -> None:
        """Send such a message; it is lost if nobody receives it."""
        try:
            self.send(_encode(self.message(event, at, **more)))
        except Exception:
            pass

    def note(self, text: str) -> None:
        """Have a fact about this rank written into the journal."""
        self.say("noted", time.monotonic_ns(), text=text)

    def send(self, message: bytes) -> None:
        """Send one datagram to ddp-run, waiting at most SEND_TIMEOUT_S for room. Raises OSError."""
        if not self.socket:
            return
        from _socket import AF_UNIX, SO_SNDBUF, SOCK_DGRAM, SOL_SOCKET, socket

        channel = socket(AF_UNIX, SOCK_DGRAM)
        try:
            channel.setsockopt(SOL_SOCKET, SO_SNDBUF, 512 * 1024)
            channel.connect(self.socket)  # poll(2) waits for room at the receiver only when connected
            channel.settimeout(SEND_TIMEOUT_S)
            channel.send(message)
        finally:
            channel.close()


def main(names: "dict[str, Any]", first_names: "list[str]", main_file: str) -> None:
    """Set up, then run the program.

    `names`: the globals of `__main__`; `first_names`: those that Python itself put there; `main_file`: its path.
    """
    global _folder
    _folder = main_file[: -len("__main__.py")]
    leave_no_path(main_file)
    serve = os.environ.pop(SERVER_VARIABLE, None)
    held = load("warm").serve(_parse(serve), _prctl()) if serve else None
    mode, words = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 2 else ("", [])
    if mode not in ("script", "module", "run-path", "exec"):
        sys.exit("usage: __main__.py script|module|run-path|exec PROGRAM [ARGS...]")
    boot = read_boot()
    if boot is not None:
        set_up(boot, mode)
        if held is not None:
            held.note = boot.note
    load("program").Program(boot, main_file, names, first_names, load).run(mode, words)


def leave_no_path(main_file: str) -> None:
    """Undo what starting this file did to the module search path."""
    folder = main_file[: -len("/__main__.py")]
    if sys.path and sys.path[0] == folder:
        del sys.path[0]
    for path in (main_file, folder):
        sys.path_importer_cache.pop(path, None)


def load(name: str) -> "ModuleType":
    """A module of this folder, from its .pyc if it has one, without a trace in `sys.modules`."""
    full = "ddp_run.rank." + name
    module = type(sys)(full)
    code = SourceFileLoader(full, _folder + name + ".py").get_code(full)
    exec(code, module.__dict__)  # type: ignore[arg-type]
    return module


# ------------------------------------------------------------------------------------------------ JSON


def read_boot() -> "Boot | None":
    """DDP_RUN_BOOT, taken out of the environment; None if it is absent or broken."""
    text = os.environ.pop(VARIABLE, None)
    if not text:
        return None
    try:
        return Boot(_parse(text))
    except Exception:
        return None


class _Strict:
    """What the C scanner needs. `json` itself would cost 12 ms for its regular expressions."""

    strict = True
    memo: "dict[str, str]" = {}  # noqa: RUF012
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _parse(text: str) -> "dict[str, Any]":
    try:
        from _json import make_scanner

        value, _ = make_scanner(_Strict)(text, 0)  # type: ignore[arg-type]
    except Exception:
        import json

        value = json.loads(text)
    return dict(value)


def _encode(message: "dict[str, Any]") -> bytes:
    try:
        from _json import encode_basestring_ascii, make_encoder

        encode = make_encoder(None, str, encode_basestring_ascii, None, ":", ",", False, False, True)
        return "".join(encode(message, 0)).encode()
    except Exception:
        import json

        return json.dumps(message).encode()


# ----------------------------------------------------------------------------------------------- steps


def set_up(boot: Boot, mode: str) -> None:
    """All steps, the most valuable first, in case the process is ended in between."""
    steps: "list[Callable[[Boot], None]]" = [die_with_agent, put_back, say_hello]
    if mode == "exec":  # what another program does is not seen
        boot.watch = None
    else:
        steps += [write_stacks, watch]
    for step in steps:
        try:
            step(boot)
        except Exception:
            pass


def die_with_agent(boot: Boot) -> None:
    """SIGKILL for this process when its parent ends, and for its forked children when it ends.

    PR_SET_PDEATHSIG has two pitfalls. It fires when the parent's *thread* ends: a child forked by a short-lived thread
    would die with that thread, so only children of the main thread ask for it. And here it is inherited by a hook, not
    by the kernel: a daemon that a forked child forks has lost its parent on purpose, so only direct children of the
    rank ask for it. ddp-run, as subreaper, finds the others.
    """
    prctl = _prctl()
    parent = os.getppid()
    prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    agent_is_gone = boot.agent is not None and parent != boot.agent and not os.path.exists("/proc/%d" % boot.agent)
    if agent_is_gone or os.getppid() != parent:  # it ended before the request: no signal would come
        os.kill(boot.pid, _SIGKILL)
    _follow_forks(prctl, boot.pid)


def _follow_forks(prctl: "Callable[[int, int], object]", rank: int) -> None:
    from _thread import get_ident

    main_thread = get_ident()
    this_is_the_rank = True

    def in_child() -> None:
        # Runs between the fork and the child's first line: import and open nothing here. The thread keeps its identity
        # over a fork.
        nonlocal this_is_the_rank
        if not this_is_the_rank:
            return
        this_is_the_rank = False
        if get_ident() == main_thread:
            prctl(_PR_SET_PDEATHSIG, _SIGKILL)
            if os.getppid() != rank:
                os.kill(os.getpid(), _SIGKILL)

    os.register_at_fork(after_in_child=in_child)


def _prctl() -> "Callable[[int, int], object]":
    """prctl(2) of this process's C library. `ctypes` would cost 4 ms; the module below it costs half of one."""
    try:
        import _ctypes

        address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        call = _ctypes.call_cdeclfunction
        return lambda option, value: call(address, (option, value))
    except Exception:
        import ctypes

        function: "Callable[[int, int], object]" = ctypes.CDLL(None).prctl
        return function


def put_back(boot: Boot) -> None:
    """Restore variables that ddp-run changed for the agent; name NCCL's debug file, unless the user has."""
    for name, value in boot.restore.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if boot.nccl_debug_file:
        os.environ.setdefault("NCCL_DEBUG_FILE", boot.nccl_debug_file)


def say_hello(boot: Boot) -> None:
    """Tell ddp-run that this rank runs."""
    boot.say(
        "started",
        time.monotonic_ns(),
        local_rank=boot.local_rank,
        world_size=boot.world_size,
        local_world_size=boot.local_world_size,
        group_rank=boot.group_rank,
        group_world_size=boot.group_world_size,
        watched=1 if boot.watch is not None else 0,
        links=boot.links,
    )
    if boot.cold:
        boot.note("not warm: " + boot.cold)


def write_stacks(boot: Boot) -> None:
    """On a fatal signal, write the stacks of all threads to stacks.txt; then the signal takes effect.

    A program that calls faulthandler.enable() itself (torch's @record does) keeps its own setting, and so does one with
    PYTHONFAULTHANDLER set. The descriptor is a high one: a program that closes all unknown ones starts at 3, and its
    own files keep their numbers.
    """
    import faulthandler

    if not boot.folder or faulthandler.is_enabled():
        return
    faulthandler.enable(file=_open_high(boot.folder + "/stacks.txt", HIGH_DESCRIPTOR), all_threads=True)


def _open_high(path: str, wanted: int) -> int:
    """A descriptor to append to the file, with this number if possible."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        high = os.dup2(descriptor, wanted, False)
    except OSError:
        return descriptor
    os.close(descriptor)
    return high


def watch(boot: Boot) -> None:
    """Make the board, have stacks written on demand, and hook into torch, if ddp-run wants that."""
    if boot.watch is None or not boot.socket or not boot.folder:
        return
    if boot.watch.get("backend"):  # for programs that read the variable themselves, as ddp_run.training does
        os.environ.setdefault("DDP_BACKEND", boot.watch["backend"])
    board = load("board")
    failure = None
    try:
        page = board.open_page(os.path.dirname(boot.socket), boot.restart, boot.rank)
    except Exception as error:  # the rank still sends its phases, which take no room
        page, failure = board.unseen_page(), error
    try:
        _stacks_on_demand(boot, page)
    except Exception:
        pass
    hooks = load("hooks").Hooks(boot, board, page, boot.watch, load)
    if failure is not None:
        hooks.missed("board", failure)
    hooks.install()


def _stacks_on_demand(boot: Boot, page: "Page") -> None:
    """Write the stacks of all threads to live_stacks.txt at the signal that the board names.

    The last resort, for a rank whose sampling thread cannot run. The handler is C and works while the interpreter's
    lock is held, but it may end a rank that runs Python (`at_rest` in ddp_run/observe/boards.py). It is a real-time
    signal that nothing else sends. Before it has a handler it would end the process, so ddp-run waits for the board's
    word. An ending interpreter removes the handler and restores what was there before: that must not be the default,
    which ends the process.
    """
    import faulthandler
    from _signal import SIG_IGN, SIGRTMIN, signal  # type: ignore[import-not-found]  # `signal` costs 5 ms

    number = SIGRTMIN + STACKS_SIGNAL
    signal(number, SIG_IGN)
    file = _open_high(boot.folder + "/live_stacks.txt", HIGH_DESCRIPTOR + 1)
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    page.words[page.STACKS_READY] = number
