"""One start serves many questions: programs run in forks of a process that has loaded what they load first.

For what a program says and does. Where its start, its launcher or its bootstrap is in question, or its streams before
it begins, it is started as users start it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.waiting import limit

# A child leaves the loop and ends as any program does: with its exit code, its handlers at exit, its traceback.
_SERVER = """
import gc, json, os, sys
exec(sys.argv[1])
gc.freeze()  # else each child goes through all objects when it ends: half a CPU second for those of torch
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
asked = json.loads(line)
os.chdir(asked["cwd"])
os.environ.clear()
os.environ.update(asked["env"])
for fd, path in enumerate(asked["streams"]):
    os.dup2(os.open(path, os.O_WRONLY if fd else os.O_RDONLY), fd)
sys.stdin = open(0)
sys.argv[:] = [asked["name"], *asked["words"]]
sys.path[0] = os.path.dirname(asked["name"])
exec(compile(asked["text"], asked["name"], "exec"), {"__name__": "__main__", "__file__": asked["name"]})
"""


class LoadedProcess:
    """Starts with its first question, and ends with who asks: then nobody has the other end of its standard input.

    `loads`: the statement that loads.
    """

    def __init__(self, loads: str) -> None:
        self._loads = loads
        self._process: subprocess.Popen[str] | None = None

    def run(
        self,
        program: str | Path,
        *words: str,
        given: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """The text or the file of a program, and how it ended; `given`: its standard input, /dev/null by default."""
        text, name = (program, "<string>") if isinstance(program, str) else (program.read_text(), str(program))
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder, each) for each in ("in", "out", "err")]
            for path, written in zip(streams, (given or "", "", ""), strict=True):
                path.write_text(written)
            if given is None:
                streams[0] = Path(os.devnull)
            asked = {"text": text, "name": name, "words": words, "streams": [str(each) for each in streams]}
            place = {"cwd": str(cwd or folder), "env": dict(env or os.environ)}
            code = self._ask(json.dumps(asked | place))
            return subprocess.CompletedProcess([name, *words], code, *(each.read_text() for each in streams[1:]))

    def _ask(self, line: str) -> int:
        process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        print(line, file=process.stdin, flush=True)
        if not select.select([process.stdout], [], [], limit(150))[0]:
            self.end()
            raise AssertionError("the program does not end")
        return int(process.stdout.readline())

    def _started(self) -> subprocess.Popen[str]:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, self._loads],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        return self._process

    def end(self) -> None:
        """With a program that still runs."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.communicate()
            self._process = None


_ALL_OF_IT = """
import importlib, pkgutil
import ddp_run, ddp_run.cli
for part in ("commands", "plan", "settings", "supervise", "tell"):
    package = importlib.import_module(f"ddp_run.{part}")
    for module in pkgutil.walk_packages(package.__path__, f"ddp_run.{part}."):
        importlib.import_module(module.name)
ddp_run.explain("")
"""

COMMAND = LoadedProcess(_ALL_OF_IT)
"""For `ddp-run` and its commands: modules and rules take longer to load than what is asked of them here."""
