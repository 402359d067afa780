"""Import failed.

## What happened
Python found no such module, no such name in the module, or a shared library it needs is missing.
## How to recognise it
`ModuleNotFoundError`, `ImportError`, or `OSError: libNAME.so…: cannot open shared object file`; usually on all ranks at
once, seconds after the start.
## What to do
Install the package into the Python that runs the ranks (the verdict's help names it), or start from the folder that
contains your module. For a missing library, install it or add its folder to `LD_LIBRARY_PATH`.
"""

from __future__ import annotations

import re

from ddp_run.evidence.exception_chain import raised_from
from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.package_text import missing_package
from ddp_run.judge.signs import Hit, Sign, in_exception, in_last_words, like, said_last
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP601",
    layer=Layer.REPORTED,
    retry=Retry(helps=False, reason="the module will still be missing"),
    unlike="loading",
)
FRAMES = re.compile(r"<frozen importlib\._bootstrap>|/importlib/__init__\.py import_module")
_LIBRARY = frozenset({"OSError", "RuntimeError", "NotFoundError"})
_OF_LIBRARIES = frozenset({"RuntimeError", "ValueError"})
_TRITONS = (
    like(r"failed to load '[^'\n]{1,200}' version \d+: Internal: ModuleNotFoundError: "),
    like(r"unable to load shared library: \S{1,400}\.so[\w.]{0,40}: cannot open shared object file"),
)
"""Triton's server cannot load a model's backend, in a line of its log."""
_RAISED: tuple[Sign, ...] = (
    Sign("ModuleNotFoundError", types=("ModuleNotFoundError",)),
    Sign("PackageNotFoundError", types=("PackageNotFoundError",)),
    Sign("ImportError", types=("ImportError",)),
    *(
        Sign(words, rf"(?<!\S)(?P<library>\S{{1,400}}\.so[\w.]{{0,40}}): {words}")
        for words in ("cannot open shared object file", "undefined symbol")
    ),
    like(r"\S{1,200}\.so\S{0,20} is not found or cannot be loaded"),
    like(r"Missing dependency: \S{1,100}\.so", _LIBRARY),  # bitsandbytes
    like(  # bitsandbytes went on without its library, which defines these names
        r"'NoneType' object has no attribute"
        r" 'c(?:(?:de)?quantize_|get_(?:col|managed|context)|adam|i?gemm|lion|percentile)\w*'",
        ("AttributeError",),
        likely=True,
    ),
    # libraries' messages for failed imports, in exceptions of other classes
    like(r"Failed to import \S{1,200} because of the following error(?![^\n]*\n\[Errno )", _LIBRARY),
    Sign("failed to import on the worker", types=_OF_LIBRARIES),
    Sign("Could not load libtorchcodec", types=_OF_LIBRARIES),
    like(r"import error message: {1,2}No module named '", _LIBRARY),
    Sign("library installed in your environment", types=_OF_LIBRARIES),
    Sign("RuntimeError: NIXL is not available", types=_OF_LIBRARIES, likely=True),
    Sign("cannot load MPI library", types=_OF_LIBRARIES, likely=True),
)
_NO_LIBRARY = (
    like(r"error while loading shared libraries: (?P<library>[^\s:]{1,400}): cannot open shared object file"),
)
SIGNS = (*_RAISED, *_NO_LIBRARY, *_TRITONS)
_CHECK = "python -m pip check   # are the installed versions compatible?"
_NAMED = re.compile(
    r"(?<!\S)(?P<library>\S{1,400}\.so[\w.]{0,40}): (?:cannot open shared object file|undefined symbol)"
)
_MODULE = re.compile(r"(?:No module named '|No package metadata was found for )(?P<module>[\w.]+)")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a failed import or dynamic library that ended the rank."""
    hit = said_last(death, _NO_LIBRARY)
    if hit is not None:
        cause = f"the program to start lacks a library: {hit['library']}"
        return hit.finding(RULE, death, cause, _advice(hit.text, hit.match))
    hit = in_exception(death, _RAISED) or (in_last_words(death, _TRITONS) if death.exception is None else None)
    if hit is None or not _ended_the_rank(death, hit):
        return _missing(death)
    message = hit.message
    cause = f"{death.who} cannot import: {message.partition(chr(10))[0]}{hit.where(death)}"
    return hit.finding(RULE, death, cause, _advice(message, _NAMED.search(message)))


def _missing(death: Death) -> Finding | None:
    """Match a library that noticed a missing package and raised its own exception."""
    hit = missing_package(death)
    if hit is None or hit.exception is None:
        return None
    said = hit.exception.message.partition("\n")[0][:160]
    cause = f"{death.who} needs a package that is not installed{hit.exception.where}: {said}"
    return hit.finding(RULE, death, cause, (_CHECK,), confidence="likely")


def _ended_the_rank(death: Death, hit: Hit) -> bool:
    """Whether it was not caught before a different failure; a later exception may repeat its words."""
    last, raised = death.exception, hit.exception
    if last is None or raised is None or raised is last:
        return True
    message = raised.message.partition("\n")[0].strip()
    return bool(message) and (message in last.message or raised_from(last, raised))


def _advice(message: str, library: re.Match[str] | None) -> tuple[str, ...]:
    if library is not None:
        return (f"ldconfig -p | grep {library['library']}   # is it installed, and on the linker's search path?",)
    missing = _MODULE.search(message)
    if missing is not None:
        package, _, part = missing["module"].partition(".")
        if part:
            return (f"python -c 'import {package}; print({package})'   # the project's folder, or a package?",)
        return (f"python -m pip show {package} || python -m pip install {package}",)
    return (_CHECK,)
