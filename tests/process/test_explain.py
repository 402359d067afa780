"""`ddp-run explain` and `ddp-run rules` through the real command, and `ddp_run.explain`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.loaded_process import COMMAND
from tests.made_run import made_run
from tests.waiting import limit

import ddp_run
from ddp_run.record import journal, own_process
from ddp_run.record.events import (
    AttemptStarted,
    Event,
    LocalRank,
    MonotonicNs,
    Rank,
    RankExited,
    RankStarted,
    RunStarted,
)

DDP_RUN = Path(sys.executable).parent / "ddp-run"
SAMPLES = Path(__file__).resolve().parents[1] / "rules" / "samples"
TRACEBACK = """Traceback (most recent call last):
  File "/home/user/train.py", line 12, in <module>
    train()
  File "/home/user/train.py", line 7, in train
    raise ValueError("bad sample")
ValueError: bad sample
"""


def run(*words: str, cwd: Path, text: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command, with its rules loaded already."""
    environ = {**os.environ, "NO_COLOR": "1", "TMPDIR": str(cwd), **variables}
    return COMMAND.run(DDP_RUN, *words, given=text, cwd=cwd, env=environ)


def test_standard_input(tmp_path: Path) -> None:
    words = [str(DDP_RUN), "explain"]
    environ = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(
        words, cwd=tmp_path, env=environ, input=TRACEBACK, capture_output=True, text=True, timeout=limit(120)
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == "error[DDP600]: a rank raised ValueError in train.py:7: bad sample"
    assert "  --> standard input:6" in lines
    assert lines[-1].startswith("ddp-run: verdict outcome=failed cause=python-exception code=DDP600 rank=- ")


def test_ranks_by_file_name(tmp_path: Path) -> None:
    for rank in range(3):
        text = TRACEBACK if rank == 2 else "RuntimeError: Connection closed by peer [127.0.0.1]:4242\n"
        (tmp_path / f"rank_{rank}.log").write_text(f"step {rank}\n{text}")
    done = run("explain", "--json", "--rank-from-filename", *(f"rank_{r}.log" for r in range(3)), cwd=tmp_path)
    verdict = json.loads(done.stdout)
    assert (verdict["cause"], verdict["first_failure"]["rank"]) == ("python-exception", 2)
    assert verdict["evidence"] == [{"source": "rank_2.log", "line": 7, "text": "ValueError: bad sample"}]
    assert {key: verdict[key] for key in ("schema", "run_id", "attempts", "phase", "folder")} == {
        "schema": 1,
        "run_id": None,
        "attempts": None,
        "phase": None,
        "folder": None,
    }


def test_a_folder_of_torchruns_logs(tmp_path: Path) -> None:
    for rank in range(2):
        folder = tmp_path / "logs" / "none_x1" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("step 1\n")
        (folder / "stderr.log").write_text(TRACEBACK if rank else "")
    verdict = json.loads(run("explain", "--json", "logs", cwd=tmp_path).stdout)
    assert (verdict["cause"], verdict["first_failure"]["rank"]) == ("python-exception", 1)


def test_a_log_without_a_failure(tmp_path: Path) -> None:
    done = run("explain", "-", cwd=tmp_path, text="step 1 loss 0.5\nstep 2 loss 0.4\n")
    assert done.stdout.splitlines()[0] == "note: no failure found in this log"
    assert json.loads(run("explain", "--json", "-", cwd=tmp_path, text="").stdout)["outcome"] is None


def test_the_exit_code_is_that_of_what_is_explained_only_if_asked_for(tmp_path: Path) -> None:
    _a_run(tmp_path / "run", 0, 1, failed=True, code=7)
    steps = "step 1 loss 0.5\nstep 2 loss 0.4\n"
    for words, text, code in (
        (("run",), None, 7),
        (("run", "--json"), None, 7),
        (("-",), TRACEBACK, 1),
        (("-",), steps, 0),
        (("gone.log",), None, 2),
    ):
        plain = run("explain", *words, cwd=tmp_path, text=text)
        done = run("explain", "--exit-code", *words, cwd=tmp_path, text=text)
        assert (plain.returncode, done.returncode) == (2 if code == 2 else 0, code), words
        assert done.stdout == plain.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gone.log",), "gone.log cannot be read: No such file or directory"),
        (("empty",), "empty contains neither a run's events.jsonl nor logs"),
        ((), "no runs in ddp-run-logs; name a run's folder or a log, or pipe a log in"),
        (("run", "a.log"), "run is a run's folder: explain it without other logs"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text("")
    done = run("explain", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def _a_run(folder: Path, rank: int, minute: int, *, failed: bool, nodes: int = 1, code: int = 1) -> None:
    """A run of one rank, as ddp-run leaves it; of two nodes the one that is called as its rank."""
    files = folder / "attempt_0" / f"rank_{rank}"
    files.mkdir(parents=True)
    text = TRACEBACK if failed else "RuntimeError: Connection closed by peer [127.0.0.1]:4242\n"
    (files / "stderr.log").write_text(text)
    (files / "stdout.log").touch()
    start = minute * 60 * 10**9
    at = MonotonicNs(10**9)
    events: list[Event] = [
        RunStarted(at, start, folder.name, f"h{rank}", rank, nodes, ("ddp-run", "t.py"), 0, "never", 30, 0, "0.1"),
        AttemptStarted(at, 0, ("python",), None),
        RankStarted(at, Rank(rank), LocalRank(0), 0, 1, nodes, 1, f"attempt_0/rank_{rank}"),
        RankExited(MonotonicNs(2 * 10**9), Rank(rank), 0, code),
    ]
    (folder / "events.jsonl").write_text(
        "".join(journal.encode(each, "2026-11-22T00:00:00Z") + "\n" for each in events)
    )


def test_the_newest_of_several_runs(tmp_path: Path) -> None:
    for minute, failed in ((1, False), (100, True), (50, False)):
        _a_run(tmp_path / "logs" / f"r{minute}", 0, minute, failed=failed)
    (tmp_path / "logs" / "latest").symlink_to("r1")
    done = run("explain", "logs", "--json", cwd=tmp_path)
    verdict = json.loads(done.stdout)
    assert (verdict["run_id"], verdict["cause"]) == ("r100", "python-exception")
    assert done.stderr == "ddp-run: r100: the newest of 3 runs in logs\n"
    again = run("explain", "logs/r100/events.jsonl", "--json", cwd=tmp_path)
    assert (again.stdout, again.stderr) == (done.stdout, "")


@pytest.mark.parametrize(
    "where", ["pyproject", *(pytest.param(each, marks=pytest.mark.slow_system) for each in ("variable", "preset"))]
)
def test_the_newest_run_is_looked_for_where_a_launch_puts_it(tmp_path: Path, where: str) -> None:
    """As `runs`, `logs`, `clean` and `bundle` do."""
    _a_run(tmp_path / "ddp-run-logs" / "20261121-081500-0001", 0, 1, failed=False)
    for minute in (2, 3):
        _a_run(tmp_path / "elsewhere" / f"20261121-081500-000{minute}", 0, minute, failed=minute == 3)
    (tmp_path / "pyproject.toml").write_text("[tool.ddp-run]\nlog-dir = 'elsewhere'\n" if where == "pyproject" else "")
    (tmp_path / "p.toml").write_text("log-dir = 'elsewhere'\n")
    variables = {"variable": {"PET_LOG_DIR": "elsewhere"}, "preset": {"DDP_RUN_CONFIG": "p.toml"}}.get(where, {})
    found = json.loads(run("explain", "--json", cwd=tmp_path, **variables).stdout)
    assert (found["run_id"], found["cause"]) == ("20261121-081500-0003", "python-exception")
    (tmp_path / "elsewhere" / "latest").symlink_to("20261121-081500-0002")
    found = json.loads(run("explain", "--json", cwd=tmp_path, **variables).stdout)
    assert found["run_id"] == "20261121-081500-0002"
    bundled = json.loads(run("bundle", "--json", cwd=tmp_path, **variables).stdout)
    assert json.loads(run("explain", "--json", found["run_id"], cwd=tmp_path, **variables).stdout) == found
    assert bundled["path"].endswith("ddp-run-bundle-20261121-081500-0003.tar.gz"), "the one that failed"


@pytest.mark.parametrize("words", [("logs",), ("logs/a", "logs/b"), ("logs/b/events.jsonl", "logs/a")], ids=str)
def test_the_nodes_of_a_job_are_explained_together(tmp_path: Path, words: tuple[str, ...]) -> None:
    _a_run(tmp_path / "logs" / "old", 0, 10, failed=False, nodes=2)
    _a_run(tmp_path / "logs" / "a", 0, 100, failed=False, nodes=2)
    _a_run(tmp_path / "logs" / "b", 1, 101, failed=True, nodes=2)
    verdict = json.loads(run("explain", "--json", *words, cwd=tmp_path).stdout)
    assert (verdict["cause"], verdict["first_failure"]["rank"]) == ("python-exception", 1)


def test_escape_codes_of_a_log_do_not_reach_the_terminal(tmp_path: Path) -> None:
    evil = TRACEBACK.replace("bad sample", "\x1b[2J\x1b]0;title\x07bad")
    done = run("explain", cwd=tmp_path, text=evil)
    assert "\x1b" not in done.stdout


def test_rules(tmp_path: Path) -> None:
    listed = run("rules", cwd=tmp_path)
    assert listed.returncode == 0
    assert any(line.split()[:2] == ["DDP401", "host-oom"] for line in listed.stdout.splitlines())
    by_name, by_code = run("rules", "host-oom", cwd=tmp_path), run("rules", "DDP401", cwd=tmp_path)
    assert by_name.stdout == by_code.stdout
    assert "\nWhat to do\n" in by_name.stdout
    names = [row["name"] for row in json.loads(run("rules", "--json", cwd=tmp_path).stdout)]
    assert "segfault" in names
    wrong = run("rules", "host-om", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "did you mean 'host-oom'?" in wrong.stderr


def test_rules_are_found_by_words_and_read_on_a_terminal(tmp_path: Path) -> None:
    def names(*words: str) -> set[str]:
        done = run("rules", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return {line.split()[1] for line in done.stdout.splitlines()}

    assert {"host-oom", "cuda-oom"} <= names("oom")
    assert "cuda-unavailable" in names("CUDA")
    assert "hang" not in names("oom")
    text = run("rules", "cuda-oom", cwd=tmp_path).stdout
    for mark in ("](", "#", "Supersedes"):
        assert mark not in text
    one = run("rules", "cublas_status_alloc_failed", cwd=tmp_path)
    assert one.stdout.startswith("GPU out of memory\n")
    found = "a search of pages found 'CUBLAS_STATUS_ALLOC_FAILED' in cuda-oom:"
    assert one.stderr == f"ddp-run: no cause is named 'cublas_status_alloc_failed'; {found}\n"
    several = run("rules", "oom", cwd=tmp_path).stderr
    assert several == "ddp-run: no cause is named 'oom'; a search of names and titles found 2 causes:\n"


def test_from_python() -> None:
    verdict = ddp_run.explain(TRACEBACK)
    assert (verdict.outcome, verdict.cause, verdict.exit_code) == ("failed", "python-exception", 1)
    assert ddp_run.explain("step 1\n").outcome is None


HOSTILE = "\x1b]0;title\x07\x1b[31mred\x9b2J\u202egnp.exe\u2066\u2028next\u200f"
UNSEEN = "\x1b\x07\x9b\u202e\u2066\u2028\u200f"


def test_nothing_of_a_log_moves_the_cursor(tmp_path: Path) -> None:
    text = TRACEBACK.replace("bad sample", f"bad {HOSTILE}").replace("train()", f"train() # {HOSTILE}")
    block = run("explain", cwd=tmp_path, text=text).stdout
    document = json.loads(run("explain", "--json", cwd=tmp_path, text=text).stdout)
    shown = block + "".join(texts_in(document))
    assert "\\u202egnp.exe" in block
    assert document["first_failure"]["exception"]["message"].startswith("bad red\\x9b2J\\u202egnp.exe")
    assert not [character for character in UNSEEN if character in shown]


def texts_in(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts_in(each)]
    if isinstance(value, list):
        return [text for each in value for text in texts_in(each)]
    return [value] if isinstance(value, str) else []


def test_nothing_of_a_files_name_moves_the_cursor(tmp_path: Path) -> None:
    name = f"no{HOSTILE.replace('/', '')}.log"
    missing = run("explain", name, cwd=tmp_path)
    assert missing.returncode == 2
    (tmp_path / name).write_text(TRACEBACK)
    there = run("explain", name, cwd=tmp_path)
    option = run("explain", f"--{HOSTILE}", cwd=tmp_path)
    assert not [c for c in UNSEEN if c in missing.stderr + there.stdout + there.stderr + option.stderr]


@pytest.mark.parametrize("environ", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_a_locale_that_knows_no_more_than_ascii(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "a.log").write_text(TRACEBACK.replace("bad sample", "плохой пример …"), encoding="utf-8")
    for words in (("explain", "a.log"), ("explain", "--json", "a.log"), ("rules", "cuda-oom")):
        done = subprocess.run(
            [str(DDP_RUN), *words], cwd=tmp_path, capture_output=True, timeout=limit(120), env={**os.environ, **environ}
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_many_logs_of_which_not_all_was_read_take_two_notes(tmp_path: Path) -> None:
    for rank in range(12):
        (tmp_path / f"rank_{rank}.log").write_text("step\n" * 10_000 + TRACEBACK)
    block = run("explain", ".", cwd=tmp_path).stdout
    assert "= note: 11 other logs were only read in part too" in block
    assert block.count("were not") == 1


def test_a_job_that_runs_has_not_failed(tmp_path: Path) -> None:
    """Until then its journal looks like one whose ddp-run was killed."""
    folder = made_run(tmp_path / "20261127-110000-0002", ranks=2, end="success")
    first, *others = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    for process in (own_process.this_process(), None):
        begun = json.loads(first) | {"process": None if process is None else asdict(process)}
        lines = [line for line in others if '"RankExited"' not in line and '"RunEnded"' not in line]
        (folder / "events.jsonl").write_text("".join([json.dumps(begun) + "\n", *lines[:20]]))
        said = run("explain", str(folder), cwd=tmp_path).stdout
        assert said.startswith("note: the job is still running, and no failure was seen\n") == (process is not None)
        assert ("still running" in run("report", str(folder), "-o", "-", cwd=tmp_path).stdout) == (process is not None)
