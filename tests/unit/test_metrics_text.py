"""The text of `--metrics`, read as Prometheus reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.test_watch_frame import JOB, rank

from ddp_run.tell.snapshot import RankRow, Snapshot, metrics_text

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed (extra dev)")

RUNNING = replace(
    JOB,
    started=1_700_000_000.5,
    version="0.1.0",
    node_rank=1,
    restarts=0,
    stalls=2,
    stalled_s=61.5,
    ranks=(
        rank(2, 120),
        RankRow((3,), "training", 118, None, 2),
        RankRow((4,), "exit 3", 90),
        RankRow((5,), "SIGKILL"),
    ),
)
ENDED = replace(RUNNING, state="failed", exit_code=3, cause="python-exception", stalled_s=None)

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(job: Snapshot, *, up: bool, name: str = "train") -> Series:
    """Values by name and labels; `job_name` is checked here."""
    found: Series = {}
    for family in parser.text_string_to_metric_families(metrics_text(job, name, up=up, now_s=1_700_000_100.25)):
        assert family.documentation.endswith(".")
        assert family.type in ("counter", "gauge")
        for sample in family.samples:
            assert sample.name.startswith("ddp_run_")
            assert sample.name.endswith("_total") == (family.type == "counter")
            labels = dict(sample.labels)
            assert labels.pop("job_name") == name
            key = sample.name.removeprefix("ddp_run_"), frozenset(labels.items())
            assert key not in found, "node_exporter refuses all files if a series is there twice"
            found[key] = sample.value
    return found


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_a_running_job() -> None:
    assert read(RUNNING, up=True) == {
        of("info", version="0.1.0", node_rank="1"): 1,
        of("up"): 1,
        of("updated_timestamp_seconds"): 1_700_000_100.25,
        of("start_time_seconds"): 1_700_000_000.5,
        of("world_size"): 2,
        of("attempts_total"): 2,
        of("agent_restarts_total"): 0,
        of("stalls_total"): 2,
        of("stalled_seconds"): 61.5,
        of("rank_steps_total", rank="2"): 120,
        of("rank_steps_total", rank="3"): 118,
        of("rank_steps_per_second", rank="2"): 2.1,
        of("rank_steps_behind", rank="2"): 0,
        of("rank_steps_behind", rank="3"): 2,
        of("rank_phase", rank="2", phase="training"): 1,
        of("rank_phase", rank="3", phase="training"): 1,
        of("rank_phase", rank="4", phase="exit"): 1,
        of("rank_phase", rank="5", phase="SIGKILL"): 1,
    }


def test_the_end_stays() -> None:
    ended = read(ENDED, up=False)
    assert ended[of("up")] == 0
    assert ended[of("exit_code")] == 3
    assert ended[of("result_info", outcome="failed", cause="python-exception")] == 1
    assert {name for name, _labels in ended}.isdisjoint({"stalled_seconds", "rank_steps_total", "rank_phase"})


def test_only_what_is_known() -> None:
    unknown = replace(JOB, attempt=None, world_size=None)
    assert {name for name, _labels in read(unknown, up=True)} == {
        *("info", "up", "updated_timestamp_seconds", "stalls_total", "stalled_seconds")
    }
    killed = read(unknown, up=False)
    assert of("result_info", outcome="killed", cause="") in killed
    assert "exit_code" not in {name for name, _labels in killed}


@pytest.mark.parametrize("name", ['a"b', "back\\slash", "two\nlines", "# HELP x", "{}=,", "\U0001f525"])
def test_any_text_can_be_a_label(name: str) -> None:
    assert of("up") in read(RUNNING, up=True, name=name)
    assert of("result_info", outcome=name, cause=name) in read(replace(ENDED, state=name, cause=name), up=False)
