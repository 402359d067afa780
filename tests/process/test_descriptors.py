"""ddp-run where whoever starts it has closed stdin, stdout or stderr."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain, combinations
from pathlib import Path

import pytest
from tests.waiting import limit

DDP_RUN = Path(sys.executable).with_name("ddp-run")
SOME = list(chain.from_iterable(combinations(range(3), count) for count in (1, 2, 3)))


@pytest.mark.parametrize(
    ("closed", "words", "code"),
    [
        *[(each, ["--version"], 0) for each in SOME],
        ((2,), ["no-such.py"], 2),
        ((0, 1, 2), ["no-such.py"], 2),
        ((0, 1, 2), ["rules"], 0),
    ],
    ids=str,
)
def test_short_answers(tmp_path: Path, closed: tuple[int, ...], words: list[str], code: int) -> None:
    closing = " ".join(f"{fd}>&-" for fd in closed)
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {closing}', str(DDP_RUN), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=limit(60),
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) == (code == 0 and 1 not in closed)
    assert bool(done.stderr) == (code != 0 and 2 not in closed)
