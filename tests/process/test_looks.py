"""`ddp-run watch` and `stacks` through the real command, at runs that are over, elsewhere, hostile or another user's.

At real jobs: tests/system/test_look_at_a_run.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.loaded_process import COMMAND
from tests.unit.test_recorded_runs import ELSEWHERE, GONE, HERE, NOW, run_at
from tests.waiting import limit

from ddp_run.observe.from_outside import boards_of
from ddp_run.rank.board import open_page
from ddp_run.record import journal
from ddp_run.record.events import (
    Event,
    LocalRank,
    MonotonicNs,
    OwnProcess,
    ProgressSampled,
    Rank,
    RankStarted,
    StallEnded,
    StallSeen,
)
from ddp_run.record.recorded_runs import recorded_run
from ddp_run.record.runs_meant import run_to_look_at

DDP_RUN = Path(sys.executable).with_name("ddp-run")
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "DDP_", "COLUMNS"))}
S = 1_000_000_000


def run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return COMMAND.run(DDP_RUN, *words, cwd=cwd, env=ENVIRON)


def add(folder: Path, *events: Event) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(journal.encode(event, "-") + "\n" for event in events)


def sampled(at_s: int, steps: Sequence[int]) -> ProgressSampled:
    ranks = tuple(map(Rank, range(len(steps))))
    return ProgressSampled(MonotonicNs(at_s * S), ranks, ("training",) * len(steps), tuple(steps), tuple(steps))


def test_a_run_of_another_host_is_seen_by_its_files(tmp_path: Path) -> None:
    folder = run_at(tmp_path / "ddp-run-logs", outcome=None, process=ELSEWHERE)
    other = RankStarted(MonotonicNs(8 * S), Rank(1), LocalRank(1), 0, 10, 16, 8, "attempt_0/rank_1", watched=True)
    add(folder, other, sampled(60, (10, 10)), sampled(120, (130, 100)))
    done = run(tmp_path, "watch", "--once", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert (shown["state"], shown["world_size"], shown["verdict"]) == ("unknown", 16, None)
    assert "runs, or ran, on vm" in shown["note"]
    ranks = [(each["step"], each["steps_per_s"], each["behind"], each["line"]) for each in shown["ranks"]]
    assert ranks == [(130, 2.0, 0, "three"), (100, 1.5, 30, "")]
    assert shown["slowest"] == {"rank": 1, "why": "30 steps behind"}
    (folder / "attempt_0/rank_0/stdout.log").write_text("50%|# | 5/10 [00:05<00:05, 1.0it/s]")
    add(folder, StallSeen(MonotonicNs(130 * S), "hang", True, "rank 0 sleeps", (Rank(0),), (), MonotonicNs(S), ("q",)))
    shown = json.loads(run(tmp_path, "watch", "--once", "--json").stdout)
    assert shown["slowest"] == {"rank": 0, "why": "others wait for it"}
    assert shown["progress"] == {"done": 5, "total": 10, "eta_s": None}
    assert shown["told"][-1]["line"] == "no progress: rank 0 sleeps"
    add(folder, StallEnded(MonotonicNs(140 * S), 9.0))
    shown = json.loads(run(tmp_path, "watch", "--once", "--json").stdout)
    assert (shown["slowest"]["rank"], shown["progress"]["eta_s"]) == (1, 5.0)
    done = run(tmp_path, "stacks")
    assert done.returncode == 2
    assert "belongs to vm: this host cannot tell" in done.stderr
    assert "(run ddp-run stacks there)" in done.stderr
    assert "no stacks of it were recorded" in done.stderr


def test_nodes_of_one_job_are_one_table(tmp_path: Path) -> None:
    """Their folders are beside each other, as on a shared file system."""
    logs = tmp_path / "ddp-run-logs"
    first = run_at(logs, 1, outcome=None, process=ELSEWHERE, node=(0, 2), host="n0")
    second = run_at(logs, 2, outcome=None, process=ELSEWHERE, node=(1, 2), host="n1")
    run_at(logs, 3, outcome=None, process=ELSEWHERE, host="n2")
    other = RankStarted(MonotonicNs(8 * S), Rank(1), LocalRank(0), 0, 10, 16, 8, "attempt_0/rank_1", watched=True)
    add(first, sampled(60, (10,)), sampled(120, (130,)))
    events = second / "events.jsonl"
    events.write_text("".join(line for line in events.open() if "RankStarted" not in line))
    for at_s, steps in ((60, 10), (120, 70)):
        at = ProgressSampled(MonotonicNs(at_s * S), (Rank(1),), ("training",), (steps,), (steps,))
        add(second, *([other] if at_s == 60 else []), at)
    shown = json.loads(run(tmp_path, "watch", "--once", "--json", first.name).stdout)
    assert (shown["run"], shown["host"], shown["steps_per_s"]) == (first.name, "n0, n1", 1.0)
    assert [(each["rank"], each["step"], each["behind"]) for each in shown["ranks"]] == [(0, 130, 0), (1, 70, 60)]
    assert shown["slowest"] == {"rank": 1, "why": "60 steps behind"}


def test_the_newest_that_runs_comes_before_the_newest(tmp_path: Path) -> None:
    logs = tmp_path / "ddp-run-logs"
    over, runs = run_at(logs, 2, started_ns=NOW), run_at(logs, 1, started_ns=NOW - S, outcome=None, process=HERE)
    assert run_to_look_at(None, logs).folder == runs
    assert run_to_look_at(over.name, logs).folder == over
    done = run(tmp_path, "watch", "--once", over.name)
    assert (done.returncode, done.stdout.split(": ")[1][:9]) == (0, "succeeded")
    none = run(tmp_path, "watch", "--log-dir", "nothing")
    assert (none.returncode, "no runs in nothing" in none.stderr) == (2, True)


def test_a_run_whose_ddp_run_was_killed_has_no_exit_code(tmp_path: Path) -> None:
    run_at(tmp_path / "ddp-run-logs", outcome=None, process=GONE)
    done = run(tmp_path, "watch", "--json")
    assert done.returncode == 1
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["state"], last["exit_code"]) == ("killed", None)


def test_recorded_stacks_of_ranks_in_one_place_are_one(tmp_path: Path) -> None:
    folder = run_at(tmp_path / "ddp-run-logs")
    for rank in range(1, 4):
        where = f"attempt_0/rank_{rank}"
        add(folder, RankStarted(MonotonicNs(S), Rank(rank), LocalRank(rank), 0, 10 + rank, 16, 8, where))
        (folder / where).mkdir()
    for rank in range(4):
        place = "evaluate\x1b[2J" if rank == 2 else "train"
        frames = f'  File "/home/me/t.py", line 7 in {place}\n  File "/home/me/t.py", line 9 in <module>\n'
        dump = f"Current thread 0x0001 (most recent call first):\n{frames}"
        (folder / f"attempt_0/rank_{rank}/live_stacks.txt").write_text("Thread 0x" + dump * 2)
    done = run(tmp_path, "stacks")
    assert done.returncode == 0
    assert "is not running: succeeded" in done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith(" ")] == [
        "rank 2 is running at t.py:7 in evaluate",
        "",
        "ranks 0-1,3 are running at t.py:7 in train",
    ]
    found = json.loads(run(tmp_path, "stacks", "--json").stdout)
    assert (found["running"], [group["ranks"] for group in found["groups"]]) == (False, [[2], [0, 1, 3]])
    assert found["groups"][0]["frames"][0] == {"file": "/home/me/t.py", "line": 7, "function": "evaluate"}


def test_a_hostile_folder_is_only_read(tmp_path: Path) -> None:
    folder = run_at(tmp_path / "ddp-run-logs", outcome=None, process=ELSEWHERE)
    logs = folder / "attempt_0" / "rank_0"
    (logs / "stdout.log").unlink()
    os.mkfifo(logs / "stdout.log")
    (logs / "stderr.log").write_bytes(b"x" * 20_000 + b"\xff\xfe\x1b]0;title\x07 50%\r \x1b[2J60%\r\n\n")
    shown = json.loads(run(tmp_path, "watch", "--once", "--json").stdout)
    assert shown["ranks"][0]["line"] == "60%"


def test_boards_are_read_only_in_folders_that_this_user_made_for_itself(tmp_path: Path) -> None:
    """A journal can name any folder."""
    folder = run_at(tmp_path / "ddp-run-logs", outcome=None, process=HERE)
    known = recorded_run(folder)
    assert known is not None
    assert known.started is not None
    places = [tmp_path / "private", tmp_path / "open"]
    rank = RankStarted(MonotonicNs(S), Rank(3), LocalRank(3), 0, os.getpid(), 4, 4, "attempt_0/rank_0", watched=True)
    found = []
    for place, mode in zip(places, (0o700, 0o755), strict=True):
        place.mkdir()
        page = open_page(str(place), 0, 3)
        page.words[page.STEPS] = 7
        place.chmod(mode)
        boards = boards_of(replace(known.started, boards=("/nothing", str(place))), folder, may_ask=False)
        boards.open([rank])
        found.append([board.look().steps for board in boards])
        for board in boards:
            with pytest.raises(TypeError, match="read-only"):
                board.ask_for_flight()
        boards.close()
    assert found == [[7], []]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start a process as another user")
def test_stacks_of_another_users_run_are_not_asked_for(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], user=65534) as sleeps:
        assert HERE is not None
        began = int(Path(f"/proc/{sleeps.pid}/stat").read_text().rpartition(")")[2].split()[19])
        theirs: OwnProcess = replace(HERE, pid=sleeps.pid, started=began)
        run_at(tmp_path / "ddp-run-logs", outcome=None, process=theirs)
        done = run(tmp_path, "stacks")
        assert (done.returncode, "belongs to another user" in done.stderr) == (2, True)
        assert sleeps.poll() is None
        sleeps.kill()
        sleeps.wait(limit(60))
