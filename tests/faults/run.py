"""Runs faulty jobs under ddp-run and compares what it says with `tests/faults/expected.py`.

    python -m tests.faults.run [-j JOBS] [--keep FOLDER] [--warm] [NAME...]

With `--warm` ranks are forks of one process that has torch, as ddp-run's option says. Names may be parts of names. Jobs
that need a GPU run if they are asked for by name: `gpu-`. Exits with 1 where anything that was said is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from ddp_run.judge.replay import replay
from tests.faults.expected import FIRST, GPU, JOBS, Job

PROGRAMS = Path(__file__).parent / "jobs"
DDP_RUN = Path(sys.executable).with_name("ddp-run")
LIMIT_S = 180.0
MEASURE_S = 0.002
"""Ends that are closer are not told apart on a machine with fewer cores than ranks."""
ABORTED = "terminate called without an active exception"
"""Of torch's own threads where the interpreter goes down soon after a collective, under torchrun too: then the code is
that of SIGABRT, and all else stays as expected."""
KERNEL_S = 0.016
"""The kernel reports a death by a signal so much later: ddp-run then says that the order is not certain."""


def main() -> int:
    """Run what was asked for and print a line for each job that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)  # in a script's background, or under nohup, they come ignored
    named = [job for job in (*JOBS, *GPU) if any(name in job.name for name in asked.names)]
    chosen = named if asked.names else list(JOBS)
    if asked.warm:
        chosen = [replace(job, options=("--warm", *job.options)) for job in chosen]
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="faults-"))
    rounds = [(job, folder / f"{job.name}-{number}") for job in chosen for number in range(job.repeat)]
    with ThreadPoolExecutor(asked.jobs) as pool:
        said = list(pool.map(lambda each: wrong(*each), rounds))
    bad: dict[str, list[list[str]]] = {}
    for (job, _folder), errors in zip(rounds, said, strict=True):
        if errors:
            bad.setdefault(job.name, []).append(errors)
    for name, found in bad.items():
        print(f"{name}: wrong {len(found)} times: {'; '.join(found[0])}")
    print(f"{len(chosen) - len(bad)} of {len(chosen)} jobs right ({len(rounds)} runs); folders: {folder}")
    if not asked.keep and not bad:
        shutil.rmtree(folder)
    return bool(bad)


def wrong(job: Job, folder: Path) -> list[str]:
    """What is wrong in what ddp-run says of this job; empty: all right."""
    folder.mkdir(parents=True)
    with small_disk(job, folder) as small:
        words = [word.format(folder=folder, small=small) for word in job.words]
        program = PROGRAMS / words[0]
        command = [DDP_RUN, "--nproc-per-node", str(job.ranks), *job.options, str(program), *words[1:]]
        code = run(job, [str(word) for word in command], folder)
    job = with_who_was_first(job, folder)
    codes = (job.code, *((128 + signal.SIGABRT,) if may_abort(job, folder) else ()))
    latest = folder / "ddp-run-logs" / "latest"
    if job.outcome == "refused":
        return different("code", code, (job.code,))
    try:
        verdict = json.loads((latest / "verdict.json").read_text())
    except (OSError, ValueError) as error:
        return [f"no verdict: {error}", *different("code", code, codes)]
    return [*different("code", code, codes), *compared(job, verdict, program)]


def may_abort(job: Job, folder: Path) -> bool:
    """Whether a rank may end by SIGABRT: its GPU context is lost, or torch has aborted it on its way out."""
    return job.lost or (job.outcome == "failed" and ABORTED in (folder / "err").read_text(errors="replace"))


def compared(job: Job, verdict: dict[str, Any], program: Path) -> Iterator[str]:
    """What of a verdict differs from what was expected."""
    first = verdict["first_failure"] or {}
    yield from different("outcome", verdict["outcome"], (job.outcome,))
    yield from different("cause", verdict["cause"], job.cause)
    yield from different("phase", verdict["phase"], job.phase)
    yield from different("rank", first.get("rank"), job.rank)
    if job.followers is not None:
        followers = frozenset(each["rank"] for each in verdict["collateral"])
        yield from different("followers", sorted(followers), (sorted(job.followers),))
    if job.marker != "-":
        exception = first.get("exception") or {}
        place = Path(exception.get("file") or "-").name, exception.get("line")
        yield from different("line", place, ((program.name, line_of(program, job.marker)),))


def with_who_was_first(job: Job, folder: Path) -> Job:
    """The job with the rank and code of who wrote down the earliest end, or one that cannot be told from it.

    A rank may be taken off its core between writing and ending; ddp-run must then name another that was as early.
    """
    if job.code != FIRST:
        return job
    written = {int(path.name[5:]): path.read_text() for path in folder.glob("ends-*")}
    ends = {rank: float(text) for rank, text in written.items() if text}  # the others were ended with the job
    verdict, _events = replay((folder / "ddp-run-logs" / "latest").resolve())
    unsure = any("which came first is uncertain" in note for note in verdict.notes)
    late = min(ends.values()) + (KERNEL_S if unsure else MEASURE_S)
    told = verdict.first_failure.rank if verdict.first_failure is not None else None
    first = told if told is not None and ends.get(told, inf) <= late else min(ends, key=ends.__getitem__)
    code = {"exit": 20 + first, "raise": 1, "signal": 139}[job.words[1]]
    return replace(job, code=code, rank=(first,), followers=frozenset(written) - {first})


def different(what: str, said: object, expected: tuple[object, ...]) -> list[str]:
    """A sentence where what was said is not among what is right."""
    return [] if said in expected else [f"{what} {said!r}, expected {' or '.join(map(repr, expected))}"]


def line_of(program: Path, marker: str) -> int:
    """The number of the line with this mark."""
    mark = re.compile(rf"# <- {re.escape(marker)}$")
    return next(number for number, line in enumerate(program.read_text().splitlines(), 1) if mark.search(line))


def run(job: Job, command: list[str], folder: Path) -> int:
    """The exit code of ddp-run, which gets the job's signal when it is time for that."""
    hidden = {} if job.words[0] == "gpu.py" else {"CUDA_VISIBLE_DEVICES": ""}
    kept = {name: value for name, value in os.environ.items() if not re.match(r"DDP_|PET_|TORCH|MASTER_|NCCL_", name)}
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=kept | hidden | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        if job.stop is not None:
            wait_for(job.until, folder, process)
            process.send_signal(job.stop)
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return -process.wait()


def wait_for(text: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Until every rank has printed it, or a line of the journal matches it."""
    deadline = time.monotonic() + LIMIT_S
    logs = folder / "ddp-run-logs" / "latest"
    while process.poll() is None and time.monotonic() < deadline:
        printed = [text in file.read_text(errors="replace") for file in logs.glob("attempt_*/rank_*/stdout.log")]
        journal = logs / "events.jsonl"
        if (printed and all(printed)) or (journal.exists() and re.search(text, journal.read_text())):
            return
        time.sleep(0.02)


@contextmanager
def small_disk(job: Job, folder: Path) -> Iterator[Path]:
    """A file system of 16 MiB where the job asks for one; needs root."""
    small = folder / "small"
    if not any("{small}" in word for word in job.words):
        yield small
        return
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(small)], check=True)
    try:
        yield small
    finally:
        subprocess.run(["umount", str(small)], check=True)


if __name__ == "__main__":
    sys.exit(main())
