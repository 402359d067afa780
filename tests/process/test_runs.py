"""`ddp-run runs`, `logs`, `stop` and `clean` through the real command, over folders of runs that are over."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.loaded_process import COMMAND
from tests.unit.test_recorded_runs import ELSEWHERE, GONE, HERE, NOW, run_at
from tests.waiting import limit, wait_until

DDP_RUN = Path(sys.executable).with_name("ddp-run")
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "DDP_", "COLUMNS"))}


def run(cwd: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return COMMAND.run(DDP_RUN, *words, cwd=cwd, env=ENVIRON | variables)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three runs, the second failed, the last killed."""
    folder = tmp_path / "ddp-run-logs"
    run_at(folder, 1, started_ns=NOW + 1)
    run_at(folder, 2, started_ns=NOW + 2, outcome="failed", exit_code=7)
    last = run_at(folder, 3, started_ns=NOW + 3, outcome=None, process=GONE)
    (last / "attempt_0" / "rank_0" / "stdout.log").write_bytes(b"one\n\x1b[2Jtwo\x07\n50%\r100%\nunfinished")
    (last / "attempt_0" / "rank_0" / "stderr.log").write_bytes(b"\x1b[31mred\x1b[0m\n[rank0]: said\n")
    rank1 = last / "attempt_0" / "rank_1"
    rank1.mkdir()
    (rank1 / "stdout.log").write_text("other\n")
    (last / "attempt_0" / "agent.log").write_text("I am the agent\n")
    (folder / "latest").symlink_to(last.name)
    return folder


# ----------------------------------------------------------------------------------------------- runs


def test_runs_are_listed(tmp_path: Path, logs: Path) -> None:
    done = run(tmp_path, "runs")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [line[0][-1] + " " + line[2] + " " + line[3] for line in lines[1:]] == [
        "1 succeeded 0",
        "2 failed 7",
        "3 killed -",
    ]
    assert len(run(tmp_path, "runs", "-n", "2").stdout.splitlines()) == 3


def test_runs_as_json(tmp_path: Path, logs: Path) -> None:
    found = json.loads(run(tmp_path, "runs", "--json").stdout)
    assert [(each["state"], each["outcome"], each["exit_code"]) for each in found] == [
        ("succeeded", "succeeded", 0),
        ("failed", "failed", 7),
        ("killed", None, None),
    ]
    assert found[2]["folder"] == str(logs / "20261121-081500-0003")


def test_no_runs_yet(tmp_path: Path, logs: Path) -> None:
    """Those of launches elsewhere, whose working directory was not writable, are not listed, and not removed here."""
    logs.rename(tmp_path / f"ddp-run-logs-{os.getuid()}")
    (tmp_path / f"ddp-run-logs-{os.getuid()}").chmod(0o700)
    done = run(tmp_path, "runs", TMPDIR=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "ddp-run: no runs in ddp-run-logs\n")
    done = run(Path("/proc/self"), "runs", TMPDIR=str(tmp_path))
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4), "no folder can be made in /proc"
    assert run(tmp_path, "runs", "--json", TMPDIR=str(tmp_path)).stdout == "[]\n"
    done = run(tmp_path, "runs", "--log-dir", "no")
    assert (done.returncode, done.stderr) == (2, "error: cannot read no: No such file or directory\n")


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can give folders away")
def test_runs_of_others_are_counted(tmp_path: Path, logs: Path) -> None:
    for folder in logs.glob("2*"):
        folder.chmod(0o700)
        os.chown(folder, 4001, 4001)
    confined = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", str(DDP_RUN), "runs"]
    done = subprocess.run(confined, cwd=tmp_path, env=ENVIRON, capture_output=True, text=True, timeout=limit(60))
    said = "ddp-run: 3 runs of other users in ddp-run-logs cannot be read\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", said)


@pytest.mark.parametrize("where", ["variable", "pyproject", "preset"])
def test_runs_are_looked_for_where_a_launch_puts_them(tmp_path: Path, logs: Path, where: str) -> None:
    logs.rename(tmp_path / "elsewhere")
    (tmp_path / "pyproject.toml").write_text("[tool.ddp-run]\nlog-dir = 'elsewhere'\n" if where == "pyproject" else "")
    (tmp_path / "p.toml").write_text("log-dir = 'elsewhere'\n")
    variables = {"variable": {"PET_LOG_DIR": "elsewhere"}, "preset": {"DDP_RUN_CONFIG": "p.toml"}}.get(where, {})
    assert len(run(tmp_path, "runs", **variables).stdout.splitlines()) == 4


# ----------------------------------------------------------------------------------------------- logs


def test_logs_of_the_newest_run(tmp_path: Path, logs: Path) -> None:
    done = run(tmp_path, "logs")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "==> attempt_0/rank_0/stdout.log <==",
        "[rank0]: one",
        "[rank0]: two",
        "[rank0]: 100%",
        "[rank0]: unfinished",
        "==> attempt_0/rank_0/stderr.log <==",
        "[rank0]: red",
        "[rank0]: said",
        "==> attempt_0/rank_1/stdout.log <==",
        "[rank1]: other",
    ]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--rank", "1"], ["[rank1]: other"]),
        (["--rank", "1,3-9"], ["[rank1]: other"]),
        (["--rank", "0", "--stderr"], ["[rank0]: red", "[rank0]: said"]),
        (["--rank", "0", "--stdout", "-n", "2"], ["[rank0]: 100%", "[rank0]: unfinished"]),
        (["--agent"], ["I am the agent"]),
        (["--attempt", "0", "--rank", "1"], ["[rank1]: other"]),
        (["20261121-081500-0001"], ["[rank0]: one", "[rank0]: two", "[rank0]: three"]),
        (["ddp-run-logs/20261121-081500-0001", "-n1"], ["[rank0]: three"]),
    ],
    ids=" ".join,
)
def test_some_logs(tmp_path: Path, logs: Path, words: list[str], lines: list[str]) -> None:
    done = run(tmp_path, "logs", *words)
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, lines, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such-run"], "no-such-run is neither a run's folder nor the name of one in ddp-run-logs"),
        (["--rank", "7-5"], "'7-5' is not a rank or a range of ranks"),
        (["--rank", "x"], "'x' is not a rank or a range of ranks"),
        (["--rank", "0", "--agent"], "--agent replaces the ranks"),
        (["--attempt", "4"], ": it has no attempt 4, only 0"),
        (["--rank", "99"], ": it has logs of ranks 0-1"),
        (["-f", "--rank", "99"], ": it has logs of ranks 0-1"),
        (["--log-dir", "no"], "no runs in no"),
    ],
    ids=" ".join,
)
def test_what_logs_refuses(tmp_path: Path, logs: Path, words: list[str], says: str) -> None:
    done = run(tmp_path, "logs", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


@pytest.mark.parametrize("words", ["logs", "logs -f", "runs"])
def test_a_full_disk_is_told(tmp_path: Path, logs: Path, words: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [DDP_RUN, *words.split()], cwd=tmp_path, env=ENVIRON, stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=limit(60), check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2, f"ddp-run {words.split()[0]}: [Errno 28] No space left on device",
    )  # fmt: skip


@pytest.mark.parametrize("follow", [[], ["-f"]], ids=["past", "follow"])
def test_a_closed_pipe_is_silent(tmp_path: Path, logs: Path, follow: list[str]) -> None:
    log = logs / "latest" / "attempt_0" / "rank_0" / "stdout.log"
    log.write_bytes(b"a line of some length\n" * 500_000)
    line = f"{DDP_RUN} logs {' '.join(follow)} | head -n 2; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=ENVIRON, capture_output=True, text=True, timeout=limit(60)
    )
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_following_a_run_that_is_over_ends(tmp_path: Path, logs: Path) -> None:
    done = run(tmp_path, "logs", "-f", "--rank", "1")
    assert (done.returncode, done.stdout) == (0, "[rank1]: other\n")
    assert done.stderr == f"ddp-run: the run has ended without a verdict: {logs / '20261121-081500-0003'}\n"


def test_following_says_that_a_run_elsewhere_is_silent_and_goes_on(tmp_path: Path) -> None:
    """Its ddp-run may have been killed with its host, which cannot be seen from here."""
    folder = run_at(tmp_path / "ddp-run-logs", outcome=None, process=ELSEWHERE, host="node-b")
    last = time.time() - 7200
    for path in (folder / "events.jsonl", *folder.rglob("*.log")):
        os.utime(path, (last, last))
    out, told = tmp_path / "out", tmp_path / "told"
    with out.open("wb") as file, told.open("wb") as errors:
        process = subprocess.Popen([str(DDP_RUN), "logs", "-f"], cwd=tmp_path, env=ENVIRON, stdout=file, stderr=errors)
    wait_until(lambda: told.read_bytes().endswith(b"\n") and b"three" in out.read_bytes(), "the notice")
    with (folder / "attempt_0" / "rank_0" / "stdout.log").open("a") as log:
        log.write("four\n")
    wait_until(lambda: b"four" in out.read_bytes(), "what comes later")
    assert process.poll() is None
    (folder / "verdict.json").write_text("{}")
    assert process.wait(limit(60)) == 0
    (line,) = told.read_text().splitlines()
    assert line.startswith("ddp-run: nothing has been written for 2h00m; the run belongs to host node-b, and this host")


def test_following_is_broken_off_with_control_c(tmp_path: Path) -> None:
    run_at(tmp_path / "ddp-run-logs", outcome=None, process=HERE)
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [str(DDP_RUN), "logs", "-f"], cwd=tmp_path, env=ENVIRON, stdout=file, stderr=subprocess.PIPE
        )
    wait_until(lambda: b"three" in out.read_bytes(), "the first lines")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=limit(60))[1].strip() == b""
    assert process.returncode == 130


# ----------------------------------------------------------------------------------------------- stop

_STANDS_FOR_DDP_RUN = """
import signal, sys, time
got = []
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), lambda number, _frame: got.append(signal.Signals(number).name))
print("ready", flush=True)
while len(got) < len(sys.argv[1:]):
    time.sleep(0.01)
print(*got)
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Makes runs of which this process is the ddp-run."""
    started: list[subprocess.Popen[str]] = []

    def make(number: int, *words: str, user: int | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, user=user)
        started.append(process)
        began = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        assert HERE is not None
        known = replace(HERE, pid=process.pid, started=began)
        run_at(tmp_path / "ddp-run-logs", number, outcome=None, process=known)
        return process

    yield make
    for process in started:
        process.kill()
        process.wait()


def waits_for(*signals: str) -> tuple[str, ...]:
    """A program that ends when it has had these signals, and prints them in order."""
    return (sys.executable, "-c", _STANDS_FOR_DDP_RUN, *signals)


def ready(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """It takes signals now."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_stop_ends_the_one_that_runs(tmp_path: Path, logs: Path, running: Callable[..., subprocess.Popen[str]]) -> None:
    waits = ready(running(4, *waits_for("SIGINT", "SIGCONT")))
    done = run(tmp_path, "stop")
    assert (done.returncode, waits.communicate()[0]) == (0, "SIGINT SIGCONT\n")
    assert "stopping 20261121-081500-0004 (pid" in done.stderr
    killed = ready(running(5, *waits_for("SIGINT", "SIGINT")))
    assert run(tmp_path, "stop", "--kill", "20261121-081500-0005").returncode == 0
    assert killed.communicate()[0] == "SIGINT SIGINT\n"


def test_stop_ends_nothing_else(tmp_path: Path, logs: Path, running: Callable[..., subprocess.Popen[str]]) -> None:
    run_at(logs, 6, outcome=None, process=ELSEWHERE)
    first, second = running(4, "sleep", "600"), running(5, "sleep", "600")
    several = run(tmp_path, "stop")
    assert several.returncode == 2
    assert several.stderr.splitlines() == [
        "error: 2 runs are running: name one of them",
        "help: ddp-run stop 20261121-081500-0004   # t.py --lr 'a b'",
        "      ddp-run stop 20261121-081500-0005   # t.py --lr 'a b'",
    ]
    assert "error: no run of yours in no is running on this host" in run(tmp_path, "stop", "--log-dir", "no").stderr
    for number, why in (
        (1, "is not running: succeeded"),
        (3, "is not running: ddp-run was killed"),
        (6, "belongs to vm: this host cannot tell"),
    ):
        done = run(tmp_path, "stop", f"20261121-081500-000{number}")
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr
    assert [first.poll(), second.poll()] == [None, None]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_stop_leaves_another_users_run(tmp_path: Path, running: Callable[..., subprocess.Popen[str]]) -> None:
    another = running(4, "sleep", "600", user=65534)
    assert "no run of yours in ddp-run-logs is running" in run(tmp_path, "stop").stderr
    assert f"belongs to another user: kill -INT {another.pid}" in run(tmp_path, "stop", "20261121-081500-0004").stderr
    assert another.poll() is None


# ---------------------------------------------------------------------------------------------- clean


def names(logs: Path) -> list[str]:
    return sorted(each.name for each in logs.iterdir())


def test_clean_removes_what_it_says(tmp_path: Path, logs: Path) -> None:
    before = names(logs)
    dry = run(tmp_path, "clean", "--keep", "1", "--dry-run")
    assert (dry.returncode, names(logs)) == (0, before)
    done = run(tmp_path, "clean", "--keep", "1", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert names(logs) == ["20261121-081500-0003", "latest"]
    assert dry.stdout.replace("would remove", "removed") == done.stdout
    assert done.stdout.splitlines()[-1].startswith("removed 2 of 3 runs, ")
    run(tmp_path, "clean", "--keep", "0", "--yes")
    assert names(logs) == []
    done = run(tmp_path, "clean", "--keep", "0", "--yes")
    assert (done.returncode, done.stdout) == (0, "nothing to remove: 0 of 0 runs\n")


def test_clean_counts_jobs(tmp_path: Path) -> None:
    logs = tmp_path / "ddp-run-logs"
    for number in range(4):
        run_at(logs, number, started_ns=NOW + number // 2 * 3600 * 10**9, node=(number % 2, 2), host=f"h{number % 2}")
    done = run(tmp_path, "clean", "--keep", "1", "--yes")
    assert names(logs) == ["20261121-081500-0002", "20261121-081500-0003"]
    assert done.stdout.splitlines()[-1].startswith("removed 1 of 2 runs (2 of 4 folders), ")
    assert run(tmp_path, "clean", "--keep", "1", "--yes").stdout == "nothing to remove: 0 of 1 runs (0 of 2 folders)\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "say which runs: --keep N, --older AGE, or both"),
        (["--older", "soon"], "'soon' is not a duration (examples: 90m, 12h, 14d)"),
        (["--keep", "-1"], "--keep: must be a whole number of at least 0"),
        (["--keep", "0"], "cannot ask without a terminal: add --yes"),
        (["--keep", "0", "--yes", "--log-dir", "."], ". does not look like a folder of runs"),
        (["--keep", "0", "--yes", "--log-dir", "no"], "cannot read no"),
    ],
    ids=" ".join,
)
def test_what_clean_refuses(tmp_path: Path, logs: Path, words: list[str], says: str) -> None:
    done = run(tmp_path, "clean", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(names(logs)) == 4
