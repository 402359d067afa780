"""GPUs as NVML shows them, in real jobs: the binding is the real one, the driver's library a small one made here.

`fake_nvml/nvml.c` has the functions and layouts of nvml.h and answers from a file that the test writes. What needs a
real GPU is in tests/gpu.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from ddp_run.commands.watch import look as run_look
from ddp_run.observe.gpus import GpuWatch
from ddp_run.record.events import GpuSampled, MonotonicNs, Noted, Rank
from ddp_run.record.recorded_runs import recorded_run
from ddp_run.tell.snapshot import Gpu, Snapshot
from tests.waiting import limit, wait_until

from .conftest import Launcher, Running, cases

pytest.importorskip("pynvml", reason="needs nvidia-ml-py, the extra `gpu`")

STALL = Path(__file__).parents[1] / "faults" / "stall.py"
SOURCE = Path(__file__).parent / "fake_nvml" / "nvml.c"
GIB = 1 << 30
WAITS = """
import os, pathlib, time
while not pathlib.Path(os.environ["GO"]).exists(): time.sleep(0.05)
"""
RUNS_OUT = (
    WAITS
    + """
if os.environ["RANK"] == "1":
    import atexit
    atexit.register(time.sleep, 0.5)  # an interpreter with torch takes its time to go down
    # as torch's own, without its import
    error = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
    raise error(pathlib.Path(os.environ["GO"]).read_text())
time.sleep(600)
"""
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libnvidia-ml.so.1."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, for a library with NVML's functions")
    folder = tmp_path_factory.mktemp("nvml")
    options = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        ["gcc", *options, "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], check=True, timeout=limit(120)
    )
    return folder


class Machine:
    """What the library says. `say` changes it for the calls that follow."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._state, self.go = folder / "nvml.txt", folder / "go"
        self.environ = {
            "LD_LIBRARY_PATH": f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "FAKE_NVML": str(self._state),
            "CUDA_VISIBLE_DEVICES": "1,0",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "GO": str(self.go),
        }

    def say(self, *lines: str, used: Sequence[int] = (0, 0)) -> None:
        """Two GPUs of 80 GiB with so many GiB in use, and more lines as in nvml.c."""
        gpus = [f"gpu {number} GPU-{number}0000000-1111 {80 * GIB} {size * GIB} 37" for number, size in enumerate(used)]
        part = self._state.with_suffix(".part")
        part.write_text("".join(f"{line}\n" for line in (*gpus, *lines)))
        part.replace(self._state)

    def let_go(self, text: str = "") -> None:
        part = self.go.with_suffix(".part")
        part.write_text(text)
        part.replace(self.go)


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Machine:
    made = Machine(library, tmp_path)
    made.say()
    return made


def notes(running: Running) -> list[str]:
    return [event["text"] for event in running.events("Noted") if event["text"].startswith("GPU ")]


def probes(running: Running) -> list[int]:
    """The processes of this run that ask NVML."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"gpu_probe.py" in (entry / "cmdline").read_bytes():
                parent = int((entry / "stat").read_bytes().rpartition(b") ")[2].split()[1])
                found += [int(entry.name)] if parent == running.process.pid else []
        except OSError:
            continue
    return found


HAS_A_CHILD = """
import os, subprocess
if os.environ["RANK"] == "1":
    child = subprocess.Popen(["sleep", "600"])
    open(os.environ["GO"] + ".child", "w").write(f"{child.pid}\\n")
"""


@dataclass(frozen=True)
class Watched:
    """A job of two ranks, and what was seen: of both; of the second one's child; when GPU 1 was lost. `shown`: by
    `ddp-run watch` when both were seen."""

    pids: tuple[int, int]
    of_ranks: dict[str, Any]
    of_child: dict[str, Any]
    shown: Snapshot
    running: Running
    code: int


@pytest.fixture(scope="module")
def watched(shared_ddp: Launcher, library: Path) -> Watched:
    machine, ddp = Machine(library, shared_ddp.cwd), shared_ddp
    machine.say()
    running = ddp.start("--nproc-per-node", 2, ddp.script(HAS_A_CHILD + WAITS), env=machine.environ)

    def look(at: int) -> dict[str, Any]:
        def looks() -> list[dict[str, Any]]:
            return [event for event in running.events("GpuSampled") if at in event["pids"]]

        return wait_until(looks, f"a look at process {at}")[0]

    first, second = running.pids(2)
    stranger = f"process 1 {os.getpid()} -"
    machine.say(f"process 0 {second} {9 * GIB}", f"process 1 {first} {20 * GIB}", stranger, used=(9, 21))
    of_ranks = look(second)
    assert running.folder is not None
    known = recorded_run(running.folder)
    assert known is not None
    with closing(run_look.Watched(known)) as watcher:
        shown = watcher.look()
    told = machine.go.with_name("go.child")
    wait_until(lambda: told.exists() and told.read_text().endswith("\n"), "the child's pid")
    machine.say(f"process 0 {int(told.read_text())} {9 * GIB}", used=(9, 0))
    of_child = look(int(told.read_text()))
    assert of_child["gpus"] == [0, 1]
    machine.say("error 1 15")
    wait_until(lambda: any(event["gpus"] == [0] for event in running.events("GpuSampled")), "a look at the other")
    machine.let_go()
    return Watched((first, second), of_ranks, of_child, shown, running, running.wait().code)


def test_memory_by_gpu_and_by_process(watched: Watched) -> None:
    seen, (first, second), stranger = watched.of_ranks, watched.pids, os.getpid()
    assert (seen["gpus"], seen["uuids"]) == ([0, 1], ["GPU-00000000-1111", "GPU-10000000-1111"])
    assert (seen["used"], seen["free"], seen["total"]) == ([9 * GIB, 21 * GIB], [71 * GIB, 59 * GIB], [80 * GIB] * 2)
    assert seen["busy"] == [37, 37]
    by_pid = {pid: place for pid, *place in zip(*(seen[n] for n in ("pids", "on", "held", "members")), strict=True)}
    assert by_pid == {first: [1, 20 * GIB, 0], second: [0, 9 * GIB, 1], stranger: [1, None, None]}
    assert seen["own_pids"]
    assert (seen["ranks"], seen["visible"]) == ([0, 1], [[1, 0], [1, 0]])
    names = dict(zip(seen["pids"], seen["names"], strict=True))
    assert names[stranger] == Path("/proc/self/comm").read_text().strip()
    assert not probes(watched.running)


def test_watch_shows_the_gpus_of_each_rank(watched: Watched) -> None:
    assert [row.gpus for row in watched.shown.ranks] == [(Gpu(1, 20 * GIB, 37),), (Gpu(0, 9 * GIB, 37),)]


def test_a_child_of_a_rank_is_the_ranks(watched: Watched) -> None:
    assert (watched.of_child["members"], watched.of_child["names"]) == ([1], ["sleep"])


def test_a_gpu_that_is_lost_while_the_job_runs_is_noted_and_nothing_else(watched: Watched) -> None:
    assert watched.code == 0
    assert notes(watched.running) == ["GPU 1 is not monitored: GPU is lost"]


def test_a_gpu_that_two_ranks_share_runs_out(ddp: Launcher, machine: Machine) -> None:
    running = ddp.start("--nproc-per-node", 2, ddp.script(RUNS_OUT), env=machine.environ)
    first, second = running.pids(2)
    machine.say(f"process 1 {second} {30 * GIB}", f"process 1 {first} {49 * GIB}", used=(0, 79))
    machine.let_go(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is "
        f"free. Process {first} has 49.00 GiB memory in use. Including non-PyTorch memory, this process has 30.00 GiB "
        "memory in use. Of the allocated memory 29.00 GiB is allocated by PyTorch, and 98.41 MiB is reserved by "
        "PyTorch but unallocated."
    )
    outcome = running.wait()
    running.assert_nothing_left()
    verdict = outcome.verdict
    assert (verdict["cause"], verdict["first_failure"]["rank"]) == ("cuda-oom", 1)
    assert verdict["title"] == (
        "rank 1 ran out of GPU memory allocating 2.00 GiB on GPU 0: 1 GiB of 80 GiB were free, rank 0 held 49 GiB"
    )
    # the look that the failure asked for found the rank still there
    shown = next(quote["text"] for quote in verdict["evidence"] if quote["source"] == "gpu")
    assert shown.startswith("GPU 1 (GPU-10000000): 1.0 GiB of 80.0 GiB free 0.")
    assert shown.endswith(" after it failed; rank 0 49.0 GiB; rank 1 30.0 GiB")
    assert "ranks 0-1 share" in verdict["advice"][0]


def more(*values: object) -> ParameterSet:
    """A case that is run only when asked for: `-m slow_system`."""
    return pytest.param(*values, marks=pytest.mark.slow_system)


@pytest.mark.parametrize(
    ("lines", "environ", "said"),
    [
        more(["init 9"], {}, ["GPU monitoring disabled: NVML says: Driver Not Loaded"]),
        (["crash init"], {}, ["GPU monitoring disabled: the NVML probe exited"]),
        more([], {"LD_LIBRARY_PATH": ""}, ["GPU monitoring disabled: NVML says: NVML Shared Library Not Found"]),
        more(["open 0 4"], {}, ["GPU 0 is not monitored: Insufficient Permissions"]),
        more(["mig 0 1"], {}, ["GPU 0 is not monitored: it is split by MIG"]),
        more(["mig 0 0"], {}, []),
        more(["init 9"], {"CUDA_VISIBLE_DEVICES": ""}, []),
    ],
    ids=["no driver", "crash", "no library", "no permission", "mig", "mig is off", "hidden"],
)
def test_what_cannot_be_seen_is_noted_once(
    ddp: Launcher, machine: Machine, lines: list[str], environ: Mapping[str, str], said: list[str]
) -> None:
    machine.say(*lines)
    running = ddp.start("--nproc-per-node", 1, ddp.script(WAITS), env={**machine.environ, **environ})
    running.wait_for("RankStarted")
    if said:
        wait_until(lambda: notes(running), "a note")
    elif not environ:
        running.wait_for("GpuSampled")
    time.sleep(2.5)  # two more looks
    machine.let_go()
    outcome = running.wait()
    assert outcome.code == 0
    assert notes(running) == said
    assert "monitor" not in outcome.stderr
    if said and said[0].startswith("GPU 0"):
        assert {tuple(event["gpus"]) for event in outcome.named("GpuSampled")} == {(1,)}


def test_without_the_binding(ddp: Launcher, machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "hides").mkdir()
    (tmp_path / "hides" / "pynvml.py").write_text("raise ImportError('not here')")
    environ = {**machine.environ, "PYTHONPATH": str(tmp_path / "hides")}
    running = ddp.start("--nproc-per-node", 1, ddp.script(WAITS), env=environ)
    wait_until(lambda: notes(running), "a note")
    machine.let_go()
    assert running.wait().code == 0
    assert len(notes(running)) == 1
    assert "pip install 'ddp-run[gpu]'" in notes(running)[0]


@pytest.mark.parametrize("function", cases(("init", "memory"), ("memory",)))
def test_nvml_that_never_answers(ddp: Launcher, machine: Machine, function: str) -> None:
    machine.say(f"hang {function}")
    running = ddp.start("--nproc-per-node", 2, ddp.script(RUNS_OUT), env=machine.environ)
    running.pids(2)
    wait_until(lambda: probes(running), "the process that asks")
    machine.let_go("CUDA out of memory. Tried to allocate 2.00 GiB. ")
    outcome = running.wait()
    assert outcome.verdict["title"] == "rank 1 ran out of GPU memory allocating 2.00 GiB"
    assert not outcome.named("GpuSampled")
    running.assert_nothing_left()
    assert not probes(running)


@pytest.mark.slow_system
def test_a_stall_says_how_busy_the_gpus_are(ddp: Launcher, machine: Machine) -> None:
    running = ddp.start("--nproc-per-node", 3, STALL, "--kind", "lock", env=machine.environ)
    pids = running.pids(3)
    machine.say(*(f"process {number} {pids[rank]} {GIB}" for rank, number in ((0, 0), (1, 1), (2, 0))))
    quotes = running.wait_for("StallSeen")[0]["quotes"]
    assert "GPU 0 at 37 % (ranks 0,2), GPU 1 at 37 % (rank 1)" in quotes
    running.signal(signal.SIGKILL)


# --------------------------------------------------------------------------- the asking process alone


@pytest.fixture
def watch(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuWatch]:
    """One that asks. This process stands for ddp-run and for rank 0."""
    for name, value in machine.environ.items():
        monkeypatch.setenv(name, value)
    started = GpuWatch.start()
    yield started
    started.process.end()
    os.waitpid(started.process.pid, 0)


ASKS = """
import time
from ddp_run.observe.gpus import GpuWatch
watch = GpuWatch.start()
watch.ask(time.monotonic_ns())
print(watch.process.pid, flush=True)
time.sleep(600)
"""


def test_the_asking_process_ends_with_ddp_run(machine: Machine) -> None:
    """From within a call that never returns. A program that starts it as ddp-run does stands for ddp-run."""
    machine.say("hang memory")
    words = [sys.executable, "-c", ASKS]
    with subprocess.Popen(words, env={**os.environ, **machine.environ}, stdout=subprocess.PIPE, text=True) as asks:
        assert asks.stdout is not None
        probe = int(asks.stdout.readline())
        maps = Path(f"/proc/{probe}/maps")
        wait_until(lambda: "libnvidia-ml" in maps.read_text(), "the library in which it hangs")
        asks.kill()
    wait_until(lambda: not Path(f"/proc/{probe}").exists(), "its end")


def now() -> MonotonicNs:
    return MonotonicNs(time.monotonic_ns())


def answer(watch: GpuWatch) -> list[GpuSampled | Noted]:
    """Ask, and wait for the answer; what it is worth."""
    events: list[GpuSampled | Noted] = []

    def come() -> bool:
        more, _over = watch.read(now(), {Rank(0): os.getpid()}, [Rank(0)])
        events.extend(more)
        return not watch.is_silent(MonotonicNs(now() + 3600 * 10**9))

    watch.ask(now())
    wait_until(come, "an answer")
    return events


def test_silence_has_an_end(watch: GpuWatch, machine: Machine) -> None:
    assert isinstance(answer(watch)[0], GpuSampled)
    assert not watch.is_silent(now())
    machine.say("hang memory")
    asked = now()
    watch.ask(asked)
    assert not watch.is_silent(MonotonicNs(asked + 14 * 10**9))
    assert watch.is_silent(MonotonicNs(asked + 16 * 10**9))
    assert watch.at_death(now()) == []
    assert 0.0 < watch.awaited_s(asked) <= 1.0
    assert watch.awaited_s(MonotonicNs(asked + 2 * 10**9)) == 0.0


def test_the_look_before_a_death_is_kept(watch: GpuWatch, machine: Machine) -> None:
    """A look that was not worth a line is, once a rank has died; and so is the one after it."""
    machine.say(f"process 0 {os.getpid()} {GIB}", used=(1, 0))
    first = answer(watch)
    assert len(first) == 1
    assert answer(watch) == []
    machine.say(used=(0, 0))
    (held,) = watch.at_death(now())
    (after,) = answer(watch)  # at_death has asked already
    assert isinstance(after, GpuSampled)
    assert (held.members, after.members) == ((Rank(0),), ())
    assert first[0].at < held.at < after.at
    assert watch.at_death(now()) == []
