"""Asks NVML for the GPUs' memory and use. Runs alone: `python -P gpu_probe.py`; a byte in, a line of JSON out.

NVML's calls can take seconds, and with a broken GPU or driver they never return. ddp-run then kills this process and
goes on. A line is an answer, `{"at": …, "whole": …, "devices": […], "processes": […]}`, or a note, `{"note": …,
"last": …}`; it ends after the last note. GPUs that it can't see are left out, with one note.
"""

import json
import os
import time
from typing import Any


class Probe:
    """The GPUs that NVML shows, without those that gave an error."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._whole = True
        self._devices: dict[int, tuple[Any, str, str]] = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if self._is_split(handle):
                    self._leave(index, "it is split by MIG")
                    continue
                self._devices[index] = handle, nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            except nvml.NVMLError as error:
                self._leave(index, str(error))

    def look(self) -> dict[str, Any]:
        """What can be seen now. `whole`: whether that is every GPU of this host."""
        devices: list[list[Any]] = []
        processes: list[list[Any]] = []
        at = time.monotonic_ns()
        for index, (handle, uuid, name) in list(self._devices.items()):
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            except self._nvml.NVMLError as error:
                self._leave(index, str(error))
                continue
            counts = (memory.used, memory.free, memory.total)
            devices.append([index, uuid, name, *map(int, counts), self._busy(handle)])
            processes += [[pid, index, held] for pid, held in self._holders(handle).items()]
        return {"at": at, "whole": self._whole, "devices": devices, "processes": processes}

    def _leave(self, index: int, why: str) -> None:
        self._whole = False
        self._devices.pop(index, None)
        write({"note": f"GPU {index} is not monitored: {why}", "last": False})

    def _is_split(self, handle: Any) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])
        except self._nvml.NVMLError:  # this GPU or driver doesn't know MIG
            return False

    def _busy(self, handle: Any) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except self._nvml.NVMLError:
            return None

    def _holders(self, handle: Any) -> dict[int, int | None]:
        """Bytes by pid. A process that both computes and draws is in both lists with the same bytes."""
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            for version in ("", "_v2"):  # a driver older than the binding lacks the newest function
                try:
                    listed = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")(handle)
                except (AttributeError, self._nvml.NVMLError_FunctionNotFound):
                    continue
                except self._nvml.NVMLError:
                    break
                for process in listed:
                    found[int(process.pid)] = process.usedGpuMemory
                break
        return found


def write(line: dict[str, Any]) -> None:
    """Write one whole line to ddp-run."""
    os.write(1, json.dumps(line).encode() + b"\n")


def main() -> None:
    """Answer until ddp-run stops asking."""
    try:
        import pynvml
    except ImportError:
        why = "nvidia-ml-py is not installed (pip install 'ddp-run[gpu]')"
        write({"note": f"GPU monitoring disabled: {why}", "last": True})
        return
    try:
        pynvml.nvmlInit()
        probe = Probe(pynvml)
        while os.read(0, 64):
            write(probe.look())
    except pynvml.NVMLError as error:
        write({"note": f"GPU monitoring disabled: NVML says: {error}", "last": True})


if __name__ == "__main__":
    main()
