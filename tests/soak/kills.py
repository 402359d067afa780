"""Random kills of every process of a job: nobody may be left where one was killed, and no wrong rank be named.

    python tests/soak/kills.py --kills 60 [--jobs 2] [--seed N] [--report FILE]

Each job has four gloo ranks with DataLoader workers and detached children (`detaching.py`). At a moment drawn from the
seed one process of it, or two at once, gets SIGKILL, or SIGSTOP and a while later SIGKILL or SIGCONT. What is left is
found without ddp-run's help: by the job's folder in a command line, a working directory or an open file. Prints a table
and each job that went wrong, as a JSON line; exits with 1 if any did. What a pair leaves is counted apart.
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
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ddp_run.commands.explain import answer as explain
from ddp_run.values import process_table

JOB = Path(__file__).with_name("detaching.py")
RANKS = 4
MOMENTS = {"starting": 3, "training": 5, "ending": 2, "between": 1}
"""And how often, among all."""
VICTIMS = ("ddp-run", "keeper", "agent", "rank", "worker", "detached")
HOW = ("kill", "kill", "kill", "stop-kill", "stop-cont", "pair")
ENDS_WITHIN_S, GONE_WITHIN_S = 240, 30


@dataclass
class Job:
    """What was done to a job, and what came of it. `victims`: kind, pid and, of a rank or its worker, the rank."""

    number: int
    moment: str
    how: str
    wanted: tuple[str, ...]
    delay_s: float
    victims: list[tuple[str, int, int | None]] = field(default_factory=list)
    there: dict[str, int] = field(default_factory=dict)
    code: int | None = None
    said: str = ""
    seconds: float = 0.0
    left: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    kept: str | None = None


def drawn(number: int, draw: random.Random) -> Job:
    """Each is the first choice equally often; where it is not there, another one is taken."""
    first = VICTIMS[number % len(VICTIMS)]
    wanted = (first, *draw.sample(VICTIMS, len(VICTIMS)))
    [moment] = draw.choices([*MOMENTS], [*MOMENTS.values()])
    return Job(number, moment, draw.choice(HOW), tuple(dict.fromkeys(wanted)), draw.uniform(0, 2))


def run(job: Job, seed: int) -> Job:
    """Start it, kill, wait for the end, judge."""
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="ddp-run-kills-"))
    words = [Path(sys.executable).with_name("ddp-run"), "--nproc-per-node", RANKS, "--shutdown-timeout", 10]
    words += ["--max-retries", 1, "--retry", "always"] if job.moment == "between" else []
    words += [JOB, "--mark", folder.name, *(["--fail-once"] if job.moment == "between" else [])]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "DDP_", "MASTER_"))}
    with (folder / "console").open("wb") as console:
        process = subprocess.Popen(
            [str(word) for word in words],
            cwd=folder,
            env={**environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )
    try:
        _await(lambda: process.poll() is not None or _at(job.moment, folder), 120)
        time.sleep(job.delay_s * (4 if job.moment == "starting" else 0.5 if job.moment != "training" else 1))
        _strike(job, folder, process, random.Random(f"{seed} {job.number}"))
        job.code = process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        job.wrong.append(f"not ended after {ENDS_WITHIN_S} s")
    _await(lambda: not _left(folder), GONE_WITHIN_S)
    job.left = [f"{pid} {process_table.look(pid)}" for pid in _left(folder)]
    for pid in _left(folder):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    _judge(job, folder)
    job.seconds = round(time.monotonic() - begin, 1)
    if job.wrong or job.left:
        job.kept = str(folder)
    else:
        shutil.rmtree(folder)
    return job


def _await(condition: Callable[[], object], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def _at(moment: str, folder: Path) -> bool:
    logs = list(folder.glob("ddp-run-logs/2*/attempt_0/rank_*/stdout.log"))
    match moment:
        case "training":
            return sum(b"training" in log.read_bytes() for log in logs) == RANKS
        case "ending":
            return any(b"ending" in log.read_bytes() for log in logs)
        case "between":
            return any(
                b'"AttemptEnded"' in journal.read_bytes() for journal in folder.glob("ddp-run-logs/2*/events.jsonl")
            )
        case _:
            return any(folder.glob("ddp-run-logs/2*/events.jsonl"))


# ------------------------------------------------------------------------------------------ the kill


def _members(root: int) -> dict[str, list[tuple[str, int, int | None]]]:
    """Of a job, by what they are: (kind, pid, rank)."""
    found: dict[str, list[tuple[str, int, int | None]]] = {"ddp-run": [("ddp-run", root, None)]}
    ranks: dict[int, int] = {}
    for pid in process_table.below(root) or ():
        words, parent = _words(pid), process_table.look(pid)
        if parent is None:
            continue
        environ = dict(word.split("=", 1) for word in _entries(pid, "environ") if "=" in word)
        kind, rank = "detached", None
        if any(word.endswith("/keeper.py") for word in words):
            kind = "keeper"
        elif "torch.distributed.run" in words and parent.parent == root:
            kind = "agent"
        elif "RANK" in environ and "--mark" in words:
            rank = int(environ["RANK"])
            kind = "worker" if parent.parent in ranks else "rank"
            ranks |= {pid: rank} if kind == "rank" else {}
        elif "-I" not in words:
            continue
        found.setdefault(kind, []).append((kind, pid, rank))
    return found


def _words(pid: int) -> list[str]:
    return _entries(pid, "cmdline")


def _entries(pid: int, name: str) -> list[str]:
    try:
        return Path(f"/proc/{process_table.acting(pid)}/{name}").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _strike(job: Job, folder: Path, process: subprocess.Popen[bytes], draw: random.Random) -> None:
    if process.poll() is not None:
        return
    members = _members(process.pid)
    job.there = {kind: len(each) for kind, each in members.items()}
    unseen = {pid for each in members.values() for _, pid, _ in each if process_table.began(pid)} - {*_left(folder)}
    if any(process_table.began(pid) for pid in unseen):
        job.wrong.append(f"this script would not find {[_words(pid) for pid in unseen]}")
    there = [kind for kind in job.wanted if kind in members]
    job.victims = [draw.choice(members[kind]) for kind in there[: 2 if job.how == "pair" else 1]]
    pids = [pid for _, pid, _ in job.victims]
    first = signal.SIGSTOP if job.how.startswith("stop") else signal.SIGKILL
    _signal(pids, first)
    if first == signal.SIGSTOP:
        time.sleep(draw.uniform(1, 6))
        _signal(pids, signal.SIGKILL if job.how == "stop-kill" else signal.SIGCONT)


def _signal(pids: list[int], signum: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            pass


# ---------------------------------------------------------------------------------------- what came of it


def _left(folder: Path) -> list[int]:
    """Processes that have the folder in their command line, for a working directory, or a file open there."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_of(pid, folder)]


def _is_of(pid: int, folder: Path) -> bool:
    process = process_table.look(pid)
    if process is None or process.ended or pid == os.getpid():
        return False
    runs = [run.name for run in folder.glob("ddp-run-logs/2*")]
    if any(mark in word for word in _words(pid) for mark in (folder.name, *runs)):
        return True
    place = Path(f"/proc/{process_table.acting(pid)}")
    return any(str(folder) in link for link in _links(place))


def _links(place: Path) -> Iterator[str]:
    try:
        for link in (place / "cwd", *(place / "fd").iterdir()):
            yield str(link.readlink())
    except OSError:
        return


def _judge(job: Job, folder: Path) -> None:
    kinds = {kind for kind, _, _ in job.victims}
    told = job.how != "stop-cont"
    if told and "ddp-run" in kinds:
        if job.code != -signal.SIGKILL:
            job.wrong.append(f"exit code {job.code} of a ddp-run that was killed")
        return
    (run_folder,) = folder.glob("ddp-run-logs/2*")
    verdict: dict[str, Any] = json.loads((run_folder / "verdict.json").read_text())
    first = verdict["first_failure"] or {}
    job.said = f"{verdict['outcome']} {verdict['cause']} rank {first.get('rank')} ({verdict['confidence']})"
    replayed = json.loads(json.dumps(explain.explain([str(run_folder)], rank_from_filename=False).document))
    if replayed != verdict:
        job.wrong.append(f"explain says something else: {replayed['title']}")
    if job.code != verdict["exit_code"]:
        job.wrong.append(f"exit code {job.code}, verdict {verdict['exit_code']}")
    harmed = {rank for _, _, rank in job.victims if rank is not None} if told else set[int]()
    if verdict["outcome"] == "succeeded":
        return
    if not told or not kinds - {"keeper", "detached"}:
        job.wrong.append("nobody of the job was harmed, and it failed")
    elif first.get("rank") not in {*harmed, None}:
        job.wrong.append(f"rank {first.get('rank')} is named, harmed were {sorted(harmed)}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--report", type=Path, default=Path(os.devnull))
    args = parser.parse_args()
    draw = random.Random(args.seed)
    jobs = [drawn(number, draw) for number in range(args.kills)]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool, args.report.open("w") as report:
        for job in pool.map(lambda each: run(each, args.seed), jobs):
            print(json.dumps(asdict(job)), file=report, flush=True)
            if job.wrong or job.left:
                print(json.dumps(asdict(job)), flush=True)
    table: dict[str, Counter[str]] = {}
    for job in jobs:
        what = "+".join(sorted(kind for kind, _, _ in job.victims)) or "nobody (it had ended)"
        row = table.setdefault(f"{what}, {job.how}", Counter())
        row.update(jobs=1, orphans=int(bool(job.left)), wrong=int(bool(job.wrong)))
        row[job.moment] += 1
    for what, row in sorted(table.items()):
        print(f"{what:40}", *(f"{name} {row[name]}" for name in ("jobs", "orphans", "wrong", *MOMENTS)))
    alone = [job for job in jobs if job.left and job.how != "pair"]
    wrong = [job for job in jobs if job.wrong]
    pairs = sum(bool(job.left) for job in jobs if job.how == "pair")
    print(
        f"seed {args.seed}: {len(jobs)} jobs, orphans of one kill {len(alone)}, of a pair {pairs}, wrong {len(wrong)}"
    )
    return 1 if alone or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
