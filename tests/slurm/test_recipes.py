"""How people start jobs on several nodes of SLURM, with ddp-run in torchrun's place.

The forms are those of PyTorch's examples, torchtitan, and batch files of public repositories.
"""

from __future__ import annotations

import pytest

from .cluster import Slurm
from .conftest import Submitted
from .test_slurm import PLACE

pytestmark = [pytest.mark.slow_system, pytest.mark.alone]

HEAD = """
nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
head=${nodes[0]}
"""
C10D = {
    "the head's address is asked by srun": """
ip=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}')
srun ddp-run --nnodes 2 --nproc_per_node 1 --rdzv_id $RANDOM --rdzv_backend c10d --rdzv_endpoint $ip:29500 "$program"
""",
    "the batch file's own host": """
srun --export=ALL ddp-run --nproc_per_node=1 --nnodes=2 --rdzv_id=$SLURM_JOB_ID \\
    --rdzv_backend=c10d --rdzv_endpoint="$(hostname):29401" "$program"
""",
    "each task says whether it hosts the store": """
srun --ntasks-per-node=1 bash -c 'ddp-run --nnodes=2 --nproc_per_node=1 --rdzv_id=151152 \\
    --rdzv_conf=is_host=$( ((SLURM_NODEID)) && echo 0 || echo 1) \\
    --rdzv_backend=c10d --rdzv_endpoint='$head':29500 '"$program"
""",
    "the number of nodes from SLURM": """
srun ddp-run --nproc_per_node 1 --nnodes $SLURM_NNODES --rdzv_backend c10d --rdzv_id 101 \\
    --rdzv_endpoint "$head:29500" --local-ranks-filter 0 "$program"
""",
    "elastic": """
srun ddp-run --nnodes=1:2 --max_restarts=1 --nproc_per_node=1 --rdzv_id=100 --rdzv_backend=c10d \\
    --rdzv_conf=last_call_timeout=20 --rdzv_endpoint=$head:29400 "$program"
""",
}
STATIC = {
    "a node rank for each task": """
export MASTER_ADDR=$head MASTER_PORT=29500
srun --ntasks-per-node=1 bash -c 'ddp-run --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID --nproc_per_node=1 \\
    --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT '"$program"
""",
    "an endpoint": """
srun bash -c 'ddp-run --nnodes=2 --nproc-per-node=1 --node-rank=$SLURM_PROCID --rdzv-id=125 \\
    --rdzv-endpoint='$head':29600 '"$program"
""",
    "what Kubeflow sets": """
export PET_NNODES=$SLURM_NNODES PET_MASTER_ADDR=$head PET_MASTER_PORT=29500
srun bash -c 'PET_NODE_RANK=$SLURM_NODEID ddp-run '"$program"
""",
}


@pytest.mark.parametrize("recipe", [*C10D.values(), *STATIC.values()], ids=[*C10D, *STATIC])
def test_a_recipe_runs_unchanged(job: Submitted, slurm: Slurm, recipe: str) -> None:
    program = job.script(PLACE)
    batch = job.cwd / "job.sh"
    batch.write_text(f"#!/bin/bash\nset -eu\nprogram={program}\n{HEAD}{recipe}")
    number = job.sbatch("--nodes=2", "--ntasks-per-node=1", batch)
    assert slurm.wait_for(number, "COMPLETED", 120)["ExitCode"] == "0:0"
    # who is rank 0 is torch's choice with c10d
    places = {rank: text.split() for rank, text in job.said().items()}
    assert sorted(places) == [0, 1], places
    assert {words[-1] for words in places.values()} == {"node0", "node1"}
    assert {tuple(words[1:5]) for words in places.values()} == {("0", "2", "0", "2"), ("1", "2", "1", "2")}
    assert [run.verdict["outcome"] for run in job.runs()] == ["succeeded"] * 2
