"""A warm start (`--warm`): one process imports torch, then is forked once for each rank.

ddp-run (supervise/warm_agents.py) starts it as the agent starts a cold rank, with the same command line, and with one
variable more, which makes it serve first. It becomes the agent of an attempt, and leaves two forks: one serves that
agent, the other waits for the next attempt. A fork for a rank goes on where a cold rank begins, in the same frames, and
ends as any Python does. So nothing of Python's own start and end is rebuilt here.

What torch's import brought from other packages is held back until the program imports it. What differs from a cold
rank: ranks share the hash seed and the layout of memory, modules of Python that torch uses are in `sys.modules`, and
torch's own objects are frozen (`gc.freeze`).

Requests (JSON, a packet each), answered with their `seq`: `{"begin": whether to leave one for the next attempt}` with
descriptors for the order (JSON: the agent's `argv` and `environ`) and its log: `{"pid": …}` of the process that waits,
or no answer; `{"fork": [signals that the agent handles]}` with descriptors for environment (a JSON object), stdout and
stderr: `{"pid": …}` or `{"pid": null, "error": …}`; `{"wait": pid}`: `{"status": …}`, as wait(2) gives it, or null.
"""

import gc
import json
import os
import re
import signal
import socket
import sys
import time
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

_MOST = 1 << 16
_PR_SET_PDEATHSIG = 1
_ADOPTED_S = 0.001


def serve(wanted: "dict[str, Any]", prctl: "Callable[[int, int], object]") -> "Held":
    """Import torch and serve. Returns in each rank. Ends with ddp-run, later with the agent.

    `wanted`: `channel` (a descriptor), `parent` (ddp-run's pid), `read_at_import` (a pattern: variables that torch
    reads).
    """
    _end_with(wanted["parent"], prctl)
    # What stops a job may be sent to each of its processes. This one must outlive the ranks' own clean-up.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    channel = socket.socket(fileno=wanted["channel"])
    channel.set_inheritable(False)
    held, cold = _torch(channel.fileno(), wanted["read_at_import"])
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(channel, _MOST, 3)
        if not message:
            os._exit(0)
        request = json.loads(message)
        answer: "dict[str, Any] | None" = None
        if "wait" in request:
            pid, status = os.waitpid(request["wait"], os.WNOHANG)
            answer = {"status": status if pid else None}
        elif "fork" in request:
            answer = {"pid": None, "error": cold} if cold else _fork()
            if answer["pid"] == 0:
                channel.close()
                _become_rank(descriptors, request["fork"], mask)
                held.remember()
                return held
        elif cold is None and request["begin"] and _is_left_for_the_next_attempt(wanted["parent"], prctl):
            answer = {"pid": os.getpid()}
        else:
            channel = _begin(channel, descriptors, held, cold, mask, prctl)
        for descriptor in descriptors:
            os.close(descriptor)
        if answer is not None:
            channel.send(json.dumps(dict(answer, seq=request["seq"])).encode())


def _end_with(parent: int, prctl: "Callable[[int, int], object]") -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request: no signal would come
        os._exit(1)


def _is_left_for_the_next_attempt(parent: int, prctl: "Callable[[int, int], object]") -> bool:
    """Fork, and return True in the fork. It becomes a child of ddp-run, which adopts what has lost its parent."""
    try:
        between = os.fork()
    except OSError:  # the next attempt imports torch itself, then
        return False
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    os.setsid()
    while os.getppid() == between:
        time.sleep(_ADOPTED_S)
    _end_with(parent, prctl)
    return True


def _begin(
    channel: socket.socket,
    descriptors: "list[int]",
    held: "Held",
    cold: "str | None",
    mask: "Any",
    prctl: "Callable[[int, int], object]",
) -> socket.socket:
    """Become the agent of an attempt. Returns in a fork only, which serves that agent: its channel."""
    with open(descriptors[0], encoding="utf-8", closefd=False) as file:
        order = json.load(file)
    for stream in (1, 2):
        os.dup2(descriptors[1], stream)
    agent, server = os.getpid(), None
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if cold is None:
        try:
            server = os.fork()
        except OSError as error:
            cold = "no process to fork from: %s" % error
        if server == 0:
            ours.close()
            channel.close()
            _end_with(agent, prctl)
            return its
    environ, command = dict(os.environ), [sys.executable, "-u", *sys.argv]
    its.close()
    channel.close()
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["environ"])
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if not held.has("torch"):  # it can't be imported twice in one process
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; a program that it starts should not
            signal.signal(signum, signal.SIG_DFL)
        os.execvpe(order["argv"][0], order["argv"], order["environ"])  # noqa: S606
    held.give("torch")

    from ddp_run.agent import warm

    warm.main(order["argv"], warm.Server(ours, server, command, environ) if server else None, cold)
    sys.exit()


def _torch(channel: int, read_at_import: str) -> "tuple[Held, str | None]":
    """Import it. Returns what came with it, and why ranks can't be forked from here, if so."""
    loaded, environ = set(sys.modules), dict(os.environ)
    collects = gc.isenabled()
    gc.disable()  # nothing that an import makes becomes garbage soon; looking takes a tenth of its time
    try:
        import torch  # noqa: F401

        cold = _why_cold(channel, environ) or _namesake(loaded)
    except BaseException as error:  # the agent will show it
        cold = "importing torch failed: %s: %s" % (type(error).__name__, error)
    held = Held(loaded, read_at_import)
    gc.freeze()  # or each rank's collector would touch, and so copy, all of torch's objects: at its end, for 0.7 s
    if collects:
        gc.enable()
    return held, cold


def _why_cold(channel: int, environ: "dict[str, str]") -> "str | None":
    if any(os.fstat(stream).st_size for stream in (1, 2)):
        return "importing torch prints something"
    if len(os.listdir("/proc/self/task")) > 1:
        return "importing torch starts threads (OMP_NUM_THREADS=1 prevents those of numpy)"
    if sorted(filter(_is_open, map(int, os.listdir("/proc/self/fd")))) != sorted({0, 1, 2, channel}):
        return "importing torch opens files or devices"
    if dict(os.environ) != environ:
        return "importing torch changes the environment"
    python = os.path.dirname(os.__file__)  # a distribution's own sitecustomize is there
    for name in ("sitecustomize", "usercustomize"):
        if name in sys.modules and os.path.dirname(sys.modules[name].__file__ or "") != python:
            return "%s may do something for each rank" % name
    tools = getattr(sys, "monitoring", None)
    watched = sys.gettrace() or sys.getprofile() or (tools and any(map(tools.get_tool, range(6))))
    if watched or getattr(sys, "is_stack_trampoline_active", bool)():
        return "Python is traced or profiled"
    return None


def _namesake(loaded: "set[str]") -> "str | None":
    """A module beside the program that would come in place of one that torch has imported. `loaded`: before that."""
    mode, program = sys.argv[1:3]
    path = os.getcwd() if mode == "module" else os.path.realpath(program)
    folder = path if mode == "module" or os.path.isdir(path) else os.path.dirname(path)
    cached = folder in sys.path_importer_cache
    for name in {_package(name) for name in sys.modules} - loaded:
        found = PathFinder.find_spec(name, [folder])
        if found is not None and found.origin is not None:
            return "torch imports another module with the name of %s" % found.origin
    if not cached:
        sys.path_importer_cache.pop(folder, None)
    return None


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:  # the one that read the list
        return False
    return True


def _fork() -> "dict[str, Any]":
    """Fork into a new session. Returns when that is so, since the agent signals the rank's process group."""
    read, write = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(read)
        os.close(write)
        return {"pid": None, "error": str(error)}
    if pid:
        os.close(write)
        os.read(read, 1)  # nothing comes: the fork closes its end
        os.close(read)
    else:
        os.setsid()
        os.close(read)
        os.close(write)
    return {"pid": pid}


def _become_rank(descriptors: "list[int]", handled: "list[int]", mask: "Any") -> None:
    """Take over what differs between this process and a new one that the agent would start now."""
    environment, stdout, stderr = descriptors
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    with open(environment, encoding="utf-8") as file:
        environ = json.load(file)
    os.close(stdout)
    os.close(stderr)
    os.environ.clear()
    os.environ.update(environ)
    for signum in handled:  # ignored when this process began; a program that the agent starts has the default
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Held:
    """A finder that gives the program what the server imported, when the program imports it.

    Modules of Python itself are there at once: the interpreter's end looks for some of them (threading).
    """

    def __init__(self, loaded: "set[str]", read_at_import: str) -> None:
        """`loaded`: modules that were there before."""
        own = {*getattr(sys, "stdlib_module_names", ()), *map(_package, loaded), "__mp_main__"}
        self._modules = {name: module for name, module in sys.modules.items() if _package(name) not in own}
        self._packages = {name for name in self._modules if name == _package(name)}
        for name in self._modules:
            del sys.modules[name]
        self._read = re.compile(read_at_import)
        self._environ: "dict[str, str]" = {}
        self.note: "Callable[[str], None] | None" = None
        sys.meta_path.insert(0, self)

    def remember(self) -> None:
        """Keep the variables that the rank starts with."""
        self._environ = dict(os.environ)

    def has(self, package: str) -> bool:
        """Whether it's held back."""
        return package in self._packages

    def find_spec(self, name: str, _path: "Any" = None, _target: "Any" = None) -> "Any":
        """A spec that gives the module as it is; None for all others."""
        if not self.has(name):
            return None
        module = self._modules[name]
        own: "Any" = module.__spec__
        spec = type(own)(name, _Given(self, module), origin=own.origin)
        spec.submodule_search_locations = own.submodule_search_locations
        return spec

    def give(self, package: str) -> None:
        """Put the modules of a package into place; with torch, all."""
        everything = package == "torch"
        for name in [name for name in self._modules if everything or _package(name) == package]:
            sys.modules.setdefault(name, self._modules.pop(name))
        self._packages &= self._modules.keys()
        random = sys.modules.get("numpy.random")
        if random is not None and package in ("torch", "numpy"):
            random.seed()
        if everything:
            sys.meta_path.remove(self)
            self._compare()

    def _compare(self) -> None:
        then, now = self._environ, dict(os.environ)
        changed = [name for name in {*then, *now} if then.get(name) != now.get(name) and self._read.fullmatch(name)]
        if any(map(_of_kmp, changed)) and not _has_kmp():
            changed = [name for name in changed if not _of_kmp(name)]
        if changed and self.note is not None:
            self.note("its program sets %s too late for --warm: torch is imported already" % ", ".join(sorted(changed)))


class _Given:
    """Loads a module that was loaded before."""

    def __init__(self, held: Held, module: "ModuleType") -> None:
        self._held = held
        self._module = module
        self._spec = module.__spec__

    def create_module(self, _spec: "Any") -> "ModuleType":
        return self._module

    def exec_module(self, module: "ModuleType") -> None:
        module.__spec__ = self._spec
        self._held.give(module.__name__)


def _of_kmp(name: str) -> bool:
    """Whether only Intel's and LLVM's OpenMP read the variable; scikit-learn sets two, in case one comes later."""
    return name.startswith("KMP_")


def _has_kmp() -> bool:
    with open("/proc/self/maps") as maps:
        return any("/libiomp5." in line or "/libomp." in line or "/libomp-" in line for line in maps)


def _package(name: str) -> str:
    return name.partition(".")[0]
