"""Writes what torch's flight recorder holds: which collectives this rank entered, in which order. Loaded only then.

It records by default, also for gloo (torch 2.13); reading it takes well under a millisecond and does not wait for the
collective that the main thread may be stuck in.
"""

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_ENTRIES = 64
FIELDS = (
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "profiling_name",
    "input_sizes",
    "input_dtypes",
    "output_sizes",
    "output_dtypes",
    "state",
    "process_group",
    "is_p2p",
    "retired",
)


def dump(folder: str) -> None:
    """Leave the last entries of this process as `flight.json` in the rank's folder, whole or not at all.

    Raises where this torch has no recorder.
    """
    c10d: "Any" = sys.modules["torch._C._distributed_c10d"]
    recorded: "Any" = json.loads(c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=False))
    entries = recorded.get("entries") or []
    kept = {
        "pg_config": recorded.get("pg_config") or {},
        "pg_status": recorded.get("pg_status") or {},
        "entries": [{name: entry.get(name) for name in FIELDS} for entry in entries[-MOST_ENTRIES:]],
    }
    path = folder + "/flight.json"
    with open(path + ".part", "w") as file:
        json.dump(kept, file)
    os.replace(path + ".part", path)
