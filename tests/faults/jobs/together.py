"""Ranks that end within milliseconds of each other: the faulty one first, the others each a millisecond later.

together.py KIND RANK FILE     KIND: exit, raise, signal
"""

import os
import signal
import sys
import time
from pathlib import Path

KIND, FAULTY, START = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

(START.parent / f"here-{RANK}").touch()
if RANK == 0:  # one start time, written by one process once all are here
    while len(list(START.parent.glob("here-*"))) < WORLD:
        time.sleep(0.01)
    START.with_suffix(".new").write_text(str(time.monotonic() + 0.5))
    START.with_suffix(".new").rename(START)
while not START.exists():
    time.sleep(0.001)
place = (RANK - FAULTY) % WORLD
at = float(START.read_text()) + place * 0.0012
while time.monotonic() < at:
    pass
if KIND == "exit":
    os._exit(20 + RANK)
if KIND == "raise":
    raise ValueError(f"rank {RANK}")
os.kill(os.getpid(), signal.SIGSEGV)
