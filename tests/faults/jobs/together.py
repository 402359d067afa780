"""Four ranks that end within milliseconds of each other, and write down when: who is first, the machine decides.

together.py KIND FILE     KIND: exit, raise, signal
"""

import os
import signal
import sys
import time
from pathlib import Path

KIND, START = sys.argv[1], Path(sys.argv[2])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

(START.parent / f"here-{RANK}").touch()
if RANK == 0:  # one start time, written by one process once all are here
    while len(list(START.parent.glob("here-*"))) < WORLD:
        time.sleep(0.01)
    START.with_suffix(".new").write_text(str(time.monotonic() + 0.5))
    START.with_suffix(".new").rename(START)
while not START.exists():
    time.sleep(0.001)
ends = os.open(START.with_name(f"ends-{RANK}"), os.O_WRONLY | os.O_CREAT)
time.sleep(max(0.0, float(START.read_text()) + (RANK * 7 % WORLD) * 0.0012 - time.monotonic()))
os.write(ends, str(time.monotonic()).encode())
if KIND == "exit":
    os._exit(20 + RANK)
if KIND == "raise":
    raise ValueError(f"rank {RANK}")
os.kill(os.getpid(), signal.SIGSEGV)
