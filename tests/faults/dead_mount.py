"""A file system that stops answering, in a mount namespace of its own: `dead_mount.py FOLDER SILENT...`.

Speaks FUSE as far as a file can be made, opened, read and written (linux/fuse.h), and keeps silent to the requests
named SILENT: whoever made one waits in state D, and not even SIGKILL ends that, because the request was taken from the
kernel and not answered. All of it comes free when this process ends. Says `mounted` on its output, and `kept silent` at
each such request. Needs root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

NAMES = {1: "lookup", 3: "getattr", 4: "setattr", 14: "open", 15: "read", 16: "write", 18: "release", 20: "fsync"}
NAMES |= {2: "forget", 25: "flush", 26: "init", 35: "create", 42: "batch_forget"}
HEADER = struct.Struct("=IIQQIIII")
ROOT, DATA = 1, 2
SIZE = 1 << 20
CLONE_NEWNS, MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 0x20000, 2, 4, 1 << 14, 1 << 18


def attributes(node: int) -> bytes:
    """The root is a folder, `data.bin` in it a file of 1 MiB, all else an empty file."""
    kind, size = (0o040755, 0) if node == ROOT else (0o100644, SIZE if node == DATA else 0)
    return struct.pack("=6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, kind, 1, os.getuid(), os.getgid(), 0, 4096, 0)


def entry(node: int) -> bytes:
    return struct.pack("=4Q2I", node, 0, 60, 60, 0, 0) + attributes(node)


def answer(name: str | None, node: int, body: bytes, made: dict[bytes, int]) -> bytes | int:
    """The answer to a request, or the number of an error."""
    opened = struct.pack("=QII", 0, 0, 0)
    match name:
        case "init":
            major, _minor, ahead, _flags = struct.unpack("=4I", body[:16])
            return struct.pack("=4I2H2I2HI7I", major, 31, ahead, 0, 12, 9, 1 << 17, 1, 0, 0, 0, *[0] * 7)
        case "lookup":
            found = made.get(body.rstrip(b"\0"))
            return errno.ENOENT if found is None else entry(found)
        case "create":
            number = made.setdefault(body[16:].rstrip(b"\0"), DATA + len(made))
            return entry(number) + opened
        case "getattr" | "setattr":
            return struct.pack("=QII", 60, 0, 0) + attributes(node)
        case "open":
            return opened
        case "read":
            return bytes(struct.unpack("=QQI", body[:20])[2])
        case "write":
            return struct.pack("=II", struct.unpack("=QQI", body[:20])[2], 0)
        case "release" | "flush" | "fsync":
            return b""
        case _:
            return errno.ENOSYS


def mount(point: str) -> int:
    """Mount it where only this process, and who joins its namespace, sees it; the descriptor of its requests."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other".encode()
    for done in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None),
        libc.mount(b"storage:/data", point.encode(), b"fuse", ctypes.c_ulong(MS_NOSUID | MS_NODEV), options),
    ):
        if done != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return device


def serve(device: int, silent: set[str]) -> None:
    made = {b"data.bin": DATA}
    while True:
        request = os.read(device, (1 << 17) + 4096)
        _length, code, unique, node, *_who = HEADER.unpack(request[: HEADER.size])
        name = NAMES.get(code)
        if name in ("forget", "batch_forget"):
            continue
        if name in silent:
            print("kept silent", flush=True)
            continue
        said = answer(name, node, request[HEADER.size :], made)
        body, error = (b"", -said) if isinstance(said, int) else (said, 0)
        os.write(device, struct.pack("=IiQ", 16 + len(body), error, unique) + body)


if __name__ == "__main__":
    requests = mount(sys.argv[1])
    print("mounted", flush=True)
    serve(requests, set(sys.argv[2:]))
