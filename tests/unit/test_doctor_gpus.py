"""What the doctor reads from nvidia-smi and the kernel's log, and how it judges that: texts in real forms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddp_run.doctor import gpu_table
from ddp_run.doctor.check import Group, NoAnswer, Surroundings, all_checks, asked
from ddp_run.doctor.checks import gpu_links, gpus, host
from ddp_run.doctor.findings import Finding, Grade
from ddp_run.doctor.gpu_table import Gpu, Holder
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.settings.parse import parse

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
NIC_LEGEND = """
NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
# H100 with NVSwitch, drivers since 535: tabs, and three columns behind the links
NVSWITCH = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tNV18\tNV18\tPIX\tSYS\t0-79\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNV18\tNV18\tPXB\tSYS\t0-79\t0\t\tN/A\n"
    "GPU2\tNV18\tNV18\t X \tNV18\tSYS\tPIX\t80-159\t1\t\tN/A\n"
    "GPU3\tNV18\tNV18\tNV18\t X \tSYS\tPXB\t80-159\t1\t\tN/A\n"
    "NIC0\tPIX\tPXB\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tPIX\tPXB\tSYS\t X \t\t\t\t\n" + LEGEND + NIC_LEGEND
)
# two GPUs of a workstation, as pasted from a terminal
HOST_BRIDGE = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tPHB\t0-63\t0\t\tN/A\n"
    "GPU1\tPHB\t X \t0-63\t0\t\tN/A\n" + LEGEND
)
# older drivers: adapters by their own names, blanks, one column behind
MIXED = """        GPU0    GPU1    GPU2    GPU3    mlx5_0  CPU Affinity
GPU0     X      PIX     NODE    SYS     PHB     0-9,20-29
GPU1    PIX      X      NODE    SYS     PHB     0-9,20-29
GPU2    NODE    NODE     X      SYS     NODE    0-9,20-29
GPU3    SYS     SYS     SYS      X      SYS     10-19,30-39
mlx5_0  PHB     PHB     NODE    SYS      X
"""
# V100 without NVSwitch: pairs have one or two links, or none
UNLIKE_NVLINKS = """\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV2\tNV1\t0-47\t0
GPU1\tNV2\t X \tNV1\t0-47\t0
GPU2\tNV1\tNV1\t X \t0-47\t0
"""
ONE = "\tGPU0\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNODE\t0-15\t0\t\tN/A\nNIC0\tNODE\t X \t\t\t\n"


def links(text: str) -> dict[str, Finding]:
    found = gpu_links.read(text)
    assert found is not None
    return {finding.looked_at: finding for finding in gpu_links.judged(found)}


def test_nvlinks_of_a_switch_are_good() -> None:
    found = gpu_links.read(NVSWITCH)
    assert found is not None
    assert (found.gpus, found.adapters) == (("GPU0", "GPU1", "GPU2", "GPU3"), ("NIC0", "NIC1"))
    assert found.nearest_adapters() == {"GPU0": "PIX", "GPU1": "PXB", "GPU2": "PIX", "GPU3": "PXB"}
    judged = links(NVSWITCH)
    assert [finding.grade for finding in judged.values()] == [Grade.PASS, Grade.PASS]
    assert judged["GPU links"].value == "6 pairs NV18"
    assert judged["GPU links"].detail[-2:] == ("NIC0: mlx5_0", "NIC1: mlx5_1")


def test_ways_through_the_cpu_are_warned_of() -> None:
    judged = links(HOST_BRIDGE)["GPU links"]
    assert (judged.grade, judged.value) == (Grade.WARN, "1 pair PHB")
    assert "GPU0-GPU1 PHB" in judged.against
    mixed = links(MIXED)
    assert mixed["GPU links"].value == "3 pairs SYS, 2 pairs NODE, 1 pair PIX"
    assert "GPU0-GPU1" not in mixed["GPU links"].against
    adapters = mixed["GPUs to network adapters"]
    assert (adapters.grade, adapters.value) == (Grade.WARN, "GPU0 PHB, GPU1 PHB, GPU2 NODE, GPU3 SYS")


def test_pairs_with_fewer_nvlinks_are_warned_of() -> None:
    judged = links(UNLIKE_NVLINKS)["GPU links"]
    assert (judged.grade, judged.value) == (Grade.WARN, "2 pairs NV1, 1 pair NV2")


def test_one_gpu_has_no_pairs() -> None:
    assert links(ONE)["GPU links"].value == "one GPU"
    assert links(ONE)["GPUs to network adapters"].grade is Grade.WARN


@pytest.mark.parametrize("text", ["", "No devices were found\n", LEGEND, "GPU0 GPU1\n"])
def test_what_is_no_table(text: str) -> None:
    assert gpu_links.read(text) is None


# --------------------------------------------------------------------------------------- a host with GPUs

NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *pcie.link.width.max*)
    echo 'Field "pcie.link.width.max" is not a valid field to query.'; exit 2;;
  --query-gpu=*)
    echo '0, GPU-a, NVIDIA H100 80GB HBM3, 81559, 4, 33, Default, Disabled, 0x0000000000000001, 0, [N/A], 16'
    echo '1, GPU-b, NVIDIA H100 80GB HBM3, 81559, 40000, 35, Default, Disabled, 0x0000000000000001, 3, [N/A], 16';;
  --query-remapped-rows=*) printf 'GPU-a, 0, 0\nGPU-b, 0, 0\n';;
  --query-compute-apps=*) echo 'GPU-b, 4242, /usr/bin/python3, 39990';;
  "topo -m") cat "$TOPOLOGY";;
  "") echo '| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |';;
esac
"""


def host_with_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch, nvidia_smi: str) -> Surroundings:
    (folder / "nvidia-smi").write_text(nvidia_smi)
    (folder / "nvidia-smi").chmod(0o755)
    (folder / "topology").write_text(HOST_BRIDGE)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("TOPOLOGY", str(folder / "topology"))
    options = parse(("--nproc-per-node=2", "x.py"), {}, torch_rows=torch_rows())
    return Surroundings(options=options, environ={}, ranks=2, log_dir=folder, driver_files=(str(folder),))


def test_a_host_with_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All checks of the group, over a driver that does not know a field."""
    around = host_with_gpus(tmp_path, monkeypatch, NVIDIA_SMI)
    found = [each for check in all_checks() if check.group is Group.GPUS for each in asked(check, around)]
    grades = {each.looked_at: each.grade for each in found if not each.looked_at.startswith("Xid")}
    assert grades == {
        "GPUs": Grade.PASS,
        "GPU 0": Grade.PASS,
        "GPU 1": Grade.PASS,
        "ECC of GPU 1": Grade.WARN,
        "processes on GPU 1": Grade.WARN,
        "GPU clocks": Grade.PASS,
        "GPU links": Grade.WARN,
    }


def test_a_driver_that_fails_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n"
    around = host_with_gpus(tmp_path, monkeypatch, failing)
    found = [each for check in all_checks() if check.group is Group.GPUS for each in asked(check, around)]
    assert [each.against for each in found if each.grade is Grade.FAIL] == [
        "Failed to initialize NVML: Driver/library version mismatch"
    ]


# ------------------------------------------------------------------------------------------ nvidia-smi's CSV


def answering(*gpus: dict[str, str] | str, unknown: tuple[str, ...] = ()) -> gpu_table.Ask:
    """nvidia-smi with these GPUs, and lines of its own, of a driver that does not know some fields, or a query."""

    def ask(*words: str) -> str:
        query, _, fields = words[0].partition("=")
        if query in unknown:
            raise NoAnswer("Option \"--query\" is not recognized. Please run 'nvidia-smi -h'.")
        names = fields.split(",")
        for name in names:
            if name in unknown:
                raise NoAnswer(f'Field "{name}" is not a valid field to query.')
        rows = (gpu if isinstance(gpu, str) else ", ".join(gpu.get(name, "[N/A]") for name in names) for gpu in gpus)
        return "".join(f"{row}\n" for row in rows)

    return ask


H100 = {
    "index": "0",
    "uuid": "GPU-5e6f",
    "gpu_uuid": "GPU-5e6f",
    "name": "NVIDIA H100 80GB HBM3",
    "memory.total": "81559",
    "memory.used": "4",
    "temperature.gpu": "33",
    "compute_mode": "Default",
    "mig.mode.current": "Disabled",
    "clocks_event_reasons.active": "0x0000000000000001",
    "clocks_throttle_reasons.active": "0x0000000000000001",
    "ecc.errors.uncorrected.volatile.total": "0",
    "remapped_rows.pending": "0",
    "remapped_rows.failure": "0",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
}


def test_a_healthy_gpu() -> None:
    (gpu,) = gpu_table.read(answering(H100))
    assert (gpu.index, gpu.name, gpu.total, gpu.used) == ("0", "H100 80GB HBM3", 81559 << 20, 4 << 20)
    assert (gpu.throttled, gpu.uncorrected, gpu.temperature, gpu.lost) == (1, 0, 33, "")
    assert (gpus.one_gpu(gpu).grade, gpus.one_gpu(gpu).value) == (
        Grade.PASS,
        "H100 80GB HBM3, 4.0 MiB of 79.6 GiB used",
    )
    assert gpus.memory_errors(gpu) is None
    assert gpus.throttled(gpu) is None
    assert gpus.processes(gpu, {}) is None


@pytest.mark.parametrize(("told", "is_so"), [("0", False), ("No", False), ("[N/A]", False), ("1", True), ("Yes", True)])
def test_rows_that_were_remapped(told: str, is_so: bool) -> None:
    other = H100 | {"index": "1", "uuid": "GPU-7", "gpu_uuid": "GPU-7"}
    gpus = gpu_table.read(answering(other, H100 | {"remapped_rows.pending": told}))
    assert [gpu.pending for gpu in gpus] == [False, is_so]
    gpus = gpu_table.read(answering(other, H100 | {"remapped_rows.failure": told}))
    assert [gpu.remap_failed for gpu in gpus] == [False, is_so]


def test_fields_that_the_driver_does_not_know_are_left_out() -> None:
    old = H100 | {"clocks_throttle_reasons.active": "0x8", "retired_pages.pending": "Yes"}
    unknown = ("mig.mode.current", "clocks_event_reasons.active", "--query-remapped-rows")
    (gpu,) = gpu_table.read(answering(old, unknown=unknown))
    assert (gpu.width_now, gpu.width_most, gpu.pending, gpu.mig, gpu.throttled) == (16, 16, True, "", 8)
    (gpu,) = gpu_table.read(answering(old, unknown=(*unknown, "clocks_throttle_reasons.active")))
    assert gpu.throttled is None


def test_another_failure_of_nvidia_smi_is_told() -> None:
    def ask(*_words: str) -> str:
        raise NoAnswer("Failed to initialize NVML: Driver/library version mismatch")

    with pytest.raises(NoAnswer):
        gpu_table.read(ask)
    told = gpus.no_answer("Failed to initialize NVML: Driver/library version mismatch")
    assert told.grade is Grade.FAIL
    assert told.advice[0].startswith("reboot")


def test_a_lost_gpu() -> None:
    (gpu,) = gpu_table.read(answering(H100 | dict.fromkeys(("memory.total", "memory.used"), "[GPU is lost]")))
    assert (gpus.one_gpu(gpu).grade, gpus.one_gpu(gpu).value) == (Grade.FAIL, "GPU is lost")


def test_lines_between_the_rows_are_no_gpus() -> None:
    """As nvidia-smi writes them to its output, beside the table or in its place."""
    remark = "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"
    assert [gpu.index for gpu in gpu_table.read(answering(H100, remark))] == ["0"]
    assert gpu_table.remarks(answering(H100, remark)) == [remark]
    assert gpu_table.read(answering("No devices were found")) == []
    lost = "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error"
    (gpu,) = gpu_table.read(answering(lost))
    assert (gpu.index, gpus.one_gpu(gpu).grade) == ("0000:3B:00.0", Grade.FAIL)


def made(**values: object) -> Gpu:
    return Gpu(**{"index": "3", "uuid": "GPU-3", "name": "A100", "total": 40 << 30, "used": 0, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "grade"),
    [
        (made(uncorrected=2), Grade.WARN),
        (made(uncorrected=0, pending=True), Grade.WARN),
        (made(uncorrected=0, remap_failed=True), Grade.FAIL),
    ],
)
def test_memory_errors(gpu: Gpu, grade: Grade) -> None:
    found = gpus.memory_errors(gpu)
    assert found is not None
    assert found.grade is grade


@pytest.mark.parametrize(("bits", "words"), [(0x48, "hardware slowdown, hardware thermal slowdown"), (0x5, None)])
def test_throttling(bits: int, words: str | None) -> None:
    found = gpus.throttled(made(throttled=bits, temperature=88))
    assert (found.value if found else None) == (f"{words}, 88 °C" if words else None)


def test_processes_on_a_gpu() -> None:
    holders = gpu_table.read_holders(
        answering(
            {"gpu_uuid": "GPU-3", "pid": "4242", "process_name": "/venv/bin/python", "used_memory": "39000"},
            {"gpu_uuid": "GPU-4", "pid": "1", "process_name": "[Not Found]"},
        )
    )
    assert holders["GPU-4"] == [Holder(1, "[Not Found]", None)]
    found = gpus.processes(made(used=39000 << 20), holders)
    assert found is not None
    assert found.value == "pid 4242 python (38.1 GiB)"
    hidden = gpus.processes(made(used=39000 << 20), {})
    assert hidden is not None
    assert "another container" in hidden.against


@pytest.mark.parametrize(
    ("ranks", "chosen", "visible", "grade"),
    [(2, None, 2, Grade.PASS), (4, None, 2, Grade.WARN), (1, "", 0, Grade.WARN), (1, "1", 1, Grade.PASS)],
)
def test_gpus_for_ranks(ranks: int, chosen: str | None, visible: int, grade: Grade) -> None:
    assert gpus.gpu_count([made(), made(index="4")], visible, ranks, chosen).grade is grade


def test_gpus_of_two_kinds() -> None:
    assert "several kinds" in gpus.gpu_count([made(), made(name="L4")], 2, 2, None).against


def test_how_a_gpu_is_set_up() -> None:
    assert gpus.one_gpu(made(mode="Prohibited")).grade is Grade.FAIL
    assert "PCIe x8" in gpus.one_gpu(made(width_now=8, width_most=16)).against


def test_xid_errors_of_the_hardware() -> None:
    lines = [
        "[  100.1] NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python, MMU Fault",
        "[  101.1] NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row marked for remapping",
        "[  102.1] NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row marked for remapping",
        "[  103.1] NVRM: Xid (PCI:0000:86:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ]
    found = list(gpus.xids(lines))
    assert [(each.looked_at, each.grade) for each in found] == [
        ("Xid at 0000:3b:00", Grade.WARN),
        ("Xid at 0000:86:00", Grade.FAIL),
    ]
    assert found[0].value == "63: a page or row of its memory was retired, 2 times"
    assert [each.grade for each in gpus.xids(lines[:1])] == [Grade.PASS]


BANNER = "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |"
NEW_BANNER = "| NVIDIA-SMI 595.10  Driver Version: 595.10   CUDA UMD Version: 13.2   |"


@pytest.mark.parametrize(
    ("cuda", "version", "banner", "grade"),
    [
        ("12.8", "550.54.15", BANNER, Grade.PASS),  # minor version compatibility
        ("13.0", "550.54.15", BANNER, Grade.FAIL),
        ("12.1", "470.82.01", "CUDA Version: 11.4", Grade.FAIL),
        ("12.8", "595.10", NEW_BANNER, Grade.PASS),
        ("12.8", None, "", Grade.SKIPPED),
        ("14.0", "595.10", NEW_BANNER, Grade.FAIL),
    ],
)
def test_driver_and_cuda(cuda: str, version: str | None, banner: str, grade: Grade) -> None:
    newest = host._DRIVERS_CUDA.search(banner)
    assert host.driver(cuda, version, newest).grade is grade


def test_builds_of_torch() -> None:
    assert host.cuda_build("none", has_driver=True).grade is Grade.FAIL
    assert host.cuda_build("none", has_driver=False).grade is Grade.PASS
    assert host.cuda_build("12.8", has_driver=False).grade is Grade.WARN
