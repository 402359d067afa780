"""A failure that speaks against its host is kept for later runs; by a fork: a home on a dead server never answers."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ddp_run.judge.bad_hosts import failure_of
from ddp_run.judge.verdict import Verdict
from ddp_run.record import host_failures
from ddp_run.values import helper_process

_WITHIN_S = 1.0


def keep(verdict: Verdict, run_id: str, environ: Mapping[str, str]) -> None:
    """Keep it where the verdict says so; what cannot be written within a second is left out."""
    failure = failure_of(verdict, run_id, time.time())
    folder = host_failures.folder(environ)
    if failure is None or folder is None:
        return
    try:
        writer = helper_process.fork(lambda _fd: host_failures.append(folder, failure), _WITHIN_S)
    except OSError:
        return
    writer.reaped = helper_process.reap(writer.pid, _WITHIN_S)
    writer.end()
