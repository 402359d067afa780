"""Two ranks of gloo; rank 1 raises after init_process_group, rank 0 waits for its end."""

import os
import signal

import torch.distributed as dist

dist.init_process_group("gloo")
if os.environ["RANK"] == "1":
    raise ValueError("bad batch")
signal.pause()
