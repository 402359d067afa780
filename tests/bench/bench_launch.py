"""Whole jobs under ddp-run and under torchrun, in turn: `python -m tests.bench.bench_launch [--rounds 7] [NAME…]`.

Each round runs both, first one then the other, and counts as one pair; printed are the medians and the median of the
pairs' ratios, which holds when the machine's speed drifts. Run it on a quiet machine; `nodes` needs root.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from tests.nodes.cluster import Cluster, Node

BIN = Path(sys.executable).parent
HELLO = "print('hello')\n"
GLOO = (
    "import torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "dist.all_reduce(torch.ones(1))\n"
    "dist.destroy_process_group()\n"
)
# The failing rank writes when its failing line runs; the peer sleeps, as a rank in a collective does.
FAILS = (
    "import os, signal, sys, time\n"
    "import torch\n"
    "if os.environ['RANK'] == '0':\n"
    "    if sys.argv[2] == 'deaf': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "    time.sleep(300)\n"
    "time.sleep(2)\n"
    "open(sys.argv[1], 'w').write(repr(time.time()))\n"
    "raise ValueError('fault')\n"
)
# Rank 1 dies in the first attempt, after an all_reduce; rank 0 writes when the next attempt has done one.
RETRIED = (
    "import os, sys, time\n"
    "import torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "dist.all_reduce(torch.ones(1))\n"
    "again = os.path.exists(sys.argv[1])\n"
    "dist.barrier()\n"
    "if again and os.environ['RANK'] == '0': open(sys.argv[2], 'w').write(repr(time.time()))\n"
    "if not again and os.environ['RANK'] == '1':\n"
    "    open(sys.argv[1], 'w').write(repr(time.time()))\n"
    "    os._exit(9)\n"
    "if not again: time.sleep(300)\n"
    "dist.destroy_process_group()\n"
)
IDLE = "import time\ntime.sleep(300)\n"
HOLDS = GLOO.replace("dist.destroy_process_group()", "open(f'ready.{dist.get_rank()}', 'w')\n" + IDLE)


def run(command: Sequence[str | Path], folder: Path, expect: int | None = 0) -> float:
    """Wall seconds of one run."""
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120
    )
    seconds = time.perf_counter() - started
    if expect is not None and done.returncode != expect:
        raise SystemExit(f"{command} exited with {done.returncode}")
    return seconds


def environ() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def script(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(text)
    return path


def whole_job(text: str, ranks: int = 2, ours: Sequence[str] = ()) -> Callable[[Path, str], float]:
    """`ours`: options that only ddp-run gets."""

    def measure(folder: Path, launcher: str) -> float:
        options = ours if launcher == "ddp-run" else ()
        return run([BIN / launcher, *options, "--nproc-per-node", str(ranks), script(folder, text)], folder)

    return measure


def cpu_of(job: Callable[[Path, str], float]) -> Callable[[Path, str], float]:
    """CPU seconds of a job's processes, all of which have been waited for when it's over."""

    def measure(folder: Path, launcher: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        job(folder, launcher)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return measure


def two_nodes(text: str, *, c10d: bool = False) -> Callable[[Path, str], float]:
    """A job of two nodes with addresses of their own, from the start of both to the end of the later one."""

    def measure(folder: Path, launcher: str) -> float:
        program = script(folder, text)
        with Cluster(2) as cluster, ThreadPoolExecutor(2) as both:
            address = cluster.node(0).address
            endpoint = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:29400"]

            def seconds_of(node: Node) -> float:
                static = ["--master-addr", address, "--node-rank", str(node.rank)]
                meeting = ["--nnodes", "2", *(endpoint if c10d else static)]
                return run([*node.within, BIN / launcher, *meeting, "--nproc-per-node", "1", program], folder)

            return max(both.map(seconds_of, cluster.nodes))

    return measure


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def failure_to_exit(kind: str) -> Callable[[Path, str], float]:
    """Seconds from the failing line to the launcher's exit."""

    def measure(folder: Path, launcher: str) -> float:
        stamp = folder / "stamp"
        words: list[str | Path] = [BIN / launcher, "--nproc-per-node", "2"]
        words += ["--shutdown-timeout", "3"] if kind == "deaf" else []
        run([*words, script(folder, FAILS), stamp, kind], folder, expect=1)
        return time.time() - float(stamp.read_text())

    return measure


def crash_to_all_reduce(ranks: int) -> Callable[[Path, str], float]:
    """Seconds from a rank's death to the first all_reduce of the next attempt."""

    def measure(folder: Path, launcher: str) -> float:
        died, again = folder / "died", folder / "again"
        died.unlink(missing_ok=True)
        options = {"ddp-run": ["--warm", "--max-retries", "1"], "torchrun": ["--max-restarts", "1"]}[launcher]
        # Without this variable most of torchrun's restarts fail: the ranks find the addresses of those before.
        words: list[str | Path] = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", BIN / launcher, *options]
        run([*words, "--nproc-per-node", str(ranks), script(folder, RETRIED), died, again], folder)
        return float(again.read_text()) - float(died.read_text())

    return measure


MEASURES: dict[str, tuple[str, Callable[[Path, str], float]]] = {
    "hello": ("2 ranks, hello, start to end", whole_job(HELLO)),
    "gloo": ("2 ranks, gloo all_reduce, start to end", whole_job(GLOO)),
    "warm-hello": ("2 ranks, hello, --warm, start to end", whole_job(HELLO, ours=["--warm"])),
    "warm-gloo": ("2 ranks, gloo all_reduce, --warm, start to end", whole_job(GLOO, ours=["--warm"])),
    "hello-8": ("8 ranks, hello, start to end", whole_job(HELLO, 8)),
    "gloo-8": ("8 ranks, gloo all_reduce, start to end", whole_job(GLOO, 8)),
    "warm-hello-8": ("8 ranks, hello, --warm, start to end", whole_job(HELLO, 8, ["--warm"])),
    "warm-gloo-8": ("8 ranks, gloo all_reduce, --warm, start to end", whole_job(GLOO, 8, ["--warm"])),
    "warm-gloo-8-cpu": ("the same, CPU seconds", cpu_of(whole_job(GLOO, 8, ["--warm"]))),
    "warm-retry": ("2 ranks, death to the next attempt's all_reduce, --warm", crash_to_all_reduce(2)),
    "warm-retry-8": ("8 ranks, death to the next attempt's all_reduce, --warm", crash_to_all_reduce(8)),
    "nodes": ("2 nodes of 1 rank, gloo all_reduce, start to end", two_nodes(GLOO)),
    "nodes-c10d": ("the same, c10d", two_nodes(GLOO, c10d=True)),
    "failure": ("failing line to exit", failure_to_exit("plain")),
    "deaf": ("the same, a peer ignores SIGTERM, grace 3 s", failure_to_exit("deaf")),
}


def compare(name: str, rounds: int) -> None:
    title, measure = MEASURES[name]
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number in range(rounds + 1):
            order = ("ddp-run", "torchrun") if number % 2 else ("torchrun", "ddp-run")
            seconds = {launcher: measure(folder, launcher) for launcher in order}
            if number:  # the first pair warms the disk's cache
                ours.append(seconds["ddp-run"])
                theirs.append(seconds["torchrun"])
    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    print(
        f"{title}: ddp-run {statistics.median(ours):.2f} s, torchrun {statistics.median(theirs):.2f} s, "
        f"median of {rounds} paired ratios {ratio:.3f}"
    )


def idle(nodes: int, ranks: int, seconds: float = 30.0) -> None:
    """CPU and memory of the supervisors while all ranks do nothing; with several nodes all are on this host."""
    with tempfile.TemporaryDirectory() as place:
        folder, port = Path(place), free_port()
        program = script(folder, IDLE)
        jobs: list[subprocess.Popen[bytes]] = []
        for node in range(nodes):
            master = ["--nnodes", str(nodes), "--master-addr", "127.0.0.1", "--master-port", str(port)]
            words = [*(master if nodes > 1 else []), "--nproc-per-node", str(ranks), "--node-rank", str(node)]
            jobs.append(
                subprocess.Popen(
                    [BIN / "ddp-run", *words, program],
                    cwd=folder, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        time.sleep(12)
        before = [cpu_s(job.pid) for job in jobs]
        time.sleep(seconds)
        used = [100 * (cpu_s(job.pid) - then) / seconds for job, then in zip(jobs, before, strict=True)]
        memory = max(psutil.Process(job.pid).memory_info().rss for job in jobs) / 2**20
        for job in jobs:
            job.send_signal(signal.SIGTERM)
        for job in jobs:
            job.wait(60)
    shares = ", ".join(f"{share:.2f} %" for share in used)
    print(f"idle, {nodes} x {ranks} ranks: {shares} of a core for each supervisor, {memory:.1f} MiB resident")


def memory(ranks: int = 8) -> None:
    """Memory of whole jobs, from the launcher to the ranks, which have torch and a process group and wait."""
    warm = ["ddp-run", "--warm"]
    for words in (["torchrun"], ["ddp-run"], warm, [*warm, "--max-retries=1"]):
        with tempfile.TemporaryDirectory() as place:
            command: list[str | Path] = [BIN / words[0], *words[1:]]
            command += ["--nproc-per-node", str(ranks), script(Path(place), HOLDS)]
            job = subprocess.Popen(
                command, cwd=place, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while len(list(Path(place).glob("ready.*"))) < ranks:
                time.sleep(0.1)
            time.sleep(3)
            processes = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
            pss = sum(each.memory_full_info().pss for each in processes) / 2**20
            job.send_signal(signal.SIGTERM)
            job.wait(60)
        print(f"{' '.join(words)}, {ranks} ranks: {pss:.0f} MiB (PSS) in {len(processes)} processes")


def doctor(rounds: int) -> None:
    """`ddp-run doctor --quick`, whatever it thinks of this host."""
    with tempfile.TemporaryDirectory() as place:
        seconds = [run([BIN / "ddp-run", "doctor", "--quick"], Path(place), expect=None) for _ in range(rounds)]
    print(f"doctor --quick: {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s in {rounds} runs")


def cpu_s(pid: int) -> float:
    """CPU seconds of a process' only thread so far (proc(5), schedstat: nanoseconds)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*MEASURES, "idle", "memory", "doctor"], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    for name in args.names:
        if name == "idle":
            idle(nodes=1, ranks=8)
            idle(nodes=1, ranks=1)
            idle(nodes=2, ranks=1)
        elif name == "memory":
            memory()
        elif name == "doctor":
            doctor(args.rounds)
        else:
            compare(name, 3 if name == "deaf" else args.rounds)


if __name__ == "__main__":
    main()
