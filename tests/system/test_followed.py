"""A running job from outside: `ddp-run logs --follow`, `runs` and `clean` beside it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.system.conftest import DDP_RUN, Launcher
from tests.waiting import limit, wait_until

PROGRAM = """
import os, time
rank, attempt = os.environ["RANK"], 0 if not os.path.exists("failed") else 1
print(f"attempt {attempt} of rank {rank}", flush=True)
while not os.path.exists(f"go{attempt}"):
    time.sleep(0.05)
print(f"end of attempt {attempt}, rank {rank}", flush=True)
if attempt == 0 and rank == "1":
    open("failed", "w").close()
    raise OSError("no route to the file server")
if attempt == 0:
    time.sleep(600)
"""


def command(cwd: Path, *words: str) -> str:
    return subprocess.run([str(DDP_RUN), *words], cwd=cwd, capture_output=True, text=True, timeout=limit(60)).stdout


def test_a_running_job_is_followed_listed_and_kept(ddp: Launcher) -> None:
    program = ddp.cwd / "program.py"
    program.write_text(PROGRAM)
    job = ddp.start("--nproc-per-node=2", "--max-retries=1", "--retry=always", program)
    wait_until(lambda: job.folder is not None and (job.folder / "attempt_0/rank_1/stdout.log").exists(), "the ranks")
    shown = job.cwd / "followed"
    with shown.open("wb") as out:
        follower = subprocess.Popen([str(DDP_RUN), "logs", "--follow"], cwd=job.cwd, stdout=out, stderr=subprocess.PIPE)

    def has(text: str) -> bool:
        return text in shown.read_text()

    wait_until(lambda: has("attempt 0 of rank 0") and has("attempt 0 of rank 1"), "the first lines")
    (listed,) = json.loads(command(job.cwd, "runs", "--json"))
    assert (listed["state"], listed["outcome"], listed["ranks"]) == ("running", None, 2)
    assert command(job.cwd, "clean", "--keep", "0", "--yes") == "nothing to remove: 0 of 1 runs\n"
    (job.cwd / "go0").touch()
    wait_until(lambda: has("attempt 1 of rank 0") and has("attempt 1 of rank 1"), "the second attempt")
    assert follower.poll() is None
    (job.cwd / "go1").touch()
    assert job.process.wait(limit(120)) == 0
    assert follower.communicate(timeout=limit(60))[1] == b""
    assert follower.returncode == 0
    lines = shown.read_text().splitlines()
    assert "[rank1]: OSError: no route to the file server" in lines
    assert "==> attempt_1 <==" in lines
    assert "[rank0]: end of attempt 1, rank 0" in lines
    assert "[rank1]: end of attempt 1, rank 1" in lines
