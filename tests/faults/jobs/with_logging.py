"""A script that logs: errors are caught at the top, logged with their traceback, and the code is the script's own.

with_logging.py FAULT RANK
"""

import gc
import logging
import os
import sys
import warnings

import torch
import torch.distributed as dist

FAULT, FAULTY = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])
logging.basicConfig(
    level=logging.INFO,
    format=f"%(asctime)s [rank {RANK}] %(levelname)s %(name)s: %(message)s",
    stream=sys.stdout if FAULT.endswith("stdout") else sys.stderr,
)
logger = logging.getLogger("train")


def lookup(step):
    if RANK != FAULTY or step != 3:
        return 0.1
    if FAULT.startswith("logged"):
        return {"warmup": 0.1}["cosine"]  # <- logged
    if FAULT == "survived":
        try:
            return {"warmup": 0.1}["cosine"]
        except KeyError:
            logger.exception("no such schedule, going on with 0.1")
            return 0.1
    if FAULT == "silent":
        os._exit(11)
    if FAULT == "logged-then-silent":
        return 0.1
    if FAULT == "critical":
        logger.critical("validation set is empty")
        sys.exit(4)  # <- critical
    if FAULT == "warned":
        warnings.warn("the scheduler was stepped before the optimizer", stacklevel=1)
        raise TypeError("'NoneType' object is not iterable")  # <- warned
    return 0.1


def train():
    weight = torch.ones(4)
    for step in range(6):
        rate = lookup(step)
        dist.all_reduce(weight)
        weight *= rate
        logger.info("step %d weight %.4f", step, weight[0].item())


def main():
    dist.init_process_group("gloo")
    logger.info("world of %d", dist.get_world_size())
    try:
        train()
        if FAULT == "survived" and RANK == FAULTY:
            raise LookupError("the evaluation has no samples")  # <- survived
        dist.barrier()
    except Exception:
        logger.exception("training failed")
        sys.exit(3)
    finally:
        gc.collect()  # who still refers to the group then may abort within torch, under torchrun too
        dist.destroy_process_group()


main()
