"""A rank behaves as plain Python does, whatever its program does, and ddp-run is told how it ended."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import limit

from ddp_run.agent import warm
from ddp_run.plan.checks.warm import READ_AT_IMPORT
from ddp_run.plan.launch_plan import RANK_PROGRAM

RANKS_ENVIRONMENT = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "OMP_NUM_THREADS": "1",  # torchrun's default; without it there is no warm start
}


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def failed(self) -> dict[str, Any] | None:
        found = [message for message in self.messages if message["event"] == "failed"]
        assert len(found) < 2, found
        return found[0] if found else None


class Ranks:
    """Starts programs as rank 3, and as plain Python, in one folder. `warm`: scripts and modules as `--warm` does."""

    def __init__(self, folder: Path, inbox: socket.socket, address: str, *, warm: bool) -> None:
        self.folder = folder
        self.warm = warm
        self.files = folder / "attempt_0" / "rank_3"
        self.files.mkdir(parents=True)
        self._inbox = inbox
        self._address = address

    def boot(self, **changes: object) -> dict[str, object]:
        return {
            "socket": self._address,
            "folder": str(self.files),
            "relative": "attempt_0/rank_3",
            "local_rank": 1,
            "nccl_debug_file": None,
            "restore": {},
            **changes,
        }

    def environment(self, boot: Mapping[str, object] | str | None) -> dict[str, str]:
        environment = {**os.environ, **RANKS_ENVIRONMENT, "TORCHELASTIC_ERROR_FILE": str(self.files / "error.json")}
        if boot is not None:
            environment["DDP_RUN_BOOT"] = boot if isinstance(boot, str) else json.dumps(boot)
        return environment

    def plain(self, *words: str, python: str = sys.executable, **environment: str) -> Ended:
        done = subprocess.run(
            [python, "-u", *words],
            cwd=self.folder,
            env={**self.environment(None), **environment},
            capture_output=True,
            timeout=limit(120),
            check=False,
        )
        return Ended(done.returncode, _normal(done.stdout), _normal(done.stderr))

    def rank(self, mode: str, *words: str, python: str = sys.executable, boot: Any = "", **environment: str) -> Ended:
        options = ["-I", "-S", "-u"] if mode == "exec" else ["-u"]
        command = [python, *options, str(RANK_PROGRAM), mode, *words]
        environ = {**self.environment(self.boot() if boot == "" else boot), **environment}
        if self.warm and mode in ("script", "module") and python == sys.executable:
            return self._forked(command, environ)
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environ,
            capture_output=True,
            timeout=limit(120),
            check=False,
        )
        return Ended(done.returncode, _normal(done.stdout), _normal(done.stderr), self.messages())

    def _forked(self, command: list[str], environ: dict[str, str]) -> Ended:
        with chdir(self.folder), tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with its, tempfile.TemporaryFile() as log:
                wanted = {"channel": its.fileno(), "parent": os.getpid(), "read_at_import": READ_AT_IMPORT}
                own = {**environ, "DDP_RUN_SERVE": json.dumps(wanted)}
                serves = subprocess.Popen(command, env=own, stdout=log, stderr=log, pass_fds=[its.fileno()])
            with ours, serves:
                server = warm.Server(ours, serves.pid, command, environ)
                code = server.start(command, environ, (stdout.fileno(), stderr.fileno())).wait(limit(120))
                ours.close()
            stdout.seek(0)
            stderr.seek(0)
            return Ended(code, _normal(stdout.read()), _normal(stderr.read()), self.messages())

    def start(self, mode: str, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-u", str(RANK_PROGRAM), mode, *words],
            cwd=self.folder,
            env=self.environment(self.boot()),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def messages(self) -> list[dict[str, Any]]:
        found = []
        while True:
            try:
                found.append(json.loads(self._inbox.recv(1 << 18)))
            except BlockingIOError:
                return found

    def write(self, name: str, program: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(program))
        return name


@pytest.fixture(params=["cold", pytest.param("warm", marks=pytest.mark.slow_system)])
def ranks(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with (
        tempfile.TemporaryDirectory(prefix="ddp-run-test-") as short,  # socket names hold 107 bytes
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox,
    ):
        inbox.bind(f"{short}/events.sock")
        inbox.setblocking(False)
        yield Ranks(tmp_path, inbox, f"{short}/events.sock", warm=request.param == "warm")


def _normal(output: bytes) -> str:
    text = output.decode("utf-8", "surrogateescape")
    text = re.sub(r"0x[0-9a-f]{6,}", "0x…", text)
    # Our frames below the program's count towards the recursion limit; an exception that is looked at has a reference.
    return re.sub(r"(object refcount : |Previous line repeated )\d+", r"\1…", text)


@dataclass(frozen=True)
class Failure:
    """A program, and what ddp-run must hear: exit code, exception's type and line (null: nothing is reported)."""

    program: str
    code: int | None
    kind: str | None = None
    line: int | None = None
    message: str | None = None


FAILURES = {
    "exception": Failure("def f():\n    raise ValueError('bad')\nf()\n", 1, "ValueError", 2, "bad"),
    "exception class of the program": Failure("class Mine(Exception): pass\nraise Mine(1)\n", 1, "Mine", 2),
    "chained": Failure(
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e\n", 1, "KeyError", 4
    ),
    "context": Failure("try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['x']\n", 1, "KeyError", 4),
    "inside the standard library": Failure("import json\njson.loads('{')\n", 1, "json.decoder.JSONDecodeError", 2),
    "recursion": Failure("def f(n):\n    return f(n + 1)\nf(0)\n", 1, "RecursionError", 2),
    "group": Failure("raise ExceptionGroup('both', [ValueError(1), OSError(2, 'no')])\n", 1, "ExceptionGroup", 1),
    "hook that shows": Failure(
        "import sys, traceback as tr\ndef hook(t, v, tb):\n    print('mine', len(tr.extract_tb(tb)), file=sys.stderr)\n"
        "sys.excepthook = hook\nraise ValueError('h')\n",
        1,
        "ValueError",
        5,
    ),
    "hook that fails": Failure(
        "import sys\ndef hook(t, v, tb):\n    raise OSError('in hook')\nsys.excepthook = hook\nraise ValueError('h')\n",
        1,
        "ValueError",
        5,
    ),
    "hook that exits": Failure(
        "import sys\ndef hook(t, v, tb):\n    sys.exit(9)\nsys.excepthook = hook\nraise ValueError('h')\n",
        1,
        "ValueError",
        5,
    ),
    "hook wrapped as torch wraps it": Failure(
        "import io, sys\nold = sys.excepthook\ndef hook(*a):\n    err, sys.stderr = sys.stderr, io.StringIO()\n"
        "    old(*a)\n    text, sys.stderr = sys.stderr.getvalue(), err\n"
        "    sys.stderr.write('[rank3]: ' + text)\nsys.excepthook = hook\nraise ValueError('h')\n",
        1,
        "ValueError",
        9,
    ),
    "no hook": Failure("import sys\nsys.excepthook = lambda *a: None\nraise ValueError('h')\n", 1, "ValueError", 3),
    "exit 3": Failure("import sys\ndef leave():\n    sys.exit(3)\nleave()\n", 3, "SystemExit", 3, "3"),
    "exit 256": Failure("raise SystemExit(256)\n", None),
    "exit -1": Failure("raise SystemExit(-1)\n", 255, "SystemExit", 1, "-1"),
    "exit with a huge number": Failure("raise SystemExit(10 ** 30)\n", 255, "SystemExit", 1),
    "exit with a message": Failure("import sys\nsys.exit('no data')\n", 1, "SystemExit", 2, "no data"),
    "exit 0": Failure("import sys\nsys.exit(0)\n", None),
    "exit None": Failure("import sys\nsys.exit()\n", None),
    "arguments": Failure(
        "import argparse\np = argparse.ArgumentParser(prog='x')\np.add_argument('n')\np.parse_args()\n",
        2,
        "SystemExit",
        4,
        "2",
    ),
    "os._exit": Failure("import os\nos._exit(7)\n", 7),
    "success": Failure("print('fine')\n", None),
    "SIGSEGV": Failure("import os\nos.kill(os.getpid(), 11)\nimport time; time.sleep(90)\n", None),
    "SIGKILL": Failure("import os\nos.kill(os.getpid(), 9)\nimport time; time.sleep(90)\n", None),
    "SIGTERM": Failure("import os\nos.kill(os.getpid(), 15)\nimport time; time.sleep(90)\n", None),
    "abort": Failure("import os\nos.abort()\n", None),
    "interrupt": Failure("raise KeyboardInterrupt\n", -2, "KeyboardInterrupt", 1),
    "interrupt by signal": Failure(
        "import os, time\nos.kill(os.getpid(), 2)\ntime.sleep(90)\n", -2, "KeyboardInterrupt", 2
    ),
    "exception in a thread": Failure(
        "import threading\ndef f():\n    raise ValueError('t')\nt = threading.Thread(target=f)\nt.start()\nt.join()\n",
        None,
    ),
    "thread left running": Failure(
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()\n"
        "raise ValueError('early')\n",
        1,
        "ValueError",
        3,
    ),
    "exception at exit": Failure("import atexit\n@atexit.register\ndef f():\n    1 / 0\n", None),
    "exception in a forked child": Failure(
        "import os\npid = os.fork()\nif pid == 0:\n    raise ValueError('child')\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1\n",
        None,
    ),
    "warning": Failure("import warnings\nwarnings.warn('careful')\n", None),
    "syntax error": Failure("print('never')\ndef f(:\n    pass\n", 1, "SyntaxError", 2),
    "indentation": Failure("if 1:\nprint(2)\n", 1, "IndentationError", 2),
    "open bracket": Failure("x = (\n", 1, "SyntaxError", 1),
    "syntax error in an import": Failure("import other\n", 1, "SyntaxError", 1),
    "missing module": Failure("import numpi\n", 1, "ModuleNotFoundError", 1, "No module named 'numpi'"),
    "message that cannot be shown": Failure(
        "class Bad(Exception):\n    def __str__(self):\n        raise OSError\nraise Bad\n", 1, "Bad", 4
    ),
    "surrogates": Failure("raise ValueError('\\udcff \\u20ac')\n", 1, "ValueError", 1),
    "stderr closed": Failure("import sys\nsys.stderr.close()\nraise ValueError('s')\n", 1, "ValueError", 3),
    "stderr gone": Failure("import sys\nsys.stderr = None\nraise ValueError('s')\n", 1, "ValueError", 3),
    "memory": Failure("raise MemoryError\n", 1, "MemoryError", 1),
    "descriptors used up": Failure(
        "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nheld = []\ntry:\n"
        "    while 1: held.append(os.open('/', 0))\nexcept OSError as e: held.append(e)\nraise held[-1]\n",
        1,
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_it_ends_as_under_plain_python_and_says_how(ranks: Ranks, name: str) -> None:
    failure = FAILURES[name]
    ranks.write("other.py", "x = = 1\n")
    script = ranks.write("prog.py", failure.program)

    plain = ranks.plain(script)
    rank = ranks.rank("script", script)

    assert (rank.code, rank.stdout, rank.stderr) == (plain.code, plain.stdout, plain.stderr)
    hello = rank.messages[0]
    assert hello["event"] == "started"
    if failure.kind is None:
        assert rank.failed is None or failure.code is not None
        return
    assert rank.failed is not None
    assert rank.failed["at"] > hello["at"]
    assert (rank.failed["folder"], rank.failed["code"]) == ("attempt_0/rank_3", failure.code)
    exception = rank.failed["exception"]
    assert set(exception) == {"type", "message", "file", "line", "function", "traceback"}
    assert (exception["type"], exception["line"]) == (failure.kind, failure.line)
    assert exception["message"] == failure.message or failure.message is None
    assert str(RANK_PROGRAM.parent) not in exception["traceback"]


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("os._exit(7)", 7, [(7, None)]),
        ("os._exit(status=-1)", 255, [(255, None)]),
        ("os._exit(0)", 0, []),
        ("os._exit(256)", 0, []),
        ("if os.fork() == 0: os._exit(7)\nprint(os.wait()[1])", 0, []),
        ("threading.Thread(target=os._exit, args=(5,)).start(); time.sleep(60)", 5, [(5, None)]),
        ("sys.excepthook = lambda *_: os._exit(9)\nraise ValueError", 9, [(1, "ValueError")]),
        ("os._exit('x')", 1, [(1, "TypeError")]),
        ("try: 1/0\nexcept ZeroDivisionError: os._exit(7)", 7, [(7, "ZeroDivisionError")]),
        ("try: 1/0\nexcept ZeroDivisionError: os._exit(0)", 0, []),
        ("try: 1/0\nexcept ZeroDivisionError: pass\nos._exit(7)", 7, [(7, None)]),
        (
            "def work():\n try: 1/0\n finally: os._exit(7)\nthreading.Thread(target=work).start(); time.sleep(60)",
            7,
            [(7, "ZeroDivisionError")],
        ),
        ("import pickle; assert pickle.loads(pickle.dumps(os._exit)) is os._exit", 0, []),
        ("import pickle; assert pickle.loads(pickle.dumps(os.execv)) is os.execv", 0, []),
    ],
)
def test_an_end_without_an_exception_is_stamped(
    ranks: Ranks, program: str, code: int, said: list[tuple[int, str | None]]
) -> None:
    script = ranks.write("prog.py", f"import os, sys, threading, time\n{program}\n")
    plain, rank = ranks.plain(script), ranks.rank("script", script)
    assert (rank.code, rank.stdout, rank.stderr) == (plain.code, plain.stdout, plain.stderr)
    assert rank.code == code
    told = [message for message in rank.messages if message["event"] == "failed"]
    assert [(message["code"], message["exception"] and message["exception"]["type"]) for message in told] == said
    finished = [message for message in rank.messages if message["event"] == "finished"]
    assert len(finished) == (code == 0)


@pytest.mark.parametrize("program", ["", "sys.exit()", "sys.exit(0)", "os._exit(0)"])
@pytest.mark.parametrize("mode", ["script", "run-path"])
def test_the_end_of_a_program_is_stamped_before_what_runs_at_exit(ranks: Ranks, program: str, mode: str) -> None:
    script = ranks.write("prog.py", f"import atexit, os, sys, time\natexit.register(time.sleep, 0.3)\n{program}\n")
    rank = ranks.rank(mode, script)
    ended = time.monotonic_ns()
    hello, finished = rank.messages
    assert (hello["event"], finished["event"], finished["folder"]) == ("started", "finished", "attempt_0/rank_3")
    assert hello["at"] < finished["at"] < ended - (0 if "_exit" in program else 300_000_000)


@pytest.mark.parametrize(
    "program",
    [
        "os.execv(sys.executable, [sys.executable, '-c', 'print(1); exit(4)'])",
        "os.execvpe('sh', ['sh', '-c', 'echo 1; exit 4'], os.environ)",
        "pid = os.spawnlp(os.P_NOWAIT, 'true', 'true'); os.wait(); os.execlp('sh', 'sh', '-c', 'exit 4')",
    ],
)
def test_another_program_in_its_place_is_told_of(ranks: Ranks, program: str) -> None:
    script = ranks.write("prog.py", f"import os, sys\n{program}\n")
    plain, rank = ranks.plain(script), ranks.rank("script", script)
    assert (rank.code, rank.stdout, rank.stderr) == (plain.code, plain.stdout, plain.stderr)
    assert rank.code == 4
    assert [message.get("phase") for message in rank.messages] == [None, "replaced"]


def test_a_program_that_cannot_take_its_place_fails_as_ever(ranks: Ranks) -> None:
    script = ranks.write("prog.py", "import os\nos.execv('/nonexistent', ['x'])\n")
    plain, rank = ranks.plain(script), ranks.rank("script", script)
    assert (rank.code, rank.stdout, rank.stderr) == (plain.code, plain.stdout, plain.stderr)


def test_the_reported_traceback_is_the_printed_one(ranks: Ranks) -> None:
    script = ranks.write("prog.py", FAILURES["chained"].program)
    rank = ranks.rank("script", script)
    assert rank.failed is not None
    assert rank.failed["exception"]["traceback"] == rank.stderr
    assert rank.failed["exception"]["file"] == str(ranks.folder / "prog.py")
    assert rank.failed["exception"]["function"] == "<module>"


@pytest.mark.parametrize("where", ["strip", "record", "describe", "_printed", "get_source", "_send"])
def test_a_signal_handler_that_raises_meanwhile_takes_nothing_from_the_report(ranks: Ranks, where: str) -> None:
    program = f"""
    import os, signal, sys
    def handler(*_): raise RuntimeError("a worker has died")
    signal.signal(signal.SIGCHLD, handler)
    class Loader:  # asked for the source of a line when the traceback is printed
        def get_source(self, name): return "raise ConnectionResetError('gone')"
    def strike(frame, event, arg):
        if event == "call" and frame.f_code.co_name == "{where}":
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGCHLD)
    def hook(kind, error, trace): print(signal.getsignal(signal.SIGCHLD) is handler)
    sys.excepthook = hook
    sys.setprofile(strike)
    exec(compile("raise ConnectionResetError('gone')", "made.py", "exec"), dict(__name__="made", __loader__=Loader()))
    """
    rank = ranks.rank("script", ranks.write("prog.py", textwrap.dedent(program)))
    assert rank.failed is not None
    exception = rank.failed["exception"]
    assert (exception["type"], exception["message"]) == ("ConnectionResetError", "gone")
    assert "made.py" in exception["traceback"]
    assert rank.stdout == "True\n"


@pytest.mark.parametrize("where", ["strip", "__str__", "_send"])
@pytest.mark.parametrize("handler", ["SIG_DFL", "sys.exit(9)", "print('saved')", "SIG_IGN"])
def test_a_sigterm_meanwhile_takes_effect_after_the_report(ranks: Ranks, where: str, handler: str) -> None:
    program = f"""
    import os, signal, sys
    def handle(*_): {handler if "(" in handler else "pass"}
    signal.signal(signal.SIGTERM, {"handle" if "(" in handler else f"signal.{handler}"})
    class Lost(Exception):
        def __str__(self): return "gone"
    def strike(frame, event, arg):
        if event == "call" and frame.f_code.co_name == "{where}":
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGTERM)
    sys.setprofile(strike)
    raise Lost
    """
    rank = ranks.rank("script", ranks.write("prog.py", textwrap.dedent(program)))
    assert rank.failed is not None
    assert (rank.failed["code"], rank.failed["exception"]["message"]) == (1, "gone")
    assert rank.code == {"SIG_DFL": -signal.SIGTERM, "sys.exit(9)": 9}.get(handler, 1)
    assert rank.stdout == ("saved\n" if "print" in handler else "")


def test_the_error_file_is_in_torchs_form(ranks: Ranks) -> None:
    before = time.time()
    ranks.rank("script", ranks.write("prog.py", "raise ValueError('bad')\n"))
    written = json.loads((ranks.files / "error.json").read_text())["message"]
    assert written["message"] == "ValueError: bad"
    assert "raise ValueError('bad')" in written["extraInfo"]["py_callstack"]
    assert before - 1 <= int(written["extraInfo"]["timestamp"]) <= time.time()


def test_an_error_file_that_the_program_wrote_is_kept(ranks: Ranks) -> None:
    (ranks.files / "error.json").write_text("mine")
    ranks.rank("script", ranks.write("prog.py", "raise ValueError('bad')\n"))
    assert (ranks.files / "error.json").read_text() == "mine"


def test_a_long_traceback_is_cut_and_still_arrives(ranks: Ranks) -> None:
    script = ranks.write("prog.py", "raise ValueError('\\x01\\n' * 300000 + 'the end')\n")
    rank = ranks.rank("script", script)
    assert rank.failed is not None
    assert len(rank.failed["exception"]["message"].encode()) <= 8 * 1024
    assert rank.failed["exception"]["message"].endswith("the end")
    assert 1000 < len(rank.failed["exception"]["traceback"].encode()) <= 64 * 1024


def test_modules_of_the_program_do_not_run_in_place_of_pythons(ranks: Ranks) -> None:
    if ranks.warm:
        pytest.skip("beside such modules, ranks start cold")
    for name in ("json", "traceback", "runpy", "bootstrap", "failure", "program", "linecache", "re"):
        ranks.write(f"{name}.py", f"print('loaded {name}')\n")
    script = ranks.write("prog.py", "raise ValueError('bad')\n")
    rank = ranks.rank("script", script)
    assert rank.failed is not None
    assert rank.failed["exception"]["type"] == "ValueError"
    assert "loaded" not in rank.stdout


def test_a_module_named_like_one_of_ours_is_the_programs(ranks: Ranks) -> None:
    for name in ("bootstrap", "program", "failure", "rank"):
        ranks.write(f"{name}.py", "owner = 'user'\n")
    script = ranks.write("prog.py", "import bootstrap, program, failure, rank\nprint(failure.owner)\n")
    assert ranks.rank("script", script).stdout == "user\n"


# ------------------------------------------------------------------------------------ ways to start

PROPERTIES = """
    import __main__, atexit, json, os, sys, types
    import __future__
    def known(value):
        return value if isinstance(value, (str, int, type(None), list, dict)) else type(value).__name__
    def cached():
        return sorted((path, type(finder).__name__) for path, finder in sys.path_importer_cache.items())
    spec = __main__.__spec__
    seen = dict(
        names=list(globals())[:9], file=__file__, argv=sys.argv, path=sys.path, orig=sys.orig_argv,
        main={name: known(value) for name, value in vars(__main__).items() if name.startswith("__")},
        loader=(type(__loader__).__name__, getattr(__loader__, "name", None), getattr(__loader__, "path", None)),
        spec=spec and (spec.name, spec.origin, spec.parent, spec.cached), code=(lambda: 0).__code__.co_filename,
        same=globals() is vars(__main__) and sys.modules["__main__"] is __main__, flags=str(sys.flags),
        hook=sys.excepthook is sys.__excepthook__, builtins=type(__builtins__).__name__, cached=cached(),
        annotations=__annotations__, pid_title=sys.executable, inherits=(lambda: 0).__code__.co_flags,
        environ={name: value for name, value in os.environ.items()}, prefix=sys.prefix,
        modules=sorted(sys.modules), descriptors=sorted(map(int, os.listdir("/proc/self/fd"))),
    )
    print(json.dumps(seen))
    sys.stdout.flush()
    atexit.register(lambda: print("at exit", "__file__" in vars(__main__)))
"""
# Extension modules that the bootstrap loads before the program; none has side effects, all belong to Python.
LOADED_EARLIER = {"_json", "_socket", "_ctypes", "faulthandler", "_thread"}
STACKS_DESCRIPTOR = 1000


def _starts(ranks: Ranks) -> dict[str, tuple[str, list[str]]]:
    script = ranks.write("folder/prog.py", PROPERTIES)
    ranks.write("train", PROPERTIES)
    ranks.write("latin.py", "# -*- coding: latin-1 -*-\n" + textwrap.dedent(PROPERTIES))
    (ranks.folder / "bom.py").write_bytes(b"\xef\xbb\xbf" + textwrap.dedent(PROPERTIES).encode())
    (ranks.folder / "crlf.py").write_bytes(textwrap.dedent(PROPERTIES).replace("\n", "\r\n").encode())
    ranks.write("package/__init__.py", "")
    ranks.write("package/__main__.py", PROPERTIES)
    ranks.write("package/part.py", PROPERTIES)
    ranks.write("program_folder/__main__.py", PROPERTIES)
    with zipfile.ZipFile(ranks.folder / "program.zip", "w") as archive:
        archive.writestr("__main__.py", textwrap.dedent(PROPERTIES))
    (ranks.folder / "link.py").symlink_to("folder/prog.py")
    compiled = ["-c", "import py_compile; py_compile.compile('folder/prog.py', 'compiled.pyc', doraise=True)"]
    subprocess.run([sys.executable, *compiled], cwd=ranks.folder, check=True)
    (ranks.folder / "disguised").write_bytes((ranks.folder / "compiled.pyc").read_bytes())
    return {
        "relative path": ("script", [script, "--lr", "0.1", "-m"]),
        "dotted path": ("script", ["./folder/../folder/prog.py"]),
        "absolute path": ("script", [str(ranks.folder / script), "é", ""]),
        "no extension": ("script", ["train"]),
        "link": ("script", ["link.py", "x"]),
        "coding": ("script", ["latin.py"]),
        "byte order mark": ("script", ["bom.py"]),
        "line ends of Windows": ("script", ["crlf.py"]),
        "compiled": ("script", ["compiled.pyc", "x"]),
        "compiled without extension": ("script", ["disguised", "x"]),
        "folder": ("script", ["program_folder", "x"]),
        "folder with slash": ("script", ["./program_folder/", "x"]),
        "archive": ("script", ["program.zip", "x"]),
        "module": ("module", ["package.part", "--x", "-m"]),
        "package": ("module", ["package", "x"]),
    }


STARTS = [
    *("relative path", "dotted path", "absolute path", "no extension", "link", "coding", "byte order mark"),
    *("line ends of Windows", "compiled", "compiled without extension", "folder", "folder with slash", "archive"),
    *("module", "package"),
]


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("safe_path", ["", "1"])
def test_the_program_finds_what_plain_python_gives(ranks: Ranks, name: str, safe_path: str) -> None:
    mode, words = _starts(ranks)[name]
    plain = ranks.plain(*(["-m"] if mode == "module" else []), *words, PYTHONSAFEPATH=safe_path)
    rank = ranks.rank(mode, *words, PYTHONSAFEPATH=safe_path)

    assert (rank.code, rank.stderr) == (plain.code, plain.stderr)
    if plain.code:  # a module in the working folder, with PYTHONSAFEPATH
        return
    expected, seen = (json.loads(ended.stdout.splitlines()[0]) for ended in (plain, rank))
    added = set(seen.pop("modules")) - set(expected.pop("modules")) - LOADED_EARLIER - {"runpy"}
    of_python = {*sys.stdlib_module_names, "__mp_main__"} if ranks.warm else set()
    assert {name.partition(".")[0] for name in added} <= of_python
    descriptors = seen.pop("descriptors")
    assert [each for each in descriptors if each != STACKS_DESCRIPTOR] == expected.pop("descriptors")
    if ranks.warm:  # torch's folders are known, and the program's is not yet: modules of Python are there
        del seen["cached"], expected["cached"]
    assert seen == expected
    assert rank.stdout.splitlines()[1:] == plain.stdout.splitlines()[1:]


UNSTARTABLE: dict[str, tuple[str, list[str], int, str]] = {
    "missing file": ("script", ["nope.py"], 2, "FileNotFoundError"),
    "missing folder": ("script", ["nope/prog.py", "x"], 2, "FileNotFoundError"),
    "folder without __main__": ("script", ["empty"], 1, "SystemExit"),
    # CPython calls it a ValueError up to 3.11.3.
    "null byte": ("script", ["null.py"], 1, "SyntaxError" if sys.version_info >= (3, 11, 4) else "ValueError"),
    "not UTF-8": ("script", ["bytes.py"], 1, "SyntaxError"),
    "unknown coding": ("script", ["coding.py"], 1, "SyntaxError"),
    "bad .pyc": ("script", ["bad.pyc"], 1, "ImportError"),
    "missing module": ("module", ["no_such_module"], 1, "SystemExit"),
    "missing part": ("module", ["empty.nothing"], 1, "SystemExit"),
    "package without __main__": ("module", ["empty"], 1, "SystemExit"),
    "module with a syntax error": ("module", ["broken"], 1, "SyntaxError"),
    "module that raises": ("module", ["raising"], 1, "ValueError"),
}


@pytest.mark.parametrize("name", UNSTARTABLE)
def test_what_cannot_start_says_so_in_pythons_words(ranks: Ranks, name: str) -> None:
    mode, words, code, kind = UNSTARTABLE[name]
    ranks.write("empty/__init__.py", "")
    ranks.write("broken.py", "x = = 1\n")
    ranks.write("raising.py", "\nraise ValueError('m')\n")
    (ranks.folder / "null.py").write_bytes(b"x = 1\n\0\n")
    (ranks.folder / "bytes.py").write_bytes(b"x = 1\ny = '\xe9'\n")
    ranks.write("coding.py", "# coding: no-such\n")
    (ranks.folder / "bad.pyc").write_bytes(b"123456789012345678")

    plain = ranks.plain(*(["-m"] if mode == "module" else []), *words)
    rank = ranks.rank(mode, *words)

    assert (rank.code, rank.stdout, rank.stderr) == (plain.code, plain.stdout, plain.stderr)
    assert rank.failed is not None
    assert (rank.failed["code"], rank.failed["exception"]["type"]) == (code, kind)


@pytest.mark.parametrize("boot", [None, "", "{", "[]", "null", '{"socket": "/nowhere", "folder": "/nowhere"}', "7"])
def test_a_missing_or_broken_wish_list_is_no_error(ranks: Ranks, boot: str | None) -> None:
    script = ranks.write("prog.py", "import os\nprint('DDP_RUN_BOOT' in os.environ)\nraise SystemExit(4)\n")
    environment = ranks.environment(boot)
    done = subprocess.run(
        [sys.executable, "-u", str(RANK_PROGRAM), "script", script],
        cwd=ranks.folder,
        env=environment,
        capture_output=True,
        timeout=limit(120),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (4, b"False\n", b"")


def test_the_greeting(ranks: Ranks) -> None:
    before = time.monotonic_ns()
    rank = ranks.rank("script", ranks.write("prog.py", ""))
    hello = rank.messages[0]
    assert before < hello.pop("at") < time.monotonic_ns()
    assert hello == {
        "event": "started",
        "local_rank": 1,
        "world_size": 4,
        "local_world_size": 2,
        "group_rank": 0,
        "group_world_size": 0,
        "folder": "attempt_0/rank_3",
        "watched": 0,
        "links": [],
    }


def test_variables_are_put_back(ranks: Ranks) -> None:
    script = ranks.write("prog.py", "import os\nprint([os.environ.get(n) for n in ('A', 'B', 'NCCL_DEBUG_FILE')])\n")
    boot = ranks.boot(restore={"A": "users", "B": None}, nccl_debug_file="/x/nccl.log")
    assert ranks.rank("script", script, boot=boot, A="ours", B="ours").stdout == "['users', None, '/x/nccl.log']\n"
    chosen = ranks.rank("script", script, boot=boot, A="ours", B="ours", NCCL_DEBUG_FILE="mine")
    assert chosen.stdout == "['users', None, 'mine']\n"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE])
def test_stacks_of_a_fatal_signal_are_kept(ranks: Ranks, number: signal.Signals) -> None:
    program = f"import os\ndef crash():\n    os.kill(os.getpid(), {int(number)})\ncrash()\n"
    rank = ranks.rank("script", ranks.write("prog.py", program))
    assert (rank.code, rank.stderr) == (-number, "")
    assert 'prog.py", line 3 in crash' in (ranks.files / "stacks.txt").read_text()


def test_a_program_that_wants_stacks_on_stderr_gets_them(ranks: Ranks) -> None:
    program = "import faulthandler, os\nfaulthandler.enable()\nos.abort()\n"
    rank = ranks.rank("script", ranks.write("prog.py", program))
    assert rank.code == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in rank.stderr
    asked = ranks.rank("script", ranks.write("prog.py", "import os\nos.abort()\n"), PYTHONFAULTHANDLER="1")
    assert "Fatal Python error: Aborted" in asked.stderr


# ---------------------------------------------------------------------------------------- processes


def _gone(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], limit(60))[0])
    finally:
        os.close(descriptor)


def test_forked_children_end_with_their_rank(ranks: Ranks) -> None:
    program = """
        import os, sys, time
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        print(pid, flush=True)
        time.sleep(60)
    """
    with ranks.start("script", ranks.write("prog.py", program)) as rank:
        assert rank.stdout is not None
        child = int(rank.stdout.readline())
        rank.kill()
        rank.wait(limit(60))
        assert _gone(child)


def test_children_forked_by_a_thread_outlive_the_thread(ranks: Ranks) -> None:
    program = """
        import os, threading, time
        pids = []
        def fork():
            pid = os.fork()
            if pid == 0:
                time.sleep(0.6)
                os._exit(7)
            pids.append(pid)
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        print(os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]))
    """
    assert ranks.rank("script", ranks.write("prog.py", program)).stdout == "7\n"


def test_a_daemon_that_was_forked_twice_lives_on(ranks: Ranks) -> None:
    program = """
        import os, time
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(0.6)
                os.write(write, b"alive")
                os._exit(0)
            os._exit(0)
        os.wait()
        os.close(write)
        print(os.read(read, 9))
    """
    assert ranks.rank("script", ranks.write("prog.py", program)).stdout == "b'alive'\n"


def test_a_rank_ends_with_its_parent(ranks: Ranks) -> None:
    script = ranks.write("prog.py", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    starter = f"""
        import subprocess, sys
        subprocess.run([sys.executable, "-u", {str(RANK_PROGRAM)!r}, "script", {script!r}])
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(starter)],
        cwd=ranks.folder,
        env=ranks.environment(ranks.boot()),
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait(limit(60))
        assert _gone(pid)


def test_a_rank_whose_agent_has_ended_does_not_start(ranks: Ranks) -> None:
    if ranks.warm:
        pytest.skip("its server ends with the agent, and the rank with the server")
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait(limit(60))
    rank = ranks.rank("script", ranks.write("prog.py", "print('ran')\n"), boot=ranks.boot(agent=gone.pid))
    assert (rank.code, rank.stdout) == (-signal.SIGKILL, "")


# ----------------------------------------------------------------------------------------- --no-python


def test_a_program_that_is_not_python(ranks: Ranks) -> None:
    boot = ranks.boot(restore={"A": None}, nccl_debug_file="/x/nccl.log")
    words = ["bash", "-c", 'echo "$0 $1 [$A] $NCCL_DEBUG_FILE [$DDP_RUN_BOOT]"; exit 5', "zero", "o ne"]
    rank = ranks.rank("exec", *words, boot=boot, A="ours")
    assert (rank.code, rank.stdout, rank.stderr) == (5, "zero o ne [] /x/nccl.log []\n", "")
    assert [message["event"] for message in rank.messages] == ["started"]


def test_a_program_that_is_not_python_has_the_signals_it_is_used_to(ranks: Ranks) -> None:
    look = ["grep", "^Sig", "/proc/self/status"]
    expected = subprocess.run(look, capture_output=True, text=True, check=True, restore_signals=True).stdout
    assert ranks.rank("exec", *look).stdout == expected


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("no-such-program", 127, "ddp-run: no-such-program: command not found\n"),
        ("./nowhere/x", 127, "ddp-run: ./nowhere/x: command not found\n"),
        ("./plain.txt", 126, "ddp-run: ./plain.txt: cannot execute: Permission denied\n"),
    ],
)
def test_a_program_that_cannot_be_executed(ranks: Ranks, word: str, code: int, said: str) -> None:
    ranks.write("plain.txt", "text\n")
    rank = ranks.rank("exec", word, "x")
    assert (rank.code, rank.stderr) == (code, said)
    assert rank.failed is not None
    assert rank.failed["code"] == code


# ------------------------------------------------------------------------------------ other Pythons


def _other_pythons() -> list[str]:
    known = Path.home() / ".pyenv" / "versions"
    return sorted(str(each) for each in known.glob("3.*/bin/python") if int(each.parts[-3].split(".")[1]) >= 8)


@pytest.mark.parametrize("python", _other_pythons())
@pytest.mark.parametrize("name", ["exception", "chained", "exit 3", "interrupt", "syntax error", "hook that fails"])
def test_other_releases_of_python(ranks: Ranks, python: str, name: str) -> None:
    script = ranks.write("prog.py", FAILURES[name].program)
    plain = ranks.plain(script, python=python)
    rank = ranks.rank("script", script, python=python)
    assert (rank.code, rank.stdout, rank.stderr) == (plain.code, plain.stdout, plain.stderr)
    assert rank.failed is not None
    assert (rank.failed["exception"]["type"], rank.failed["code"]) == (FAILURES[name].kind, FAILURES[name].code)


def test_a_module_runs_where_python_knows_no_cached_name(tmp_path: Path) -> None:
    """Python 3.15 sets `__cached__` no more. `python -c` has none either."""
    (tmp_path / "job.py").write_text("print(__name__, '__cached__' in globals())")
    start = f"__file__ = {str(RANK_PROGRAM)!r}\nexec(compile(open(__file__).read(), __file__, 'exec'))"
    done = subprocess.run(
        [sys.executable, "-c", start, "module", "job"], cwd=tmp_path, capture_output=True, text=True,
        timeout=limit(60), check=False,
    )  # fmt: skip
    assert done.stdout.startswith("__main__ "), done.stderr
