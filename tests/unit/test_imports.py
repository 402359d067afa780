"""What is loaded for short answers, and before the agent is started: start-up time is made of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import limit

DDP_RUN = Path(sys.executable).with_name("ddp-run")

LATER = frozenset(
    {"click", "rich", "structlog", "tenacity", "psutil", "jinja2", "torch", "numpy"}
    | {"asyncio", "concurrent.futures", "multiprocessing", "logging", "importlib.metadata", "unittest", "email"}
    | {
        "ddp_run.judge.verdict",
        "ddp_run.judge.rules",
        "ddp_run.judge.diagnose",
        "ddp_run.evidence.gather",
        "ddp_run.judge.retry",
        "ddp_run.tell.verdict_text",
    }
)
"""What the road to the agent's start has no use for. All of it may load while the agent imports torch."""
STARTING = frozenset({"subprocess", "selectors", "socket", "ddp_run.supervise.children", "ddp_run.supervise.job"})
"""What only starting needs."""

# Python's own audit event tells when the agent is about to be started; nothing of ddp-run is replaced. The error that
# the hook raises reaches Popen's caller as if the kernel had refused, so nothing runs and what was opened is closed.
_ROAD_TO_THE_AGENT = """
import sys

def hook(event, arguments):
    if event == "subprocess.Popen" and "torch.distributed.run" in arguments[1]:
        print(*sys.modules, sep="\\n", flush=True)
        raise OSError("far enough")

sys.addaudithook(hook)
sys.argv[0] = "ddp-run"
from ddp_run.cli import main
main()
"""


def _environ(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "DDP_", "MASTER_"))}
    return kept | {"TMPDIR": str(folder)}


def _loaded(folder: Path, *words: str) -> tuple[int, set[str]]:
    """Exit code, and all modules that a run of `ddp-run` imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(DDP_RUN), *words],
        cwd=folder,
        env=_environ(folder),
        capture_output=True,
        text=True,
        timeout=limit(120),
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert len(lines) > 20, done.stderr
    return done.returncode, {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--help"], 0), ([], 2), (["--nproc-per-node=none", "train.py"], 2), (["no-such-file.py"], 2)],
    ids=["help", "no words", "bad value", "no script"],
)
def test_short_answers_load_little(tmp_path: Path, words: list[str], code: int) -> None:
    returned, loaded = _loaded(tmp_path, *words)
    assert returned == code
    assert "ddp_run.settings.table" in loaded
    assert not loaded & ((LATER - {"click"} if words == ["--help"] else LATER) | STARTING)


def test_a_dry_run_loads_little(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    returned, loaded = _loaded(tmp_path, "--dry-run", "train.py")
    assert returned == 0
    assert not loaded & (LATER - {"importlib.metadata", "email"})


def test_the_package_itself_is_light(tmp_path: Path) -> None:
    """What `import ddp_run` loads; `launch` and its like come with their first use."""
    program = "import sys, typing; before = {*sys.modules}; import ddp_run; print(*{*sys.modules} - before)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=limit(120)
    )
    assert {*done.stdout.split()} <= {"ddp_run", "__future__"}
    program = "import ddp_run, sys; ddp_run.launch; assert not {'torch', 'click', 'psutil', 'numpy'} & {*sys.modules}"
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=limit(120)).returncode == 0


def test_explain_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    _returned, loaded = _loaded(tmp_path, "explain", "run")
    assert "click" in loaded
    assert not loaded & {"torch", "numpy", "structlog", "tenacity", "ddp_run.settings.options"}


@pytest.mark.parametrize("options", [[], ["--standalone"], ["--nproc-per-node=2", "--redirects=3"]], ids=str)
def test_the_road_to_the_agent(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "train.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", _ROAD_TO_THE_AGENT, *options, "train.py"],
        cwd=tmp_path,
        env=_environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=limit(120),
    )
    loaded = set(done.stdout.splitlines())
    assert "ddp_run.supervise.children" in loaded, done.stderr
    assert not loaded & LATER
    assert list((tmp_path / "ddp-run-logs").glob("*/attempt_0")), "the hook was not asked at the agent's start"


def test_one_node_has_nothing_of_several_nodes(tmp_path: Path) -> None:
    """Not even a port: the rank looks at all of ddp-run's sockets."""
    program = "import os, psutil\nrun = psutil.Process(os.getppid()).parent()\n"
    program += "print('sockets of', *run.cmdline()[-2:], run.net_connections('inet'))"
    (tmp_path / "train.py").write_text(program)
    returned, loaded = _loaded(tmp_path, "--nproc-per-node=1", "train.py")
    assert returned == 0
    assert "ddp_run.supervise.attempt" in loaded
    assert not [name for name in loaded if name.startswith("ddp_run.supervise.nodes")]
    assert "structlog" not in loaded, "only messages in JSON need it"
    said = tmp_path / "ddp-run-logs" / "latest" / "attempt_0" / "rank_0" / "stdout.log"
    assert said.read_text() == "sockets of --nproc-per-node=1 train.py []\n"


def test_messages_in_json_load_structlog_without_what_it_asks_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    returned, loaded = _loaded(tmp_path, "--nproc-per-node=1", "--log-format=json", "train.py")
    assert returned == 0
    assert "structlog" in loaded
    assert not [name for name in loaded if name.startswith("rich.")]
