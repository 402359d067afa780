"""Runs read from their folders, listed and removed: what is said of them, and that nothing else is touched."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ddp_run.commands.logs import shown
from ddp_run.commands.logs.shown import Silence
from ddp_run.record import journal, own_process, rank_logs, removal
from ddp_run.record.events import Event, LocalRank, MonotonicNs, OwnProcess, Rank, RankStarted, RunEnded, RunStarted
from ddp_run.record.recorded_runs import RecordedRun, by_job, recorded_run, recorded_runs, size_of
from ddp_run.record.runs_meant import run_named
from ddp_run.record.time_spent import Lost, RankSeconds, TimeSpent
from ddp_run.tell import runs_table
from ddp_run.values.problem import Refused
from ddp_run.values.words import duration_in_words

S = 10**9
DAY = 86_400 * S
NOW = 1_800_000_000 * S
HERE = own_process.this_process()
assert HERE is not None
GONE = replace(HERE, started=HERE.started + 1)
ELSEWHERE = replace(HERE, boot="another")


def run_at(
    log_dir: Path,
    number: int = 0,
    *,
    started_ns: int = NOW - DAY,
    outcome: str | None = "succeeded",
    process: OwnProcess | None = GONE,
    node: tuple[int, int] = (0, 1),
    host: str = "vm",
    seconds: int = 5,
    name: str | None = None,
    **verdict: Any,
) -> Path:
    """A run's folder as ddp-run leaves it."""
    run_id = f"20261121-081500-{number:04x}"
    folder = log_dir / (name or run_id)
    folder.mkdir(parents=True)
    at = MonotonicNs(7 * S)
    events: list[Event] = [
        RunStarted(at, started_ns, run_id, host, *node, ("ddp-run", "t.py"), 0, "by-cause", 30.0, 0, "1", process),
        RankStarted(at, Rank(0), LocalRank(0), 0, 9, 16, 8, "attempt_0/rank_0"),
    ]
    if outcome is not None:
        events.append(RunEnded(MonotonicNs(at + seconds * S), 0))
        answer = {"outcome": outcome, "exit_code": 0, "attempts": 1, "cause": None} | verdict
        (folder / "verdict.json").write_text(json.dumps(answer))
    (folder / "events.jsonl").write_text("".join(journal.encode(event, "-") + "\n" for event in events))
    (folder / "plan.json").write_text(json.dumps({"script": "t.py", "script_args": ["--lr", "a b"]}))
    logs = folder / "attempt_0" / "rank_0"
    logs.mkdir(parents=True)
    (logs / "stdout.log").write_text("one\ntwo\nthree\n")
    (logs / "stderr.log").write_text("")
    return folder


def read(folder: Path) -> RecordedRun:
    run = recorded_run(folder)
    assert run is not None
    return run


def row(folder: Path, now_ns: int = NOW) -> runs_table.Row:
    return runs_table.Row(read(folder), size_of(folder), now_ns)


# -------------------------------------------------------------------------------------------- reading


def test_a_run_in_a_few_words(tmp_path: Path) -> None:
    folder = run_at(tmp_path, outcome="failed", exit_code=7, cause="python-exception", attempts=2)
    run = read(folder)
    assert (run.outcome, run.exit_code, run.cause, run.attempts) == ("failed", 7, "python-exception", 2)
    assert (run.ranks, run.script, run.alive, run.is_ours) == (16, ("t.py", "--lr", "a b"), False, True)
    assert run.ended_ns == NOW - DAY + 5 * S
    assert read(folder).seconds(NOW) == 5.0


@pytest.mark.parametrize(
    ("process", "state", "seconds"),
    [(HERE, "running", 86_400.0), (GONE, "killed", 0.0), (ELSEWHERE, "unknown", 0.0), (None, "unknown", 0.0)],
    ids=["alive", "gone", "elsewhere", "older version"],
)
def test_a_run_without_a_verdict(tmp_path: Path, process: OwnProcess, state: str, seconds: float) -> None:
    found = read(run_at(tmp_path, outcome=None, process=process))
    assert (found.state, found.seconds(NOW)) == (state, seconds)


def test_a_process_is_known_by_more_than_its_number() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert HERE is not None
    stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    process = replace(HERE, pid=child.pid, started=int(stat[19]))
    assert own_process.still_runs(process) is True
    assert own_process.still_runs(replace(process, started=1)) is False
    child.communicate()
    assert own_process.still_runs(process) is False


def test_the_newest_is_last_and_what_is_no_run_is_left_out(tmp_path: Path) -> None:
    for number in (3, 1, 2):
        run_at(tmp_path, number, started_ns=NOW + number)
    (tmp_path / "latest").symlink_to("20261121-081500-0003")
    (tmp_path / "other").mkdir()
    (tmp_path / "file").touch()
    assert [run.folder.name[-1] for run in recorded_runs(tmp_path)] == ["1", "2", "3"]


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '{"outcome": 1}', "[" * 100_000, "\ud800"])
def test_any_verdict_and_plan_are_answered(tmp_path: Path, content: str) -> None:
    folder = run_at(tmp_path)
    for name in ("verdict.json", "plan.json"):
        (folder / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    assert (read(folder).outcome, read(folder).script) == (None, ())
    assert runs_table.table([row(folder)], width=None, local=str).count("\n") == 2


@pytest.mark.parametrize("content", ["", "\n\n", "x" * 200_000, '{"event": "RunEnded"}\n', "{}\n" * 50_000])
def test_any_journal_is_answered(tmp_path: Path, content: str) -> None:
    folder = run_at(tmp_path)
    (folder / "events.jsonl").write_text(content)
    run = read(folder)
    assert (run.started, run.alive, run.is_ours) == (None, None, False)
    assert runs_table.as_json(row(folder), journal.iso)["outcome"] == "succeeded"


@pytest.mark.parametrize("name", ["events.jsonl", "verdict.json", "plan.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = run_at(tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert (recorded_run(folder) is None) is (name == "events.jsonl")


def test_sizes_follow_no_links(tmp_path: Path) -> None:
    folder = run_at(tmp_path / "logs")
    before = size_of(folder)
    (tmp_path / "big").write_bytes(bytes(1 << 20))
    (folder / "link").symlink_to(tmp_path / "big")
    (folder / "around").symlink_to(tmp_path)
    assert size_of(folder) < before + (64 << 10)


def test_which_run_a_word_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "logs"
    one, two = run_at(logs, 1, started_ns=NOW), run_at(logs, 2, started_ns=NOW + 1)
    assert run_named(one.name, logs) == run_named(f"logs/{one.name}", Path("nowhere")) == one
    assert run_named(None, logs) == run_named("logs", Path("nowhere")) == two
    (logs / "latest").symlink_to(one.name)
    assert run_named(None, logs) == one
    for word in ("no", None):
        with pytest.raises(Refused):
            run_named(word, tmp_path / "empty")


# ------------------------------------------------------------------------------------------ the table


def test_the_table_of_a_pipe_has_all_columns_uncut(tmp_path: Path) -> None:
    spent = TimeSpent(2, RankSeconds(), Lost(75.0, 150.0, 1, None))
    run_at(tmp_path, 1, outcome="failed", cause="cuda-oom", exit_code=1, attempts=3, time=asdict(spent))
    run_at(tmp_path, 2, outcome=None, node=(1, 2))
    rows = [runs_table.Row(run, 2048, NOW) for run in recorded_runs(tmp_path)]
    lines = [line.split() for line in runs_table.table(rows, width=None, local=lambda _ns: "then").splitlines()]
    assert [" ".join(line) for line in lines] == [
        "RUN STARTED OUTCOME EXIT CAUSE TRIES TIME LOST RANKS NODE SIZE COMMAND",
        "20261121-081500-0001 then failed 1 cuda-oom 3 5.0s 1m15s 16 vm 2KiB t.py --lr 'a b'",
        "20261121-081500-0002 then killed - - 1 0.0s - 16 1/2:vm 2KiB t.py --lr 'a b'",
    ]


def test_a_terminal_shows_hosts_where_they_differ(tmp_path: Path) -> None:
    nodes = enumerate([(0, 1), (0, 1), (0, 2)])
    first, other, of_two = (row(run_at(tmp_path, number, node=node)) for number, node in nodes)
    assert first.run.started is not None
    elsewhere = replace(other, run=replace(other.run, started=replace(first.run.started, host="other")))

    def columns(*rows: runs_table.Row) -> list[str]:
        return runs_table.table(rows, width=200, local=lambda _ns: "then").splitlines()[0].split()

    assert "NODE" not in columns(first, other)
    assert "NODE" in columns(first, elsewhere)
    assert "NODE" in columns(of_two)


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_the_table_of_a_terminal_fits(tmp_path: Path, width: int) -> None:
    run_at(tmp_path, outcome="failed", cause="process-group-misuse", exit_code=1)
    lines = runs_table.table([row(p) for p in tmp_path.iterdir()], width=width, local=lambda _ns: "x" * 19).splitlines()
    assert all(len(line) <= max(width, 80) for line in lines)
    assert all(line.startswith(("RUN", "2026")) and ("COMMAND" in line or "t.py" in line) for line in lines)


def test_no_text_of_a_run_moves_the_cursor(tmp_path: Path) -> None:
    folder = run_at(tmp_path, outcome="\x1b[2J", cause="a\nb\x07", name="\x1b[31mred\n")
    (folder / "plan.json").write_text(json.dumps({"script": "\x1b]0;x\x07", "script_args": ["\n"]}))
    table = runs_table.table([row(folder)], width=None, local=str)
    assert table.count("\n") == 2
    assert table.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (59.4, "59s"), (59.6, "1m00s"), (3599.7, "1h00m"), (90_000, "1d01h")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration_in_words(seconds) == words


# ------------------------------------------------------------------------------------------- removing


def chosen(log_dir: Path, keep: int | None = None, older_ns: int | None = None, only_succeeded: bool = False) -> str:
    """The last digits of what would be removed."""
    runs = recorded_runs(log_dir)
    found = removal.removable(by_job(runs), keep=keep, older_ns=older_ns, only_succeeded=only_succeeded, now_ns=NOW)
    return "".join(run.folder.name[-1] for nodes in found for run in nodes)


def test_which_runs_are_removed(tmp_path: Path) -> None:
    for number in range(1, 6):
        outcome = "failed" if number == 2 else "succeeded"
        run_at(tmp_path, number, started_ns=NOW - (6 - number) * DAY, outcome=outcome)
    assert chosen(tmp_path, keep=2) == "123"
    assert chosen(tmp_path, keep=0) == "12345"
    assert chosen(tmp_path, keep=9) == ""
    assert chosen(tmp_path, older_ns=3 * DAY - 10 * S) == "123"
    assert chosen(tmp_path, keep=4, older_ns=3 * DAY) == "1"
    assert chosen(tmp_path, keep=2, only_succeeded=True) == "13"


def test_the_nodes_of_a_job_count_once_and_go_together(tmp_path: Path) -> None:
    for job in range(3):
        for node in range(2):
            number, start_ns = 2 * job + node + 1, NOW - (3 - job) * DAY + node * 5 * S
            run_at(tmp_path, number, started_ns=start_ns, node=(node, 2), host=f"node-{node}")
    assert chosen(tmp_path, keep=2) == "12"
    assert chosen(tmp_path, keep=1) == "1234"
    assert chosen(tmp_path, keep=3) == ""
    assert chosen(tmp_path, older_ns=2 * DAY - 7 * S) == "12", "as old as its last node"
    (tmp_path / "20261121-081500-0001" / "verdict.json").write_text('{"outcome": "failed"}')
    assert chosen(tmp_path, keep=1, only_succeeded=True) == "34"


def test_a_job_of_which_a_node_may_run_stays(tmp_path: Path) -> None:
    run_at(tmp_path, 1, process=GONE, outcome=None, node=(0, 2))
    run_at(tmp_path, 2, process=ELSEWHERE, outcome=None, node=(1, 2), host="node-1")
    for number in (1, 2):
        os.utime(tmp_path / f"20261121-081500-000{number}" / "events.jsonl", ns=(NOW - 9 * S, NOW - 9 * S))
    assert chosen(tmp_path, keep=0) == ""


@pytest.mark.parametrize(
    ("nodes", "jobs"),
    [
        pytest.param(["a0/2 0", "b1/2 10"], "12", id="two nodes"),
        pytest.param(["a0/1 0", "b0/1 0"], "1 2", id="two jobs of one node"),
        pytest.param(["a0/2 0", "b1/2 10", "a0/2 60", "b1/2 70"], "12 34", id="started again on the same hosts"),
        pytest.param(["a0/2 0", "b1/2 10", "c0/2 60", "d1/2 70"], "12 34", id="started again on others"),
        pytest.param(["a0/2 0 a", "c0/2 1 c", "d1/2 2 c", "b1/2 3 a"], "23 14", id="two jobs at once"),
        pytest.param(["a0/2 0", "c0/2 1", "d1/2 2", "b1/2 3"], "13 24", id="two at once, whose cannot be known"),
        pytest.param(["a0/2 0", "b1/2 1000"], "1 2", id="a quarter of an hour apart"),
        pytest.param(["a0/2 0", "b1/3 0"], "1 2", id="of another size"),
        pytest.param(["a0/3 0", "a1/3 0", "b2/3 9"], "123", id="two nodes on a host"),
        pytest.param(["a0/2 0", "b0/2 4"], "12", id="no numbers before the rendezvous"),
        pytest.param(["a0/2 0", "a0/2 60"], "1 2", id="node 0 twice, the others elsewhere"),
        pytest.param(["a0/4 0", "b0/4 1", "c0/4 2", "d0/4 3", "a0/4 60"], "1 2345", id="no numbers, one left of a job"),
    ],
)
def test_which_runs_are_one_job(tmp_path: Path, nodes: list[str], jobs: str) -> None:
    for number, words in enumerate(nodes, 1):
        who, seconds, *master = words.split()
        start_ns, node = NOW + int(seconds) * S, (int(who[1]), int(who[3]))
        folder = run_at(tmp_path, number, started_ns=start_ns, node=node, host=who[0])
        options = {"master_addr": {"value": master[0]}} if master else {}
        plan = {"script": "t.py", "script_args": [], "options": options}
        (folder / "plan.json").write_text(json.dumps(plan))
    found = by_job(recorded_runs(tmp_path))
    assert " ".join("".join(run.folder.name[-1] for run in job) for job in found) == jobs


def test_a_long_run_is_as_old_as_its_end(tmp_path: Path) -> None:
    run_at(tmp_path, started_ns=NOW - 20 * DAY, seconds=19 * 86_400)
    assert chosen(tmp_path, older_ns=14 * DAY) == ""


@pytest.mark.parametrize(
    ("process", "outcome", "age_ns", "removed"),
    [
        (HERE, None, 9 * DAY, False),
        (HERE, "succeeded", 9 * DAY, False),
        (GONE, None, S, True),
        (ELSEWHERE, None, S, False),
        (ELSEWHERE, None, 2 * DAY, True),
        (ELSEWHERE, "failed", S, True),
        (None, None, S, False),
    ],
)
def test_what_may_run_stays(
    tmp_path: Path, process: OwnProcess | None, outcome: str | None, age_ns: int, removed: bool
) -> None:
    folder = run_at(tmp_path, 1, process=process, outcome=outcome, started_ns=NOW - 9 * DAY)
    os.utime(folder / "events.jsonl", ns=(NOW - age_ns, NOW - age_ns))
    assert chosen(tmp_path, keep=0) == ("1" if removed else "")


def test_what_is_not_certainly_a_run_stays(tmp_path: Path) -> None:
    run_at(tmp_path, 1, name="the-good-one")
    run_at(tmp_path, 2, name="20261121-081500-0007")
    (tmp_path / "20261121-081500-0003").mkdir()
    (tmp_path / "20261121-081500-0003" / "events.jsonl").touch()
    run_at(tmp_path / "away", 4)
    (tmp_path / "20261121-081500-0004").symlink_to(tmp_path / "away" / "20261121-081500-0004")
    assert chosen(tmp_path, keep=0) == ""


def test_a_removal_follows_no_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    logs = tmp_path / "logs"
    folder = run_at(logs)
    (folder / "away").symlink_to(outside)
    (folder / "attempt_0" / "away").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    removal.remove(logs, read(folder))
    assert not folder.exists()
    assert (outside / "file").exists()


def test_a_folder_that_has_become_a_link_is_not_removed(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    folder = run_at(logs)
    run = read(folder)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        removal.remove(logs, run)
    assert (tmp_path / "elsewhere" / "events.jsonl").exists()


def test_latest_is_corrected(tmp_path: Path) -> None:
    folders = [run_at(tmp_path, number, started_ns=NOW + number) for number in (1, 2)]
    link = tmp_path / "latest"
    link.symlink_to(folders[1].name)
    runs = recorded_runs(tmp_path)
    removal.correct_latest(tmp_path, runs)
    assert os.readlink(link) == folders[1].name
    removal.remove(tmp_path, runs[1])
    removal.correct_latest(tmp_path, runs[:1])
    assert os.readlink(link) == folders[0].name
    removal.remove(tmp_path, runs[0])
    removal.correct_latest(tmp_path, [])
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------------------- logs


def test_logs_by_restart_and_rank(tmp_path: Path) -> None:
    folder = run_at(tmp_path)
    for place in ("rank_10", "rank_2", "restart_1/rank_0", "rank_x", "rank_3"):
        (folder / "attempt_0" / place).mkdir(parents=True)
    for place in ("rank_10", "rank_2", "restart_1/rank_0"):
        (folder / "attempt_0" / place / "stdout.log").touch()
    os.mkfifo(folder / "attempt_0" / "rank_3" / "stdout.log")
    (folder / "attempt_0" / "rank_4").symlink_to(folder / "attempt_0" / "rank_2")
    found = [(log.restart, log.rank, log.stream) for log in rank_logs.rank_logs(folder, 0)]
    assert found == [(0, 0, "stdout"), (0, 0, "stderr"), (0, 2, "stdout"), (0, 10, "stdout"), (1, 0, "stdout")]
    assert rank_logs.attempts(folder) == [0]
    assert rank_logs.rank_logs(folder, 1) == rank_logs.agent_logs(folder, 0) == []


@pytest.mark.parametrize(
    "text", [b"", b"a", b"a\n", b"a\nb", b"\n\n", b"a\nb\n", b"x" * 70_000 + b"\ny\n" + b"z" * 140_000]
)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_the_last_lines(text: bytes, count: int) -> None:
    expected = b"".join(text.splitlines(keepends=True)[-count:]) if count else b""
    assert text[shown._last_lines(io.BytesIO(text), count) :] == expected


def test_a_silence_is_told_once() -> None:
    watch = Silence()
    told = [(now, watch.to_tell_s(written * S, (written + age) * S, now)) for now, written, age in [
        (1000.0, 10, 60), (1100.0, 10, 160), (1149.0, 10, 209), (1150.0, 10, 210), (9000.0, 10, 9999),
        (9001.0, 20, 0), (9100.0, 20, 99), (9151.0, 20, 150),
    ]]  # fmt: skip
    assert [(now, silent) for now, silent in told if silent is not None] == [(1150.0, 150.0), (9151.0, 150.0)]


@pytest.mark.parametrize(("age_s", "silent_s"), [(-600, None), (0, None), (600, None), (7200, 7200.0)])
def test_a_date_of_another_hosts_clock_is_believed_only_where_it_is_old(age_s: int, silent_s: float | None) -> None:
    assert Silence().to_tell_s(NOW - age_s * S, NOW, 5.0) == silent_s


@pytest.mark.parametrize(
    ("host", "process", "of"),
    [
        (
            "node-b",
            ELSEWHERE,
            "; the run belongs to host node-b, and this host cannot tell whether it is still running; still ",
        ),
        ("here", None, "; the journal does not name the process that writes it, and this host cannot tell"),
        (
            "here",
            ELSEWHERE,
            "; the run belongs to another container or an earlier boot of here, and this host ",
        ),
        ("\x1b[2Jx", ELSEWHERE, "; the run belongs to host "),
    ],
)
def test_what_is_said_of_a_silence(tmp_path: Path, host: str, process: OwnProcess | None, of: str) -> None:
    line = shown.said(read(run_at(tmp_path, outcome=None, process=process, host=host)), 200.0, "here")
    assert line.startswith(f"ddp-run: nothing has been written for 3m20s{of}")
    assert line.isprintable()


def test_a_thousand_runs_are_listed_quickly(tmp_path: Path) -> None:
    """Not a limit for slow machines: reading whole journals would take minutes."""
    first = run_at(tmp_path)
    with (first / "events.jsonl").open("a") as file:
        file.write('{"event": "Noted", "at": 1, "text": "x"}\n' * 200_000)
    content = (first / "events.jsonl").stat().st_size
    for number in range(1, 300):
        folder = tmp_path / f"20261121-081500-{number:04x}"
        folder.mkdir()
        os.link(first / "events.jsonl", folder / "events.jsonl")
    began = time.process_time()
    assert len(recorded_runs(tmp_path)) == 300
    assert content > 1 << 22
    assert time.process_time() - began < 3
