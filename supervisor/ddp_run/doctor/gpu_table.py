"""What nvidia-smi says of each GPU, as CSV; asked again without fields that this driver does not know."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping

from ddp_run.doctor.surroundings import NoAnswer
from ddp_run.values.frozen import frozen

_FIELDS = (
    *("index", "uuid", "name", "memory.total", "memory.used", "temperature.gpu", "compute_mode", "mig.mode.current"),
    *("clocks_throttle_reasons.active", "ecc.errors.uncorrected.volatile.total", "retired_pages.pending"),
    *("remapped_rows.pending", "remapped_rows.failure", "pcie.link.width.current", "pcie.link.width.max"),
)
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
    fields, text = _table(ask)
    return [_gpu(dict(zip(fields, row, strict=False))) for row in _rows(text) if _is_gpu(row)]


def _table(ask: Ask) -> tuple[list[str], str]:
    """The fields that this driver knows, and its answer."""
    fields = list(_FIELDS)
    while True:
        try:
            text = ask(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        except NoAnswer as error:
            unknown = _UNKNOWN_FIELD.search(str(error))
            if unknown is None or unknown[1] not in fields:
                raise
            fields.remove(unknown[1])
            continue
        return fields, text


def remarks(ask: Ask) -> list[str]:
    """What nvidia-smi writes between its rows, as `WARNING: infoROM is corrupted at gpu 0000:3B:00.0`. Raises
    NoAnswer."""
    _fields, text = _table(ask)
    return [line.strip() for line in text.splitlines() if line.startswith("WARNING")]


def _is_gpu(row: list[str]) -> bool:
    return row[0].isdecimal() or _LOST.search(row[0]) is not None


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
        throttled=_number(row.get("clocks_throttle_reasons.active")),
        uncorrected=_number(row.get("ecc.errors.uncorrected.volatile.total")),
        pending="Yes" in (row.get("retired_pages.pending"), row.get("remapped_rows.pending"))
        or bool(_number(row.get("remapped_rows.pending"))),
        remap_failed=row.get("remapped_rows.failure") == "Yes" or bool(_number(row.get("remapped_rows.failure"))),
        width_now=_number(row.get("pcie.link.width.current")),
        width_most=_number(row.get("pcie.link.width.max")),
        lost=lost,
    )


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
