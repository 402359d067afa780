"""A rank that fails, tells the others, and leaves after them: what ends the job isn't what ends first.

reports_itself.py HOW RANK
"""

import logging
import os
import signal
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

HOW, FAULTY = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])
logging.basicConfig(level=logging.INFO, stream=sys.stdout if HOW == "cleans-up-stdout" else sys.stderr)
logger = logging.getLogger("train")


class SetupFailed(Exception):
    pass


class PeerFailed(Exception):
    pass


def read_schedule():
    return {"warmup": 0.1}["cosine"] if RANK == FAULTY else 0.1  # <- schedule


def told():
    """Return what failed on the rank that set up the job, as all ranks learn it."""
    said = [None]
    if RANK == FAULTY:
        try:
            read_schedule()
        except KeyError as error:
            said = [error if HOW == "the-exception" else f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(said, src=FAULTY)
    time.sleep(0.1 if RANK == FAULTY else 0)
    return said[0]


def all_raise_the_same():
    raise SetupFailed(f"rank {FAULTY} could not read the schedule: {told()}")  # <- same


def each_raises_its_own():
    error = None
    try:
        read_schedule()
    except KeyError as caught:
        error = caught
    failed = torch.tensor([int(error is not None)])
    dist.all_reduce(failed)
    if error is not None:
        time.sleep(0.3)
        raise error
    if HOW == "named":
        raise PeerFailed(f"giving up, rank {FAULTY} has no schedule")
    if failed:
        raise PeerFailed("another rank has KeyError: 'cosine'")


def the_exception():
    error = told()
    raise error


def the_store():
    """The faulty rank puts its error into the store, and stays until its logs are written."""
    store = dist.distributed_c10d._get_default_store()
    if RANK == FAULTY:
        try:
            read_schedule()
        except KeyError as error:
            traceback.print_exc()
            store.set("failed", f"{type(error).__name__}: {error}")
            time.sleep(4)
            sys.exit(4)
    while not store.check(["failed"]):
        time.sleep(0.05)
    raise PeerFailed(f"stopping because rank {FAULTY} failed with {store.get('failed').decode()}")


def cleans_up():
    weight = torch.ones(4)
    try:
        for step in range(4):
            if step == 2:
                read_schedule()
            if HOW != "waits":
                dist.all_reduce(weight)
            logger.info("step %d weight %.1f", step, weight[0].item())
    except KeyError:
        logger.exception("training failed")
        if HOW != "waits":
            dist.destroy_process_group()
        logger.info("writing what there is")
        time.sleep(6)
        sys.exit(0 if HOW == "cleans-up-0" else 3)


def all_leave():
    """All learn by a flag that one failed: the others leave at once."""
    error = None
    try:
        read_schedule()
    except KeyError as caught:
        error = caught
        logger.error("no schedule", exc_info=True)
    failed = torch.tensor([int(error is not None)])
    dist.all_reduce(failed)
    if error is None and failed:
        sys.exit(14)
    time.sleep(5)
    raise error


def late():
    """The others wait in vain for a rank that fails later, and was asked to leave by then."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    if RANK == FAULTY:
        signal.signal(signal.SIGTERM, lambda *_: logger.info("asked to leave"))
        try:
            time.sleep(4)
            read_schedule()
        except KeyError:
            logger.exception("no schedule")
            sys.exit(17)
    dist.broadcast(torch.ones(1), FAULTY, group=group)


def hangs():
    """The others wait in vain for a rank that hangs, and leaves as it is asked to."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    if RANK == FAULTY:
        signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
        time.sleep(60)
    dist.all_reduce(torch.ones(1), group=group)


def waits():
    store = dist.distributed_c10d._get_default_store()
    if RANK == FAULTY:
        cleans_up()
    store.wait(["ready"], timedelta(seconds=1))


def main():
    dist.init_process_group("gloo")
    logger.info("world of %d", dist.get_world_size())
    {
        "same": all_raise_the_same,
        "named": each_raises_its_own,
        "quoted": each_raises_its_own,
        "the-exception": the_exception,
        "store": the_store,
        "waits": waits,
        "all-leave": all_leave,
        "late": late,
        "hangs": hangs,
    }.get(HOW, cleans_up)()


main()
