"""What a program survived, dealt with or only heard of is no cause: in live runs, and in logs of several programs."""

from __future__ import annotations

import pytest

from ddp_run import explain
from ddp_run.evidence.model import Death, Evidence, LogText
from ddp_run.judge.diagnose import judge
from ddp_run.record.events import MonotonicNs, Rank

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB."
HALVED = "WARNING trainer: CUDA out of memory. Tried to allocate 512.00 MiB."
ITERATIONS = [f"it {number}, lr 0.{number}, ppl {90 - number}" for number in range(9)]
ABORT = ["terminate called after throwing an instance of 'std::out_of_range'", "  what():  no such token"]


def live(*stderr: str, code: int, stdout: tuple[str, ...] = ()) -> tuple[str | None, str]:
    """Judge one rank of a live run by its two logs."""
    death = Death(
        Rank(0),
        code=code,
        died_at=MonotonicNs(1),
        stderr=LogText("stderr.log", stderr),
        stdout=LogText("stdout.log", stdout),
    )
    found = judge(Evidence(deaths=(death,), started=1))
    return found.cause, found.confidence


def test_an_out_of_memory_that_a_live_rank_survived() -> None:
    assert live(HALVED, *ITERATIONS, *ABORT, code=-6) == ("native-abort", "certain")
    assert live(HALVED, "halved the batch", *ABORT, code=-6, stdout=tuple(ITERATIONS)) == ("native-abort", "certain")
    assert live(HALVED, *ITERATIONS, code=-9)[0] == "unknown"


def test_one_that_it_may_have_survived_is_not_certain() -> None:
    assert live(HALVED, *ABORT, code=-6, stdout=tuple(ITERATIONS)) == ("cuda-oom", "likely")
    assert live(HALVED, "halved the batch", code=-6) == ("cuda-oom", "likely")


def test_one_that_it_did_not_survive() -> None:
    said = OOM.replace("torch.OutOfMemoryError", "c10::OutOfMemoryError")
    assert live(*ITERATIONS, "terminate called after throwing an instance of 'x'", f"  what():  {said}", code=-6) == (
        "cuda-oom",
        "certain",
    )


BOX = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
fit.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-03-04_05:06:07
  host      : node-a
  rank      : 0 (local_rank: 0)
  exitcode  : {code} (pid: 71)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
RAISED = f'Traceback (most recent call last):\n  File "/home/me/fit.py", line 9, in <module>\n    fit()\n{OOM}\n'
STEPS = "".join(f"{line}\n" for line in ITERATIONS)
SKIPPED = """it 1, lr 0.1, ppl 70
ERROR:data:skipping a shard that cannot be read
Traceback (most recent call last):
  File "/home/me/shards.py", line 12, in read
    raise ValueError("magic number differs")
ValueError: magic number differs
it 2, lr 0.1, ppl 69
slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-04T05:06:07 DUE TO TIME LIMIT ***
"""
LOGGED_OUT = (
    "tracker: ERROR API: user is not logged in (<Response [401]>)\n".replace("API", "Error while calling W&B API")
    + STEPS
    + "no class has a sample\n"
    + BOX.format(code=1)
)
FALLBACK = """Traceback (most recent call last):
  File "/home/me/vocab.py", line 20, in vocabulary
    return read("vocab.bin")
  File "/home/me/vocab.py", line 8, in read
    with open(name, "rb") as file:
FileNotFoundError: [Errno 2] No such file or directory: 'vocab.bin'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/fit.py", line 9, in <module>
    vocabulary()
  File "/home/me/vocab.py", line 22, in vocabulary
    return count(texts)
  File "/home/me/vocab.py", line 31, in count
    {source}
ValueError: {said}
"""
CHILD = """Traceback (most recent call last):
  File "/home/me/fit.py", line 14, in <module>
    worker.start()
  File "/usr/lib/python3.11/multiprocessing/reduction.py", line 60, in dump
    ForkingPickler(file, protocol).dump(obj)
TypeError: cannot pickle '_io.TextIOWrapper' object
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 122, in spawn_main
    exitcode = _main(fd, parent_sentinel)
  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 132, in _main
    self = reduction.pickle.load(from_parent)
EOFError: Ran out of input
"""
WATCHDOG = (
    "[rank0]:[E304 05:06:07.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=8, OpType=BROADCAST, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600004 milliseconds "
    "before timing out.\n[rank0]: terminate called after throwing an instance of 'c10::DistBackendError'\n"
    + BOX.format(code=-6)
)
OTHER_NODE = """[rank4]: Traceback (most recent call last):
[rank4]:   File "/home/me/fit.py", line 9, in <module>
[rank4]:     labels[row]
[rank4]: KeyError: 'row 8'
"""


@pytest.mark.parametrize(
    ("text", "cause", "confidence"),
    [
        pytest.param(SKIPPED, "preempted-sigterm", "likely", id="caught, and a time limit later"),
        pytest.param(LOGGED_OUT, "unknown", "unknown", id="a refusal that was survived"),
        pytest.param(f"{STEPS}{RAISED}{BOX.format(code=1)}{STEPS}Training finished\n", None, "unknown",
                     id="a second run in the same file"),
        pytest.param(f"{STEPS}{RAISED}{BOX.format(code=1)}{STEPS}", "cuda-oom", "certain",
                     id="another node's steps show no second run"),
        pytest.param(WATCHDOG + OTHER_NODE, "python-exception", "likely", id="two nodes' files one after the other"),
        pytest.param(WATCHDOG, "nccl-timeout-hang", "likely", id="one node's file"),
        pytest.param(CHILD, "python-exception", "likely", id="a child that lost its parent"),
    ],
)  # fmt: skip
def test_in_a_pasted_log(text: str, cause: str | None, confidence: str) -> None:
    found = explain(text)
    assert (found.cause, found.confidence) == (cause, confidence), found.title


def test_a_child_that_lost_its_parent_is_not_quoted() -> None:
    title = explain(CHILD).title or ""
    assert "TypeError in fit.py:14" in title
    alone = explain(CHILD[CHILD.rindex("Traceback") :])
    assert "EOFError" in (alone.title or "")


@pytest.mark.parametrize(
    ("source", "said", "cause"),
    [
        ('raise ValueError("no text")', "no text", "python-exception"),
        ('raise ValueError(f"{name} is missing")', "vocab.bin is missing", "file-not-found"),
    ],
)
def test_a_missing_file_that_the_program_expected(source: str, said: str, cause: str) -> None:
    assert explain(FALLBACK.format(source=source, said=said)).cause == cause


def test_a_handler_that_raises_says_the_same_in_other_words() -> None:
    begin, _, end = FALLBACK.rpartition('  File "/home/me/vocab.py", line 31, in count\n')
    text = (begin + end).replace("return count(texts)\n    {source}", 'raise ValueError("no words")')
    assert 'raise ValueError("no words")\nValueError' in text
    assert explain(text.format(said="no words")).cause == "file-not-found"


@pytest.mark.parametrize(
    ("file", "cause"),
    [("/home/me/fit.py", "import-error"), ("/env/lib/python3.11/site-packages/trl/core.py", "version-mismatch")],
)
def test_a_module_of_the_projects_own_folder(file: str, cause: str) -> None:
    said = "ModuleNotFoundError: No module named 'datasets.kitti'"
    found = explain(f'Traceback (most recent call last):\n  File "{file}", line 3, in <module>\n    import x\n{said}\n')
    assert found.cause == cause
    assert not any("pip install datasets" in advice for advice in found.advice)


FAILED = "E0304 05:06:07.100000 70 api.py:874] failed (exitcode: -9) local_rank: 0 (pid: 71) of binary: {binary}\n"


@pytest.mark.parametrize(
    ("program", "binary", "cause"),
    [
        ("python3.11", "/env/bin/python3.11", "host-oom"),
        ("pt_main_thread", "/env/bin/python", "host-oom"),
        ("ray::fit", "/env/bin/python", "host-oom"),
        ("mysqld", "/env/bin/python", "unknown"),
        ("mysqld", "/opt/train", "host-oom"),
    ],
)
def test_the_kernel_names_whom_it_killed(program: str, binary: str, cause: str) -> None:
    killed = f"[71.3] Memory cgroup out of memory: Killed process 8 ({program}) total-vm:9kB, anon-rss:8kB\n"
    found = explain(f"{STEPS}{killed}{FAILED.format(binary=binary)}{BOX.format(code=-9)}")
    assert found.cause == cause
    assert found.confidence != "certain"


def test_a_class_of_the_projects_own_is_not_the_librarys() -> None:
    frames = 'Traceback (most recent call last):\n  File "/home/me/replay/ring.py", line 9, in push\n    self.check()\n'
    found = explain(f"{frames}replay.errors.OutOfMemoryError: the ring has 64 slots\n")
    assert found.cause == "python-exception"


def test_of_several_commands_of_a_script_one_without_its_file_is_not_why_the_last_failed() -> None:
    missing = "python: can't open file '/home/me/prepare.py': [Errno 2] No such file or directory"
    frames = 'Traceback (most recent call last):\n  File "/home/me/fit.py", line 9, in <module>\n    main()\n'
    steps = "".join(f"{line}\n" for line in ITERATIONS)
    assert explain(f"{missing}\n{steps}{frames}KeyError: 'x'\n{BOX.format(code=1)}").cause == "python-exception"
    assert explain(f"{missing}\n{BOX.format(code=2)}").cause == "script-not-found"
