"""Whether `--warm` suits the launch; if not, its ranks start as ever, and the reason is said once.

What shows only once torch is imported (threads, open devices) is found in `ddp_run.rank.warm`.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator

from ddp_run.plan.preflight import Answer, Check, Launch

READ_AT_IMPORT = (
    r"(?:OMP|GOMP|KMP|MKL|MKLDNN|DNNL|ONEDNN|OPENBLAS|GOTO|NPY|NUMPY|KINETO|PYTORCH|TORCH|TORCH(?:INDUCTOR|DYNAMO|EXPORT))"
    r"_(?!NCCL_)[A-Z0-9_]+"
)
"""Variables that torch and numpy read when they are imported (seen with a getenv(3) that writes down its names, torch
2.13). A program that sets one of them first would find it without effect."""
_NAMED = re.compile(rb"""["'](%s)["']""" % READ_AT_IMPORT.encode())
_MOST_BYTES = 1 << 20


def _check(launch: Launch) -> Answer:
    options = launch.options
    reason = next(_reasons(launch), None) if options.warm else None
    if reason is None:
        return Answer(options)
    said = f"ranks start without --warm: {reason}"
    return Answer(options.without(["warm"], reason, quietly=True), warnings=(said,))


def _reasons(launch: Launch) -> Iterator[str]:
    options, environ = launch.options, launch.environ
    given = {
        "--run-path": options.run_path,
        "--no-python": options.no_python,
        "--start-method": "start_method" in options.given,
        "--numa-binding": "numa_binding" in options.given,
        "PYTHON_EXEC": "PYTHON_EXEC" in environ,
    }
    yield from (f"{name} starts them in another way" for name, is_given in given.items() if is_given)
    if options.nproc_count is None and "OMP_NUM_THREADS" not in environ:
        yield f"torch sets OMP_NUM_THREADS once it has counted the devices for --nproc-per-node={options.nproc}"
    named = _named_variable(launch)
    if named:
        yield f"{options.script} names {named}, which torch reads when it is imported"


def _named_variable(launch: Launch) -> str | None:
    """A variable that the script's text names. Modules that it imports are not read."""
    if launch.options.module:
        return None
    path = launch.cwd / launch.options.script
    try:
        path = path / "__main__.py" if path.is_dir() else path
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES) if stat.S_ISREG(path.stat().st_mode) else b""
    except OSError:
        return None
    found = _NAMED.search(text)
    return found[1].decode() if found else None


CHECK = Check("--warm", _check, needed=True)
