"""Fails at the first start of the ranks, when all have written their line; succeeds at the second."""

import os
import time
from pathlib import Path

named = os.environ.get("NCCL_DEBUG_FILE")
print("needle" if os.environ["RANK"] == "0" else "hay", named, flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    ranks = int(os.environ["WORLD_SIZE"])
    while named and sum(log.stat().st_size > 0 for log in Path(named).parents[1].glob("rank_?/stdout.log")) < ranks:
        time.sleep(0.01)  # the first to fail ends the others
    raise OSError("first time")
