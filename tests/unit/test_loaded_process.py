"""Programs in forks of a process that has loaded much: they end as under plain Python, and don't know each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.loaded_process import LoadedProcess

SHOWS = """
import atexit, os, sys
print(sys.argv[1:], sys.stdin.read(), os.environ["MINE"], os.getcwd(), "torch" in sys.modules)
atexit.register(print, "at exit")
exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("pass", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("raise ValueError('bad')", 1, "ValueError: bad\n"),
        ("os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_it_ends_as_under_plain_python(
    torch_process: LoadedProcess, tmp_path: Path, end: str, code: int, said: str
) -> None:
    answer = torch_process.run(SHOWS, end, given="text", cwd=tmp_path, env={"MINE": "mine"})
    assert answer.returncode == code
    assert answer.stderr.endswith(said) and bool(answer.stderr) == bool(said)
    if code >= 0:
        assert answer.stdout == f"{[end]} text mine {tmp_path} True\nat exit\n"


def test_a_file_is_the_program(torch_process: LoadedProcess, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("number = 4\n")
    (tmp_path / "prog.py").write_text("import beside, sys\nprint(__name__, __file__, sys.argv, beside.number)\n")
    answer = torch_process.run(tmp_path / "prog.py", "a b")
    assert answer.stdout == f"__main__ {tmp_path}/prog.py {[f'{tmp_path}/prog.py', 'a b']} 4\n", answer.stderr


def test_a_program_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.loaded_process.limit", lambda _seconds: 1.0)
    process = LoadedProcess("import json")
    with pytest.raises(AssertionError, match="does not end"):
        process.run("import time; open('there', 'w'); time.sleep(600)", cwd=tmp_path)
    assert process.run("print(open('there').read())", cwd=tmp_path).returncode == 0
    process.end()
