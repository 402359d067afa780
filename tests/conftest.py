"""For all tests: signals have their default effect, however the suite was started; examples are the same each time.

What ddp-run keeps between runs is not kept for whoever runs the tests.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.loaded_process import LoadedProcess

INHERITED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)
"""A shell ignores the first two in what it starts with `&`, and every program started from there does so too. SIGHUP
is not among them: somebody who says `nohup scripts/test` wants it ignored; tests that send it see to it themselves."""

HIDES_GPUS = Path("/proc/driver/nvidia/gpus").exists() and not os.environ.get("CUDA_VISIBLE_DEVICES")
"""On a machine with GPUs the tests see none, so they hear what they hear elsewhere. Those of tests/gpu see them."""


def pytest_configure(config: pytest.Config) -> None:
    """Also in each process of xdist: what is started from there inherits it."""
    hypothesis.settings.register_profile("gate", deadline=None, derandomize=True)
    hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
    hypothesis.settings.load_profile(config.getoption("--hypothesis-profile", None) or "gate")
    os.environ["XDG_STATE_HOME"] = str(Path(tempfile.gettempdir()) / f"ddp-run-tests-{os.getuid()}")
    if HIDES_GPUS:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for signum in INHERITED:
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum is signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session")
def torch_process() -> Iterator[LoadedProcess]:
    """Runs programs that ask torch something; it is loaded once for all of them."""
    process = LoadedProcess("import torch.distributed.run")
    yield process
    process.end()
