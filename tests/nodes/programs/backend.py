"""backend.py NODE: asks for nccl, which cannot be had here; on all nodes, or with a NODE on that alone.

The other nodes then take a backend of their own that starts without a GPU, as a host whose driver works would.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

only = int(sys.argv[1]) if len(sys.argv) > 1 else None
dist.init_process_group("nccl" if only in (None, int(os.environ["GROUP_RANK"])) else "gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(dist.get_backend(), total.item(), flush=True)
dist.destroy_process_group()
