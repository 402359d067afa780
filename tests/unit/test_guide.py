"""What the guide and `running.md` say must exist: pages, sections, options, variables, scripts, causes."""

from __future__ import annotations

import ast
import importlib.util
import mmap
import re
import subprocess
from pathlib import Path

import pytest

from ddp_run.judge import catalogue
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.record import host_failures
from ddp_run.settings.table import Row, all_rows

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
RUNNING = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
BOTH = GUIDE + RUNNING
TORCH = importlib.util.find_spec("torch")

READ_BY_TORCH = {
    "PYTHON_EXEC",
    "GLOO_SOCKET_IFNAME",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_COMPILE_DISABLE",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    # Old names, which torch 2.4 to 2.13 still takes (ProcessGroupNCCL.hpp).
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
}
READ_BY_OTHERS = {
    # NCCL 2.20 to 2.29: src/debug.cc, src/misc/socket.cc, src/transport/net_ib, src/graph/paths.cc
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    # torch, in the part that only builds with CUDA have before 2.9
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    # SLURM: sbatch(1) and srun(1)
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "OMP_NUM_THREADS",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "WANDB_API_KEY",
    "WANDB_MODE",
    "LOCAL_RANK",
    # ddp-run itself
    "JOB_COMPLETION_INDEX",
    "PET_NNODES",
    "PET_NODE_RANK",
    "SLACK_WEBHOOK_URL",  # scripts/examples/notify.py
    "SLURM_JOB_ID",
    "VAST_TCP_PORT_29500",
    "WORLD_SIZE",
}
READ_BY_NOBODY = {"NCCL_TIMEOUT", "NCCL_TREE_THRESHOLD", "TORCH_DIST_TIMEOUT"}
"""Named only to say so. NCCL_TREE_THRESHOLD: last in NCCL 2.4's sources."""
READ_BY_DDP_RUN = {host_failures.VARIABLE}
NO_VARIABLES = {"CAP_SYS_PTRACE", "PAGE_RETIREMENT", "ROW_REMAPPER"}

OF_OTHER_PROGRAMS = {
    *("--cpus-per-task", "--gpus-per-node", "--mem", "--ntasks-per-node", "--signal"),  # SLURM
    *("--ipc", "--network", "--shm-size"),  # docker
}


def _blocks(language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", BOTH, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return torch_rows()


def test_options_exist(rows: tuple[Row, ...]) -> None:
    """Of those that stand in the text: `--name` at the beginning of a code span, or behind `ddp-run`."""
    known = {flag for row in all_rows(rows) for flag in row.flags} | OF_OTHER_PROGRAMS
    text = re.sub(r"^ *```.*?^ *```$", "", BOTH, flags=re.MULTILINE | re.DOTALL)
    named = {flag for span in re.findall(r"`(?:ddp-run )?(--[^`]+)`", text) for flag in re.findall(r"--[\w-]+", span)}
    assert {"--hang-timeout", "--preflight", "--fallback-backend"} <= named
    assert named <= known


@pytest.mark.parametrize("block", _blocks("sh"))
def test_shell_blocks_parse(block: str) -> None:
    done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_blocks_parse() -> None:
    blocks = _blocks("python")
    assert blocks
    for block in blocks:
        ast.parse(block)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)", BOTH)
    assert targets
    for target in targets:
        assert (ROOT / "docs" / target).is_file(), target


@pytest.mark.parametrize("text", [GUIDE, RUNNING], ids=["guide", "running"])
def test_sections_that_are_linked_exist(text: str) -> None:
    titles = re.findall(
        r"^#+ (.*)$", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    # As GitHub makes them: lower case, blanks to dashes, all other signs dropped.
    anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    assert len(set(anchors)) == len(anchors)
    wanted = re.findall(r"\]\(#([^)]+)\)", text)
    assert wanted
    assert set(wanted) <= set(anchors)


def test_every_cause_is_linked() -> None:
    linked = set(re.findall(r"\]\(causes/([\w-]+)\.md\)", GUIDE))
    names = {cause.rule.name for cause in catalogue.catalogue()}
    assert names <= linked
    assert linked <= names | {"index"}


def test_every_symptom_names_its_causes() -> None:
    symptoms = GUIDE.partition("## It does not start")[2].partition("## Advice that")[0].split("\n### ")[1:]
    assert len(symptoms) > 25
    assert [text.partition("\n")[0] for text in symptoms if "\nCauses: [" not in text] == []


def test_the_readme_links_both() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/guide.md)" in readme
    assert "](docs/running.md)" in readme


def test_scripts_exist() -> None:
    named = set(re.findall(r"\bscripts/\w+\.py\b", BOTH))
    assert named
    for name in named:
        assert (ROOT / name).is_file(), name


# --------------------------------------------------------------------------------------------- variables


def test_variables_are_known() -> None:
    spans = " ".join([*re.findall(r"`([^`\n]+)`", BOTH), *_blocks("sh"), *_blocks("python")])
    named = set(re.findall(r"(?<![\w.])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", spans))
    assert named == READ_BY_TORCH | READ_BY_OTHERS | READ_BY_NOBODY | READ_BY_DDP_RUN | NO_VARIABLES


def _torch_files() -> list[Path]:
    assert TORCH is not None and TORCH.origin is not None
    folder = Path(TORCH.origin).parent
    header = folder / "include" / "torch" / "csrc" / "distributed" / "c10d" / "ProcessGroupNCCL.hpp"
    names = ("_dynamo/config.py", "utils/cpp_extension.py", "distributed/run.py")
    python = [folder / name for name in names]
    return [each for each in (header, *python, *sorted((folder / "lib").glob("lib*.so"))) if each.is_file()]


@pytest.mark.skipif(TORCH is None, reason="torch is not installed")
def test_torch_reads_the_variables_that_the_guide_gives_it() -> None:
    left, seen = {name.encode() for name in READ_BY_TORCH}, set()
    nobody = {name.encode() for name in READ_BY_NOBODY}
    for path in _torch_files():
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # Whole names: TORCH_NCCL_BLOCKING_WAIT holds NCCL_BLOCKING_WAIT too.
            left -= {name for name in left if _holds(content, name)}
            seen |= {name for name in nobody if _holds(content, name)}
    assert left == set()
    assert seen == set()


def _holds(content: mmap.mmap, name: bytes) -> bool:
    at = content.find(name)
    while at >= 0:
        around = content[max(0, at - 1) : at] + content[at + len(name) : at + len(name) + 1]
        if not re.search(rb"[A-Z0-9_]", around):
            return True
        at = content.find(name, at + 1)
    return False
