"""Values are immutable for mypy: without that, `frozen` would be a plain dataclass."""

from __future__ import annotations

from pathlib import Path

from mypy import api

_PROGRAM = """
from ddp_run.record.events import AgentExited, MonotonicNs

event = AgentExited(MonotonicNs(1), 0)
event.code = 1
AgentExited(MonotonicNs(1), "0")
"""


def test_mypy_refuses_a_change(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    config = Path(__file__).resolve().parents[2] / "pyproject.toml"
    words = [f"--config-file={config}", f"--cache-dir={tmp_path}", str(tmp_path / "program.py")]
    said, _errors, _code = api.run(words)
    assert 'program.py:5: error: Property "code" defined in "AgentExited" is read-only' in said
    assert "program.py:6: error: Argument 2" in said
