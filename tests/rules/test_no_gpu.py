"""All ways in which torch 2.4 to 2.15, and what stands on it, say that there is no GPU for them.

The installed torch says so for real, where it has none; the table holds others' words, from
their sources.
"""

from __future__ import annotations

import pytest
from tests.loaded_process import LoadedProcess

from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted import transcript
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge.diagnose import judge
from ddp_run.judge.text_signs import shows
from ddp_run.judge.verdict import Verdict

CALLS = """torch.cuda.set_device(0)
torch.cuda.current_device()
torch.cuda.reset_peak_memory_stats()
torch.cuda.memory_summary()
torch.cuda.Stream()
torch.cuda.Event()
torch.cuda.CUDAGraph()
torch.cuda.device(0).__enter__()
torch.cuda.FloatTensor(3)
torch.cuda.nccl.version()
torch.cuda.nvtx.range_push("a")
torch.ones(1).cuda()
torch.ones(1).to(0)
torch.ones(1, pin_memory=True)
torch.ones(1).pin_memory()
torch.Generator(device="cuda")
torch.load(saved(), map_location="cuda")
torch.accelerator.current_accelerator(check_available=True).type
torch.accelerator.set_device_index(0)
torch.xpu.set_device(0)
torch.ops.aten.empty([1], device="cuda")
torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:1", rank=0, world_size=1)"""
PROGRAM = """import io, linecache, sys, traceback
import torch, torch.distributed
def saved():
    file = io.BytesIO(); torch.save(torch.ones(1), file); file.seek(0); return file
print("none" if not torch.cuda.is_available() and torch.version.cuda is None else "has CUDA")
for call in sys.stdin.read().splitlines():
    print("----", call)
    linecache.cache["train.py"] = (len(call), None, [call], "train.py")
    try:
        exec(compile(call, "train.py", "exec"))
    except Exception:
        print(traceback.format_exc())
"""


def explained(text: str) -> Verdict:
    return judge(transcript.read(SpokenText.of_logs([Log(LogText("log", tuple(text.rstrip().split("\n"))))]), shows))


def test_the_installed_torch(torch_process: LoadedProcess) -> None:
    answer = torch_process.run(f"import warnings; warnings.simplefilter('ignore')\n{PROGRAM}", given=CALLS)
    assert answer.returncode == 0, answer.stderr
    kind, *parts = answer.stdout.split("---- ")
    if kind.strip() != "none":
        pytest.skip("this torch is built with CUDA")
    said = {call: text for call, _, text in (part.partition("\n") for part in parts) if "Traceback" in text}
    assert len(said) > len(CALLS.splitlines()) / 2  # older releases have less of these calls
    found = {call: explained(text).cause for call, text in said.items()}
    assert found == dict.fromkeys(said, "cuda-unavailable"), said


TORCH = "/env/lib/python3.11/site-packages/torch/cuda/__init__.py"
TRITON = "/env/lib/python3.11/site-packages/triton/runtime/driver.py"
TABLE = [
    ("AttributeError", "module 'torch._C' has no attribute '_cuda_getDeviceCount'", TORCH),
    ("AttributeError", "module 'torch._C' has no attribute '_cuda_changeCurrentAllocator'", TORCH),
    ("AttributeError", "module 'torch._C' has no attribute '_xpu_setDevice'", TORCH.replace("cuda", "xpu")),
    ("AttributeError", "module 'torch._C' has no attribute '_CudaDeviceProperties'", TORCH),
    ("ImportError", "cannot import name '_cuda_getCurrentRawStream' from 'torch._C' (/env/torch/_C.so)", TORCH),
    ("RuntimeError", "Tried to instantiate dummy base class _CudaStreamBase", TORCH),
    ("RuntimeError", "Tried to instantiate dummy base class _XpuEventBase", TORCH),
    ("RuntimeError", "Need to provide pin_memory allocator to use pin memory.", "train.py"),
    ("RuntimeError", "Cannot initialize CUDA without ATen_cuda library. PyTorch splits its backend into", "train.py"),
    ("RuntimeError", "PyTorch not compiled with CUDA support!", "train.py"),
    ("RuntimeError", "No CUDA GPUs are available", TORCH),
    ("RuntimeError", "0 active drivers ([]). There should only be one.", TRITON),
    ("ImportError", "libcuda.so.1: cannot open shared object file: No such file or directory", "train.py"),
    ("OSError", "libcuda.so.1: cannot open shared object file: No such file or directory", "train.py"),
    ("AssertionError", "libcuda.so cannot found!", TRITON),
    ("RuntimeError", "Failed to infer device type", "/env/lib/python3.11/site-packages/vllm/config.py"),
]
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
  File "{file}", line 99, in called
    return asked()
{type}: {message}
"""


@pytest.mark.parametrize(("type", "message", "file"), TABLE)
def test_in_others_words(type: str, message: str, file: str) -> None:  # as Python prints it
    assert explained(TRACEBACK.format(type=type, message=message, file=file)).cause == "cuda-unavailable"


@pytest.mark.parametrize(
    ("type", "message", "file", "cause"),
    [
        # packages that ask torch for what another release has
        ("AttributeError", "module 'torch' has no attribute 'compiler'", "", "version-mismatch"),
        ("AttributeError", "module 'torch._C' has no attribute '_dynamo_thing'", "", "version-mismatch"),
        ("ImportError", "libcudart.so.12: cannot open shared object file: No such file", "", "import-error"),
        ("AttributeError", "'NoneType' object has no attribute 'type'", "", "python-exception"),
        ("NotImplementedError", "Could not run 'torchvision::nms' with arguments from the 'CUDA' backend.", "", None),
    ],
)
def test_what_looks_like_it(type: str, message: str, file: str, cause: str | None) -> None:
    file = file or "/env/lib/python3.11/site-packages/peft/model.py"
    found = explained(TRACEBACK.format(type=type, message=message, file=file)).cause
    assert found != "cuda-unavailable"
    assert cause in (None, found)
