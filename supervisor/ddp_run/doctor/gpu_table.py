"""GPUs and their processes as nvidia-smi lists them in CSV, without fields that this driver doesn't know.

Fields: `nvidia-smi --help-query-gpu`, `--help-query-remapped-rows`, `--help-query-compute-apps`. Pure.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence

from ddp_run.doctor.check import NoAnswer
from ddp_run.values.typed_fields import frozen

_FIELDS = (
    *("index", "uuid", "name", "memory.total", "memory.used", "temperature.gpu", "compute_mode", "mig.mode.current"),
    *("clocks_event_reasons.active", "ecc.errors.uncorrected.volatile.total", "retired_pages.pending"),
    *("pcie.link.width.current", "pcie.link.width.max"),
)
_OLDER_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
"""Before driver 535."""
_REMAPPED_FIELDS = ("gpu_uuid", "remapped_rows.pending", "remapped_rows.failure")
_UNKNOWN_FIELD = re.compile(r'Field "([\w.]{1,80})" is not a valid field')
_LOST = re.compile(r"lost|unable to determine|fallen off", re.IGNORECASE)
_ADDRESS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]")
_MIB = 1 << 20
Ask = Callable[..., str]


@frozen
class Gpu:
    """Sizes in bytes, temperature in °C; None if the driver doesn't tell. `lost`: its words for a GPU that's gone."""

    index: str
    uuid: str
    name: str
    total: int
    used: int
    temperature: int | None = None
    mode: str = ""
    mig: str = ""
    throttled: int | None = None
    """NVML's bits."""
    uncorrected: int | None = None
    """Memory errors; None if it doesn't count them."""
    pending: bool = False
    remap_failed: bool = False
    width_now: int | None = None
    width_most: int | None = None
    lost: str = ""


@frozen
class Holder:
    """A process on a GPU; `used` in bytes, None if the driver doesn't tell."""

    pid: int
    name: str
    used: int | None


def read(ask: Ask) -> list[Gpu]:
    """Return all GPUs, in nvidia-smi's order. Raises NoAnswer."""
    rows = _table(*_query("gpu", _FIELDS, ask))
    try:
        remapped = {row.get("gpu_uuid"): row for row in _table(*_query("remapped-rows", _REMAPPED_FIELDS, ask))}
    except NoAnswer:  # GPUs before Ampere retire pages instead, and drivers of that time don't know the query
        remapped = {}
    return [_gpu(row | remapped.get(row.get("uuid"), {})) for row in rows if _is_gpu(row.get("index", ""))]


def remarks(ask: Ask) -> list[str]:
    """Return what nvidia-smi writes between its rows: `WARNING: infoROM is corrupted at gpu 0000:3B:00.0`.

    Raises NoAnswer.
    """
    return [line.strip() for line in _query("gpu", _FIELDS, ask)[1].splitlines() if line.startswith("WARNING")]


def read_holders(ask: Ask) -> dict[str, list[Holder]]:
    """Return the processes that compute, by UUID of the GPU. Raises NoAnswer."""
    text = ask("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits")
    found: dict[str, list[Holder]] = {}
    for row in _rows(text):
        if len(row) >= 4 and row[1].isdigit():
            used = _number(row[-1])
            name = row[2].rpartition("/")[2]
            found.setdefault(row[0], []).append(Holder(int(row[1]), name, used * _MIB if used is not None else None))
    return found


def _query(what: str, names: Sequence[str], ask: Ask) -> tuple[list[str], str]:
    """Ask `--query-WHAT` for the columns that this driver knows. Returns their names and its answer."""
    asked = {name: name for name in names}
    while True:
        try:
            return list(asked), ask(f"--query-{what}={','.join(asked.values())}", "--format=csv,noheader,nounits")
        except NoAnswer as error:
            unknown = _UNKNOWN_FIELD.search(str(error))
            name = next((name for name, known in asked.items() if unknown is not None and known == unknown[1]), None)
            if name is None:
                raise
            older = _OLDER_NAMES.get(asked.pop(name))
            if older is not None:
                asked[name] = older


def _table(names: Sequence[str], text: str) -> list[dict[str, str]]:
    return [dict(zip(names, row, strict=False)) for row in _rows(text)]


def _is_gpu(index: str) -> bool:
    """Whether a row is a GPU, not a remark; one that's gone has the driver's words for an index."""
    return index.isdecimal() or _LOST.search(index) is not None


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]


def _gpu(row: Mapping[str, str]) -> Gpu:
    lost = next((cell.strip("[]") for cell in row.values() if _LOST.search(cell)), "")
    index, address = row.get("index", "?"), _ADDRESS.search(lost)
    return Gpu(
        index=index if index.isdecimal() else address[0] if address is not None else "?",
        uuid=row.get("uuid", ""),
        name=row.get("name", "").removeprefix("NVIDIA "),
        total=(_number(row.get("memory.total")) or 0) * _MIB,
        used=(_number(row.get("memory.used")) or 0) * _MIB,
        temperature=_number(row.get("temperature.gpu")),
        mode=row.get("compute_mode", ""),
        mig=row.get("mig.mode.current", ""),
        throttled=_number(row.get("clocks_event_reasons.active")),
        uncorrected=_number(row.get("ecc.errors.uncorrected.volatile.total")),
        pending=_is_yes(row.get("retired_pages.pending")) or _is_yes(row.get("remapped_rows.pending")),
        remap_failed=_is_yes(row.get("remapped_rows.failure")),
        width_now=_number(row.get("pcie.link.width.current")),
        width_most=_number(row.get("pcie.link.width.max")),
        lost=lost,
    )


def _is_yes(cell: str | None) -> bool:
    """Whether it's `Yes`, or a count above 0."""
    return cell == "Yes" or bool(_number(cell))


def _number(cell: str | None) -> int | None:
    """Read a number; None for `[N/A]`, `[Not Supported]` and the like."""
    try:
        return int(cell or "", 0)
    except ValueError:
        return None
