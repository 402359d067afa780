"""Which of the user's commands are run after a run, and what they are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_run.judge.verdict import FirstFailure, Verdict
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.record.events import Rank
from ddp_run.record.run_folder import RunFolder
from ddp_run.settings.options import Options
from ddp_run.settings.parse import parse
from ddp_run.supervise.run_end import hook_environ, hooks

FOLDER = RunFolder(Path("/data/runs/20261121-081500-a1b2"))
FAILED = Verdict(
    "failed", 7, "python-exception", "DDP600", "rank 3 failed", first_failure=FirstFailure(Rank(3), host="a")
)


def options(line: str, **variables: str) -> Options:
    return parse(f"{line} train.py".split(), variables, torch_rows=torch_rows())


@pytest.mark.parametrize(
    ("outcome", "commands"),
    [("succeeded", ["s", "e"]), ("failed", ["f", "e"]), ("hung", ["f", "e"]), ("interrupted", ["f", "e"])],
)
def test_the_outcome_decides(outcome: str, commands: list[str]) -> None:
    given = options("--on-success=s --on-failure=f --on-end=e")
    assert [hook.command for hook in hooks(given, outcome, {})] == commands


def test_an_empty_command_takes_back_a_variables() -> None:
    assert hooks(options("--on-end=", DDP_RUN_ON_END="shutdown"), "failed", {}) == ()
    assert [each.command for each in hooks(options("", DDP_RUN_ON_END="shutdown"), "failed", {})] == ["shutdown"]


@pytest.mark.parametrize(
    ("line", "job", "again"),
    [
        ("", "7", [True, True]),
        ("--on-end=other", "7", [True, False]),
        ("", "8", [False, False]),  # the hook submitted it
    ],
)
def test_a_launch_within_a_hook_does_not_run_the_project_s_again(line: str, job: str, again: list[bool]) -> None:
    project = ("/home/me/pyproject.toml", '[tool.ddp-run]\non-success = "ddp-run eval.py"\non-end = "true"\n')
    given = parse(f"{line} eval.py".split(), {}, torch_rows=torch_rows(), projects=lambda: [project])
    outer = hook_environ({"SLURM_JOB_ID": "7"}, given, Verdict("succeeded", 0), FOLDER, 1)
    found = hooks(given, "succeeded", {**outer, "SLURM_JOB_ID": job})
    assert [hook.again for hook in found] == again
    assert found[0].option == "--on-success (/home/me/pyproject.toml:2)"
    assert [hook.again for hook in hooks(given, "succeeded", {"SLURM_JOB_ID": job})] == [False, False]


def test_the_verdict_is_in_the_environment() -> None:
    given = {"PATH": "/bin", "DDP_RUN_ON_END": "ddp-run train.py", "SLURM_JOB_ID": "7"}
    assert hook_environ(given, options(""), FAILED, FOLDER, 2) == {
        "PATH": "/bin",
        "SLURM_JOB_ID": "7",
        "DDP_RUN_HOOK": "7//",
        "DDP_RUN_OUTCOME": "failed",
        "DDP_RUN_EXIT_CODE": "7",
        "DDP_RUN_CAUSE": "python-exception",
        "DDP_RUN_CODE": "DDP600",
        "DDP_RUN_TITLE": "rank 3 failed",
        "DDP_RUN_RANK": "3",
        "DDP_RUN_NODE": "a",
        "DDP_RUN_NODE_RANK": "0",
        "DDP_RUN_ATTEMPTS": "2",
        "DDP_RUN_FOLDER": "/data/runs/20261121-081500-a1b2",
        "DDP_RUN_VERDICT": "/data/runs/20261121-081500-a1b2/verdict.json",
    }


def test_what_is_not_known_is_empty() -> None:
    told = hook_environ({}, options(""), Verdict("succeeded", 0), FOLDER, 1)
    assert (told["DDP_RUN_CAUSE"], told["DDP_RUN_RANK"], told["DDP_RUN_EXIT_CODE"]) == ("", "", "0")


@pytest.mark.parametrize(
    ("line", "node_rank"),
    [
        ("--nnodes=2 --node-rank=1 --master-addr=10.0.0.1", "1"),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=a:1", ""),
    ],
)
def test_each_node_knows_which_it_is_if_it_can(line: str, node_rank: str) -> None:
    assert hook_environ({}, options(line), FAILED, FOLDER, 1)["DDP_RUN_NODE_RANK"] == node_rank
