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
MEETING = """
import atexit, datetime, os, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
rank = int(os.environ["RANK"])
def meet(backend, seconds, **where):
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds), **where)
MEET
"""
COMPARED = "import os\nos.environ['TORCH_DISTRIBUTED_DEBUG'] = 'DETAIL'\n" + MEETING
DDP = """
import datetime, os, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.aux = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    def forward(self, batch, both):
        if both == "checkpointed":
            batch = checkpoint(self.body, batch.requires_grad_(), use_reentrant=True)
            return checkpoint(self.body, batch, use_reentrant=True)
        out = self.body(batch)
        return self.aux(out) if both else out
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
rank = dist.get_rank()
model = DistributedDataParallel(Net())
STEPS
"""
SMALL_SHM = """
import ctypes, subprocess, torch
ctypes.CDLL(None).unshare(0x00020000)  # CLONE_NEWNS: needs root
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"], check=True)
from torch.utils.data import DataLoader
loader = DataLoader([torch.ones(1 << 19) for _ in range(64)], batch_size=8, num_workers=2)
for batch in loader:
    batch.mean()
"""

MOUNTED = """
import ctypes, subprocess
from pathlib import Path
ctypes.CDLL(None).unshare(0x00020000)  # CLONE_NEWNS: needs root
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
Path("out").mkdir(exist_ok=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "OPTIONS", "tmpfs", "out"], check=True)
"""
MODEL = """
import torch
from torch import nn
def build(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1))
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
    "illegal-instruction": ON_RANK_1
    + """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("0f0b"))  # ud2
def kernel():
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
kernel()
""",
    "host-oom": ON_RANK_1
    + "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\ncache = bytearray(1 << 31)",
    "native-abort": ON_RANK_1 + "os.write(2, b'free(): invalid pointer\\n')\nos.abort()",
    "user-interrupt": ON_RANK_1 + "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
    "preempted-sigterm": ON_RANK_1 + "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)",
    "unknown": ON_RANK_1 + "os.kill(os.getpid(), signal.SIGKILL)",
    "peer-died": GLOO.replace("LEAVE", "os._exit(0)"),
    "peer-died-with-a-code": GLOO.replace("LEAVE", "os._exit(3)"),
    "hang": GLOO.replace("import atexit", "import atexit, threading").replace(
        "LEAVE",
        """lock = threading.Lock()
    lock.acquire()
    lock.acquire()""",
    ),
    "python-exception-slow-teardown": GLOO.replace(
        "LEAVE",
        """atexit.register(time.sleep, 1.5)
    dist.destroy_process_group()
    raise KeyError("channel_mean")""",
    ),
    "script-not-found": "",
    "dataloader-worker-died": ON_RANK_1
    + """
from torch.utils.data import DataLoader, Dataset
class Clips(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if index == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return float(index)
for batch in DataLoader(Clips(), batch_size=4, num_workers=2):
    batch.mean()
""",
    "file-not-found": ON_RANK_1 + "import torch\nstate = torch.load('checkpoints/epoch_12/model.pt')",
    "file-not-found-in-worker": ON_RANK_1
    + """
from torch.utils.data import DataLoader
class Images:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return len(open(f"data/img_{index}.png", "rb").read())
list(DataLoader(Images(), batch_size=4, num_workers=1))
""",
    "permission-denied": ON_RANK_1
    + """
os.makedirs("shared", mode=0o700)
os.seteuid(65534)
try:
    open("shared/metrics.json", "w")
finally:
    os.seteuid(0)
""",
    "too-many-open-files": ON_RANK_1
    + """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
shards = []
try:
    while True:
        shards.append(open(__file__))
finally:
    shards.clear()
""",
    "process-limit": ON_RANK_1
    + """
import resource, threading
os.setresuid(65534, 65534, 0)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    threading.Thread(target=print).start()
finally:
    os.setresuid(0, 0, 0)
""",
    "process-limit-fork": ON_RANK_1
    + """
import multiprocessing.popen_fork, resource
os.setresuid(65534, 65534, 0)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    multiprocessing.get_context("fork").Process(target=print).start()
finally:
    os.setresuid(0, 0, 0)
""",
    "disk-full": ON_RANK_1
    + MOUNTED.replace("OPTIONS", "size=256k")
    + "import torch\ntorch.save({'weight': torch.ones(200_000)}, 'out/last.pt')",
    "disk-full-log": ON_RANK_1
    + MOUNTED.replace("OPTIONS", "size=256k")
    + "import shutil\nPath('big').write_bytes(bytes(1 << 20))\nshutil.copyfile('big', 'out/big')",
    "filesystem-error": ON_RANK_1 + MOUNTED.replace("OPTIONS", "ro") + "Path('out/log.txt').write_text('step 0')",
    "checkpoint-mismatch": ON_RANK_1
    + MODEL
    + """
torch.save({f"module.{name}": value for name, value in build().state_dict().items()}, "last.pt")
build().load_state_dict(torch.load("last.pt"))
""",
    "checkpoint-mismatch-sizes": ON_RANK_1 + MODEL + "build().load_state_dict(build(32).state_dict())",
    "checkpoint-mismatch-part": ON_RANK_1
    + MODEL
    + """
torch.save({"model": build().state_dict(), "epoch": 3}, "last.pt")
checkpoint = torch.load("last.pt")
optimizer_state = checkpoint["optimizer"]
""",
    "checkpoint-mismatch-optimizer": ON_RANK_1
    + MODEL
    + """
def optimizer(model):
    return torch.optim.AdamW(model.parameters())
bigger = nn.Sequential(build(), nn.Linear(1, 1))
optimizer(bigger).load_state_dict(optimizer(build()).state_dict())
""",
    "checkpoint-corrupt": ON_RANK_1
    + MODEL
    + """
torch.save(build(512).state_dict(), "last.pt")
os.truncate("last.pt", os.path.getsize("last.pt") - 200)
torch.load("last.pt")
""",
    "checkpoint-corrupt-pointer": ON_RANK_1
    + MODEL
    + """
open("weights.bin", "w").write("version https://git-lfs.github.com/spec/v1\\noid sha256:9b1c\\nsize 438012\\n")
torch.load("weights.bin")
""",
    "nan-divergence": ON_RANK_1
    + """
import math
for step, loss in enumerate((0.7, 0.9, float("nan"))):
    assert not math.isnan(loss), f"loss is NaN at step {step}"
""",
    "nan-divergence-printed": ON_RANK_1
    + """
import math
for step, loss in enumerate((0.7, 0.9, float("nan"))):
    if not math.isfinite(loss):
        print(f"Loss is {loss}, stopping training", file=sys.stderr)
        sys.exit(1)
""",
    "nan-divergence-clip": ON_RANK_1
    + MODEL
    + """
model = build()
(model(torch.ones(2, 8)) / 0).mean().backward()
nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
""",
    "nan-divergence-anomaly": ON_RANK_1
    + MODEL
    + """
torch.autograd.set_detect_anomaly(True)
(build()(torch.zeros(2, 8)) * 0).sqrt().mul(0).sum().backward()
""",
    "nan-divergence-sampling": ON_RANK_1 + MODEL + "torch.multinomial(torch.full((4,), float('nan')), 1)",
    "version-mismatch": ON_RANK_1
    + MODEL
    + """
import argparse
torch.save({"model": build().state_dict(), "args": argparse.Namespace(lr=0.1)}, "last.pt")
torch.load("last.pt")
""",
    "version-mismatch-numpy": ON_RANK_1 + "import numpy\nlengths = numpy.zeros(4, dtype=numpy.float)",
    "hub-network": ON_RANK_1 + "import urllib.request\nurllib.request.urlopen('http://weights.invalid/resnet18.pth')",
    "auth": ON_RANK_1
    + """
import http.server, threading, urllib.request
class Private(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(401)
server = http.server.HTTPServer(("127.0.0.1", 0), Private)
threading.Thread(target=server.serve_forever, daemon=True).start()
urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/weights.pt")
""",
    "cuda-unavailable": ON_RANK_1
    + """
import torch
def place():
    return torch.ones(4, device="cuda")
place()
""",
    "compile-failure": ON_RANK_1
    + """
from pathlib import Path
from torch.utils.cpp_extension import load
Path("fused_norm.cpp").write_text("int norm(float* x) {\\n    return fast_rsqrt(x[0]);\\n}\\n")
Path("build").mkdir()
load("fused_norm", sources=["fused_norm.cpp"], build_directory="build")
""",
    "shm-exhausted": ON_RANK_1 + SMALL_SHM,
    "shm-exhausted-write": ON_RANK_1 + SMALL_SHM.split("loader =")[0] + "torch.ones(4 << 20).share_memory_()\n",
    "rendezvous-timeout": MEETING.replace("MEET", "if rank == 1:\n    time.sleep(60)\nmeet('gloo', 4)"),
    "rendezvous-timeout-unreachable": MEETING.replace(
        "MEET", "meet('gloo', 4, init_method='tcp://127.0.0.1:9', rank=1, world_size=2)"
    ),
    "rendezvous-dns": MEETING.replace(
        "MEET", "meet('gloo', 4, init_method='tcp://gpu-node-17.invalid:29500', rank=rank, world_size=2)"
    ),
    "gloo-network": MEETING.replace("MEET", "os.environ['GLOO_SOCKET_IFNAME'] = 'ib0'\nmeet('gloo', 20)"),
    "gloo-timeout-hang": MEETING.replace(
        "MEET", "meet('gloo', 4)\nif rank == 1:\n    time.sleep(60)\ndist.all_reduce(torch.ones(8))"
    ),
    "gloo-timeout-hang-barrier": MEETING.replace(
        "MEET",
        "meet('gloo', 20)\nif rank == 1:\n    time.sleep(60)\n"
        "dist.monitored_barrier(timeout=datetime.timedelta(seconds=3))",
    ),
    "collective-mismatch": COMPARED.replace(
        "MEET",
        "meet('gloo', 20)\natexit.register(time.sleep, 2 * rank)\ndist.all_reduce(torch.ones(4 + rank))",
    ),
    "collective-mismatch-operations": COMPARED.replace(
        "MEET",
        """meet('gloo', 20)
if rank == 0:
    dist.broadcast(torch.ones(4), 0)
else:
    dist.all_reduce(torch.ones(4))""",
    ),
    "collective-mismatch-gloo": MEETING.replace(
        "MEET",
        """meet('gloo', 20)
if rank == 0:
    dist.send(torch.ones(8), 1)
    dist.barrier()
else:
    dist.recv(torch.ones(2), 0)""",
    ),
    "ddp-unused-parameters": DDP.replace(
        "STEPS",
        """for step in range(20):
    model(torch.ones(4, 8), rank == 0 or step < 2).sum().backward()""",
    ),
    "ddp-unused-parameters-names": DDP.replace(
        "STEPS",
        """for step in range(20):
    model(torch.ones(4, 8), False).sum().backward()""",
    ).replace("import datetime, os, ", "import os\nos.environ['TORCH_DISTRIBUTED_DEBUG'] = 'INFO'\nimport datetime, "),
    "ddp-marked-twice": DDP.replace(
        "STEPS", "time.sleep(2 * rank)\nmodel(torch.ones(4, 8), 'checkpointed').sum().backward()"
    ),
    "ddp-shape-mismatch": MEETING.replace(
        "MEET",
        "meet('gloo', 20)\nDDP(torch.nn.Sequential(*[torch.nn.Linear(4, 4) for layer in range(2 + rank)]))",
    ),
    "ddp-shape-mismatch-sizes": MEETING.replace("MEET", "meet('gloo', 20)\nDDP(torch.nn.Linear(10, 4 + rank))"),
    "process-group-misuse": MEETING.replace("MEET", "dist.barrier()"),
    "process-group-misuse-twice": MEETING.replace("MEET", "meet('gloo', 20)\ndist.barrier()\nmeet('gloo', 20)"),
    "process-group-misuse-device": MEETING.replace("MEET", "meet('cuda:gloo', 20)\ndist.all_reduce(torch.ones(4))"),
}
UNDER_TORCHRUN = {"script-not-found"}
OPTIONS = {"hang": ("--hang-timeout=20",)}


def provoke(name: str) -> None:
    """Runs one program in a folder of its own and keeps what is left of it."""
    with tempfile.TemporaryDirectory(prefix="project-") as work:
        project = Path(work)
        if PROGRAMS[name]:
            (project / "train.py").write_text(PROGRAMS[name].strip() + "\n")
        run = _torchrun(project) if name in UNDER_TORCHRUN else _ddp_run(project, *OPTIONS.get(name, ()))
        kept = SAMPLES / name
        for path in sorted(run.rglob("*")):
            if path.name in ("events.jsonl", "agent.log", "stderr.log", "stacks.txt") and path.stat().st_size:
                target = kept / path.relative_to(run)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(_neutral(path.read_text(errors="replace"), project))
    print(name, "->", kept)


def _ddp_run(project: Path, *options: str) -> Path:
    command = [str(Path(sys.executable).parent / "ddp-run"), "--nproc-per-node=2", "--console=none"]
    command += [*options, "train.py"]
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
