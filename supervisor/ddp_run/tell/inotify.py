"""Has the kernel report that a file has grown: inotify(7) through ctypes, since the standard library lacks it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, final

if TYPE_CHECKING:
    import ctypes

# <sys/inotify.h>
IN_MODIFY, _IN_ATTRIB, _IN_DELETE_SELF, _IN_MOVE_SELF, IN_Q_OVERFLOW = 0x2, 0x4, 0x400, 0x800, 0x4000
_MASK: Final = IN_MODIFY | _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF
_EVENT: Final = struct.Struct("iIII")

# f_type of statfs(2), where a write on another host, or behind a file server, raises no event here: nfs, lustre, fuse,
# 9p, cifs, smb2, smb, ceph, gpfs, afs, ocfs2, gfs2, beegfs, vboxsf.
_REMOTE: Final = frozenset(
    {0x6969, 0x0BD00BD0, 0x65735546, 0x01021997, 0xFF534D42, 0xFE534D42, 0x517B}
    | {0x00C36400, 0x47504653, 0x5346414F, 0x7461636F, 0x01161970, 0x19830326, 0x786F4256}
)


@final
class Inotify:
    """One inotify instance. `fd` is readable when something happened to a watched file."""

    def __init__(self, libc: ctypes.CDLL, fd: int) -> None:
        self._libc = libc
        self.fd = fd

    @classmethod
    def open(cls) -> Self | None:
        """Return None if the kernel or the C library has no inotify, or the user's limit is reached."""
        import ctypes

        try:
            libc = ctypes.CDLL(None, use_errno=True)
            fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)  # IN_NONBLOCK and IN_CLOEXEC are the same bits
        except (OSError, AttributeError):
            return None
        return cls(libc, fd) if fd >= 0 else None

    def watch(self, path: Path) -> int:
        """Watch a file; returns the watch's number, or -1 if the kernel refuses."""
        return int(self._libc.inotify_add_watch(self.fd, os.fsencode(path), _MASK))

    def forget(self, watch: int) -> None:
        """Stop watching."""
        self._libc.inotify_rm_watch(self.fd, watch)

    def is_remote(self, fd: int) -> bool:
        """Whether other hosts may write to the file without this kernel noticing."""
        import ctypes

        status = ctypes.create_string_buffer(512)
        if self._libc.fstatfs(fd, status) != 0:
            return True
        # f_type comes first in struct statfs; glibc and musl give it a machine word.
        return ctypes.c_ulong.from_buffer(status).value & 0xFFFFFFFF in _REMOTE

    def events(self) -> Iterator[tuple[int, int]]:
        """The watch and the mask of each event since the last call."""
        try:
            for data in iter(partial(os.read, self.fd, 65536), b""):
                position = 0
                while position < len(data):
                    watch, mask, _, name = _EVENT.unpack_from(data, position)
                    position += _EVENT.size + name
                    yield watch, mask
        except BlockingIOError:
            return
