"""Whether jobs can be started on this system. Pure."""

from __future__ import annotations


def why_not_here(platform: str) -> str | None:
    """A line for people where the kernel lacks what ddp-run starts and watches jobs with: pidfd, subreapers, /proc."""
    if platform.startswith("linux"):
        return None
    return f"ddp-run: jobs are started on Linux only, and this is {platform}: use torchrun here\n"
