"""The files for sbatch in scripts/examples, each under a real SLURM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.waiting import wait_until

from .cluster import CPUS, Slurm
from .conftest import Run, Submitted

pytestmark = [pytest.mark.slow_system, pytest.mark.alone]

EXAMPLES = Path(__file__).parents[2] / "scripts" / "examples"
ONE_NODE, SEVERAL_NODES, ARRAY = (EXAMPLES / f"slurm-{name}.sbatch" for name in ("one-node", "several-nodes", "array"))


def submit(job: Submitted, batch: Path, *words: object, options: tuple[str, ...] = (), minutes: int = 5) -> str:
    """The job's number. There are no GPUs, and nothing is tried again."""
    environ = "--export=ALL,NPROC_PER_NODE=1,MAX_RETRIES=0"
    return job.sbatch(f"--time={minutes}", environ, *options, batch, *words)


# ------------------------------------------------------------------------------------------------- one node

CPUS_OF_THE_STEP = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
print("step has", os.environ["SLURM_CPUS_ON_NODE"], os.environ["SLURM_CPUS_PER_TASK"], flush=True)
dist.destroy_process_group()
"""


def test_one_node(job: Submitted, slurm: Slurm) -> None:
    number = submit(job, ONE_NODE, job.script(CPUS_OF_THE_STEP), options=(f"--cpus-per-task={CPUS}",))
    assert slurm.wait_for(number, "COMPLETED")["ExitCode"] == "0:0"
    assert job.said() == {0: f"step has {CPUS} {CPUS}\n"}


def test_one_node_ends_with_the_code_of_the_rank(job: Submitted, slurm: Slurm) -> None:
    number = submit(job, ONE_NODE, job.script("import os\nos._exit(7)"))
    known = slurm.wait_for(number, "FAILED")
    assert (known["Restarts"], known["ExitCode"]) == ("0", "7:0")
    assert [run.verdict["first_failure"]["rank"] for run in job.runs()] == [0]


SAVES = """
import signal, sys, time
def save(signum, frame):
    print("saving", flush=True)
    time.sleep(2)
    print("saved", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("listening", flush=True)
while True: time.sleep(0.1)
"""


def test_one_node_has_its_grace_at_the_time_limit_and_the_output_is_whole(job: Submitted, slurm: Slurm) -> None:
    number = submit(job, ONE_NODE, job.script(SAVES), minutes=1)
    job.wait_for("saved", 1)
    slurm.wait_for(number, "TIMEOUT")
    assert job.said() == {0: "listening\nsaving\nsaved\n"}
    wait_until(lambda: "verdict outcome=interrupted" in (job.cwd / "job.out").read_text(), job.output)
    assert "[rank0]: saved\n" in (job.cwd / "job.out").read_text()


# ---------------------------------------------------------------------------------------------------- array

# Each waits until all three have their port.
ONE_OF_THREE = """
import os, sys, time, torch.distributed as dist
dist.init_process_group("gloo")
open(f"port-{os.environ['SLURM_ARRAY_TASK_ID']}", "w").write(os.environ["MASTER_PORT"])
while len([name for name in os.listdir() if name.startswith("port-")]) < 3: time.sleep(0.05)
print("arguments", sys.argv[1:], flush=True)
dist.destroy_process_group()
os._exit(int(sys.argv[-1]))
"""
LINES = (1, 2, 3)


def runs_of_line(job: Submitted, number: str, line: int) -> list[Run]:
    return [Run(folder) for folder in (job.cwd / "ddp-run-logs" / f"{number}_{line}").glob("2*")]


def test_an_array_is_a_job_for_each_line(job: Submitted, slurm: Slurm) -> None:
    """All at the same time on one node."""
    (job.cwd / "sweep.txt").write_text("--lr 1e-3 --exit 0\n--lr  1e-4 --exit 9\n--lr 1e-5 --exit 0\n")
    program = job.script(ONE_OF_THREE)
    options = ("--array=1-3", "--nodelist=node1")
    number = submit(job, ARRAY, "sweep.txt", program, "--epochs", 3, options=options)
    states = {1: "COMPLETED", 2: "FAILED", 3: "COMPLETED"}
    known = {line: slurm.wait_for(f"{number}_{line}", state) for line, state in states.items()}
    assert [known[line]["ExitCode"] for line in LINES] == ["0:0", "9:0", "0:0"]
    assert {known[line]["NodeList"] for line in LINES} == {"node1"}
    runs = {line: runs_of_line(job, number, line) for line in LINES}
    assert [[run.verdict["exit_code"] for run in runs[line]] for line in LINES] == [[0], [9], [0]]
    rates = {1: "1e-3", 2: "1e-4", 3: "1e-5"}
    assert {line: runs[line][0].said()[0] for line in LINES} == {
        line: f"arguments {['--epochs', '3', '--lr', rates[line], '--exit', known[line]['ExitCode'][0]]}\n"
        for line in LINES
    }
    assert len({(job.cwd / f"port-{line}").read_text() for line in LINES}) == 3


def test_an_array_refuses_a_line_that_is_not_there(job: Submitted, slurm: Slurm) -> None:
    (job.cwd / "sweep.txt").write_text("--lr 1e-3\n")
    number = submit(job, ARRAY, "sweep.txt", job.script("print()"), options=("--array=2",))
    assert slurm.wait_for(f"{number}_2", "FAILED")["ExitCode"] == "2:0"
    assert "line 2 of 'sweep.txt' holds no arguments" in (job.cwd / "job.out").read_text()


# -------------------------------------------------------------------------------------------- several nodes

# The first time, node 1 loses its ddp-run: the agent's parent.
LOSES_A_NODE = """
import os, signal, time
print("started", os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
if "SLURM_RESTART_COUNT" in os.environ: raise SystemExit
if os.environ["GROUP_RANK"] == "1":
    agent = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()
    os.kill(int(agent[1]), signal.SIGKILL)
time.sleep(600)
"""


def runs_of_start(job: Submitted, number: str, start: int) -> list[Run]:
    return [Run(folder) for folder in sorted((job.cwd / "ddp-run-logs" / f"{number}.{start}").glob("2*"))]


def test_several_nodes_are_requeued_if_one_is_lost(job: Submitted, slurm: Slurm) -> None:
    number = submit(job, SEVERAL_NODES, job.script(LOSES_A_NODE))
    known = slurm.wait_for(number, "COMPLETED", 120)
    assert known["Restarts"] == "1"
    first, second = (runs_of_start(job, number, start) for start in (0, 1))
    assert 75 in [run.verdict["exit_code"] for run in first if (run.folder / "verdict.json").exists()]
    assert [run.verdict["exit_code"] for run in second] == [0, 0]
    assert {text for run in second for text in run.said().values()} == {"started 1\n"}


def test_several_nodes_are_not_requeued_after_a_mistake_of_the_program(job: Submitted, slurm: Slurm) -> None:
    number = submit(job, SEVERAL_NODES, job.script("{}['missing']"))
    known = slurm.wait_for(number, "FAILED")
    assert (known["Restarts"], known["ExitCode"]) == ("0", "1:0")
    assert [run.verdict["cause"] for run in runs_of_start(job, number, 0)] == ["python-exception"] * 2
