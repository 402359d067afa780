"""Tests that need a CUDA GPU: all of this folder is marked `gpu`, and skipped with its reason where there is none.

With OUT set in the environment, the folders of their runs are kept there: real texts for tests/rules/samples.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import HIDES_GPUS
from tests.system.conftest import Outcome, ddp, pytest_runtest_makereport

__all__ = ["ddp", "pytest_runtest_makereport"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests; `items` are those of the whole run."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


def keep(name: str, outcome: Outcome) -> None:
    """Keep a run's folder and its console, if OUT says where."""
    out = os.environ.get("OUT")
    if out and outcome.folder is not None:
        folder = Path(out) / name
        shutil.copytree(outcome.folder, folder, dirs_exist_ok=True, ignore_dangling_symlinks=True)
        (folder / "console.txt").write_text(f"{outcome.stdout}{outcome.stderr}")


@pytest.fixture(scope="package", autouse=True)
def gpus() -> Iterator[None]:
    """Show the GPUs that other tests are not to see. This process only counts them: it takes no memory of theirs."""
    if version("torch").endswith("+cpu"):  # to load torch for that takes a CPU second
        pytest.skip("needs a CUDA GPU: this torch is built for CPUs alone")
    with pytest.MonkeyPatch.context() as patch:
        if HIDES_GPUS:
            patch.delenv("CUDA_VISIBLE_DEVICES")
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU: torch.cuda sees none")
        yield
