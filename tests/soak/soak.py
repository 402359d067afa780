"""Healthy jobs of many kinds, for hours: none of them may be called hung, fail, or leave anything behind.

    python tests/soak/soak.py --hours 2 [--jobs 2] [--seed N] [--report FILE]

Runs `ddp-run` jobs drawn from a seed, so many at a time (`healthy.py`, and the slow kinds of `tests/faults/stall.py`),
some stopped and continued on the way, and some beside a process that takes a core. Prints each job that went wrong as a
JSON line (`--report` has them all) and a summary; exits with 1 if anything was wrong. A job is run again by its words.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ddp_run.values.process_table import carriers

HERE = Path(__file__).parent
FAULTS = HERE.parent / "faults"
SLOW = ["evaluate", "save", "compile", "download", "debugger", "data", "pause", "accumulate", "late-init", "startup"]
SLOW += ["wait-for-file", "timer", "upload"]
UNSEEN = ("cannot be monitored", "progress monitoring disabled")
"""Of notes in the journal: ddp-run itself went wrong."""


@dataclass
class Job:
    """One run and what was wrong with it. `said`: pauses that were described as what they are, which is right.

    `kept`: the folder with its console and logs, where something was wrong.
    """

    words: list[str]
    stops: bool = False
    burdened: bool = False
    seconds: float = 0.0
    steps: int = 0
    kept: str | None = None
    said: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def drawn(draw: random.Random) -> Job:
    """The next job."""
    ranks = draw.choice([1, 2, 2, 3, 4, 6])
    kind = draw.random()
    if kind < 0.75:
        script = [str(HERE / "healthy.py"), "--seed", str(draw.randrange(1 << 30))]
        script += ["--seconds", str(draw.choice([20, 60, 120, 300]))]
    else:
        ranks = 3
        script = [
            str(FAULTS / "stall.py"),
            "--kind",
            draw.choice(SLOW),
            "--seconds",
            str(draw.choice([8, 20, 40])),
        ]
    words = ["--nproc-per-node", str(ranks), *script]
    return Job(words, stops=draw.random() < 0.15, burdened=draw.random() < 0.2)


def run(job: Job) -> Job:
    """Run it to its end in a folder of its own, and look at what it left."""
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="ddp-run-soak-"))
    code = _ended(job, folder)
    if code:
        job.wrong.append(f"exit code {code}: {(folder / 'console').read_text(errors='replace')[-2000:]}")
    _judge(job, folder)
    job.seconds = round(time.monotonic() - begin, 1)
    if job.wrong:
        job.kept = str(folder)
    else:
        shutil.rmtree(folder)
    return job


def _ended(job: Job, folder: Path) -> int:
    """The exit code."""
    command = [str(Path(sys.executable).with_name("ddp-run")), *job.words]
    with (folder / "console").open("wb") as console:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )
    burden = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if job.burdened else None
    if job.stops:
        threading.Thread(target=_stop_for_a_while, args=(process, folder), daemon=True).start()
    try:
        return process.wait(3600)
    except subprocess.TimeoutExpired:
        job.wrong.append("not ended after an hour")
        process.terminate()
        return process.wait(120)
    finally:
        if burden is not None:
            burden.kill()
            burden.wait()


def _judge(job: Job, folder: Path) -> None:
    run_folder = (folder / "ddp-run-logs" / "latest").resolve()
    for line in (run_folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "StallSeen":
            job.said.append(event["said"])
            if event["hung"]:
                job.wrong.append(f"called hung: {event['said']}: {event['quotes']}")
        elif event["event"] == "Noted" and any(words in event["text"] for words in UNSEEN):
            job.wrong.append(event["text"])
        elif event["event"] == "ProgressSampled":
            job.steps = max([job.steps, *event["steps"]])
    left = [*carriers([b"DDP_RUN_ID=" + run_folder.name.encode()])]
    if left:
        job.wrong.append(f"left behind: {left}")


def _stop_for_a_while(process: subprocess.Popen[bytes], folder: Path) -> None:
    """SIGSTOP to all ranks, or SIGTSTP to ddp-run as from the keyboard; both are continued."""
    time.sleep(random.uniform(5, 25))
    journal = folder / "ddp-run-logs" / "latest" / "events.jsonl"
    pause = random.uniform(3, 40)
    if random.random() < 0.5:
        _signal([process.pid], signal.SIGTSTP)
        time.sleep(pause)
        _signal([process.pid], signal.SIGCONT)
        return
    events = map(json.loads, journal.read_text().splitlines()) if journal.exists() else ()
    pids = [event["pid"] for event in events if event["event"] == "RankStarted"]
    _signal(pids, signal.SIGSTOP)
    time.sleep(pause)
    _signal(pids, signal.SIGCONT)


def _signal(pids: list[int], signum: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            pass


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--report", type=Path, default=Path(os.devnull))
    args = parser.parse_args()
    begin, draw = time.monotonic(), random.Random(args.seed)
    done: list[Job] = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool, args.report.open("w") as report:
        running: set[concurrent.futures.Future[Job]] = set()
        while running or time.monotonic() - begin < args.hours * 3600:
            while len(running) < args.jobs and time.monotonic() - begin < args.hours * 3600:
                running.add(pool.submit(run, drawn(draw)))
            ended, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                done.append(future.result())
                line = json.dumps(asdict(done[-1]))
                print(line, file=report, flush=True)
                if done[-1].wrong:
                    print(line, flush=True)
    wrong = [job for job in done if job.wrong]
    hours, of_jobs = (time.monotonic() - begin) / 3600, sum(job.seconds for job in done) / 3600
    kinds = Counter("healthy" if "healthy.py" in job.words[2] else job.words[4] for job in done)
    print(f"seed {args.seed}: {len(done)} jobs in {hours:.2f} h ({of_jobs:.2f} h of jobs): {dict(kinds)}")
    print(f"{sum(job.steps for job in done)} steps, {sum(len(job.said) for job in done)} pauses described")
    print(f"wrong: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
