"""Becomes another program, for which pidfd_open(2) fails as on a kernel older than 5.3: `without_pidfd.py WORD...`.

Source: seccomp(2), the filter's fields as in linux/filter.h and linux/seccomp.h.
"""

import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000
PIDFD_OPEN = 434


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


steps = [
    (LOAD_NUMBER, 0, 0, 0),
    (JUMP_IF_EQUAL, 0, 1, PIDFD_OPEN),
    (RETURN, 0, 0, ERROR | errno.ENOSYS),
    (RETURN, 0, 0, ALLOW),
]
code = b"".join(struct.pack("HBBI", *step) for step in steps)
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Program(len(steps), code))) == 0
os.execvp(sys.argv[1], sys.argv[1:])
