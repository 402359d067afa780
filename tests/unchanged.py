"""Dear tests, which feed whole texts or load torch: the gate runs them if what they exercise changed since they passed.

`SUBJECTS` names what each such file of tests exercises. `unchanged.passed` keeps a digest of that, made when the tests
passed. Where it is still the same, those marked by `slow_if_unchanged(__file__)` are `slow_system`; where not, they are
`changed`, and the gate runs them. Some of each file are not marked: they always run.

Run after a change, at the latest before it lands: python -m tests.unchanged
It runs the tests of the files whose digest is another, keeps those that passed, and does the same for patterns.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent
PACKAGE = "supervisor/ddp_run"
JUDGING = tuple(f"{PACKAGE}/{layer}" for layer in ("evidence", "judge", "record", "values"))
OPTIONS = tuple(f"{PACKAGE}/{layer}" for layer in ("plan", "settings", "values"))
SUBJECTS = {
    "tests/process/test_flight.py": (*JUDGING, f"{PACKAGE}/observe", f"{PACKAGE}/rank"),
    "tests/process/test_hooks.py": (*JUDGING, *OPTIONS, f"{PACKAGE}/observe", f"{PACKAGE}/rank"),
    "tests/rules/test_hostile_numbers.py": (*JUDGING, f"{PACKAGE}/observe", "tests/rules/samples"),
    "tests/rules/test_prefixes.py": (*JUDGING, "tests/rules/corpus"),
    "tests/unit/test_console.py": (*JUDGING, f"{PACKAGE}/observe", f"{PACKAGE}/tell"),
    "tests/unit/test_console_lines.py": (*JUDGING, f"{PACKAGE}/observe", f"{PACKAGE}/tell"),
    "tests/unit/test_hostile_logs.py": JUDGING,
    "tests/unit/test_options.py": OPTIONS,
    "tests/unit/test_options_parity.py": OPTIONS,
    "tests/unit/test_redaction.py": (f"{PACKAGE}/record", f"{PACKAGE}/values"),
    "tests/unit/test_scan.py": tuple(f"{PACKAGE}/{layer}" for layer in ("evidence", "record", "values")),
    "tests/unit/test_typed_fields.py": JUDGING,
}
"""Folders beside the file itself; `tests/unit/test_unchanged.py` sees to it that nothing they import is missing."""
PASSED = Path(__file__).with_suffix(".passed")


def sources(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


@cache
def of_folder(folder: Path) -> str:
    made = hashlib.sha256()
    for path in sources(folder):
        made.update(f"{path.relative_to(folder)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return made.hexdigest()


def digest(name: str) -> str:
    """Of a file of tests and of what it exercises."""
    parts = [hashlib.sha256((TOP / name).read_bytes()).hexdigest(), *(of_folder(TOP / each) for each in SUBJECTS[name])]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def passed() -> dict[str, str]:
    lines = PASSED.read_text().splitlines() if PASSED.exists() else []
    return dict(line.split() for line in lines)


def slow_if_unchanged(file: str) -> pytest.MarkDecorator:
    """The mark of the tests in `file` that the gate leaves out where nothing has changed since they passed."""
    name = Path(file).resolve().relative_to(TOP).as_posix()
    return pytest.mark.slow_system if passed().get(name) == digest(name) else pytest.mark.changed


def main() -> int:
    from tests import hostile_patterns

    kept, failed = {}, []
    for name in SUBJECTS:
        before = digest(name)
        if passed().get(name) != before:
            if subprocess.call([sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", name], cwd=TOP) != 0:
                failed.append(name)
                continue
            of_folder.cache_clear()
            if digest(name) != before:
                failed.append(f"{name} (changed meanwhile)")
                continue
        kept[name] = before
    PASSED.write_text("".join(f"{name} {each}\n" for name, each in sorted(kept.items())))
    print(f"{len(SUBJECTS)} files of tests, {len(failed)} failed", *failed, sep="\n")
    return max(bool(failed), hostile_patterns.main())


if __name__ == "__main__":
    sys.exit(main())
