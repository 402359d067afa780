"""Which module may import which: the layers of docs/architecture.md, read from the sources without importing them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "supervisor" / "ddp_run"

# From the ground up. A module imports from its own layer (without a circle) and from those below.
LAYERS: dict[str, tuple[str, ...]] = {
    "values": (
        "frozen",
        "events",
        "event_fields",
        "resources",
        "evidence_model",
        "verdict",
        "stop_signals",
        "problem",
        "exit_status",
        "secret_forms",
        "secret_names",
        "secret_urls",
        "redaction",
        "lines",
        "raw_lines",
        "option_values",
        "option_table",
        "help_text",
        "shell_slips",
        "other_launchers",
        "grammar",
        "config_file",
        "options",
        "option_checks",
        "option_sources",
        "likely_mistakes",
    ),
    "decisions": (
        "run",
        "plan",
        "retry",
        "backoff",
        "diagnose",
        "first_end",
        "signs",
        "advice",
        "progress",
        "close_look",
        "stall_watch",
        "lateness",
        "stack_text",
        "crash_text",
        "cut_log",
        "gpu_text",
        "nccl_text",
        "oom_text",
        "ras_text",
        "waiting",
        "spoken_text",
        "torn_line",
        "raised",
        "torn_frames",
        "transcript",
        "wrapped",
        "speakers",
        "launcher_text",
        "catalogue_text",
        "childfailed",
        "traceback_text",
        "quoted_traceback",
        "verdict_text",
        "torch_threads",
        "attempt_events",
        "kept_events",
        "rank_ends",
        "resource_evidence",
        "rules",
    ),
    "machine": (
        "terminal",
        "kernel_text",
        "private_files",
        "loop",
        "processes",
        "helper_process",
        "children",
        "addresses",
        "net",
        "memory",
        "gpus",
        "kernel_log",
        "aside",
        "space",
        "core_dump",
        "own_folders",
        "board_folder",
        "inbox",
        "journal",
        "runs_meant",
        "run_folder",
        "tail",
        "log_tail",
        "at_rest",
        "boards",
        "nccl_ras",
        "process_look",
        "waited_paths",
        "native_stack",
        "observer",
        "surroundings",
        "leftovers",
        "scan",
        "evidence",
        "console",
        "failed_lines",
        "output",
        "plan_file",
        "verdict_file",
        "script_check",
        "plug_ins",
        "preflight",
    ),
    "supervision": ("judging", "tell", "attempt", "supervise", "explanation"),
    "commands": ("commands", "cli"),
}
# Code that runs in other processes: nobody imports it, and it imports nothing of the layers.
ELSEWHERE = ("rank", "agent", "keeper", "gpu_probe", "training")
# Of these, what runs where torch is loaded anyway: torch's agent, and scripts that call `ddp_run.training`.
BESIDE_TORCH = ("agent", "training")

PURE = ("values", "decisions")
IMPURE_MODULES = frozenset(
    {"os", "socket", "subprocess", "time", "threading", "multiprocessing", "asyncio", "selectors", "select"}
    | {"ctypes", "fcntl", "shutil", "tempfile", "psutil", "structlog", "click", "torch"}
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec"})
OUTSIDE: dict[str, tuple[str, ...]] = {
    "click": ("commands",),
    "structlog": ("output",),
    "tenacity": ("backoff", "net"),
    "psutil": ("net",),
    "torch": ("agent.logs_specs", "training"),
    "hyperscan": ("scan",),
    "pynvml": ("gpu_probe",),
}
"""The modules that may import each of the libraries that are not Python's own."""


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name: path for path in sorted(PACKAGE.rglob("*.py")) if (name := _name(path))}


def _tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def _imports(module: str) -> Iterator[str]:
    """Full names of all that a module imports, late imports and those for types included."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are written out in full"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            for name in names:
                known = name.removeprefix("ddp_run.") in MODULES
                yield name if known else str(node.module)


def _ours(module: str) -> set[str]:
    """Modules of ddp-run that a module imports, without the package itself (for its version)."""
    prefix = "ddp_run."
    return {name.removeprefix(prefix) for name in _imports(module) if name.startswith(prefix)}


def _foreign(module: str) -> set[str]:
    """Top-level names of everything else that it imports."""
    return {name.partition(".")[0] for name in _imports(module)} - {"ddp_run", "__future__"}


def _layer(module: str) -> str | None:
    top = module.partition(".")[0]
    return next((layer for layer, members in LAYERS.items() if top in members), None)


def test_every_module_has_one_place() -> None:
    places = [name for members in LAYERS.values() for name in members] + list(ELSEWHERE)
    assert len(places) == len(set(places)), "a module stands in two layers"
    tops = {name.partition(".")[0] for name in MODULES}
    assert tops == set(places), f"without a layer: {tops - set(places)}; gone: {set(places) - tops}"


@pytest.mark.parametrize("module", [name for name in MODULES if _layer(name)])
def test_imports_go_down(module: str) -> None:
    order = list(LAYERS)
    layer = _layer(module)
    assert layer is not None
    for imported in _ours(module):
        found = _layer(imported)
        assert found is not None, f"{module} imports {imported}, which runs in another process"
        assert order.index(found) <= order.index(layer), f"{module} ({layer}) imports {imported} ({found})"


def test_no_circles() -> None:
    graph = {module: _ours(module) for module in MODULES}
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("module", [name for name in MODULES if _layer(name) in PURE])
def test_pure_modules_touch_nothing(module: str) -> None:
    assert not _foreign(module) & IMPURE_MODULES
    called = {
        node.func.id
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & IMPURE_CALLS


@pytest.mark.parametrize("module", [name for name in MODULES if name.partition(".")[0] in ELSEWHERE])
def test_what_runs_elsewhere_stands_alone(module: str) -> None:
    top = module.partition(".")[0]
    assert {name.partition(".")[0] for name in _ours(module)} <= {top}
    allowed = sys.stdlib_module_names | ({"torch"} if top in BESIDE_TORCH else set())
    allowed |= {library for library, users in OUTSIDE.items() if module in users}
    assert _foreign(module) <= allowed


@pytest.mark.parametrize("module", MODULES)
def test_libraries_stay_where_they_belong(module: str) -> None:
    for library in _foreign(module) - sys.stdlib_module_names:
        assert module in OUTSIDE.get(library, ()), f"{module} imports {library}"
