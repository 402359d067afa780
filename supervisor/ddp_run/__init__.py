"""Launch, supervise and explain distributed PyTorch jobs.

Users rely on the command line, the files, `explain` and `ddp_run.training`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp_run.judge.verdict import Verdict

__version__ = "0.1.0"


def explain(text: str) -> Verdict:
    """The verdict for a log of any launcher, as text.

    `outcome` is null where nothing in it shows a failure. Nothing in the text is run or believed.
    """
    from ddp_run.judge.pasted_logs import explain_text

    return explain_text(text)
