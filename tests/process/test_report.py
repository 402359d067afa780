"""`ddp-run report` through the real command, and the page that a run leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.begun_run import begun_run
from tests.loaded_process import COMMAND
from tests.made_run import made_run
from tests.waiting import limit

from ddp_run.judge.verdict import Verdict
from ddp_run.supervise import last_page
from ddp_run.supervise.loop import Loop

DDP_RUN = Path(sys.executable).with_name("ddp-run")
FAILED, SUCCEEDED = Verdict("failed", 1, title="rank 1 raised OSError"), Verdict("succeeded", 0)


@pytest.mark.parametrize(
    ("words", "verdict", "made"),
    [
        ((), FAILED, True),
        ((), SUCCEEDED, False),
        (("--report=always",), SUCCEEDED, True),
        (("--report=off",), FAILED, False),
    ],
    ids=["failed", "succeeded", "always", "off"],
)
def test_which_runs_leave_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], verdict: Verdict, made: bool
) -> None:
    monkeypatch.setattr(last_page, "_DELAY_S", limit(60))
    with Loop([]) as loop, begun_run(tmp_path, loop, *words) as run:
        last_page.finish(run, last_page.begin(run), verdict, 1, "not retried: same code")
        names = {path.name for path in run.folder.path.iterdir()}
        assert names == {"events.jsonl", *(["report.html"] if made else [])}
        if made:
            assert (run.folder.path / "report.html").stat().st_mode & 0o777 == 0o600
            assert "</html>" in (run.folder.path / "report.html").read_text()


def test_a_page_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_page, "_DELAY_S", 0.0)
    with Loop([]) as loop, begun_run(tmp_path, loop) as run:
        (run.folder.path / "report.html.tmp").write_text("half of it")
        last_page.finish(run, last_page.begin(run), FAILED, 1, "not retried: same code")
        assert [path.name for path in run.folder.path.iterdir()] == ["events.jsonl"]


def test_a_page_that_cannot_be_written_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(last_page, "_DELAY_S", limit(60))
    with Loop([]) as loop, begun_run(tmp_path, loop) as run:
        (run.folder.path / "report.html").mkdir()
        last_page.finish(run, last_page.begin(run), FAILED, 1, "not retried: same code")
    assert capfd.readouterr() == ("", "")


def reported(*words: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = COMMAND.run(DDP_RUN, "report", *words, cwd=cwd)
    assert done.returncode == code, done.stderr
    return done


def test_a_run_by_name_and_by_folder(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "ddp-run-logs" / "20261127-110000-0002", ranks=2, end="failure")
    done = reported(cwd=tmp_path)
    assert done.stderr == f"ddp-run: wrote {folder}/report.html\n"
    page = (folder / "report.html").read_text()
    assert 'href="./attempt_0/rank_1/stderr.log"' in page
    reported(folder.name, "--output", "here.html", cwd=tmp_path)
    elsewhere = (tmp_path / "here.html").read_text()
    assert "href=" not in elsewhere
    assert elsewhere.count("<section") == page.count("<section")


def test_a_log_to_standard_output(tmp_path: Path) -> None:
    (tmp_path / "slurm.out").write_text("Traceback (most recent call last):\nValueError: bad <b>sample</b>\n")
    done = reported("slurm.out", "-o", "-", cwd=tmp_path)
    assert "ValueError" in done.stdout
    assert "<b>" not in done.stdout
    assert done.stdout.endswith("</html>\n")
    reported("slurm.out", cwd=tmp_path)
    assert (tmp_path / "report.html").exists()


def test_nodes_of_one_job(tmp_path: Path) -> None:
    nodes = [made_run(tmp_path / f"n{n}" / "r", ranks=2, end="failure", nodes=2, node=n) for n in range(2)]
    page = reported(*map(str, nodes), "-o", "-", cwd=tmp_path).stdout
    assert "node 0 (node0)" in page
    assert "node 1 (node1)" in page


def test_what_is_no_run(tmp_path: Path) -> None:
    assert "no runs in" in reported(cwd=tmp_path, code=2).stderr
    assert "cannot be read" in reported("nowhere.log", cwd=tmp_path, code=2).stderr


@pytest.mark.slow_system
def test_a_failed_job_leaves_its_page(tmp_path: Path) -> None:
    """On a busy host, too: there are twice as many busy processes as CPUs."""
    (tmp_path / "train.py").write_text("import time\ntime.sleep(0.5)\nraise SystemExit(3)\n")
    with ExitStack() as busy:
        for _each in range(2 * len(os.sched_getaffinity(0))):
            process = busy.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            busy.callback(process.kill)
        words = [str(DDP_RUN), "--nproc-per-node", "2", "train.py"]
        assert subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=limit(120)).returncode == 3
    folder = tmp_path / "ddp-run-logs" / "latest"
    names = {path.name for path in folder.iterdir()}
    assert names == {"attempt_0", "events.jsonl", "plan.json", "verdict.json", "report.html"}
    assert "</html>" in (folder / "report.html").read_text()
