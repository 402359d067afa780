"""Writes what torch's flight recorders hold: which collectives this rank entered, in which order.

NCCL's recorder has its own bindings (`_dump_nccl_trace`, with JSON since torch 2.5; off by default before). Another one
records gloo (torch 2.8 and newer). Since torch 2.15 `nccl` is a new implementation, and each backend has a recorder
beside gloo's (FlightRecorderHook.hpp: it asks nothing of CUDA). Reading takes well under a millisecond and does not
wait for the collective that the main thread may be stuck in.
"""

import json
import os
import sys
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

HOOKED = ("nccl", "nccl2", "nccl-lazy")
MOST_ENTRIES = 64
MOST_OPEN = 8
MOST_FRAMES = 32
FIELDS = (
    "record_id",
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
    "time_created_ns",
)
_CPP_STACKS = ("TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK")
_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""


def dump(folder: str) -> None:
    """Write the last entries of this process to `flight.json` in the rank's folder, whole or not at all.

    Raises LookupError if this torch has no recorder. If one recorder cannot be read, writes what the others hold and
    raises that error.
    """
    c10d: "Any" = sys.modules["torch._C._distributed_c10d"]
    recorders, failed = [], None
    readers: "list[Callable[[Any], dict[str, Any] | None]]"
    readers = [_of_nccl, *(partial(_of_hooked, backend) for backend in (None, *HOOKED))]
    for read in readers:
        try:
            recorded = read(c10d)
        except Exception as error:
            failed = error
            continue
        if recorded is not None:
            recorders.append(recorded)
    if not recorders:
        raise failed or LookupError("this torch has no flight recorder")
    if any(recorder["library"] == "nccl" and recorder["entries"] for recorder in recorders):
        for recorder in recorders:
            if recorder["library"] != "nccl":  # a torch with one recorder for all gives NCCL's again
                recorder["entries"] = [each for each in recorder["entries"] if not _is_of_nccl(each)]
    path = folder + "/flight.json"
    with open(path + ".part", "w") as file:
        json.dump({"recorders": recorders}, file)
    os.replace(path + ".part", path)
    if failed is not None:
        raise failed


def _of_nccl(c10d: "Any") -> "dict[str, Any] | None":
    pickled: "Any" = getattr(c10d, "_dump_nccl_trace", None)
    if pickled is None:
        return None
    _enter_cuda()
    as_json: "Any" = getattr(c10d, "_dump_nccl_trace_json", None)
    if as_json is not None:
        recorded = json.loads(as_json(includeCollectives=True, onlyActive=False))
    else:
        recorded = _unpickled(pickled(includeCollectives=True, includeStackTraces=False, onlyActive=False))
    return _with_frames(_kept("nccl", recorded), pickled)


def _of_hooked(backend: "str | None", c10d: "Any") -> "dict[str, Any] | None":
    """`backend`: whose recorder; None for the first one that torch had, which records gloo."""
    as_json: "Any" = getattr(c10d, "_dump_fr_trace_json", None)
    if as_json is None:
        return None
    if backend is None:
        return _kept("gloo", json.loads(as_json(includeCollectives=True, onlyActive=False)))
    try:
        recorded = json.loads(as_json(includeCollectives=True, onlyActive=False, backend=backend))
    except TypeError:  # torch before 2.15
        return None
    if not recorded.get("entries"):
        return None
    return _with_frames(_kept("nccl", recorded), partial(c10d._dump_fr_trace, backend=backend))


def _with_frames(kept: "dict[str, Any]", pickled: "Any") -> "dict[str, Any]":
    """Add the stacks of unfinished entries, which only the pickled form has."""
    unfinished = _unfinished(kept["entries"], [])
    # C++ stacks would make it look up symbols, for minutes.
    if unfinished and not any(os.environ.get(name, "0") not in ("", "0") for name in _CPP_STACKS):
        with _InductorStandIn():
            active = _unpickled(pickled(includeCollectives=True, includeStackTraces=True, onlyActive=True))
        frames = {entry.get("record_id"): entry.get("frames") for entry in active.get("entries") or ()}
        for entry in unfinished:
            entry["frames"] = (frames.get(entry["record_id"]) or [])[:MOST_FRAMES]
    return kept


class _InductorStandIn:
    """Keeps torch from importing its compiler just to name frames: seconds of work in a rank that may never need it.

    torch asks `hasattr(torch, "_inductor")`, which imports it (combined_traceback.cpp; seen with 2.11 and 2.13). Within
    the block this thread is told that it lacks a code cache, as if it weren't there. Other threads import it as usual.
    """

    def __enter__(self) -> None:
        from _thread import get_ident

        self._thread = get_ident()
        self._torch = vars(sys.modules["torch"])
        if "torch._inductor" not in sys.modules:
            self._torch.setdefault("_inductor", self)

    def __exit__(self, *_: object) -> None:
        if self._torch.get("_inductor") is self:
            del self._torch["_inductor"]

    def __getattr__(self, name: str) -> "Any":
        from _thread import get_ident
        from importlib import import_module

        if get_ident() == self._thread:
            raise AttributeError(name)
        return getattr(import_module("torch._inductor"), name)


def _unpickled(data: bytes) -> "dict[str, Any]":
    import pickle

    recorded: "dict[str, Any]" = pickle.loads(data)  # noqa: S301  # this process' own
    return recorded


def _kept(library: str, recorded: "dict[str, Any]") -> "dict[str, Any]":
    """The last entries, and NCCL's unfinished ones before them: all the rest waits for the first of those."""
    entries = recorded.get("entries") or []
    late = entries[-MOST_ENTRIES:]
    kept = _unfinished(entries[: len(entries) - len(late)], late) + late
    return {
        "library": library,
        "pg_config": recorded.get("pg_config") or {},
        "pg_status": recorded.get("pg_status") or {},
        "entries": [{name: entry.get(name) for name in FIELDS} for entry in kept],
    }


def _unfinished(entries: "list[Any]", later: "list[Any]") -> "list[Any]":
    """NCCL's entries with no completed entry after them in their group, the first few of each group.

    `later`: the entries after these. NCCL does the collectives of a group in order. Parts of a coalesced collective are
    never marked as complete.
    """
    groups: "dict[str, list[Any]]" = {}
    for index, entry in enumerate(entries + later):
        if not _is_of_nccl(entry):
            continue
        group = groups.setdefault(str(entry.get("process_group")), [])
        if entry.get("state") == "completed" or entry.get("retired"):
            group.clear()
        elif index < len(entries) and len(group) < MOST_OPEN:
            group.append(entry)
    wanted = {id(entry) for group in groups.values() for entry in group}
    return [entry for entry in entries if id(entry) in wanted]


def _is_of_nccl(entry: "dict[str, Any]") -> bool:
    return str(entry.get("profiling_name") or "").partition(":")[0] in HOOKED


def _enter_cuda() -> None:
    """Prepare this thread to call CUDA, if the program uses it: reading asks for the state of events.

    The device must be one in use here. A thread starts with device 0, and asking would set that up with half a gigabyte
    of its memory. And another thread may be capturing a graph, which a call from here would spoil.
    """
    torch: "Any" = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        return
    import ctypes

    used = [index for index in range(torch._C._cuda_getDeviceCount()) if torch._C._cuda_hasPrimaryContext(index)]
    if not used:
        return
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED))) != 0:
        raise OSError("CUDA cannot be asked without disturbing the capture of graphs")
    torch._C._cuda_setDevice(used[0])
