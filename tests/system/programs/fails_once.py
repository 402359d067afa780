"""Fails at the first start of the ranks, succeeds at the second."""

import os

print("needle" if os.environ["RANK"] == "0" else "hay", os.environ.get("NCCL_DEBUG_FILE"))
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise OSError("first time")
