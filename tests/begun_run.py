"""A run without a job: all that attempts and the end share, made as `ddp_run.supervise.job` makes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.launch_plan import make_plan
from ddp_run.record.journal import Journal
from ddp_run.record.run_folder import RunFolder
from ddp_run.settings.parse import parse
from ddp_run.supervise.children import BroughtAlong
from ddp_run.supervise.inbox import Inbox
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.run import Run


@contextmanager
def begun_run(log_dir: Path, loop: Loop, *words: str) -> Iterator[Run]:
    """A run in this process with these options, whose keeper isn't started."""
    options = parse([*words, "train.py"], {}, torch_rows=torch_rows())
    plan = make_plan(options, {}, python=sys.executable, master=None)
    folder = RunFolder.create(log_dir, datetime.now())
    journal = Journal(folder.events)
    with ExitStack() as stack:
        stack.callback(journal.close)
        inbox = stack.enter_context(Inbox())
        yield Run(plan, dict(os.environ), folder, journal, loop, inbox, BroughtAlong(), stack)
