"""Launch, supervise and explain distributed PyTorch jobs.

Users rely on the command line, the files, and in Python on `launch`, `explain` and `ddp_run.training`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp_run.api.child import LaunchFailed, LaunchRefused, Result, launch
    from ddp_run.judge.verdict import Verdict

__all__ = ["LaunchFailed", "LaunchRefused", "Result", "explain", "launch"]
__version__ = "0.1.0"


def explain(text: str) -> Verdict:
    """The verdict for a log of any launcher, as text.

    `outcome` is None if nothing in it shows a failure. Nothing in the text is executed.
    """
    from ddp_run.judge.pasted_logs import explain_text

    return explain_text(text)


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Load at first use: the command itself doesn't need these."""
        if name in ("LaunchFailed", "LaunchRefused", "Result", "launch"):
            from ddp_run.api import child

            return getattr(child, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
