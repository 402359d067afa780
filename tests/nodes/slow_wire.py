"""slow_wire.py NEAR FAR SECONDS LOSS: makes two tap interfaces and hands each frame of one to the other, late or never.

Prints `ready` once there are both; they go when it ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
LARGEST = 65536


def tap(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return descriptor


def main(near: str, far: str, seconds: float, loss: float) -> None:
    ends = tap(near), tap(far)
    chance = random.Random(0)
    late: deque[tuple[float, int, bytes]] = deque()
    """When to hand over what, to which end; the soonest first."""
    print("ready", flush=True)
    while True:
        wait_s = max(late[0][0] - time.monotonic(), 0.0) if late else None
        readable, _, _ = select.select(ends, (), (), wait_s)
        for end in readable:
            try:
                frame = os.read(end, LARGEST)
            except OSError:  # the interface is not up yet
                continue
            if chance.random() >= loss:
                late.append((time.monotonic() + seconds, ends[end == ends[0]], frame))
        while late and late[0][0] <= time.monotonic():
            _, end, frame = late.popleft()
            try:
                os.write(end, frame)
            except OSError:  # not up, or its queue is full: lost, as on a wire
                continue


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
