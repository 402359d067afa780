"""The end of an instance's story: what is told, what becomes of the instance, the exit code."""

from __future__ import annotations

import shlex
import sys
import time

from vast_launcher.remote_log import Finished
from vast_launcher.saying import LOST, tell
from vast_launcher.watching import NeverRan, Unknown, Watch


def never_ran(watch: Watch, end: NeverRan, *, keep: bool, price: float) -> int:
    """An instance in which nothing ran is destroyed unless it is to be kept: there is nothing in it to lose."""
    tell(f"instance {watch.id} did not start: {end.why}")
    if keep or not end.untouched:
        tell(goes_on(watch.id, price))
    elif watch.end("destroy"):
        tell(f"instance {watch.id} destroyed: nothing ran in it")
    else:
        tell(f"instance {watch.id} could not be destroyed; {goes_on(watch.id, price)}")
    return LOST


def conclude(watch: Watch, end: Finished | Unknown, price: float | None, began: float) -> int:
    """The exit code, and the end of the instance where that was decided."""
    if isinstance(end, Unknown):
        tell(f"the result of instance {watch.id} is not known: {end.why}")
        if end.left == "goes on":
            tell(goes_on(watch.id, price))
        elif end.left == "stopped":
            tell(f"its disk is kept with all files, and costs; to delete it: vastai destroy instance {watch.id}")
        return LOST
    spent_s = time.monotonic() - began
    cost = f", about ${price * spent_s / 3600:.2f}" if price is not None else ""
    saved = {"yes": "uploaded", "failed": "upload failed"}.get(end.uploaded, "not uploaded")
    tell(f"the training ended with exit code {end.code} after {spent_s:.0f} s{cost}; run folder {end.folder}: {saved}")
    if end.next == "keep":
        tell(goes_on(watch.id, price))
    elif watch.end(end.next):
        left = " (its disk is kept, and costs; vastai destroy instance ends that)" if end.next == "stop" else ""
        tell(f"instance {watch.id}: {'stopped' if end.next == 'stop' else 'destroyed'}{left}")
    else:
        tell(f"instance {watch.id}: cannot {end.next} it; {goes_on(watch.id, price)}")
    return end.code


def goes_on(id: int, price: float | None, after_s: float | None = None) -> str:
    """What is left, what it costs and what can be done."""
    cost = f" and costs ${price:.3f}/h" if price is not None else " and costs money"
    spent = f" (so far about ${price * after_s / 3600:.2f})" if price is not None and after_s is not None else ""
    return (
        f"instance {id} goes on{cost}{spent}\n"
        f"  follow it:           {shlex.quote(sys.argv[0])} follow {id}\n"
        f"  stop, keep the disk: vastai stop instance {id}\n"
        f"  end, delete all:     vastai destroy instance {id}"
    )
