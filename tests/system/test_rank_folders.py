"""Where the agent puts the ranks' files: one folder per start and rank, the user's own layout respected."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ddp_run.plan.installed_torch import torch_rows
from tests.system.agent_job import PROGRAMS, ddp_run
from tests.system.conftest import DDP_RUN
from tests.waiting import limit


def test_a_restart_of_the_agent_gets_folders_of_its_own(tmp_path: Path) -> None:
    filtered = any(row.dest == "duplicate_stdout_filters" for row in torch_rows())
    job = ddp_run(
        tmp_path,
        tmp_path / "logs",
        ["--nproc-per-node=2", "--max-restarts=1", "--tee=3"]
        + (["--duplicate-stdout-filters=needle"] if filtered else []),
        [str(PROGRAMS / "fails_once.py")],
    )
    assert job.code == 0, job.agent_log
    first, second = job.folder / "attempt_0", job.folder / "attempt_0/restart_1"
    for rank, word in ((0, "needle"), (1, "hay")):
        for start in (first, second):
            folder = start / f"rank_{rank}"
            assert folder.stat().st_mode & 0o777 == 0o700
            assert (folder / "stdout.log").read_text() == f"{word} {folder}/nccl.log\n"
        assert "stderr.log" in {path.name for path in (second / f"rank_{rank}").iterdir()}
    errors = [path.read_text() for path in first.glob("rank_?/error.json")]
    assert errors
    assert all("first time" in error for error in errors)
    assert not list(second.glob("rank_?/error.json"))
    assert not filtered or "needle" in (first / "filtered_stdout.log").read_text()
    started = job.named("RankStarted")
    # A set: a rank may be told of twice, with its hello and before.
    assert sorted({(each["restart"], each["rank"], each["folder"]) for each in started}) == [
        (0, 0, "attempt_0/rank_0"),
        (0, 1, "attempt_0/rank_1"),
        (1, 0, "attempt_0/restart_1/rank_0"),
        (1, 1, "attempt_0/restart_1/rank_1"),
    ]


def test_a_users_own_layout_keeps_its_files_and_ours_are_links(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "users-1.0.dist-info").mkdir(parents=True)
    shutil.copy(PROGRAMS / "users_logs_specs.py", site)
    (site / "users-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: users\nVersion: 1.0\n")
    (site / "users-1.0.dist-info/entry_points.txt").write_text(
        "[torchrun.logs_specs]\nusers = users_logs_specs:UsersSpecs\n"
    )
    program = tmp_path / "prog.py"
    program.write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")

    job = ddp_run(
        tmp_path,
        tmp_path / "logs",
        ["--logs-specs=users"],
        [str(program)],
        PYTHONPATH=str(site),
        USERS_LOGS=str(tmp_path / "users"),
    )

    assert job.code == 0, job.agent_log
    (users,) = (tmp_path / "users").glob("*/attempt_0/0/stdout.log")
    folder = job.folder / "attempt_0/rank_0"
    assert users.read_text() == (folder / "stdout.log").read_text() == "out\n"
    assert (folder / "stdout.log").is_symlink()
    assert (folder / "stderr.log").read_text() == "err\n"
    assert not (folder / "stderr.log").is_symlink()
    assert "[rank0]: out\n" in job.agent_log, "the console follows a link that was made for it"
    (folder / "stderr.log").unlink()
    (folder / "stderr.log").symlink_to(program)
    told = subprocess.run([DDP_RUN, "logs", job.folder], capture_output=True, text=True, timeout=limit(60), check=False)
    assert told.stdout == "[rank0]: out\n", "and so does logs, and no other link"
