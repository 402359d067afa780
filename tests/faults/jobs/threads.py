"""A script with threads of its own and functions that run at exit.

threads.py FAULT RANK
"""

import atexit
import concurrent.futures
import gc
import os
import queue
import sys
import threading
import time

import torch
import torch.distributed as dist

FAULT, FAULTY = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])
HERE = FAULTY in (RANK, -1)


def prefetch(number):
    if FAULT == "future" and number == 3:
        raise EOFError("the shard ends in the middle of a record")  # <- future
    return torch.full((4,), float(number))


def watch(failed):
    try:
        raise TimeoutError("the sampler thread got nothing")  # <- thread
    finally:
        failed.set()


def feed(batches):
    batches.put(torch.ones(4))
    raise ValueError("entry 3 of the index has no length")  # <- awaited


def flush():
    raise OSError("the last batch of metrics was not sent")  # <- at-exit


def main():
    if FAULT == "at-exit" and HERE:
        atexit.register(flush)
    if FAULT == "at-exit-code" and HERE:
        atexit.register(os._exit, 17)
    dist.init_process_group("gloo")
    failed = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for number in range(6):
            batch = pool.submit(prefetch, number).result() if HERE else torch.ones(4)
            if HERE and number == 3:
                if FAULT in ("thread", "thread-ignored"):
                    thread = threading.Thread(target=watch, args=(failed,))
                    thread.start()
                    thread.join()
                if FAULT == "thread" and failed.is_set():
                    sys.exit(1)
                if FAULT in ("awaited", "awaited-forever"):
                    batches = queue.Queue()
                    threading.Thread(target=feed, args=(batches,), daemon=True).start()
                    batches.get()
                    batches.get(timeout=3 if FAULT == "awaited" else None)
                if FAULT == "stays":
                    threading.Thread(target=time.sleep, args=(600,)).start()
                    raise ArithmeticError("raised while a thread stays")  # <- stays
                if FAULT == "stays-at-exit":
                    atexit.register(time.sleep, 600)
                    raise ArithmeticError("raised, and the exit waits")  # <- stays-at-exit
            dist.all_reduce(batch)
    gc.collect()  # who still refers to the group then may abort within torch, under torchrun too
    dist.destroy_process_group()


main()
