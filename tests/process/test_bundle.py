"""`ddp-run bundle` through the real command: what the archive holds, and what no folder can make it do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import IO, cast

import pytest
from tests.loaded_process import COMMAND
from tests.planted_secrets import BY_FORM
from tests.unit.test_recorded_runs import HERE, NOW, run_at
from tests.waiting import limit

from ddp_run.record import journal
from ddp_run.record.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    ExceptionInfo,
    LocalRank,
    MonotonicNs,
    Next,
    Rank,
    RankExited,
    RankFailed,
    RankStarted,
    RunEnded,
    RunStarted,
    SignalSent,
    Target,
)

DDP_RUN = Path(sys.executable).with_name("ddp-run")
TOKEN = BY_FORM["GitHub"]
TRACEBACK = f'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\nValueError: no {TOKEN}\n'
RAISED = ExceptionInfo("ValueError", "bad sample", "/nowhere/t.py", 3, "main", "Traceback\nValueError: bad sample")


def run(cwd: Path, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command, with the rules loaded already."""
    return COMMAND.run(DDP_RUN, "bundle", *map(str, words), cwd=cwd, env={**os.environ, **variables})


def a_run(log_dir: Path, *, ended: bool = True, ranks: int = 3) -> Path:
    """Rank 1 failed after a million steps, which the others have made too."""
    folder = log_dir / "20261121-081500-a1b2"
    stamps = iter(range(1_000, 1_000_000, 1_000))

    def at() -> MonotonicNs:
        return MonotonicNs(next(stamps))

    argv = ("ddp-run", "t.py", "--api-key", TOKEN)
    events: list[Event] = [
        RunStarted(at(), 1_700_000_000_000_000_000, folder.name, "vm", 0, 1, argv, 0, "by-cause", 30.0, 0, "1"),
        AttemptStarted(at(), 0, ("python",), None),
        *(
            RankStarted(at(), Rank(r), LocalRank(r), 0, 100 + r, ranks, ranks, f"attempt_0/rank_{r}", True)
            for r in range(ranks)
        ),
    ]
    if ended:
        events += [
            RankFailed(at(), Rank(1), 0, 1, RAISED),
            RankExited(at(), Rank(1), 0, 1, False),
            SignalSent(at(), Target.RANKS, 15, (100, 102), "another rank failed"),
            *(RankExited(at(), Rank(r), 0, -15, False) for r in range(ranks) if r != 1),
            AttemptEnded(at(), 0, "failed", "python-exception", 1, Next.STOP, "no retries requested"),
            RunEnded(at(), 1),
        ]
    for rank in range(ranks):
        logs = folder / "attempt_0" / f"rank_{rank}"
        logs.mkdir(parents=True)
        (logs / "stdout.log").write_text("".join(f"step {step}\n" for step in range(1000)))
        (logs / "stderr.log").write_text(f"wandb: {TOKEN}\n" + (TRACEBACK if rank == 1 else ""))
    (folder / "attempt_0" / "agent.log").write_text("E torch.distributed.elastic\n")
    (folder / "plan.json").write_text(json.dumps({"command": ["ddp-run"]}))
    written = journal.Journal(folder / "events.jsonl")
    for event in events:
        written.record(event)
    written.close()
    return folder


def unpacked(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as tar:
        kept = {entry.name: cast(IO[bytes], tar.extractfile(entry)).read().decode() for entry in tar}
    (top,) = {name.partition("/")[0] for name in kept}
    assert top.startswith("ddp-run-bundle-")
    return {name.partition("/")[2]: text for name, text in kept.items()}


def test_the_newest_run_here(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "ddp-run-logs")
    (tmp_path / "ddp-run-logs" / "latest").symlink_to(folder.name)
    assert COMMAND.run(DDP_RUN, "report", cwd=tmp_path, env=dict(os.environ)).returncode == 0
    done = run(tmp_path)
    archive = tmp_path / f"ddp-run-bundle-{folder.name}.tar.gz"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{archive}: ")
    assert "token: GitHub" in done.stdout
    assert "Look through it before you post it" in done.stdout
    assert archive.stat().st_mode & 0o777 == 0o600
    kept = unpacked(archive)
    assert [name for name, text in kept.items() if TOKEN in text] == []
    assert kept["command.txt"] == "# vm, node 0\nddp-run t.py --api-key '[redacted]'\n"
    assert kept["verdict.txt"].startswith("error[DDP600]: rank 1 raised ValueError")
    assert json.loads(kept["verdict.json"])["first_failure"]["rank"] == 1
    assert "torch 2" in kept["versions.txt"]
    logs = f"{folder.name}/attempt_0"
    assert kept[f"{logs}/rank_1/stdout.log"] == (folder / "attempt_0/rank_1/stdout.log").read_text()
    assert kept[f"{logs}/rank_1/stderr.log"].endswith("ValueError: no [redacted]\n")
    assert kept[f"{logs}/rank_0/stdout.log"].splitlines()[1:] == [f"step {step}" for step in range(900, 1000)]
    assert kept[f"{logs}/agent.log"] == "E torch.distributed.elastic\n"
    assert kept[f"{folder.name}/report.html"] == (folder / "report.html").read_text(), "it has no secrets"
    readme = kept["README.txt"]
    assert f"{logs}/rank_0/stdout.log (955 B): the last 100 lines, of 9 KiB\n" in readme
    assert f"{logs}/rank_1/stderr.log:4 token: GitHub\n" in readme
    assert TOKEN in (folder / "attempt_0/rank_1/stderr.log").read_text(), "the run's own files are untouched"


def test_of_several_runs_the_newest_that_did_not_succeed(tmp_path: Path) -> None:
    logs = tmp_path / "ddp-run-logs"
    for number, outcome in enumerate(("failed", "failed", "succeeded")):
        run_at(logs, number, started_ns=NOW + number, outcome=outcome)
    run_at(logs, 3, started_ns=NOW + 3, outcome=None, process=HERE)
    for words in ([], [logs]):
        told = run(tmp_path, "-o", "archive", "--force", *words)
        assert told.stderr.startswith("ddp-run: 20261121-081500-0001: the newest of 4 runs in ")
        assert told.stderr.rstrip().endswith("ddp-run-logs that did not succeed")
    for number in (0, 1):
        shutil.rmtree(logs / f"20261121-081500-000{number}")
    assert "0003: the newest of 2 runs in ddp-run-logs; none of them failed" in run(tmp_path).stderr


def test_a_run_whose_logs_are_elsewhere(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    shutil.rmtree(folder / "attempt_0")
    done = run(tmp_path, folder, "-o", "b.tgz")
    assert f"no files of the failing rank (rank 1 of attempt 0 of {folder.name}).\n" in done.stdout


def test_a_bundle_can_be_explained(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    assert run(tmp_path, folder, "-o", "b.tgz").returncode == 0
    (tmp_path / "there").mkdir()
    subprocess.run(["tar", "xf", "b.tgz", "-C", "there"], cwd=tmp_path, check=True)
    (again,) = (tmp_path / "there").glob(f"*/{folder.name}")
    done = subprocess.run([DDP_RUN, "explain", again], capture_output=True, text=True, timeout=limit(120), check=True)
    assert "cause=python-exception code=DDP600 rank=1 " in done.stdout


def test_json_and_standard_output(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    told = json.loads(run(tmp_path, folder, "--json").stdout)
    assert told["bytes"] == Path(told["path"]).stat().st_size
    assert told["removed"] == {"token: GitHub": 4}
    names = [each["name"] for each in told["files"]]
    assert "doctor.json" in names
    assert names == [each["name"] for each in json.loads(run(tmp_path, folder, "--json", "--force").stdout)["files"]]
    out = subprocess.run([DDP_RUN, "bundle", folder, "-o", "-"], capture_output=True, timeout=limit(120), check=True)
    (tmp_path / "out.tgz").write_bytes(out.stdout)
    assert set(names) | {"README.txt"} == set(unpacked(tmp_path / "out.tgz"))
    assert b"secrets removed" in out.stderr


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "mine.tgz").write_text("mine")
    done = run(tmp_path, folder, "-o", "mine.tgz")
    assert (done.returncode, (tmp_path / "mine.tgz").read_text()) == (2, "mine")
    assert "mine.tgz exists: --force replaces it" in done.stderr
    assert run(tmp_path, folder, "-o", "mine.tgz", "--force").returncode == 0
    assert unpacked(tmp_path / "mine.tgz")
    done = run(tmp_path, folder, "-o", "no/such/folder.tgz")
    assert (done.returncode, "no/such/folder.tgz cannot be written" in done.stderr) == (2, True)
    os.mkfifo(tmp_path / "pipe")
    assert "pipe is not a regular file" in run(tmp_path, folder, "-o", "pipe", "--force").stderr
    left = {path.name: path.is_fifo() for path in tmp_path.iterdir()}
    assert left == {folder.name: False, "mine.tgz": False, "pipe": True}, "nothing half written stays"
    (tmp_path / "sub").mkdir()
    assert run(tmp_path, folder, "-o", "sub").returncode == 0
    assert [path.name for path in (tmp_path / "sub").iterdir()] == [f"ddp-run-bundle-{folder.name}.tar.gz"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing-here"], "nothing-here"),
        ([], "no runs in ddp-run-logs"),
        (["--max-size", "lots"], "'lots' is not a size"),
    ],
)
def test_what_it_cannot_read(tmp_path: Path, words: list[str], said: str) -> None:
    done = run(tmp_path, *words, TMPDIR=str(tmp_path))
    assert done.returncode == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_an_end(tmp_path: Path) -> None:
    """It is still running, or ddp-run was killed."""
    folder = a_run(tmp_path, ended=False)
    done = run(tmp_path, folder, "-o", "b.tgz")
    assert "has not ended, or ddp-run was killed" in done.stdout
    kept = unpacked(tmp_path / "b.tgz")
    assert "has not ended, or ddp-run was killed" in kept["README.txt"]
    assert "ddp-run: verdict outcome=" in kept["verdict.txt"]


def test_a_hostile_folder(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "logs")
    secret = tmp_path / "private.txt"
    secret.write_text("of nobody else")
    rank = folder / "attempt_0" / "rank_0"
    (rank / "nccl.log").symlink_to(secret)
    (rank / "flight.json").symlink_to("/dev/zero")
    os.mkfifo(rank / "stacks.txt")
    (folder / "attempt_0" / "rank_7").symlink_to(tmp_path)
    (folder / "nodes").symlink_to("/proc/self")
    (folder / "core.1234").write_bytes(b"\x7fELF")
    deep = folder.joinpath(*["deep"] * 40)
    deep.mkdir(parents=True)
    (rank / "live_stacks.txt").write_bytes(b"\xff\xfe\x00\x1b[31m" * 1000)
    done = run(tmp_path, folder, "-o", "b.tgz")
    assert done.returncode == 0, done.stderr
    kept = unpacked(tmp_path / "b.tgz")
    assert not any("of nobody else" in text for text in kept.values())
    readme = kept["README.txt"]
    for name, why in {
        "attempt_0/rank_0/nccl.log": "a link: it is not followed",
        "attempt_0/rank_0/flight.json": "a link: it is not followed",
        "attempt_0/rank_0/stacks.txt": "not a regular file (a pipe, a socket or a device)",
        "attempt_0/rank_7": "a link: it is not followed",
        "nodes": "a link: it is not followed",
        "core.1234": "not one of the files that ddp-run writes for a run",
    }.items():
        assert f"{folder.name}/{name}: {why}" in readme
    assert "\x1b" not in readme


def test_the_folders_of_other_nodes(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    (folder / "nodes" / "node_1").mkdir(parents=True)
    (folder / "nodes" / "node_1" / "stderr_end.log").write_text(f"the end, {TOKEN}\n")
    assert run(tmp_path, folder, "-o", "b.tgz").returncode == 0
    assert unpacked(tmp_path / "b.tgz")[f"{folder.name}/nodes/node_1/stderr_end.log"] == "the end, [redacted]\n"


def test_a_log_of_another_launcher(tmp_path: Path) -> None:
    (tmp_path / "slurm-42.out").write_text(TRACEBACK)
    done = run(tmp_path, "slurm-42.out")
    assert done.returncode == 0
    kept = unpacked(tmp_path / "ddp-run-bundle-slurm-42.out.tar.gz")
    assert kept["logs/slurm-42.out"] == TRACEBACK.replace(TOKEN, "[redacted]")
    assert "cause=python-exception" in kept["verdict.txt"]
    assert "command.txt: no journal records the command" in kept["README.txt"]


@pytest.mark.slow_system
def test_programs_have_a_time_limit(tmp_path: Path) -> None:
    """nvidia-smi waits for a GPU that has fallen off the bus for ever."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text('#!/bin/sh\n[ "$1" = topo ] && exec sleep 600\necho "Driver 1, $HF_TOKEN"\n')
    (programs / "nvidia-smi").chmod(0o755)
    begun = time.monotonic()
    path = f"{programs}:{os.environ['PATH']}"
    assert run(tmp_path, a_run(tmp_path), "-o", "b.tgz", PATH=path, HF_TOKEN="Zq81_kdl0vv").returncode == 0
    assert time.monotonic() - begun < limit(60)
    kept = unpacked(tmp_path / "b.tgz")
    assert kept["nvidia-smi.txt"] == "Driver 1, [redacted]\n"
    assert "nvidia-smi-topo.txt: nvidia-smi gave no answer within 15 s" in kept["README.txt"]
    assert "HF_TOKEN=[redacted]\n" in kept["environment.txt"]


def test_a_long_log_is_cut(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    log = folder / "attempt_0" / "rank_1" / "stderr.log"
    log.write_text("".join(f"step {step} loss 0.1\n" for step in range(200_000)) + TRACEBACK)
    done = run(tmp_path, folder, "-o", "b.tgz", "--max-size", "1M")
    assert f"(rank 1 of attempt 0 of {folder.name}) are incomplete: stderr.log. README.txt says" in done.stdout
    kept = unpacked(tmp_path / "b.tgz")
    text = kept[f"{folder.name}/attempt_0/rank_1/stderr.log"]
    assert len(text) < 1.1 * (1 << 20)
    assert text.startswith("step 0 ") and text.endswith("ValueError: no [redacted]\n")
    assert "were left out here]\n" in text
    assert re.search(
        r"rank_1/stderr\.log \(1\.0 MiB\): without \S+ MiB of \S+ MiB, in its middle\n", kept["README.txt"]
    )
    again = run(tmp_path, folder, "-o", "b.tgz", "--force", "--max-size", "20M")
    assert f"(rank 1 of attempt 0 of {folder.name}) are included.\n" in again.stdout
    assert unpacked(tmp_path / "b.tgz")[f"{folder.name}/attempt_0/rank_1/stderr.log"].count("\n") == 200_003
