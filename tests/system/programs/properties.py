"""Dumps what a program can see of itself to FOLDER/RANK.json; where FOLDER/loaders is, rank 0 tries DataLoader workers.

Usage: properties.py FOLDER [ANYTHING...]. Knows nothing of ddp-run.
"""

import concurrent.futures
import dataclasses
import inspect
import json
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import traceback
import typing

number: int = 7


@dataclasses.dataclass
class Point:
    x: int
    y: "Point | None" = None


def square(value: int) -> int:
    return value * value


def child_view(_: int) -> list:
    """What a worker process sees, and whether it can send a class of the program back."""
    main = sys.modules["__main__"]
    return [main.__name__, getattr(main, "__file__", None), sys.argv, sys.path, os.getcwd(), Point(1).x, __name__]


def raised() -> str:
    try:
        [][1]
    except IndexError:
        return traceback.format_exc()


def workers() -> dict:
    found = {}
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            try:
                found[method] = pool.submit(child_view, 0).result(60)
            except Exception as error:
                found[method] = type(error).__name__
    return found


class Squares:
    """A map-style data set."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return square(index), str(Point(index)), __name__


def loaders() -> dict:
    import torch.utils.data

    found = {}
    for method in ("fork", "spawn", "forkserver"):
        loader = torch.utils.data.DataLoader(Squares(), num_workers=1, multiprocessing_context=method, timeout=60)
        try:
            found[method] = [[batch[0].tolist(), *batch[1:]] for batch in loader]
        except Exception as error:
            found[method] = type(error).__name__
    found["excepthook is Python's"] = sys.excepthook is sys.__excepthook__
    return found


def stream(file) -> list:
    return [file.encoding, file.errors, file.line_buffering, file.write_through, file.isatty(), file.name]


def signals() -> dict:
    with open("/proc/self/status") as file:
        status = dict(line.split(":\t", 1) for line in file)
    return {name: status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")}


def child_python() -> str:
    program = "import sys, os; print(sys.path, sys.flags, sys.excepthook is sys.__excepthook__, sorted(os.environ))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def properties() -> dict:
    main = sys.modules["__main__"]
    spec = main.__spec__
    loader = main.__loader__
    return {
        "name": __name__,
        "file": __file__,
        "argv": sys.argv,
        "original argv": sys.orig_argv,
        "path": sys.path,
        "spec": spec and [spec.name, spec.origin, spec.parent, spec.cached],
        "loader": [type(loader).__name__, getattr(loader, "name", None), getattr(loader, "path", None)],
        "package": __package__,
        "doc": __doc__,
        "annotations": str(__annotations__),
        "builtins": type(__builtins__).__name__,
        "first names": list(globals())[:9],
        "cached": __cached__,
        "main is real": vars(main) is globals(),
        "main of the interpreter": main.__name__,
        "pickled class": repr(pickle.loads(pickle.dumps(Point(1, Point(2))))),
        "pickled bytes": pickle.dumps(Point).hex(),
        "source": inspect.getsource(square),
        "source file": inspect.getsourcefile(Point),
        "hints": str(typing.get_type_hints(Point)),
        "code file": square.__code__.co_filename,
        "caught": raised(),
        "flags": str(sys.flags),
        "warnings": sys.warnoptions,
        "x options": sys._xoptions,
        "executable": sys.executable,
        "prefix": [sys.prefix, sys.base_prefix],
        "recursion limit": sys.getrecursionlimit(),
        "hooks": [
            sys.excepthook is sys.__excepthook__,
            threading.excepthook is threading.__excepthook__,
            sys.displayhook is sys.__displayhook__,
        ],
        "tracing": [sys.gettrace(), sys.getprofile()],
        "streams": [stream(file) for file in (sys.stdin, sys.stdout, sys.stderr)],
        "folder": os.getcwd(),
        "mask": os.umask(os.umask(0o22)),
        "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "signals": signals(),
        "interrupt": getattr(signal.getsignal(signal.SIGINT), "__name__", str(signal.getsignal(signal.SIGINT))),
        "threads": threading.active_count(),
        "thread": threading.current_thread() is threading.main_thread(),
        "limits": [resource.getrlimit(each) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "children": workers(),
        "child python": child_python(),
        "environment": dict(os.environ),
        "modules": sorted(sys.modules),
    }


if __name__ == "__main__":
    folder = sys.argv[1]
    seen = properties()
    if os.path.exists(os.path.join(folder, "loaders")) and os.environ.get("RANK", "0") == "0":
        seen["loaders"] = loaders()
    with open(os.path.join(folder, os.environ.get("RANK", "plain") + ".json"), "w") as file:
        json.dump(seen, file)
    print("printed")
    print("complained", file=sys.stderr)
