"""A picture of one job's start under torchrun and under `ddp-run --warm`: `python tests/bench/draw_start.py FILE.svg`.

Each launcher runs the job a few times, in turn; drawn is the run with the median time. Run it on a quiet machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

RANKS, ROUNDS = 8, 5
PROGRAM = """
import json, os, time
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
began = int(stat[19]) / os.sysconf("SC_CLK_TCK")
import torch, torch.distributed as dist
imported = time.clock_gettime(time.CLOCK_BOOTTIME)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
reduced = time.clock_gettime(time.CLOCK_BOOTTIME)
with open(f"times.{dist.get_rank()}", "w") as file:
    json.dump([began, imported, reduced], file)
dist.destroy_process_group()
"""
LEFT, TOP, BAR, GAP, WIDTH = 130, 34, 9, 4, 720
PHASES = {
    "launcher": "#cfc8b8",
    "Python, import torch": "#c9a227",
    "process group, all_reduce": "#2a9d8f",
    "end": "#8d99ae",
}


@dataclass(frozen=True)
class Job:
    """Seconds since the launcher's start: of each rank (began, imported, reduced), and of the launcher's end."""

    ranks: list[list[float]]
    end: float


def run(words: str, folder: Path) -> Job:
    """One job."""
    (folder / "program.py").write_text(PROGRAM)
    name, *options = words.split()
    command: list[str | Path] = [
        Path(sys.executable).with_name(name),
        *options,
        "--nproc-per-node",
        str(RANKS),
        "program.py",
    ]
    begin = time.clock_gettime(time.CLOCK_BOOTTIME)
    subprocess.run(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=True)
    end = time.clock_gettime(time.CLOCK_BOOTTIME)
    times = [json.loads((folder / f"times.{rank}").read_text()) for rank in range(RANKS)]
    return Job([[at - begin for at in each] for each in times], end - begin)


def bars(job: Job, top: float, scale: float) -> str:
    """A lane for each rank."""
    drawn = []
    for rank, times in enumerate(job.ranks):
        y = top + rank * (BAR + GAP)
        for colour, start, stop in zip(PHASES.values(), [0.0, *times], [*times, job.end], strict=True):
            at, width = LEFT + start * scale, max(stop - start, 0.01) * scale
            drawn.append(f'<rect x="{at:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
    return "".join(drawn)


def picture(jobs: dict[str, Job]) -> str:
    """The SVG: one group of lanes for each launcher, on one scale of time."""
    longest = max(job.end for job in jobs.values())
    scale, lanes = (WIDTH - LEFT - 60) / longest, RANKS * (BAR + GAP) + 18
    parts, x = [], LEFT
    for name, colour in PHASES.items():
        parts.append(
            f'<rect x="{x}" y="10" width="10" height="10" fill="{colour}"/><text x="{x + 14}" y="19">{name}</text>'
        )
        x += 40 + 7 * len(name)
    for number, (name, job) in enumerate(jobs.items()):
        top = TOP + number * lanes
        parts.append(f'<text x="4" y="{top + lanes / 2 - 8}">{name}</text>')
        parts.append(bars(job, top, scale))
        parts.append(f'<text x="{LEFT + job.end * scale + 6:.1f}" y="{top + lanes / 2 - 8}">{job.end:.1f} s</text>')
    height = TOP + len(jobs) * lanes
    style = "text{font:13px sans-serif;fill:#777}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f"<title>Start to end of a gloo job of {RANKS} ranks</title><style>{style}</style>{''.join(parts)}</svg>\n"
    )


def main() -> None:
    found: dict[str, list[Job]] = {"torchrun": [], "ddp-run --warm": []}
    with tempfile.TemporaryDirectory() as place:
        for _round in range(ROUNDS):
            for words, jobs in found.items():
                jobs.append(run(words, Path(place)))
    median = {words: sorted(jobs, key=lambda job: job.end)[ROUNDS // 2] for words, jobs in found.items()}
    Path(sys.argv[1]).write_text(picture(median))
    print({words: round(job.end, 2) for words, job in median.items()})


if __name__ == "__main__":
    main()
