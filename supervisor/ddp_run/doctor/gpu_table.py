"""What nvidia-smi says of each GPU, as CSV; asked again without fields that this driver does not know.

Fields as `nvidia-smi --help-query-gpu` and `--help-query-remapped-rows` list them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ddp_run.doctor.surroundings import NoAnswer
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
    """Sizes in bytes, temperature in °C; null where the driver does not tell. `lost`: its words for a GPU that does not
    answer; empty else."""

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
    pending: bool = False
    remap_failed: bool = False
    width_now: int | None = None
    width_most: int | None = None
    lost: str = ""

    @property
    def knows_ecc(self) -> bool:
        """Whether it counts memory errors."""
        return self.uncorrected is not None


@frozen
class Holder:
    """A process on a GPU; `used` in bytes, null where the driver does not tell."""

    pid: int
    name: str
    used: int | None


def read(ask: Ask) -> list[Gpu]:
    """All GPUs, by nvidia-smi's numbers. Raises NoAnswer."""
    gpus = [_gpu(row) for row in _rows_of(*_table("gpu", _FIELDS, ask)) if _is_gpu(row)]
    try:
        rows = _rows_of(*_table("remapped-rows", _REMAPPED_FIELDS, ask))
    except NoAnswer:  # GPUs before Ampere retire pages instead, and drivers of that time do not know the query
        rows = []
    remapped = {row.get("gpu_uuid"): row for row in rows}
    return [_with_remapped(gpu, remapped.get(gpu.uuid, {})) for gpu in gpus]


def remarks(ask: Ask) -> list[str]:
    """What nvidia-smi writes between its rows, as `WARNING: infoROM is corrupted at gpu 0000:3B:00.0`. Raises
    NoAnswer."""
    _names, text = _table("gpu", _FIELDS, ask)
    return [line.strip() for line in text.splitlines() if line.startswith("WARNING")]


def _table(what: str, names: Sequence[str], ask: Ask) -> tuple[list[str], str]:
    """`--query-WHAT`: the columns that this driver knows, by the names given here, and its answer. Raises NoAnswer."""
    asked = {name: name for name in names}
    while True:
        try:
            text = ask(f"--query-{what}={','.join(asked.values())}", "--format=csv,noheader,nounits")
        except NoAnswer as error:
            unknown = _UNKNOWN_FIELD.search(str(error))
            name = next((name for name, known in asked.items() if unknown is not None and known == unknown[1]), None)
            if name is None:
                raise
            older = _OLDER_NAMES.get(asked.pop(name))
            if older is not None:
                asked[name] = older
            continue
        return list(asked), text


def _rows_of(names: Sequence[str], text: str) -> list[dict[str, str]]:
    return [dict(zip(names, row, strict=False)) for row in _rows(text)]


def _is_gpu(row: Mapping[str, str]) -> bool:
    index = row.get("index", "")
    return index.isdecimal() or _LOST.search(index) is not None


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]


def _gpu(row: Mapping[str, str]) -> Gpu:
    lost = next((cell.strip("[]") for cell in row.values() if _LOST.search(cell)), "")
    index = row.get("index", "?")
    address = _ADDRESS.search(lost)
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
        pending=_is_said(row.get("retired_pages.pending")),
        width_now=_number(row.get("pcie.link.width.current")),
        width_most=_number(row.get("pcie.link.width.max")),
        lost=lost,
    )


def _with_remapped(gpu: Gpu, row: Mapping[str, str]) -> Gpu:
    return replace(
        gpu,
        pending=gpu.pending or _is_said(row.get("remapped_rows.pending")),
        remap_failed=_is_said(row.get("remapped_rows.failure")),
    )


def _is_said(cell: str | None) -> bool:
    """`Yes`, or how many."""
    return cell == "Yes" or bool(_number(cell))


def _number(cell: str | None) -> int | None:
    """Null for `[N/A]`, `[Not Supported]` and the like."""
    try:
        return int(cell or "", 0)
    except ValueError:
        return None


def read_holders(ask: Ask) -> dict[str, list[Holder]]:
    """Processes that compute, by the GPU's UUID. Raises NoAnswer."""
    text = ask("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits")
    found: dict[str, list[Holder]] = {}
    for row in _rows(text):
        if len(row) >= 4 and row[1].isdigit():
            used = _number(row[-1])
            name = row[2].rpartition("/")[2]
            found.setdefault(row[0], []).append(Holder(int(row[1]), name, used * _MIB if used is not None else None))
    return found
