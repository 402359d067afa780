"""The names of all files in a run's folder, and of the folders below it; a promise to users (README, "Files").

Ranks and the agent run elsewhere and write some of them under the same names: `rank/`, `agent/logs_specs.py`.
"""

from __future__ import annotations

from ddp_run.values.lines import Stream

PLAN = "plan.json"
EVENTS = "events.jsonl"
VERDICT = "verdict.json"
REPORT = "report.html"
OF_A_RUN = (EVENTS, VERDICT, PLAN)
LATEST = "latest"
"""A link beside the runs' folders."""

NODES = "nodes"
"""On node 0: a folder for each other node, with its own verdict and the end of the named rank's stderr."""
STDERR_END = "stderr_end.log"
FACTS = "facts.txt"
"""In that folder: how the nodes were compared before the start."""

AGENT_LOG = "agent.log"
RAS = "ras.txt"

STDOUT = "stdout.log"
STDERR = "stderr.log"
OF_A_STREAM: dict[Stream, str] = {"stdout": STDOUT, "stderr": STDERR}
ERROR = "error.json"
STACKS = "stacks.txt"
LIVE_STACKS = "live_stacks.txt"
FLIGHT = "flight.json"
NCCL = "nccl.log"
OF_A_RANK = (STDERR, STDOUT, ERROR, STACKS, LIVE_STACKS, FLIGHT, NCCL)


def attempt_folder(attempt: int) -> str:
    """The folder of one attempt, counted from 0."""
    return f"attempt_{attempt}"


def rank_folder(attempt: int, rank: int, restart: int = 0) -> str:
    """The folder of one global rank, below the run's. `restart`: how often the agent had started its ranks before."""
    within = f"{attempt_folder(attempt)}/restart_{restart}" if restart else attempt_folder(attempt)
    return f"{within}/rank_{rank}"
