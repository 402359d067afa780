"""The limit of open files: node 0 needs a socket for each node, and what ddp-run starts keeps the user's limit."""

from __future__ import annotations

import resource

_OTHERS = 256
"""Descriptors for everything else."""
_user: tuple[int, int] | None = None
"""The user's soft and hard limit, if this process has another one."""


def make_room(sockets: int) -> None:
    """Raise this process's soft limit so that so many sockets fit, but not above the hard one."""
    global _user  # noqa: PLW0603  # the limit is the process's, too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sockets + _OTHERS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
    except (OSError, ValueError):  # a container may forbid it
        return
    _user = _user or (soft, hard)


def give_back() -> None:
    """For a child between fork and exec: the user's limit."""
    if _user is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, _user)
