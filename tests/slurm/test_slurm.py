"""ddp-run under a real SLURM: what srun gives needs no option, and what SLURM does to jobs reaches their ranks."""

from __future__ import annotations

import re

import pytest

from tests.nodes.conftest import TRAIN
from tests.system.test_signals import LISTEN
from tests.waiting import limit, wait_until

from .cluster import Slurm
from .conftest import Submitted

pytestmark = [pytest.mark.slow_system, pytest.mark.alone]

ONE_TASK = ("--ntasks-per-node=1",)

PLACE = """
import os, socket, torch.distributed as dist
dist.init_process_group("gloo")
keys = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK")
print("place", *(os.environ[key] for key in keys), socket.gethostname(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("nodes", [2, 3])
def test_srun_needs_no_option_of_nodes(job: Submitted, nodes: int) -> None:
    srun = job.srun(f"--nodes={nodes}", *ONE_TASK, "ddp-run", "--nproc-per-node=2", job.script(PLACE))
    assert srun.wait(limit(120)) == 0, job.output()
    places = {rank: text.split()[1:] for rank, text in job.said().items()}
    assert places == {
        rank: [str(rank), str(2 * nodes), str(rank // 2), str(nodes), str(rank % 2), f"node{rank // 2}"]
        for rank in range(2 * nodes)
    }


def test_a_failure_on_node_1_has_the_same_code_on_all_nodes_and_of_srun(job: Submitted) -> None:
    srun = job.srun("--nodes=3", *ONE_TASK, "ddp-run", TRAIN, "--fail-rank=1", "--how=os_exit", "--steps=100")
    assert srun.wait(limit(120)) == 7, job.output()
    assert [(run.verdict["exit_code"], run.verdict["first_failure"]["rank"]) for run in job.runs()] == [(7, 1)] * 3
    assert set(re.findall(r"Exited with exit code (\d+)", srun.err)) == {"7"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "waiting for node 2 (node2) of 3"),
        ("--nnodes=3 --rdzv-backend=c10d --rdzv-endpoint=node0:29400", "waiting for 1 more node (node2) of 3"),
    ],
    ids=["static", "c10d"],
)
def test_who_is_missing_is_named_by_its_host(job: Submitted, options: str, said: str) -> None:
    late = f'while [ $SLURM_NODEID = 2 ] && [ ! -e go ]; do sleep 0.1; done; exec ddp-run {options} "$0"'
    srun = job.srun("--nodes=3", *ONE_TASK, "bash", "-c", late, job.script(PLACE))
    wait_until(lambda: said in srun.err, lambda: f"who is missing: {srun.err}")
    (job.cwd / "go").touch()
    assert srun.wait(limit(120)) == 0, job.output()


@pytest.mark.parametrize(
    "nodes",
    [
        ["--nnodes=2", "--spare-nodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=node0:29400"],
        ["--nnodes=2"],
    ],
    ids=["as the user says", "as SLURM says"],
)
def test_a_step_may_have_a_spare_node(job: Submitted, nodes: list[str]) -> None:
    """The first time, the disk of the rank that isn't on node 0 is full: the step ends well all the same."""
    fails = (
        "import errno, os, socket\n"
        "if os.environ['GROUP_RANK'] == '1' and not os.path.exists('failed'):\n"
        "    open('failed', 'w').write(socket.gethostname())\n"
        "    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), '/data/checkpoint.pt')\n"
    )
    words = ("ddp-run", *nodes, "--max-retries=1", job.script(f"{fails}{PLACE}"))
    srun = job.srun("--nodes=3", *ONE_TASK, *words)
    assert srun.wait(limit(180)) == 0, job.output()
    left_out = (job.cwd / "failed").read_text()
    assert [run.verdict["outcome"] for run in job.runs()] == ["succeeded"] * 3
    notes = {note for run in job.runs() for note in run.verdict["notes"]}
    assert [note for note in notes if f"({left_out})" in note], notes


def test_two_jobs_on_the_same_nodes_do_not_collide(job: Submitted) -> None:
    waits = "import os, time\nprint('here', flush=True)\nwhile not os.path.exists('../go'): time.sleep(0.05)\n"
    program = job.script(f"{waits}{PLACE}")
    both = ("one", "other")
    sruns = [job.srun("--nodes=2", "--nodelist=node[0-1]", *ONE_TASK, "ddp-run", program, cwd=cwd) for cwd in both]
    for cwd in both:
        job.wait_for("here", 2, cwd)
    ports = [{run.port for run in job.runs(cwd)} for cwd in both]
    assert [len(each) for each in ports] == [1, 1]
    assert ports[0] != ports[1]
    (job.cwd / "go").touch()
    assert [srun.wait(limit(120)) for srun in sruns] == [0, 0], job.output()


def test_what_scancel_sends_reaches_each_rank_once_and_preemption_is_143_everywhere(
    job: Submitted, slurm: Slurm
) -> None:
    srun = job.srun("--nodes=3", *ONE_TASK, "ddp-run", "--nproc-per-node=2", job.script(LISTEN), "0")
    job.wait_for("listening", 6)
    (number,) = slurm.run("squeue", "--noheader", "--format=%i").split()
    slurm.run("scancel", "--signal=USR1", number)
    job.wait_for("got SIGUSR1", 6)
    slurm.run("scancel", "--signal=TERM", number)
    assert srun.wait(limit(60)) == 143, job.output()
    assert job.said() == dict.fromkeys(range(6), "listening\ngot SIGUSR1\ngot SIGTERM\n")
    assert [run.verdict["exit_code"] for run in job.runs()] == [143] * 3
    assert {event["code"] for run in job.runs() for event in run.events("RankExited")} == {0}


def test_the_time_limit_announces_itself_to_each_rank_once(job: Submitted, slurm: Slurm) -> None:
    """`--signal` comes up to a minute early, and a limit is seen within half a minute: SLURM counts in minutes."""
    wrapped = f"trap : TERM; srun ddp-run {job.script(LISTEN)} 0"
    number = job.sbatch("--nodes=2", *ONE_TASK, "--time=1", "--signal=USR1@30", f"--wrap={wrapped}")
    job.wait_for("got SIGTERM", 2)
    slurm.wait_for(number, "TIMEOUT", 60)
    assert job.said() == dict.fromkeys(range(2), "listening\ngot SIGUSR1\ngot SIGTERM\n")
    wait_until(lambda: all((run.folder / "verdict.json").exists() for run in job.runs()), "both verdicts")
    assert [run.verdict["exit_code"] for run in job.runs()] == [143] * 2
