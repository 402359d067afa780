"""Tests that need a CUDA GPU: all of this folder is marked `gpu`, and skipped with its reason where there is none."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.system.conftest import ddp, pytest_runtest_makereport

__all__ = ["ddp", "pytest_runtest_makereport"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests; `items` are those of the whole run."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def gpus() -> int:
    """How many CUDA devices there are. This process only counts them: it takes no memory of theirs."""
    if version("torch").endswith("+cpu"):  # to load torch for that takes a CPU second
        pytest.skip("needs a CUDA GPU: this torch is built for CPUs alone")
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        pytest.skip("needs a CUDA GPU: torch.cuda sees none")
    return count
