"""What a script for another launcher, or with a misspelt backend, is told. The logs are of real runs."""

from __future__ import annotations

import pytest

import ddp_run

_UNKNOWN_BACKEND = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 2, in <module>
[rank0]:     d.init_process_group("ncl")
[rank0]:   File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 1899, in init_process_group
[rank0]:     default_pg, _ = _new_process_group_helper(
[rank0]:   File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2072, in _new_process_group_helper
[rank0]:     raise AssertionError(f"Unknown backend type {backend}")
[rank0]: AssertionError: Unknown backend type ncl
"""  # noqa: E501


def test_an_unknown_backend_is_named() -> None:
    verdict = ddp_run.explain(_UNKNOWN_BACKEND)
    assert verdict.code == "DDP508"
    assert verdict.title == "rank 0 requested a backend that this torch does not have: ncl"
    assert "nccl" in verdict.advice[0]


@pytest.mark.parametrize(
    "said", ["the following arguments are required: --local_rank", "unrecognized arguments: --local-rank=0"]
)
def test_an_argument_of_the_old_launcher_is_told_of(said: str) -> None:
    text = f"usage: train.py [-h] --lr LR\ntrain.py: error: {said}\n"
    box = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    box += "=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n  <NO_OTHER_FAILURES>\n" + "-" * 60
    box += "\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-21_11:43:24\n  host      : h\n"
    box += "  rank      : 0 (local_rank: 0)\n  exitcode  : 2 (pid: 1)\n  error_file: <N/A>\n" + "=" * 60 + "\n"
    verdict = ddp_run.explain(text + box)
    assert verdict.cause == "local-rank-argument"
    assert any('os.environ["LOCAL_RANK"]' in advice for advice in verdict.advice)
