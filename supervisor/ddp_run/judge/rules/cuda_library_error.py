"""GPU library error.

## What happened
cuBLAS, cuDNN, cuSOLVER, cuSPARSE, cuFFT, their ROCm counterparts (rocBLAS, hipBLAS, MIOpen) or oneDNN returned a
generic error status.
## How to recognise it
`CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling …`, `cuDNN error: CUDNN_STATUS_…`, `cusolver error: …`,
`CUFFT_…`, `miopenStatusUnknownError`, `HIPBLAS_STATUS_…`. Some statuses have their own cause: `…_ALLOC_FAILED` is
[cuda-oom](cuda-oom.md), `…_ARCH_MISMATCH` is [no-kernel-image](no-kernel-image.md); after a kernel's assertion it is
[device-side-assert](device-side-assert.md).
## What to do
- `CUBLAS_STATUS_NOT_INITIALIZED`, `CUDNN_STATUS_NOT_INITIALIZED`: usually there was no GPU memory left for the
  library's workspace. Watch `nvidia-smi` while the job runs, and try a smaller batch first.
- `…_EXECUTION_FAILED`, `…_INTERNAL_ERROR`: an earlier kernel of this process may have failed. Run once with
  `CUDA_LAUNCH_BLOCKING=1`.
- `CUBLAS_STATUS_INVALID_VALUE` at the first matrix product: libraries of another CUDA version are loaded first; unset
  `LD_LIBRARY_PATH`, and check `python -m torch.utils.collect_env`.
"""

from __future__ import annotations

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.gpu_text import ended_by_gpu, vendor
from ddp_run.judge.signs import Sign, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP307",
    layer=Layer.REPORTED,
    retry=Retry(helps=False, reason="the same call usually fails again"),
    wins_over=(
        ("nccl-init", "NCCL reports the error that the library had on the same GPU"),
        ("compile-failure", "the compiler reports the error of the library that it called"),
    ),
    end="sticky",
)
_NONE_FITS = "was unable to find an engine"
_NOT_A_FAILURE = "SUCCESS|ALLOC|ARCH|BAD_JPEG|JPEG_|INCOMPLETE"
_FFT = (
    r"FFT_(?:INVALID_\w{1,20}|INTERNAL_ERROR|EXEC_FAILED|SETUP_FAILED|UNALIGNED_DATA"
    r"|INCOMPLETE_PARAMETER_LIST|PARSE_ERROR|NO_WORKSPACE|NOT_IMPLEMENTED|NOT_SUPPORTED)\b"
)


def _got(library: str, *signs: Sign | str) -> tuple[Sign, ...]:
    return meaning(*signs, cause=f"{{who}} got {{got}} from {library}{{ in {{call}}}}{{where}}")


SIGNS = (
    *(
        sign
        for library, name in (
            *(("cuBLAS", "CUBLAS"), ("cuDNN", "CUDNN"), ("hipBLAS", "HIPBLAS"), ("cuSPARSE", "CUSPARSE")),
            *(("cuSOLVER", "CUSOLVER"), ("a GPU library", "(?:HIPSPARSE|HIPSOLVER|HIPRAND|CURAND|CUTENSOR|NVJPEG)")),
        )
        for sign in _got(
            library,
            like(
                rf"\b(?P<status>{name}_STATUS_(?!{_NOT_A_FAILURE})\w{{1,60}})(?: when calling `(?P<call>\w{{1,80}}))?"
            ),
        )
    ),
    *_got(
        "cuDNN",
        Sign("Unable to find a valid cuDNN algorithm"),
        like(r"cuDNN (?:Frontend )?[Ee]rror: (?!CUDNN_STATUS_)[^\n]{0,80}"),  # Transformer Engine's with a capital
        Sign("cuDNN failed to initialize"),
        Sign(f"{_NONE_FITS} to execute this computation"),
    ),
    *_got(
        "cuBLAS",
        like(r"cuBLAS Error: [^\n]{0,80}"),  # Transformer Engine
        Sign("cublasLt ran into an error!"),  # bitsandbytes
    ),
    *_got("cuSOLVER", like(r"cusolver error: (?P<status>\w+), when calling `(?P<call>\w+)")),
    *_got("cuFFT", like(rf"\b(?P<status>CU{_FFT})")),
    *_got("MIOpen", like(r"(?P<status>miopenStatus(?!Success)\w+)")),
    *_got("rocBLAS", like(r"(?P<status>rocblas_status_(?!success)\w+)")),
    *_got("oneDNN", Sign("could not create a primitive"), Sign("could not execute a primitive")),
    *_got(
        "TensorFlow's or XLA's GPU libraries",
        Sign("DNN library initialization failed", likely=True),  # refers to the lines above it
        *("DNN library is not found", "without BLAS support", "No algorithm worked!"),
        like(r"Blas x?GEMM launch failed"),
    ),
    *_got(
        "a GPU library",
        like(rf"\b(?P<status>HIP{_FFT})"),
        like(r"[Gg]ot cutlass error: [^\n]{0,40}"),
        Sign("cuSolver internal error"),
    ),
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a library's error status that ended the rank."""
    hit = ended_by_gpu(death, SIGNS)
    if hit is None:
        return None
    got = hit["status"] or hit.match[0].strip()
    got = "`unable to find an engine`" if got.startswith(_NONE_FITS) else got
    return hit.finding(RULE, death, hit.says(death, got=got), _advice(got, vendor(hit.match.string)))


def _advice(status: str, maker: str) -> tuple[str, ...]:
    blocking = "HIP_LAUNCH_BLOCKING" if maker == "HIP" else "CUDA_LAUNCH_BLOCKING"
    first = f"export {blocking}=1   # an earlier kernel may have failed: then the first error is the real one"
    if status.endswith("NOT_INITIALIZED") or status.startswith("`unable"):
        look = "rocm-smi --showmeminfo vram" if maker == "HIP" else "nvidia-smi"
        return (f"{look}   # usually the GPU is full: try a smaller batch", first)
    if maker == "HIP":
        return (first, "export MIOPEN_LOG_LEVEL=5 MIOPEN_ENABLE_LOGGING=1   # what MIOpen tried")
    return (first, "env -u LD_LIBRARY_PATH python -m torch.utils.collect_env   # one version of each CUDA library?")
