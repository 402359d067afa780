"""Jobs under a real SLURM of three nodes, which is started once for all tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.nodes.cluster import Cluster, Started
from tests.system.conftest import carriers
from tests.waiting import limit, wait_until

from .cluster import Slurm, missing

NODES = 3


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if reason := missing():
        pytest.skip(reason)
    with Cluster(NODES) as cluster:
        slurm = Slurm(cluster, tmp_path_factory.mktemp("slurm"))
        yield slurm
    for daemon in slurm.daemons:
        daemon.wait(limit(30))


@dataclass(frozen=True)
class Run:
    """A run of ddp-run, by its folder: that of one node of a job."""

    folder: Path

    def events(self, kind: str) -> list[dict[str, Any]]:
        whole, _, _being_written = (self.folder / "events.jsonl").read_text().rpartition("\n")
        return [event for event in map(json.loads, whole.splitlines()) if event["event"] == kind]

    @property
    def verdict(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "verdict.json").read_text()))

    @property
    def port(self) -> int:
        return int(self.events("AttemptStarted")[0]["port"])

    def said(self) -> dict[int, str]:
        """What each rank wrote to its standard output, in the first attempt."""
        paths = self.folder.glob("attempt_0/rank_*/stdout.log")
        return {int(path.parent.name.removeprefix("rank_")): path.read_text() for path in paths}


class Submitted:
    """Where a job is started: all of its nodes share the folder."""

    def __init__(self, slurm: Slurm, cwd: Path) -> None:
        self.slurm, self.cwd = slurm, cwd

    def srun(self, *words: object, cwd: str = ".") -> Started:
        """In the background."""
        folder = self.cwd / cwd
        folder.mkdir(exist_ok=True)
        return self.slurm.start("srun", *words, cwd=folder)

    def sbatch(self, *words: object) -> str:
        """The job's number; its output goes to `job.out`."""
        options = ["--parsable", "--output=job.out", "--open-mode=append"]
        return self.slurm.run("sbatch", *options, *words, cwd=self.cwd).strip()

    def script(self, text: str) -> Path:
        path = self.cwd / "program.py"
        path.write_text(text)
        return path

    def runs(self, cwd: str = ".") -> list[Run]:
        folders = (self.cwd / cwd / "ddp-run-logs").glob("2*")
        return [Run(path) for path in sorted(folders) if (path / "events.jsonl").exists()]

    def said(self, cwd: str = ".") -> dict[int, str]:
        """What each rank of all nodes wrote."""
        return {rank: text for run in self.runs(cwd) for rank, text in run.said().items()}

    def wait_for(self, text: str, ranks: int, cwd: str = ".") -> None:
        """Until so many ranks have written it."""
        wait_until(
            lambda: sum(text in said for said in self.said(cwd).values()) == ranks,
            lambda: f"{text!r} of {ranks} ranks: {self.said(cwd)}{self.output()}",
        )

    def output(self) -> str:
        """Of all that was started, for who looks into a failure."""
        return "".join(f"\n--- {path}\n{path.read_text()}" for path in sorted(self.cwd.rglob("*.[oe][ur][tr]")))


@pytest.fixture
def slurm(started: Slurm) -> Slurm:
    """The one of this session."""
    return started


@pytest.fixture
def job(started: Slurm, tmp_path: Path) -> Iterator[Submitted]:
    submitted = Submitted(started, tmp_path)
    yield submitted
    started.clear()
    runs = [run.folder.name for run in submitted.runs()]
    wait_until(lambda: not any(map(carriers, runs)), lambda: f"the end of {list(map(carriers, runs))}", limit(30))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    submitted = getattr(item, "funcargs", {}).get("job")
    if report.when == "call" and report.failed and isinstance(submitted, Submitted):
        report.sections.append(("output", submitted.output()))
        report.sections.append(("SLURM", submitted.slurm.logs()))
