"""The failure boxes of torch's agent, printed by the real class where it is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.loaded_process import LoadedProcess

from ddp_run.evidence import childfailed

PRINT_BOX = """
import json, sys
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
error = json.dumps({"message": {"message": "ValueError: two\\nlines",
    "extraInfo": {"py_callstack": "Traceback (most recent call last):\\n"
        "  File \\"t.py\\", line 3, in f\\nValueError: two\\nlines", "timestamp": "1700000000"}}})
open(sys.argv[1], "w").write(error)
failures = {
    0: ProcessFailure(local_rank=0, pid=10, exitcode=1, error_file="/nonexistent"),
    5: ProcessFailure(local_rank=1, pid=11, exitcode=-9, error_file="/nonexistent"),
    6: ProcessFailure(local_rank=2, pid=12, exitcode=1, error_file=sys.argv[1]),
}
print(ChildFailedError("train.py", failures))
"""

OLD_BOX = """
***************************************
            train.py FAILED
=======================================
Root Cause:
[0]:
  time: 2021-07-12_10:10:50
  rank: 2 (local_rank: 0)
  exitcode: -11 (pid: 14)
  error_file: <N/A>
  msg: "Signal 11 (SIGSEGV) received by PID 14"
=======================================
Other Failures:
[1]:
  time: 2021-07-12_10:10:51
  rank: 3 (local_rank: 1)
  exitcode: 1 (pid: 15)
  error_file: <N/A>
  msg: "Process failed with exitcode 1"
***************************************
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, torch_process: LoadedProcess) -> str:
    """What the installed torch prints for three failures: a code, a signal, a recorded traceback."""
    answer = torch_process.run(PRINT_BOX, str(tmp_path_factory.mktemp("box") / "error.json"))
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_reads_what_the_installed_torch_prints(box: str) -> None:
    entries = {int(entry.rank): entry for entry in childfailed.parse(box)}
    assert {rank: (e.local_rank, e.code, e.pid) for rank, e in entries.items()} == {
        0: (0, 1, 10),
        5: (1, -9, 11),
        6: (2, 1, 12),
    }
    assert [rank for rank, entry in entries.items() if entry.root] == [6]
    assert entries[5].message == "Signal 9 (SIGKILL) received by PID 11"
    assert entries[6].message.startswith("Traceback (most recent call last):")
    assert entries[6].message.endswith("ValueError: two\nlines")
    assert entries[0].host
    assert entries[0].time


def test_reads_it_behind_a_prefix_and_between_other_lines(box: str) -> None:
    mixed = "\n".join(f"[node-a] {line}\n[node-b] step 7: loss 0.1" for line in box.splitlines())
    assert [(e.rank, e.code, e.root) for e in childfailed.parse(mixed)] == [
        (e.rank, e.code, e.root) for e in childfailed.parse(box)
    ]


@pytest.mark.parametrize("lines", range(1, 30))
def test_a_box_that_is_cut_off_gives_what_it_shows(box: str, lines: int) -> None:
    whole = {(e.rank, e.root) for e in childfailed.parse(box)}
    cut = childfailed.parse("\n".join(box.splitlines()[:lines]))
    assert {(e.rank, e.root) for e in cut} <= whole
    shown = sum("(local_rank: " in line for line in box.splitlines()[:lines])
    assert len(cut) == shown


def test_reads_the_form_of_torch_1_9() -> None:
    entries = childfailed.parse(OLD_BOX)
    assert [(e.rank, e.local_rank, e.code, e.pid, e.root) for e in entries] == [
        (2, 0, -11, 14, True),
        (3, 1, 1, 15, False),
    ]
    assert entries[0].message == "Signal 11 (SIGSEGV) received by PID 14"


def test_reads_the_log_line_where_the_box_is_missing() -> None:
    line = (
        "E1121 08:27:06.037 31327 api.py:869] failed (exitcode: -15) local_rank: 1 (pid: 31373) of binary: /bin/python"
    )
    assert [(e.rank, e.code, e.pid) for e in childfailed.observed(line)] == [(1, -15, 31373)]


def test_takes_nothing_from_text_without_a_box() -> None:
    text = Path(__file__).read_text().replace("Root Cause:", "").replace("Failures:", "")
    assert childfailed.parse(text) == ()


def test_the_signal_that_the_agent_got() -> None:
    assert childfailed.stop_signal("WARNING: Received Signals.SIGINT death signal, shutting down workers") == 2
    assert childfailed.stop_signal("W1121 … Received 15 death signal, shutting down workers") == 15
    assert childfailed.stop_signal("…SignalException: Process 4711 got signal: 1") == 1
    assert childfailed.stop_signal("Sending process 4711 closing signal SIGTERM") is None
