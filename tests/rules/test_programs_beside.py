"""What other programs of the same script write is not the job's, if one of them is known to be the job."""

from __future__ import annotations

import pytest

from ddp_run import explain

TRAINS = "".join(f"{{0}} 09:0{k}:00 round {k} loss 2.{k}\n" for k in range(1, 5))
STARTED = "{0} watching out/ for new checkpoints\n{0} found round-1\n"
RAISED = '{0} Traceback (most recent call last):\n{0}   File "/home/me/{1}.py", line 40, in <module>\n{0} {2}\n'
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/data/b.bin'"
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
LOST = "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.1.0.7]:2044"
LIMIT = "slurmstepd: error: *** STEP 7.0 ON c-1 CANCELLED AT 2031-05-01T14:00:00 DUE TO TIME LIMIT ***\n"


@pytest.mark.parametrize(("job", "beside"), [("[fit]  ", "[judge]"), ("fit-0    |", "judge-0  |")])
def test_the_job_is_what_trains(job: str, beside: str) -> None:
    others = STARTED.format(beside) + RAISED.format(beside, "judge", MISSING)
    assert explain(others + TRAINS.format(job) + RAISED.format(job, "fit", ILLEGAL)).cause == "illegal-memory-access"
    assert explain(TRAINS.format(job) + others + RAISED.format(job, "fit", ILLEGAL)).cause == "illegal-memory-access"
    assert explain(others + TRAINS.format(job) + LIMIT).cause == "preempted-sigterm"


def test_a_program_that_fails_after_the_job_has_counts() -> None:
    text = TRAINS.format("[fit]  ") + STARTED.format("[judge]") + RAISED.format("[judge]", "judge", MISSING)
    assert explain(text).cause == "file-not-found"


def test_ranks_of_one_service_are_no_other_program() -> None:
    text = TRAINS.format("fit-0 |") + STARTED.format("fit-1 |") + RAISED.format("fit-1 |", "fit", MISSING)
    assert explain(text + RAISED.format("fit-0 |", "fit", LOST)).cause == "file-not-found"


def test_levels_are_no_programs() -> None:
    text = TRAINS.format("[info]") + RAISED.format("[error]", "fit", MISSING) + TRAINS.format("[info]")[:60]
    assert explain(text).cause == "file-not-found"
