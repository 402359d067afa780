"""A module, a name or a shared library cannot be loaded.

## What happened
Python found no module of that name, the module has no such name, or a shared library that it needs is missing.
## How to recognise it
`ModuleNotFoundError`, `ImportError`, or `OSError: libNAME.so…: cannot open shared object file`; most often on all
ranks at once, seconds after the start.
## What to do
Install the package into the Python that runs the ranks (the verdict's advice names it), or start from the folder that
holds your own module. For a missing library, install it or put its folder into `LD_LIBRARY_PATH`.
"""

from __future__ import annotations

import re

from ddp_run.traceback_text import line_of
from ddp_run.verdict import Area, Death, Evidence, Finding, Retry, Rule

RULE = Rule(
    code="DDP601",
    name="import-error",
    title="A module, a name or a shared library cannot be loaded",
    area=Area.USER_CODE,
    retry=Retry(helps=False, reason="what is not installed now is not installed on the next attempt"),
    since="0.1",
)
_TYPES = frozenset({"ModuleNotFoundError", "ImportError"})
_LIBRARY = re.compile(r"(?P<library>\S+\.so[\w.]*): (?:cannot open shared object file|undefined symbol)")
_MODULE = re.compile(r"No module named '(?P<module>[\w.]+)'")


def match(death: Death, run: Evidence) -> Finding | None:
    """An import or a dynamic library that failed and ended the rank."""
    raised = death.exception
    if raised is None:
        return None
    library = _LIBRARY.search(raised.message) if raised.type in ("OSError", "RuntimeError") else None
    if raised.type.rpartition(".")[2] not in _TYPES and library is None:
        return None
    where = f" ({raised.file.rpartition('/')[2]}:{raised.line})" if raised.file else ""
    quote = line_of(death.stderr, raised)
    return Finding(
        RULE,
        death.rank,
        f"{death.who} cannot import: {raised.message.partition(chr(10))[0]}{where}",
        (quote,) if quote else (),
        _advice(raised.message, library),
        exception=raised,
    )


def _advice(message: str, library: re.Match[str] | None) -> tuple[str, ...]:
    if library is not None:
        return (
            f"ldconfig -p | grep {library['library']}   # is it installed, and in a folder that the linker searches?",
        )
    missing = _MODULE.search(message)
    if missing is not None:
        package = missing["module"].partition(".")[0]
        return (f"python -m pip show {package} || python -m pip install {package}",)
    return ("python -m pip check   # do the installed versions fit each other?",)
