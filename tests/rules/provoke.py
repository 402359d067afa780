"""Makes the samples: runs small programs that really fail and keeps the folders they leave, names made neutral.

    python tests/rules/provoke.py [NAME…]

Each sample is provoked under ddp-run, or, where ddp-run would refuse the command line, under torchrun itself. What a
rule needs to see stays byte for byte; only paths and the host's name are replaced. `expect.toml` is written by hand.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLES = Path(__file__).parent / "samples"
ON_RANK_1 = """
import os, signal, sys, time
if os.environ["RANK"] != "1":
    time.sleep(60)
"""
GLOO = """
import atexit, os, sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    time.sleep(0.3)
    LEAVE
for step in range(200):
    time.sleep(0.02)
    dist.all_reduce(torch.ones(8))
"""

PROGRAMS: dict[str, str] = {
    "python-exception": ON_RANK_1
    + """
def load(step):
    raise ValueError(f"sample {step} has 3 channels, expected 1")
load(12)
""",
    "import-error": "import fancy_kernels",
    "syntax-or-usage": "import os\ndef train(steps:\n    pass",
    "bad-arguments": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args(["--lr", "fast"])
""",
    "port-in-use": ON_RANK_1
    + """
import socket
from datetime import timedelta
from torch.distributed import TCPStore
taken = socket.create_server(("", 0))
TCPStore("127.0.0.1", taken.getsockname()[1], 1, True, timedelta(seconds=10))
""",
    "segfault": ON_RANK_1 + "import ctypes\ndef kernel():\n    ctypes.string_at(0)\nkernel()",
    "host-oom": ON_RANK_1
    + "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\ncache = bytearray(1 << 31)",
    "native-abort": ON_RANK_1 + "os.write(2, b'free(): invalid pointer\\n')\nos.abort()",
    "user-interrupt": ON_RANK_1 + "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
    "preempted-sigterm": ON_RANK_1 + "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)",
    "unknown": ON_RANK_1 + "os.kill(os.getpid(), signal.SIGKILL)",
    "peer-died": GLOO.replace("LEAVE", "os._exit(0)"),
    "peer-died-with-a-code": GLOO.replace("LEAVE", "os._exit(3)"),
    "python-exception-slow-teardown": GLOO.replace(
        "LEAVE",
        """atexit.register(time.sleep, 1.5)
    dist.destroy_process_group()
    raise KeyError("channel_mean")""",
    ),
    "script-not-found": "",
}
UNDER_TORCHRUN = {"script-not-found"}


def provoke(name: str) -> None:
    """Runs one program in a folder of its own and keeps what is left of it."""
    with tempfile.TemporaryDirectory(prefix="project-") as work:
        project = Path(work)
        if PROGRAMS[name]:
            (project / "train.py").write_text(PROGRAMS[name].strip() + "\n")
        run = _torchrun(project) if name in UNDER_TORCHRUN else _ddp_run(project)
        kept = SAMPLES / name
        for path in sorted(run.rglob("*")):
            if path.name in ("events.jsonl", "agent.log", "stderr.log", "stacks.txt") and path.stat().st_size:
                target = kept / path.relative_to(run)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(_neutral(path.read_text(errors="replace"), project))
    print(name, "->", kept)


def _ddp_run(project: Path) -> Path:
    command = [str(Path(sys.executable).parent / "ddp-run"), "--nproc-per-node=2", "--console=none", "train.py"]
    subprocess.run(command, cwd=project, timeout=120, check=False)
    return (project / "ddp-run-logs" / "latest").resolve()


def _torchrun(project: Path) -> Path:
    """The same layout from torchrun's own files: no journal, no bootstrap."""
    run = project / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--redirects=3"]
    command += [f"--log-dir={project / 'logs'}", "train.py"]
    agent = subprocess.run(command, cwd=project, timeout=120, check=False, capture_output=True)
    for rank in range(2):
        for log in (project / "logs").glob(f"*/attempt_0/{rank}/stderr.log"):
            shutil.copytree(log.parent, run / "attempt_0" / f"rank_{rank}")
    (run / "attempt_0" / "agent.log").write_bytes(agent.stderr)
    return run


def _neutral(text: str, project: Path) -> str:
    for real, name in (
        (str(project), "/home/user/project"),
        (str(project.resolve()), "/home/user/project"),
        (str(Path(sys.prefix)), "/home/user/venv"),
        (str(Path(__file__).resolve().parents[2]), "/home/user/ddp-run"),
        (str(Path(sys.base_prefix)), "/usr"),
        (socket.getfqdn(), "node-a"),
    ):
        text = text.replace(real, name)
    return text.replace(f'"host":"{socket.gethostname()}"', '"host":"node-a"').replace(
        f'"host": "{socket.gethostname()}"', '"host": "node-a"'
    )


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PROGRAMS:
        provoke(wanted)
