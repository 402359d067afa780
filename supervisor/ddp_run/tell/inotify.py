"""The kernel's word that a file has grown: inotify(7), by ctypes; and which file systems it knows nothing of."""

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
_IN_NONBLOCK, _IN_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
_MASK: Final = IN_MODIFY | _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF
_EVENT: Final = struct.Struct("iIII")


# f_type of statfs(2): writes on another host, or behind a file server, raise no event here.
_REMOTE: Final = {
    0x6969: "nfs",
    0x0BD00BD0: "lustre",
    0x65735546: "fuse",
    0x01021997: "9p",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x517B: "smb",
    0x00C36400: "ceph",
    0x47504653: "gpfs",
    0x5346414F: "afs",
    0x7461636F: "ocfs2",
    0x01161970: "gfs2",
    0x19830326: "beegfs",
    0x786F4256: "vboxsf",
}


@final
class Inotify:
    """inotify(7) by ctypes: the standard library has no binding."""

    def __init__(self, libc: ctypes.CDLL, fd: int) -> None:
        self._libc = libc
        self.fd = fd

    @classmethod
    def open(cls) -> Self | None:
        """Null where the kernel or the C library has none, or the user's limit is reached."""
        import ctypes

        try:
            libc = ctypes.CDLL(None, use_errno=True)
            fd = libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        except (OSError, AttributeError):
            return None
        return cls(libc, fd) if fd >= 0 else None

    def watch(self, path: Path) -> int:
        """A watch, or -1."""
        return int(self._libc.inotify_add_watch(self.fd, os.fsencode(path), _MASK))

    def forget(self, watch: int) -> None:
        """Tell no more of it."""
        self._libc.inotify_rm_watch(self.fd, watch)

    def is_remote(self, fd: int) -> bool:
        """Whether others may write to the file: on such file systems the kernel here hears of no change."""
        import ctypes

        status = ctypes.create_string_buffer(512)
        if self._libc.fstatfs(fd, status) != 0:
            return True
        # f_type comes first in struct statfs; glibc and musl give it a machine word.
        return ctypes.c_ulong.from_buffer(status).value & 0xFFFFFFFF in _REMOTE

    def events(self) -> Iterator[tuple[int, int]]:
        """Watch and mask of everything that happened since."""
        try:
            for data in iter(partial(os.read, self.fd, 65536), b""):
                position = 0
                while position < len(data):
                    watch, mask, _, name = _EVENT.unpack_from(data, position)
                    position += _EVENT.size + name
                    yield watch, mask
        except BlockingIOError:
            return
