"""Of several runs of a job in one log the last one counts; of several nodes' logs in one text all do."""

from __future__ import annotations

import pytest

from ddp_run import explain
from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted.got_over import until
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText

BEGIN = "{0} launch: {1} workers on {2}, data ready\n{0} launch: picked up {3}\n"
STEPS = "".join(f"{{0}} fit: round {k}00 loss 1.{k}\n" for k in range(1, 5))
RAISED = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/fit.py", line 40, in <module>\n    fit()\n'
    '  File "/home/me/fit.py", line 31, in fit\n    batch = next(batches)\n'
)
OUT_OF_MEMORY = f"{RAISED}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total \n"
MISSING = f"{RAISED}FileNotFoundError: [Errno 2] No such file or directory: '/data/b.bin'\n"
LOST = f"{RAISED}RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.1.0.7]:2044\n"
NODE_LOST = (
    "srun: error: Node failure on c-17\n"
    "slurmstepd: error: *** JOB 71 ON c-16 CANCELLED AT 2031-05-01T10:30:00 DUE TO NODE FAILURE ***\n"
)
TIME_LIMIT = "slurmstepd: error: *** STEP 71.0 ON c-16 CANCELLED AT 2031-05-01T14:00:00 DUE TO TIME LIMIT ***\n"
DAY = "2031-05-01 {0}:00:00"


def run(hour: str, checkpoint: str, end: str) -> str:
    stamp = DAY.format(hour)
    return BEGIN.format(stamp, 4, "c-16", checkpoint) + STEPS.format(stamp) + end


@pytest.mark.parametrize(
    ("one", "other", "cause"),
    [
        (OUT_OF_MEMORY, MISSING, "file-not-found"),
        (NODE_LOST, TIME_LIMIT, "preempted-sigterm"),
        (NODE_LOST, "", None),
    ],
)
def test_the_last_run_counts(one: str, other: str, cause: str | None) -> None:
    assert explain(run("10", "nothing", one) + run("11", "round-400", other)).cause == cause


@pytest.mark.parametrize("words", ["wrapper: requeue of 71\n", "Back-off over, restarting\n", "[batch] Resubmitting\n"])
def test_words_say_so_where_there_are_no_stamps(words: str) -> None:
    one, other = (
        BEGIN.format("fit:", 4, "c-16", done) + STEPS.format("fit:") + end
        for done, end in (("nothing", OUT_OF_MEMORY), ("round-400", MISSING))
    )
    assert explain(one + words + other).cause == "file-not-found"


def test_a_banner_repeats_alone() -> None:
    banner = "##### all.log, appended {0}\n"
    refused = "usage: fit.py [-h]\nfit.py: error: unrecognized arguments: --fast\n"
    text = f"{banner.format('Mon 5 May 09:00:00')}{OUT_OF_MEMORY}{banner.format('Mon 5 May 09:07:10')}{refused}"
    assert explain(text).cause == "bad-arguments"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("=== try 1: Sat Nov 16 10:40:02 UTC 2031 ===\n", "=== try 2: Sat Nov 16 10:44:51 UTC 2031 ===\n"),
        ("--- fit of part A, 2031-11-16 10:40\n", "--- fit of part B, 2031-11-16 10:44\n"),
    ],
)
def test_a_banner_with_a_date(one: str, other: str) -> None:
    stamped = "[W1116 10:41:09.2 socket.cpp:462] [c10d] waiting\n"
    refused = "usage: fit.py [-h]\nfit.py: error: unrecognized arguments: --fast\n"
    assert explain(f"{one}{stamped}{OUT_OF_MEMORY}{other}{refused}").cause == "bad-arguments"
    assert explain(f"{other}{stamped}{OUT_OF_MEMORY}{one}{refused}").cause == "cuda-oom"  # of another node


def test_a_command_is_given_again() -> None:
    given = "me@login1:~/fit$ torchrun fit.py --rate {0}\n"
    stop = (
        "{0}0910 {1}:00:12.1 77 torch/distributed/elastic/agent/server/api.py:719] Received Signals.{2} death signal\n"
    )
    interrupted = f"{given.format('3e-3')}{STEPS.format('')}^C{stop.format('W', '15', 'SIGINT')}"
    assert explain(interrupted).cause == "user-interrupt"
    again = f"{interrupted}{given.format('3e-4')}{STEPS.format('')}{stop.format('W', '18', 'SIGHUP')}"
    assert explain(again).cause == "terminal-closed"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(run("10", "nothing", LOST), id="another node's log, at the same time"),
        pytest.param(STEPS.format(DAY.format("11")) + LOST, id="another rank goes on"),
        pytest.param(f"{DAY.format('11')} launch: picked up nothing\n{LOST}", id="one line alone"),
    ],
)
def test_what_is_no_second_start(other: str) -> None:
    ended = f"{OUT_OF_MEMORY}srun: error: c-16: task 0: Exited with exit code 1\n"
    text = run("10", "nothing", ended) + other
    assert until(SpokenText.of_logs([Log(LogText("log", tuple(text.splitlines())))])) == 0


def test_what_says_how_a_step_ended_begins_no_other() -> None:
    text = (
        "=== step 0: tokenise ===\n8/8 shards written\n=== step 0 finished with 0 at Thu May 30 03:22:10 JST 2024 ===\n"
        "=== step 1: train ===\n0: step 10 loss 9.9\n0: step 20 loss 8.7\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=71.1. Some of the step tasks have been OOM Killed.\n"
        "srun: error: g14: task 5: Out Of Memory\nsrun: Terminating StepId=71.1\n"
        "=== step 1 finished with 137 at Thu May 30 03:31:08 JST 2024 ===\n"
    )
    found = explain(text)
    assert (found.cause, found.first_failure and found.first_failure.rank) == ("host-oom", 5)


PROMPT = "(env) me@n1:~/fit$ "


@pytest.mark.parametrize("typed", ["torchrun fit.py --batch 8", "LR=3 python3 -m torch.distributed.run fit.py"])
def test_what_was_typed_before_the_last_start_had_ended(typed: str) -> None:
    wrong = f"{PROMPT}torchrun fti.py\npython: can't open file '/home/me/fti.py': [Errno 2] No such file or directory\n"
    assert explain(f"{wrong}{PROMPT}{typed}\n{OUT_OF_MEMORY}{PROMPT}\n").cause == "cuda-oom"
    for later in ("torchrun fit.py", f"{typed} &", "dmesg | tail", "python -c 'import torch'"):
        shown = f"{OUT_OF_MEMORY}{PROMPT}{later}\nstep 1\n"
        assert explain(shown).cause == "cuda-oom", later  # nothing below it reports an end
