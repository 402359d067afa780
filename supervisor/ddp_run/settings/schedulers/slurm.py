"""SLURM: the nodes of a step in which srun starts ddp-run once on each (srun(1), OUTPUT ENVIRONMENT VARIABLES). Pure.

Ignored are several tasks per node (a warning says so), and the script of sbatch, which runs only on the first node. So
are heterogeneous jobs, whose parts have their own node lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddp_run.settings.options import Options
from ddp_run.settings.schedulers import JobNodes, whole_number

_FIRST_PORT, _PORTS = 20000, 12000
"""Below the ports that Linux gives to clients (32768 and up), which could be in use."""
_STRIDE = 7919
"""A prime: consecutive jobs get ports that leave room for their steps."""


def job_nodes(environ: Mapping[str, str]) -> JobNodes | None:
    """Return the nodes of the step; the first is the master."""
    nodes = whole_number(environ, "SLURM_STEP_NUM_NODES")
    node_rank = whole_number(environ, "SLURM_NODEID")
    job, step = whole_number(environ, "SLURM_JOB_ID"), whole_number(environ, "SLURM_STEP_ID")
    master = _first_host(environ.get("SLURM_STEP_NODELIST", ""))
    if nodes is None or node_rank is None or job is None or step is None or master is None:
        return None
    if nodes < 2 or whole_number(environ, "SLURM_STEP_NUM_TASKS") != nodes or "SLURM_HET_SIZE" in environ:
        return None
    port = _FIRST_PORT + (_STRIDE * job + step) % _PORTS
    settings = {
        "nnodes": (str(nodes), "SLURM_STEP_NUM_NODES"),
        "node_rank": (str(node_rank), "SLURM_NODEID"),
        "master_addr": (master, "SLURM_STEP_NODELIST"),
        "master_port": (str(port), "SLURM_JOB_ID"),
    }
    names = ("scontrol", "show", "hostnames", environ["SLURM_STEP_NODELIST"])
    return JobNodes(nodes, settings, f"SLURM job {job}", names)


def likely_mistakes(options: Options, environ: Mapping[str, str]) -> list[str]:
    """Find several tasks on this node under srun, which sets SLURM_STEP_ID; sbatch's own script has none."""
    if "SLURM_STEP_ID" not in environ or environ.get("SLURM_LOCALID") != "0" or (options.nproc_count or 2) < 2:
        return []
    tasks = _tasks_here(environ.get("SLURM_STEP_TASKS_PER_NODE", ""), environ.get("SLURM_NODEID", "0"))
    if tasks < 2:
        return []
    return [f"srun starts ddp-run {tasks} times on this node: use --ntasks-per-node=1, ddp-run starts the ranks itself"]


def _first_host(nodes: str) -> str | None:
    """The first name of a list such as `gpu[03-07,12],login1` or `rack[1-2]n[01-16]`; None if it is empty.

    A step's list is in the order of SLURM_NODEID. `scontrol show hostnames` prints all of it.
    """
    first = re.match(r"(?:[^,\[\]\s]|\[[^\[\]\s]{1,4096}\]){1,255}", nodes)
    return re.sub(r"\[(\w+)(?:[,-][^\[\]]*)?\]", r"\1", first[0]) if first else None


def _tasks_here(text: str, node: str) -> int:
    """This node's number in `2(x3),1` (sbatch(1), SLURM_TASKS_PER_NODE); 0 if unknown."""
    index = int(node) if node.isdigit() else 0
    for tasks, times in re.findall(r"(?<!\d)(\d{1,9})(?:\(x(\d{1,9})\))?(?:,|$)", text):
        index -= int(times or 1)
        if index < 0:
            return int(tasks)
    return 0
