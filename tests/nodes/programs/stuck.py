"""Ranks that sum with gloo, until one of them waits for a lock that nobody releases. stuck.py RANK"""

from __future__ import annotations

import sys
import threading

import torch
import torch.distributed as dist


def wait_for_ever() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


dist.init_process_group("gloo")
for step in range(1000):
    if step == 3 and dist.get_rank() == int(sys.argv[1]):
        wait_for_ever()
    dist.all_reduce(torch.ones(1))
