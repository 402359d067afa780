"""An exception that ended a thread of a rank: when it is the cause, and when it is told beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.test_diagnose import SECOND, death, log, lost_peer, named, run

from ddp_run.evidence.model import Death
from ddp_run.judge.dead_threads import note_on, of_thread
from ddp_run.judge.diagnose import judge
from ddp_run.record.events import ExceptionInfo

THREAD = (
    "Exception in thread reader:",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner',
    "    self.run()",
    '  File "/home/user/feed.py", line 12, in run',
    "    row = parse(line)",
    "ValueError: no number in '0,5'",
)


def main(said: str) -> tuple[str, ...]:
    head = ("Traceback (most recent call last):", '  File "/home/user/train.py", line 57, in <module>')
    return (*head, "    batch = feed.get(timeout=10)", said)


def failed(said: str, *lines: str) -> Death:
    """Rank 1, which raised `said` and wrote these lines."""
    name, _, message = said.partition(": ")
    raised = ExceptionInfo(name, message, "/home/user/train.py", 57, "<module>", "\n".join(main(said)))
    return replace(death(1, 1, 200, failed=100), exception=raised, stderr=log(*lines))


def test_a_rank_that_waited_for_a_thread_which_had_ended_failed_of_that() -> None:
    for said in ("_queue.Empty", "TimeoutError", "threading.BrokenBarrierError"):
        verdict = judge(run(failed(said, *THREAD, *main(said)), lost_peer(0, SECOND)))
        assert (verdict.title, verdict.confidence) == (
            "rank 1 raised ValueError in feed.py:12: no number in '0,5' (in a thread)",
            "likely",
        )
        assert verdict.first_failure is not None
        assert verdict.first_failure.rank == 1


@pytest.mark.parametrize("said", ["TimeoutError: timed out", "KeyError: 'lr'"])
def test_what_it_raised_for_another_reason_stays_the_cause(said: str) -> None:
    verdict = judge(run(failed(said, *THREAD, *main(said)), lost_peer(0, SECOND)))
    assert verdict.title is not None
    assert verdict.title.startswith(f"rank 1 raised {said.partition(':')[0]} in train.py:57")
    [note] = [note for note in verdict.notes if "thread" in note]
    assert note.startswith("before that, a thread of rank 1 had raised ValueError in feed.py:12: no number in '0,5' (")
    assert note.endswith("stderr.log:7)")


def test_a_thread_that_ended_later_or_in_another_rank_is_not_told_of() -> None:
    later = failed("_queue.Empty", *main("_queue.Empty"), *THREAD)
    assert named(run(later))[0] == "python-exception"
    for each in (later, failed("_queue.Empty", *main("_queue.Empty"))):
        verdict = judge(run(each, replace(lost_peer(0, SECOND), stderr=log(*THREAD))))
        assert verdict.title == "rank 1 raised _queue.Empty in train.py:57"
        assert not any("thread" in note for note in verdict.notes)


def test_it_is_told_of_a_rank_that_left_without_an_exception_or_hung() -> None:
    hung = replace(death(1, -15, 100, sent=(15,)), stderr=log(*THREAD))
    said = "before that, a thread of rank 1 had raised ValueError in feed.py:12: no number in '0,5' ("
    assert (note_on(hung) or "").startswith(said)


def test_what_python_ignores_ended_no_thread() -> None:
    ignored = ("Exception ignored in: <function Pool.__del__>", *THREAD[1:])
    assert of_thread(replace(death(1, 9, 100), stderr=log(*ignored))) is None
    assert of_thread(replace(death(1, 9, 100), stderr=log(*THREAD))) is not None
