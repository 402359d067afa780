"""A job at one moment as Prometheus metrics, in its text format, as node_exporter's textfile collector reads it. Pure.

Source of the format: prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddp_run.tell.snapshot import RankRow, Snapshot

_Sample = tuple[Mapping[str, object], float]
_Family = tuple[str, str, str, Sequence[_Sample]]
"""Name, type, help, and the samples: labels and value."""


def metrics_text(job: Snapshot, name: str, *, up: bool, now_s: float) -> str:
    """The file's text. `name` tells this job's series from those of other files on the host: the label `job_name`.

    `now_s`: seconds since the epoch. `up`: ddp-run still runs. What isn't known is left out.
    """
    lines: list[str] = []
    for family, kind, meaning, samples in _families(job, up=up, now_s=now_s):
        if samples:
            lines += [f"# HELP ddp_run_{family} {meaning}", f"# TYPE ddp_run_{family} {kind}"]
            lines += [f"ddp_run_{family}{_labels({'job_name': name, **each})} {value!r}" for each, value in samples]
    return "\n".join(lines) + "\n"


def _families(job: Snapshot, *, up: bool, now_s: float) -> Iterator[_Family]:
    about = {"version": job.version, "node_rank": job.node_rank}
    yield "info", "gauge", "The ddp-run that writes this file.", [(about, 1)]
    yield "up", "gauge", "Whether ddp-run is running.", [({}, int(up))]
    yield "updated_timestamp_seconds", "gauge", "When this file was written.", _one(round(now_s, 3))
    yield "start_time_seconds", "gauge", "When the run started.", _one(job.started)
    yield "world_size", "gauge", "Ranks of the job, on all nodes.", _one(job.world_size)
    attempts = None if job.attempt is None else job.attempt + 1
    yield "attempts_total", "counter", "Attempts that were started.", _one(attempts)
    restarts = "Restarts of the ranks by torch's agent in this attempt (--max-restarts)."
    yield "agent_restarts_total", "counter", restarts, _one(job.restarts)
    yield "stalls_total", "counter", "Times that no rank made progress and ddp-run said so.", _one(job.stalls)
    if up:
        stalled = "How long no rank has made progress, once ddp-run says so; else 0."
        yield "stalled_seconds", "gauge", stalled, _one(job.stalled_s or 0.0)
        yield from _of_ranks(job.ranks)
        return
    yield "exit_code", "gauge", "What ddp-run exited with.", _one(job.exit_code)
    result = {"outcome": "killed" if job.state == "running" else job.state, "cause": job.cause or ""}
    yield "result_info", "gauge", "How the run ended; causes as in ddp-run rules.", [(result, 1)]


def _of_ranks(rows: Sequence[RankRow]) -> Iterator[_Family]:
    # Of one that has ended, steps are known less exactly; a counter that falls would look like a new start.
    going = [row for row in rows if row.behind is not None]
    for name, kind, meaning, values in (
        ("steps_total", "counter", "Optimizer steps of a rank.", [row.step for row in going]),
        ("steps_per_second", "gauge", "Optimizer steps per second of a rank.", [row.steps_per_s for row in going]),
        ("steps_behind", "gauge", "Steps that a rank is behind the first of this node.", [row.behind for row in going]),
    ):
        found = [({"rank": row.ranks[0]}, each) for row, each in zip(going, values, strict=True) if each is not None]
        yield f"rank_{name}", kind, meaning, found
    # `exit 3` is cut: a label has few values.
    phases = [({"rank": row.ranks[0], "phase": row.phase.partition(" ")[0]}, 1) for row in rows]
    yield "rank_phase", "gauge", "The phase that a rank of this node is in.", phases


def _one(value: float | None) -> list[_Sample]:
    return [] if value is None else [({}, value)]


def _labels(labels: Mapping[str, object]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(each)}"' for name, each in labels.items() if each is not None) + "}"


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
