"""Compilation of a kernel or an extension failed.

## What happened
Code compiled at run time did not compile: by `torch.compile` (Dynamo, Inductor), by Triton, or a C++/CUDA extension
built on import by ninja and nvcc (DeepSpeed's ops, `torch.utils.cpp_extension.load`).
## How to recognise it
`torch._dynamo.exc.BackendCompilerFailed`, `torch._inductor.exc.InductorError`, `CppCompileError`,
`triton.compiler.errors.CompilationError`, `Failed to find C compiler`, `Error building extension '…'`, `Command
'['ninja', '-v']' returned non-zero exit status 1`, `CUDA_HOME environment variable is not set`, `nvcc fatal`, pip's
`Failed building wheel for`. The reason is in the lines above: the compiler's first `error:`.
## What to do
- No compiler, or no headers: `apt-get install build-essential python3-dev`, or set `CC`; for CUDA extensions also nvcc
  (`CUDA_HOME=/usr/local/cuda`) of the CUDA version torch was built with.
- Triton's `out of resource` is [triton-resources](triton-resources.md).
- To check whether only the compiler is at fault: `TORCH_COMPILE_DISABLE=1`. `TORCH_LOGS="+dynamo,+inductor"` shows
  details.
- All ranks build into the same folder: build once before the launch, or give each node its own `TORCH_EXTENSIONS_DIR`.
  A stale lock from a killed build blocks the next one forever: remove `~/.cache/torch_extensions`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ddp_run.evidence.model import Death, Evidence, Quote
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.judge.gpu_text import ended_by_gpu
from ddp_run.judge.signs import Hit, Sign, ended_by, like, meaning, said_last
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.record.events import ExceptionInfo, Rank

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP310",
    layer=Layer.REPORTED,
    retry=Retry(helps=False, reason="the same code will fail to compile again"),
    wins_over=(("import-error", "the module that can't be imported is the one that was not built"),),
)
FRAMES = re.compile(
    r"/(?:triton/(?:compiler|runtime|backends)|torch/_inductor)/"
    r"|/torch/utils/cpp_extension\.py|/deepspeed/ops/op_builder/"
)
_OF_TOOLKIT = (
    'nvcc --version; python -c "import torch; print(torch.version.cuda)"   # must be the same CUDA version',
    "export CUDA_HOME=/usr/local/cuda   # the folder with bin/nvcc of that version",
)
_FAILED = "{who} could not compile: {program} failed"
_EXTENSION = like(r"Error building extension '(?P<name>[^']+)'", cause="{who} could not build the extension '{name}'")
_SAID = meaning(
    *meaning(
        Sign("Failed to find C compiler"),
        Sign("No working C++ compiler found"),
        like(
            r"No such file or directory: '(?:[^'\n]{0,400}/)?(?:[\w\-]+-)?(?:g?cc|[gc]\+\+|clang(?:\+\+)?)'",
            ("InductorError", "BackendCompilerFailed"),
        ),
        cause="{who} has no C compiler, which torch and Triton need at run time",
        advice=("sudo apt-get install -y build-essential   # or export CC=/path/to/gcc",),
    ),
    _EXTENSION,
    Sign(
        "CUDA_HOME environment variable is not set",
        cause="{who} cannot build a CUDA extension: CUDA_HOME is not set and no nvcc was found",
        advice=_OF_TOOLKIT,
    ),
    Sign(
        "Cannot find a working triton installation",
        cause="{who} cannot compile for its GPU: no working Triton installed",
        advice=("python -m pip show triton   # the CUDA build of torch installs the matching one",),
    ),
    Sign(
        "returned non-zero exit status",
        r"Command '\[?'?(?:[^', ]{0,400}/)?(?P<program>(?:[\w\-]+-)?"
        r"(?:ninja|make(?=', '-C')|cmake|nvcc|g?cc|[gc]\+\+|clang(?:\+\+)?|hipcc|icpx|ptxas)(?:-[\w.]+)?)(?=[', ])",
        ("CalledProcessError",),
        _FAILED,
    ),
    like(  # setuptools
        r"error: command '(?:[^'\n]{0,200}/)?(?P<program>(?:[^'\n/]{0,100}-)?"
        r"(?:nvcc|gcc|cc|[gc]\+\+|clang(?:\+\+)?|hipcc|icpx|ninja|cmake))(?:-[\w.]{1,9})?' failed",
        cause=_FAILED,
    ),
    *meaning(
        Sign("CUDA was not found on the system, please set the CUDA_HOME"),
        *("No CMAKE_CUDA_COMPILER could be found", "SYCL runtime is not dected", "libdevice not found at "),
        like(r"(?:ROCM|SYCL|CUDA)_HOME environment variable is not set"),
        like(r"Unknown CUDA arch \([^)\n]{1,40}\) or GPU not supported"),
        cause="{who} cannot compile for its GPU: {line}",
        advice=_OF_TOOLKIT,
    ),
    like(r"ptxas[^\n]{0,100} fatal   : [^\n]{0,100}"),
    like(r"Graph compile failed\. ?synStatus"),  # Intel Gaudi, like `syn compile failed`
    Sign("mismatches the version that was used to compile"),  # the numbers are separate arguments of the exception
    *("RTC_ERROR_COMPILATION", "NVVM_ERROR_COMPILATION", "NVCC compilation failed", "C++ compile error"),
    *("a PTX JIT compilation failed", "PTX JIT compiler library not found", "PassManager::run failed"),
    *("ptxas` failed with error code", "ptxas exited with non-zero", "syn compile failed"),
    *("Failed to compile Op [", "Mosaic failed to compile", "Error compiling objects for extension"),
    *("CUDA_HOME does not exist, unable to compile", "Ninja is required to load C++ extensions"),
    "does not match the version torch was compiled with",
    "which is too old to be supported by the triton GPU compiler",
    like(r"Unable to JIT load the [^\n]{0,120}"),
    like(
        r"/torch_extensions/(?P<unbuilt>\S{1,300})\.so: cannot open shared object file",
        ("ImportError", "OSError"),
        "{who} cannot load an extension built at run time: the build failed, here or on another rank",
    ),
    Sign("ninja: build stopped: "),
    # gcc, clang and nvcc, about a line of C++ or CUDA; OpenCV's have a number: `error: (-215:Assertion…`
    like(
        r"(?:\.(?:cuh?|cpp|cc|cxx|[ch]|hpp|inl)|/include/[^\s:(]{1,200})[:(]\d{1,9}[:)]:?(?:\d{1,9}:)?"
        r" (?:fatal )?error: (?!\(-\d)[^\n]{0,100}"
    ),
    Sign("nvcc fatal"),
    like(r"nvrtc: error[^\n]{0,100}"),
    like(r"triton\S{0,100}CompilationError", ("CompilationError",)),
    like(r"\w{1,40}CompilationError: "),  # from Triton's other backends
    Sign("torch._dynamo.exc.Unsupported", types=("Unsupported",)),
    *(
        Sign(name, types=(name,))
        for name in (
            *("BackendCompilerFailed", "InternalTorchDynamoError", "InductorError", "LoweringException"),
            *("CppCompileError", "CUDACompileError", "PTXASError"),
        )
    ),
)
_WHEELS = (
    like(r"Failed building wheel for (?P<name>[\w.\-]{1,100})"),
    like(r"Could not build wheels for (?P<name>[\w.\-]{1,100})"),
    like(r"Failed to build installable wheels[^\n]{0,100}"),
)
SIGNS = (*_SAID, *_WHEELS)
SYMPTOMS = (Sign("torch._dynamo.exc.Unsupported: "),)
_FIRST_ERROR = re.compile(r"(?:\bfatal )?\berror: (?!subprocess|command)|^nvcc fatal|: error #?\d*: ")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a compiler failure that ended the rank."""
    hit = ended_by_gpu(death, _SAID) or said_last(death, _WHEELS)
    if hit is None:
        return None
    error = _compilers_error(death) if hit.sign.advice is None else None
    cause = hit.says(death) or f"{death.who} could not compile: {_said(hit)}"
    repeated = error is not None and hit.exception is not None and _first_line(hit.exception) in error.text
    cause += f": {error.text.strip()[:160]}" if error is not None and not repeated else ""
    also = (error,) if error is not None else ()
    finding = hit.finding(RULE, death, cause + hit.where(death), _advice(hit, error), also=also)
    return replace(finding, culprit=_builder(attempt)) if hit["unbuilt"] else finding


def _builder(attempt: Evidence) -> Rank | None:
    """Return the rank whose build failed: one rank per host builds for all."""
    return next((each.rank for each in attempt.deaths if ended_by(each, (_EXTENSION,)) is not None), None)


def _said(hit: Hit) -> str:
    if hit.exception is None:
        return hit.text[:120]
    first = _first_line(hit.exception)
    if first.endswith(":"):  # Triton's gives a position, then the source, and ends with the reason
        first = f"{first} {hit.exception.message.splitlines()[-1].strip()}"
    name = hit.exception.type.rpartition(".")[2]
    return f"{name}{': ' if first else ''}{first[:120]}"


def _first_line(exception: ExceptionInfo) -> str:
    said = (line.strip() for line in exception.message.splitlines())
    return next((line for line in said if line and not line.endswith("raised:")), "")


def _compilers_error(death: Death) -> Quote | None:
    """Return the first `error:` of the last build."""
    for log in (death.stderr.ending(LAST_WORDS), death.stdout.ending(LAST_WORDS)):  # ninja prints to stdout
        first = log.first(_FIRST_ERROR)
        if first is not None:
            return first[0]
    return None


def _advice(hit: Hit, error: Quote | None) -> tuple[str, ...]:
    said = f"{hit.match.string} {error.text if error else ''}"
    if "Python.h" in said:
        return ("sudo apt-get install -y python3-dev   # Python.h",)
    if "nvcc" in said:
        return _OF_TOOLKIT
    if any(words in said for words in ("Error building extension", "/torch_extensions/", "ninja", "cpp_extension")):
        return (
            "rm -rf ~/.cache/torch_extensions   # partial files and locks left by a killed build",
            "MAX_JOBS=2 python -c 'import THE_EXTENSION'   # in one process: shows the compiler's first error",
        )
    return (
        "TORCH_COMPILE_DISABLE=1 ddp-run …   # does it run without the compiler?",
        'TORCH_LOGS="+dynamo,+inductor" ddp-run …   # which graph, which kernel',
    )
