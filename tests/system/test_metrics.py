"""`--metrics FILE` of whole jobs: the file while they run, at their end, and if it can't be written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .conftest import Launcher

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed (extra dev)")
pytestmark = pytest.mark.slow_system

TRAINING = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
while True:
    ends = torch.tensor([float(os.path.exists("end"))])
    dist.all_reduce(ends)
    if ends:
        break
    optimizer.step()
    time.sleep(0.05)
raise SystemExit(3 * dist.get_rank())
"""
WAITING = "import os, time\nwhile not os.path.exists('end'):\n    time.sleep(0.05)\nraise SystemExit(4)"


def values(path: Path) -> Mapping[str, float]:
    """By name and rank."""
    text = path.read_text()
    assert text.endswith("\n")
    families = list(parser.text_string_to_metric_families(text))
    return {f"{each.name}{each.labels.get('rank', '')}": each.value for family in families for each in family.samples}


def test_a_reader_sees_whole_files_every_15_s(ddp: Launcher) -> None:
    path = ddp.cwd / "train.prom"
    running = ddp.start("--nproc-per-node=2", "--metrics", path, ddp.script(TRAINING))
    wait_until(path.exists, "the file")
    held = path.open()
    begun = held.read()
    written: dict[float, Mapping[str, float]] = {}

    def has_a_rate() -> bool:
        now = values(path)
        assert now["ddp_run_up"] == 1
        written[now["ddp_run_updated_timestamp_seconds"]] = now
        return "ddp_run_rank_steps_per_second1" in now

    wait_until(has_a_rate, lambda: f"a rate: {written}")
    wait_until(lambda: has_a_rate() and len(written) >= 4, lambda: f"four files: {[*written]}")
    with held:
        held.seek(0)
        assert held.read() == begun, "the file was written to while a reader had it"
    first, *_more = times = sorted(written)
    assert all(14 < after - before < 20 for before, after in pairwise(times)), times
    assert "ddp_run_rank_steps_total0" not in written[first]
    steps = [written[at]["ddp_run_rank_steps_total1"] for at in times[-2:]]
    assert 0 < steps[0] < steps[1]
    rate = (steps[1] - steps[0]) / (times[-1] - times[-2])
    assert written[times[-1]]["ddp_run_rank_steps_per_second1"] == pytest.approx(rate, rel=0.1)

    (running.cwd / "end").touch()
    assert running.wait().code == 3
    running.assert_nothing_left()
    last = values(path)
    assert (last["ddp_run_up"], last["ddp_run_exit_code"], last["ddp_run_result_info"]) == (0, 3, 1)
    assert "ddp_run_rank_steps_total1" not in last
    assert [found.name for found in ddp.cwd.glob("*prom*")] == ["train.prom"]


@pytest.mark.parametrize("harm", ["removed", "full"])
def test_a_file_that_cannot_be_written_is_told_once(ddp: Launcher, harm: str) -> None:
    folder = ddp.cwd / "textfiles"
    folder.mkdir()
    if harm == "full":
        mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(folder)]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("mounting needs root")
    try:
        path = folder / "train.prom"
        running = ddp.start("--nproc-per-node=1", "--metrics", path, ddp.script(WAITING))
        wait_until(path.exists, "the file")
        before = path.read_text()
        if harm == "full":
            with pytest.raises(OSError), (folder / "other").open("wb", buffering=0) as file:
                while file.write(bytes(512)):
                    pass
        else:
            shutil.rmtree(folder)
        running.wait_for("Noted")
        (running.cwd / "end").touch()
        outcome = running.wait()
        running.assert_nothing_left()
        assert outcome.code == 4
        assert outcome.stderr.count("cannot write --metrics") == 1
        assert sum("cannot write --metrics" in each["text"] for each in outcome.named("Noted")) == 1
        if harm == "full":
            assert (path.read_text(), {*os.listdir(folder)}) == (before, {"train.prom", "other"})
    finally:
        if harm == "full":
            subprocess.run(["umount", str(folder)])


def test_a_killed_ddp_run_is_not_up(ddp: Launcher) -> None:
    path = ddp.cwd / "train.prom"
    running = ddp.start("--nproc-per-node=1", "--metrics", path, ddp.script(WAITING))
    running.pids(1)
    wait_until(path.exists, "the file")
    running.signal(signal.SIGKILL)
    running.process.wait()
    running.assert_nothing_left()
    wait_until(lambda: values(path)["ddp_run_up"] == 0, "the last write")
    assert 'outcome="killed"' in path.read_text()


def test_signals_to_all_processes_are_survived(ddp: Launcher) -> None:
    """A scheduler sends them so."""
    path = ddp.cwd / "train.prom"
    running = ddp.start("--nproc-per-node=1", "--metrics", path, ddp.script(WAITING))
    running.pids(1)
    wait_until(path.exists, "the file")
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    (writer,) = [pid for pid in children if b"beside.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    for pid in (int(writer), running.process.pid):
        os.kill(pid, signal.SIGTERM)
    code = running.wait().code
    running.assert_nothing_left()
    last = values(path)
    assert (last["ddp_run_up"], last["ddp_run_exit_code"]) == (0, code)
