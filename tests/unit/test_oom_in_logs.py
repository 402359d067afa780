"""An out-of-memory kill in a pasted log: whoever counted or named it, in whatever form, anywhere in the text."""

from __future__ import annotations

import pytest

from ddp_run import explain
from ddp_run.judge.verdict import Verdict

BOX = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : node-a
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4711
============================================================"""
SHELL = "run.sh: line 3:  4711 Killed                  python train.py"
STEPS = "\n".join(f"step {number} loss 0.{number}" for number in range(20))
NAMED = [
    # mm/oom_kill.c, from Linux 3 to 6
    "[ 712.3] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB",
    "Nov 22 10:00:00 node-a kernel: Out of memory: Killed process 4711 (pt_main_thread) total-vm:9kB",
    "[Sun Nov 22 10:00:00 2026] Killed process 4711 (python), UID 1000, total-vm:9kB, anon-rss:8kB",
    "[ 712.3] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,task_memcg=/job,task=python,pid=4711,uid=0",
    "[ 712.4] oom_reaper: reaped process 4711 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
]
TOLD = [
    "[ 712.3] Memory cgroup out of memory: Killed process 31 (python3) total-vm:9kB",  # in a container
    "[ 712.2] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "low 0\nhigh 0\nmax 812\noom 3\noom_kill 1\noom_group_kill 0",
    "memory.events: low 0 high 0 max 812 oom 3 oom_kill 1",
    "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
    '{"memory.events": {"oom": 3, "oom_kill": 1}}',
    "oom_kill 2\n" + STEPS + "\noom_kill 3",
    'container_oom_events_total{pod="train-0"} 1',
    "systemd[1]: train.service: A process of this unit has been killed by the OOM killer.",
    "systemd[1]: train.service: Failed with result 'oom-kill'.",
    "systemd-oomd[812]: Killed /user.slice/job.scope due to memory pressure for /user.slice being 71.2% > 50.00%",
    "Warning  SystemOOM  kubelet  System OOM encountered, victim process: python, pid: 4711",
    '        "OOMKilled": true,',
    "    Last State:  Terminated\n      Reason:    OOMKilled",
    "=>> PBS: job killed: mem 67108900kb exceeded limit 67108864kb",
    "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
    "4242.batch  train  OUT_OF_MEMORY  0:125",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=4242.0.",
    "(raylet) node_manager.cc:3041: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed",
    'earlyoom[9]: sending SIGKILL to process 4711 uid 1000 "python": badness 901, VmRSS 60000 MiB',
]
NOTHING = [
    "low 0\nhigh 0\nmax 812\noom 3\noom_kill 0\noom_group_kill 0",
    "oom_kill 2\n" + STEPS + "\noom_kill 2",  # what was counted before the job is none of its kills
    '        "OOMKilled": false,',
    "watchdog: killed process group 4711 after 60 s",
]


def explained(*parts: str) -> Verdict:
    return explain("\n".join(parts) + "\n")


@pytest.mark.parametrize("said", NAMED)
def test_who_was_killed_is_named(said: str) -> None:
    for text in ((said, STEPS, BOX), (STEPS, BOX, said)):
        found = explained(*text)
        first = found.first_failure
        assert (found.cause, found.confidence, first and first.rank) == ("host-oom", "certain", 1)
        assert said in [quote.text for quote in found.evidence]


@pytest.mark.parametrize("said", TOLD)
def test_a_kill_is_counted_or_told_of(said: str) -> None:
    for text in ((STEPS, said, BOX), (STEPS, BOX, said), (STEPS, SHELL, said)):
        found = explained(*text)
        assert (found.cause, found.confidence) == ("host-oom", "likely")
        assert all(quote.text in said for quote in found.evidence)


@pytest.mark.parametrize("said", NOTHING)
def test_nothing_is_told_of(said: str) -> None:
    assert explained(STEPS, said, BOX).cause == "unknown"


@pytest.mark.parametrize("said", [*NAMED, *TOLD])
def test_a_kill_beside_another_end_is_no_cause_of_it(said: str) -> None:
    raised = 'Traceback (most recent call last):\n  File "train.py", line 3, in f\n    f()\nValueError: bad'
    assert explained(STEPS, said, STEPS, raised).cause == "python-exception"
