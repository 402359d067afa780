"""Small logs of every kind of end, read as an expert would: who failed first, with what, and what only followed."""

from __future__ import annotations

import json

import pytest

from ddp_run.evidence.at_once import once
from ddp_run.evidence.model import Evidence, LogText
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.evidence.pasted.transcript import read
from ddp_run.judge.diagnose import judge
from ddp_run.judge.text_signs import shows
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import Rank

RAISED = """Traceback (most recent call last):
  File "/home/user/train.py", line 5, in step
    loss = batch["x"]
KeyError: 'x'"""
LOST = """Traceback (most recent call last):
  File "/home/user/train.py", line 9, in sync
    dist.barrier()
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:15263"""
BOX = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_{time}
  host      : {host}
  rank      : {rank} (local_rank: 0)
  exitcode  : {code} (pid: 77)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================"""
RICH = """╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /home/user/project/with/a/long/name/that/does/not/fit/into/one/row/of/the/bo │
│ x/train.py:6 in <module>                                                     │
│                                                                              │
│ ❱  6 │   main()                                                              │
│                                                                              │
│ /home/user/data.py:3 in load                                                 │
│                                                                              │
│   2 │   value = {"a": i}                                                     │
│ ❱ 3 │   return value["x"]                                                    │
│                                                                              │
│ ╭───── locals ─────╮                                                         │
│ │ value = {'a': 3} │                                                         │
│ ╰──────────────────╯                                                         │
╰──────────────────────────────────────────────────────────────────────────────╯
KeyError: 'x'"""
LOGURU = """2026-11-21 15:24:17.147 | ERROR    | __main__:<module>:12 - An error has been caught in function '<module>':
Traceback (most recent call last):

> File "/home/user/train.py", line 12, in <module>
    run()
    └ <function run at 0x7f8043bd6e80>

  File "/home/user/data.py", line 3, in load
    return value["x"]
           └ {'a': 3}

KeyError: 'x'"""
WORKER = """Traceback (most recent call last):
  File "/home/user/train.py", line 5, in <module>
    for batch in loader:
  File "/x/site-packages/torch/_utils.py", line 733, in reraise
    raise exception
FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/x/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/user/data.py", line 14, in __getitem__
    return open(path)
FileNotFoundError: [Errno 2] No such file or directory: '/data/x.jpg'
"""
STEPS = "\n".join(f"step {number} loss 0.{number}" for number in range(40))


def box(rank: int, time: str = "10:00:05", host: str = "node-a", code: int = 1) -> str:
    return BOX.format(rank=rank, time=time, host=host, code=code)


def by(rank: int, text: str) -> str:
    return "\n".join(f"[rank{rank}]: {line}" for line in text.split("\n"))


def evidence(*parts: str) -> Evidence:
    lines = tuple("\n".join(parts).split("\n"))
    return read(SpokenText.of_logs([Log(LogText("log", lines))]), shows)


def verdict(*parts: str) -> Verdict:
    return judge(evidence(*parts))


def first(found: Verdict) -> tuple[str | None, int | None, int | None]:
    failure = found.first_failure
    return (found.cause, failure.rank, failure.exit_code) if failure is not None else (found.cause, None, None)


@pytest.mark.parametrize(
    ("shown", "file", "line"), [(RAISED, "train.py", 5), (RICH, "data.py", 3), (LOGURU, "data.py", 3)]
)
@pytest.mark.parametrize("rank", [None, 3])
def test_forms_of_tracebacks(shown: str, file: str, line: int, rank: int | None) -> None:
    (death,) = evidence("starting", shown if rank is None else by(rank, shown)).deaths
    raised = death.exception
    assert raised is not None
    assert (raised.type, raised.message, raised.file, raised.line) == ("KeyError", "'x'", f"/home/user/{file}", line)
    assert death.rank == rank
    assert raised.traceback.startswith("Traceback (most recent call last):\n")


@pytest.mark.parametrize("shown", [RAISED, RICH, LOGURU])
def test_a_caught_exception_is_no_end(shown: str) -> None:
    assert evidence(shown, STEPS).deaths == ()


def test_a_long_path_in_a_box() -> None:
    (death,) = evidence(RICH.replace("/home/user/data.py:3", "<string>:3")).deaths
    assert death.exception is not None
    assert (
        death.exception.file == "/home/user/project/with/a/long/name/that/does/not/fit/into/one/row/of/the/box/train.py"
    )


def test_a_traceback_in_a_record_of_json() -> None:
    found = verdict('{"event": "start"}', json.dumps({"event": "failed", "exception": RAISED, "level": "error"}))
    assert found.cause == "python-exception"
    assert [(quote.line, quote.text) for quote in found.evidence] == [(2, "KeyError: 'x'")]


def test_a_dataloader_workers_own_exception() -> None:
    found = verdict(WORKER)
    assert found.cause == "file-not-found"
    assert "data.py:14" in (found.title or "")


def test_a_message_ends_where_others_write_on() -> None:
    """Python marks no end of a message; a list in one is indented."""
    listed = RAISED.replace("KeyError: 'x'", "RuntimeError: size mismatch:\n\tlayer 0\n\tlayer 1")
    for shown, message in ((RAISED, "'x'"), (listed, "size mismatch:\n\tlayer 0\n\tlayer 1")):
        (death,) = evidence(shown, STEPS, box(0)).deaths
        assert death.exception is not None and death.exception.message == message


def test_an_exception_in_a_thread() -> None:
    assert evidence("Exception in thread Thread-1 (work):", RAISED, "step 1").deaths == ()


def test_a_logged_exception_before_an_exit() -> None:
    """`logger.exception(…); sys.exit(1)`: nothing but the launcher says that the program ended."""
    assert first(verdict("2026-11-21 10:00:00,123 ERROR train: failed", RAISED, "goodbye", box(0))) == (
        "python-exception",
        0,
        1,
    )


def test_a_restart_that_succeeded() -> None:
    failed = "E1121 08:31:03.813000 958 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) "
    failed += "local_rank: 0 (pid: 1023) of binary: /usr/bin/python"
    assert evidence(RAISED, failed, STEPS).deaths == ()
    assert [death.rank for death in evidence(RAISED, failed).deaths] == [0]


def test_the_summary_is_not_taken_at_its_word() -> None:
    """torch names the rank that it saw first; another rank's cause is the reason."""
    found = verdict(by(1, LOST), by(0, RAISED), box(1))
    assert first(found)[:2] == ("python-exception", 0)


def test_summaries_of_several_nodes() -> None:
    later = (by(1, LOST), box(1, "10:00:05", "node-a"))
    earlier = (by(9, RAISED), box(9, "10:00:01", "node-b"))
    for order in ((*later, *earlier), (*earlier, *later)):
        found = evidence(*order)
        assert {death.rank for death in found.deaths} == {1, 9}
        assert found.nodes == 2
        assert first(judge(found)) == ("python-exception", 9, 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_of_two_attempts_in_one_log_the_last_counts(rank: int) -> None:
    again = RAISED.replace("KeyError: 'x'", "ValueError: new")
    found = evidence(by(1, RAISED), box(1, "10:00:05"), by(rank, again), box(rank, "11:00:05"))
    (death,) = found.deaths
    assert death.rank == rank
    assert not [line for line in death.stderr.lines if "KeyError" in line]
    assert "new" in (judge(found).title or "")


def test_two_attempts_of_two_nodes() -> None:
    old, new = RAISED, RAISED.replace("KeyError: 'x'", "ValueError: new")
    node_a = (by(0, old), box(0, "10:00:05", "node-a"), by(0, LOST), box(0, "11:00:05", "node-a"))
    node_b = (by(1, old), box(1, "10:00:05", "node-b"), by(1, new), box(1, "11:00:04", "node-b"))
    found = evidence(*node_a, *node_b)
    assert {death.rank for death in found.deaths} == {0, 1}
    assert first(judge(found)) == ("python-exception", 1, 1)
    assert "new" in (judge(found).title or "")


def test_labels_of_srun() -> None:
    lines = [
        f"{rank}: {line}"
        for pair in zip(LOST.split("\n"), RAISED.split("\n"), strict=True)
        for rank, line in enumerate(pair)
    ]
    found = verdict(*lines, "srun: error: node1: tasks 0-1: Exited with exit code 1")
    assert first(found) == ("python-exception", 1, 1)


@pytest.mark.parametrize(
    ("end", "rank", "code"),
    [
        (
            "mpirun noticed that process rank 2 with PID 4711 on node node-b exited on signal 11 (Segmentation fault).",
            2,
            -11,
        ),
        ("srun: error: node1: task 3: Exited with exit code 247", 3, -9),
        ("ERROR:composer.cli.launcher:Rank 3 crashed with exit code -9.", 3, -9),
        (
            "[launch.py:325:sigkill_handler] ['python', 'train.py', '--local_rank=1'] exits with return code = -9",
            None,
            -9,
        ),
    ],
)
def test_ends_that_launchers_tell_of(end: str, rank: int | None, code: int) -> None:
    (death,) = evidence(STEPS, end).deaths
    assert (death.rank, death.code, death.exception) == (rank, code, None)


def test_spawn() -> None:
    parents = RAISED.replace("/home/user/train.py", "/x/site-packages/torch/multiprocessing/spawn.py")
    parents = parents.replace("KeyError: 'x'", "torch.multiprocessing.spawn.ProcessRaisedException: ")
    found = verdict(parents, "", "-- Process 1 terminated with the following error:", RAISED)
    assert first(found)[:2] == ("python-exception", 1)


def test_interrupted() -> None:
    assert verdict("step 1", RAISED.replace("KeyError: 'x'", "KeyboardInterrupt")).cause == "user-interrupt"
    agents = RAISED.replace("/home/user/train.py", "/x/torch/distributed/run.py")
    agents = agents.replace(
        "KeyError: 'x'", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 11 got signal: 2"
    )
    found = verdict("step 1", RAISED.replace("KeyError: 'x'", "KeyboardInterrupt"), agents)
    assert (found.outcome, found.exit_code) == ("interrupted", 130)


def test_cancelled_by_slurm() -> None:
    told = "slurmstepd: error: *** STEP 123.0 ON node1 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***"
    found = verdict(STEPS, told, "srun: error: node1: task 0: Terminated")
    assert first(found) == ("preempted-sigterm", 0, -15)


def test_the_launchers_words_are_no_last_words_of_a_rank() -> None:
    (death,) = evidence("Loss is nan, stopping training", RAISED, box(0)).deaths
    assert "Root Cause (first observed failure):" not in death.stderr.lines
    assert "Loss is nan, stopping training" in death.stderr.lines


def test_files_of_ranks() -> None:
    said = {Rank(0): LOST, Rank(1): RAISED}
    logs = [Log(LogText(f"rank_{rank}.log", tuple(text.split("\n"))), rank) for rank, text in said.items()]
    found = judge(read(SpokenText.of_logs(logs), shows))
    assert first(found)[:2] == ("python-exception", 1)
    assert found.evidence[0].source == "rank_1.log"


@pytest.mark.parametrize(
    ("torn", "whole"),
    [
        ("ValueErrorValueError: : no such modeno such mode", "ValueError: no such mode"),
        ("KeyErKeyError: ror: 'lr''lr'", "KeyError: 'lr'"),
        ("ValueError: no such mode", "ValueError: no such mode"),
        ("RuntimeError: aa bb aa bb", "RuntimeError: aa bb aa bb"),
        ("a.ba.b..ErrorErrorError: : pool at 0x1 failed", "a.ba.b..ErrorErrorError: : pool at 0x1 failed"),
        ("net.apinet.api..OwnErrorOwnError: : pool at 0x1 failed", "net.api.OwnError: pool at 0x1 failed"),
        ("ValueError: a: : b", "ValueError: a: : b"),
    ],
)
def test_several_processes_wrote_the_same_at_once(torn: str, whole: str) -> None:
    assert once(torn) == whole


def test_nothing_failed() -> None:
    assert evidence(STEPS).deaths == ()
    assert evidence("").deaths == ()
