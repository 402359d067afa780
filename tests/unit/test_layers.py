"""Which folder may import from which: the way of the data, read from the sources without importing them."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "supervisor" / "ddp_run"

ALLOWED: dict[str, tuple[str, ...]] = {
    "values": (),
    "record": ("values",),
    "settings": ("values",),
    "plan": ("settings", "values"),
    "evidence": ("record", "values"),
    "observe": ("evidence", "record", "values"),
    "judge": ("evidence", "record", "values"),
    "tell": ("judge", "observe", "evidence", "record", "values"),
    "supervise": ("tell", "judge", "evidence", "observe", "record", "plan", "settings", "values"),
    "api": ("judge", "record", "values"),
    "doctor": ("api", "judge", "observe", "record", "plan", "settings", "values"),
    "commands": ("api", "doctor", "tell", "judge", "evidence", "observe", "record", "plan", "settings", "values"),
    "cli": ("commands", "settings", "plan", "supervise", "tell", "values"),
    "__main__": ("cli",),
    "called": ("cli", "values"),
    "__init__": ("api", "judge"),
}
"""For each folder the others that it may import from; the entries to the command and the package's own face are single
files."""
# Code that runs in other processes: nobody imports it, the board's layout apart, and it imports nothing of the folders.
ELSEWHERE = ("rank", "agent", "keeper", "gpu_probe", "doctor_ranks", "training", "selftest_ranks")
BOARD = "rank.board"
"""How a rank lays out its board, for those who read it."""
OF_THE_KEEPER = ("values.process_table", "values.helper_process")
"""What it is made of besides its own file, and so stands alone too."""
SHARED = {"training": {"rank.reducer"}, "rank": {"agent.warm"}}  # what one of these imports from another
# Of these, what runs where torch is loaded anyway: torch's agent, and what ranks run.
BESIDE_TORCH = ("agent", "doctor_ranks", "training", "selftest_ranks")

PURE = (
    *("settings", "judge", "evidence.pasted", "plan.launch_plan", "supervise.machine"),
    *("record.events", "record.attempt_events", "record.job_state"),
    *(
        "evidence.model",
        "evidence.rank_ends",
        "evidence.resources",
        "evidence.resource_evidence",
        "evidence.traceback_text",
    ),
    *("evidence.exception_chain", "evidence.childfailed", "evidence.crash_text", "evidence.went_on"),
    *("observe.stack_text", "observe.close_look", "observe.stall_watch", "observe.collectives", "observe.progress"),
    *("observe.ras_text", "observe.stall_quotes", "tell.verdict_text", "tell.catalogue_text", "tell.quotation"),
    *("tell.node_table", "tell.runs_table", "tell.held_lines", "tell.told", "tell.watch_frame", "tell.snapshot"),
    "record.time_spent",
    *("tell.page.timeline", "tell.page.page", "tell.page.drawing", "tell.page.failure_order"),
    *("values.signals", "values.problem", "values.secret_forms", "values.secret_names", "values.redaction"),
    "values.lines",
    *("values.typed_fields", "values.sealed", "supervise.nodes.messages"),
    *("values.node_fact", "api.options"),
    *("doctor.findings", "doctor.checks.gpu_links"),
    *("doctor.gpu_table", "doctor.checks.nodes", "doctor.checks.ranks", "doctor.reports"),
)
"""Folders and modules that do no I/O: functions over values."""
READS_FILES = ("judge.judging", "judge.replay")
"""What within a pure folder may ask others for I/O."""
IMPURE_MODULES = frozenset(
    {"os", "socket", "subprocess", "time", "threading", "multiprocessing", "asyncio", "selectors", "select"}
    | {"ctypes", "fcntl", "shutil", "tempfile", "psutil", "structlog", "click", "torch"}
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec"})
OUTSIDE: dict[str, tuple[str, ...]] = {
    "click": ("commands", "tell.wrong_words"),
    "structlog": ("tell.output",),
    "rich": ("commands.watch", "tell.watch_frame"),
    "jinja2": ("tell.page.rendering",),
    "markupsafe": ("tell.page.rendering",),
    "tenacity": ("supervise.job", "supervise.retries"),
    "psutil": ("plan.net",),
    "torch": (
        "agent",
        "doctor_ranks",
        "rank.warm",
        "selftest_ranks",
        "training.placement",
        "training.step_counts",
        "training.unused_parameters",
    ),
    "hyperscan": ("evidence.word_search",),
    "pynvml": ("gpu_probe",),
}
"""The modules and folders that may import each of the libraries that are not Python's own."""


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _folder(module: str) -> str:
    return module.partition(".")[0]


INSIDE = [name for name in MODULES if _folder(name) not in ELSEWHERE]


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def _imports(module: str) -> Iterator[str]:
    """Full names of all that a module imports, late imports and those for types included."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are written out in full"
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                known = name.removeprefix("ddp_run.") in MODULES
                yield name if known else str(node.module)


def _ours(module: str) -> set[str]:
    """Modules of ddp-run that a module imports, without the package itself (for its version)."""
    prefix = "ddp_run."
    return {name.removeprefix(prefix) for name in _imports(module) if name.startswith(prefix)}


def _foreign(module: str) -> set[str]:
    """Top-level names of everything else that it imports."""
    return {name.partition(".")[0] for name in _imports(module)} - {"ddp_run", "__future__"}


def _is_pure(module: str) -> bool:
    return module not in READS_FILES and any(module == name or module.startswith(f"{name}.") for name in PURE)


def test_every_module_lies_in_a_room() -> None:
    assert {_folder(name) for name in MODULES} == {*ALLOWED, *ELSEWHERE}


@pytest.mark.parametrize("module", INSIDE)
def test_folders_import_as_the_data_goes(module: str) -> None:
    mine = _folder(module)
    for imported in _ours(module):
        found = _folder(imported)
        reads_board = imported == BOARD and mine in ("observe", "supervise")
        assert found == mine or found in ALLOWED[mine] or reads_board, f"{module} imports {imported}"


def test_no_circles() -> None:
    assert list(TopologicalSorter({module: _ours(module) for module in MODULES}).static_order())
    folders = {folder: set(others) for folder, others in ALLOWED.items()}
    assert list(TopologicalSorter(folders).static_order())


def test_what_is_pure_is_there() -> None:
    assert {*PURE, *READS_FILES} <= set(MODULES)


@pytest.mark.parametrize("module", [name for name in INSIDE if _is_pure(name)])
def test_pure_modules_touch_nothing(module: str) -> None:
    assert not _foreign(module) & IMPURE_MODULES
    called = {
        node.func.id
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & IMPURE_CALLS


@pytest.mark.parametrize("module", [name for name in MODULES if _folder(name) in ELSEWHERE or name in OF_THE_KEEPER])
def test_what_runs_elsewhere_stands_alone(module: str) -> None:
    top = _folder(module)
    alone = module == "keeper" or module in OF_THE_KEEPER
    ours = _ours(module) - SHARED.get(top, set())
    assert ours <= {*OF_THE_KEEPER} if alone else {_folder(name) for name in ours} <= {top}
    allowed = sys.stdlib_module_names | ({"torch"} if top in BESIDE_TORCH else set())
    allowed |= {library for library, users in OUTSIDE.items() if {module, _folder(module)} & {*users}}
    assert _foreign(module) <= allowed


@pytest.mark.parametrize("module", MODULES)
def test_libraries_stay_where_they_belong(module: str) -> None:
    for library in _foreign(module) - sys.stdlib_module_names:
        assert {module, _folder(module)} & {*OUTSIDE.get(library, ())}, f"{module} imports {library}"
