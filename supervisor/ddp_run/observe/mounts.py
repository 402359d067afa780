"""The file systems that a process sees, from /proc/PID/mountinfo. Source: proc(5)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_run.values import kernel_text

_OCTAL = re.compile(r"\\([0-7]{3})")
_REMOTE = frozenset({"fuse", "cifs", "smb3", "ceph", "lustre", "9p", "virtiofs", "gpfs", "beegfs", "afs", "wekafs"})


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is mounted.

    `number`: the mount's id. `minor`: the minor device number, by which FUSE lists its connections. `root`: the folder
    of the file system that is mounted. `options`: the file system's own, separated by commas.
    """

    number: str
    minor: str
    root: str
    point: str
    kind: str
    options: str

    @property
    def said(self) -> str:
        """`fuse at /mnt/x`."""
        return f"{self.kind} at {self.point}"

    @property
    def remote(self) -> bool:
        """Whether another machine or a program serves it, and so may never answer."""
        return self.kind.startswith(("fuse.", "nfs")) or self.kind in _REMOTE

    @property
    def release(self) -> str | None:
        """A command that makes waits for it fail with an error, for kinds that have one."""
        if self.kind.startswith("fuse"):
            return f"echo 1 > /sys/fs/fuse/connections/{self.minor}/abort"
        return f"umount -f {self.point}" if self.kind.startswith(("nfs", "cifs", "smb", "ceph")) else None


def mounts(process: Path) -> list[Mount]:
    """All mounts that a process sees; later ones hide earlier ones. Empty if unreadable. `process`: /proc/PID."""
    found = []
    for line in kernel_text.lines(process / "mountinfo"):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) > 4 and right:
            minor = fields[2].partition(":")[2]
            found.append(Mount(fields[0], minor, _unescaped(fields[3]), _unescaped(fields[4]), kind[0], kind[-1]))
    return found


def mount_over(path: str, seen: Sequence[Mount]) -> Mount | None:
    """The mount that an absolute path without links is on."""
    over = [mount for mount in seen if f"{path}/".startswith(mount.point.rstrip("/") + "/")]
    return max(reversed(over), key=lambda mount: len(mount.point), default=None)


def _unescaped(word: str) -> str:
    """A path as it is: the table writes blanks as `\\040`."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), word)
