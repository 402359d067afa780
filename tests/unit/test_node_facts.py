"""What a node says of itself: read from this host, cheaply, and without secrets."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path

import pytest
from tests.loaded_process import LoadedProcess
from tests.waiting import limit

from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.node_facts import collect
from ddp_run.settings.parse import parse
from ddp_run.supervise.nodes.messages import Join, decode, encode
from ddp_run.values.node_fact import LONGEST_VALUE, MOST_FACTS, Fact, Known, check
from ddp_run.values.sealed import LONGEST_LINE

ROWS = torch_rows()
TOKEN = "ghp_" + "a1B2" * 9


def facts(*words: str, **environ: str) -> dict[str, str]:
    options = parse(words or ("train.py",), {}, torch_rows=ROWS)
    collected = collect(options, environ, "127.0.0.1").facts
    check(collected)
    return {fact.name: fact.value for fact in collected}


def test_this_host() -> None:
    found = facts("--nproc-per-node=2", "train.py")
    assert found[Known.PYTHON] == platform.python_version()
    assert found[Known.TORCH].partition("+")[0] == importlib.metadata.version("torch").partition("+")[0]
    assert found[Known.CUDA]
    assert found[Known.RANKS] == "2"
    assert found[Known.INTERFACE] == "lo"
    assert found[Known.MTU] == Path("/sys/class/net/lo/mtu").read_text().strip()
    assert int(found[Known.SHM]) > 0
    assert Known.OPEN_FILES in found
    assert Known.LOCKED_MEMORY in found


def test_the_installed_torch_says_the_same_of_itself(torch_process: LoadedProcess) -> None:
    program = "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda or 'none']))"
    answer = torch_process.run(program)
    found = facts()
    assert [found[Known.TORCH], found[Known.CUDA]] == json.loads(answer.stdout)


def test_a_build_for_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the wheels for CUDA are laid out, of which none is installed here."""
    (tmp_path / "torch" / "distributed").mkdir(parents=True)
    for name in ("__init__.py", "distributed/run.py"):
        (tmp_path / "torch" / name).touch()
    version = "from typing import Optional\n\n__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'xpu']\n"
    version += "__version__ = '2.6.0+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\n"
    (tmp_path / "torch" / "version.py").write_text(version)
    (tmp_path / "nvidia_nccl_cu12-2.21.5.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    found = facts()
    assert [found[name] for name in (Known.TORCH, Known.CUDA, Known.NCCL)] == ["2.6.0+cu124", "12.4", "2.21.5"]


def test_it_takes_little_time() -> None:
    facts()
    took = []
    for _ in range(5):
        began = time.monotonic()
        facts()
        took.append(time.monotonic() - began)
    assert min(took) < limit(0.05)


def test_scripts_and_arguments_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)")
    one, same, other = facts("train.py", "--lr", "1"), facts("train.py", "--lr", "1"), facts("train.py", "--lr 1")
    assert len(one[Known.SCRIPT]) == 12
    assert one == same
    assert one[Known.ARGUMENTS] != other[Known.ARGUMENTS]
    Path("train.py").write_text("print(2)")
    assert facts("train.py")[Known.SCRIPT] != one[Known.SCRIPT]


def test_what_is_no_file_of_a_sensible_size_is_not_read(tmp_path: Path) -> None:
    large, pipe = tmp_path / "large.py", tmp_path / "pipe.py"
    with large.open("wb") as file:
        file.truncate(10_000_001)
    os.mkfifo(pipe)
    for words in ([str(large)], [str(pipe)], [str(tmp_path)], ["-m", "module"], ["--no-python", "/bin/true"]):
        assert Known.SCRIPT not in facts(*words)


def test_variables_that_should_be_alike() -> None:
    alike = {
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "4",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
        "CUDA_LAUNCH_BLOCKING": "1",
    }
    own = {"NCCL_SOCKET_IFNAME": "eth0", "CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG_FILE": "/a", "NCCL_HOSTID": "a"}
    others = {"HOME": "/root", "nccl_algo": "x", "MASTER_ADDR": "a", "TORCHINDUCTOR_CACHE_DIR": "/a"}
    found = facts(**alike, **own, **others)
    assert {name: value for name, value in found.items() if name in {**alike, **own, **others}} == alike
    assert found[Known.VARIABLES] == "4"


def test_no_secret_is_told() -> None:
    found = facts("train.py", "--token", TOKEN, TORCH_HUB_TOKEN="hunter2hunter2", NCCL_NET=TOKEN)
    assert "hunter2" not in str(found)
    assert TOKEN not in str(found)
    assert "TORCH_HUB_TOKEN" in found


def test_odd_variables_fit_into_a_message() -> None:
    odd = {f"NCCL_{number}": "\N{GRINNING FACE}\x1b\udc80" * 500 for number in range(150)}
    options = parse(("train.py",), {}, torch_rows=ROWS)
    join = Join(1, 2, "b", "/r", facts=collect(options, odd, "127.0.0.1").facts)
    line = json.dumps(encode(join))
    assert len(line) < LONGEST_LINE
    assert decode(json.loads(line)) == join
    assert "NCCL_1" in str(join)
    assert Known.VARIABLES not in facts(**{f"NCCL_{number}": "1" for number in range(MOST_FACTS)})


@pytest.mark.parametrize(
    "said",
    [
        [Fact("torch", "1")] * (MOST_FACTS + 1),
        [Fact("x" * 101, "1")],
        [Fact("", "1")],
        [Fact("torch", "x" * (LONGEST_VALUE + 1))],
        [Fact("torch", "\x1b[2J")],
    ],
    ids=["many", "name", "no name", "value", "escape"],
)
def test_what_no_node_says_is_refused(said: list[Fact]) -> None:
    with pytest.raises(ValueError, match="fact"):
        decode(encode(Join(1, 2, "b", "/r")) | {"facts": [{"name": each.name, "value": each.value} for each in said]})
