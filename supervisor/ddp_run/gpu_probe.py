"""Asks NVML for memory and use of the GPUs. Runs alone: `python -P gpu_probe.py`; a byte in, a line of JSON out.

NVML's calls can take seconds, and with a broken GPU or driver they never return: then this process is killed and
ddp-run goes on. A line is an answer, `{"at": …, "whole": …, "devices": […], "processes": […]}`, or a note, `{"note":
…, "last": …}`; after the last one it ends. What it cannot see it leaves out, and says so once.
"""

import json
import os
import time
from typing import Any


class Probe:
    """The GPUs that NVML shows. A GPU that gives an error is left alone from then on."""

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
        """All that can be seen now. `whole`: no GPU of this machine is missing."""
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
        except self._nvml.NVMLError:  # this kind of GPU, or this driver, has no MIG
            return False

    def _busy(self, handle: Any) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except self._nvml.NVMLError:
            return None

    def _holders(self, handle: Any) -> dict[int, int | None]:
        """Bytes by pid; a process that computes and draws is in both lists, with the same bytes."""
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            for version in ("", "_v2"):  # a driver older than the binding lacks the newest
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
    """One line to ddp-run, whole."""
    os.write(1, json.dumps(line).encode() + b"\n")


def main() -> None:
    """Answer until nobody asks any more."""
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
