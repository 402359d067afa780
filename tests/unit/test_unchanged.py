"""Tests that the gate leaves out where nothing has changed: whatever they import counts as what they exercise."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests import unchanged
from tests.unchanged import PACKAGE, SUBJECTS, TOP, digest, slow_if_unchanged
from tests.unit.test_layers import ALLOWED


@pytest.mark.parametrize("name", SUBJECTS)
def test_what_a_file_imports_is_among_its_subjects(name: str) -> None:
    named = {Path(each).name for each in SUBJECTS[name] if each.startswith(PACKAGE)}
    imported = set()
    for node in ast.walk(ast.parse((TOP / name).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ddp_run."):
            imported.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "ddp_run":
            imported |= {each.name for each in node.names}
    assert imported
    assert imported | {each for layer in imported for each in ALLOWED.get(layer, ())} <= named
    assert all((TOP / each).is_dir() for each in SUBJECTS[name])


def test_a_file_whose_subject_has_changed_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "tests/unit/test_console_lines.py"
    before = digest(name)
    monkeypatch.setattr(unchanged, "passed", lambda: {name: before})
    assert slow_if_unchanged(str(TOP / name)) == pytest.mark.slow_system
    monkeypatch.setattr(unchanged, "of_folder", str)
    assert digest(name) != before
    assert slow_if_unchanged(str(TOP / name)) == pytest.mark.changed


def test_every_source_of_a_folder_counts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("one")
    seen = {unchanged.of_folder.__wrapped__(tmp_path)}
    (tmp_path / "a" / "b.txt").write_text("two")
    seen.add(unchanged.of_folder.__wrapped__(tmp_path))
    (tmp_path / "a" / "b.txt").rename(tmp_path / "c.txt")
    seen.add(unchanged.of_folder.__wrapped__(tmp_path))
    (tmp_path / "a" / "d.txt").write_text("")
    seen.add(unchanged.of_folder.__wrapped__(tmp_path))
    assert len(seen) == 4
