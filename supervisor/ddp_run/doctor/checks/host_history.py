"""What earlier runs have said against this host."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.judge import bad_hosts
from ddp_run.judge.bad_hosts import HostRecord
from ddp_run.record import host_failures
from ddp_run.values.finding import Finding, skipped, warned

_NAME = "earlier runs here"
_DAYS = 30


def _look(around: Surroundings) -> Iterator[Finding]:
    where = host_failures.folder(around.environ)
    if where is None:
        yield skipped(_NAME, "neither DDP_RUN_HOSTS_DIR nor HOME is set")
        return
    yield judged(bad_hosts.records(host_failures.read(where), time.time() - _DAYS * 86400), around.host)


def judged(records: Sequence[HostRecord], host: str) -> Finding:
    """`records`: of all hosts."""
    record = next((each for each in records if each.host == host), None)
    if record is None:
        return Finding(_NAME, f"none of {_DAYS} days is known to have failed because of this host")
    day = datetime.fromtimestamp(record.last_s).astimezone().date().isoformat()
    value = f"{record.runs} failed because of this host, last on {day}: {record.last_title}"
    helps = ["ddp-run hosts", *([f"sbatch --exclude={host} …"] if record.exclude else [])]
    return warned(_NAME, value, f"in the last {_DAYS} days", *helps)


CHECK = Check(
    "host_history",
    Group.HOST,
    "What `ddp-run hosts` knows of this host: warns of runs of the last 30 days that failed because of it.",
    _look,
)
