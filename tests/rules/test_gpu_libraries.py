"""What libraries above CUDA, ROCm and other accelerators raise, from their sources, and what looks like it."""

from __future__ import annotations

import pytest

from ddp_run import explain

RAISED = """Traceback (most recent call last):
  File "/home/user/train.py", line 8, in <module>
    main()
  File "/env/lib/python3.11/site-packages/{library}/core.py", line 99, in call
    return _call(*args)
{said}
"""
ABORTED = """{said}
Fatal Python error: Aborted

E0914 10:05:42.218000 4121 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) local_rank: 0 \
(pid: 4188) of binary: /usr/bin/python
"""
NAMES = [
    # errors by their names: driver_types.h, cuda.h, hip_runtime_api.h
    ("cupy", "CUDARuntimeError: cudaErrorNoDevice: no CUDA-capable device is detected", "cuda-unavailable"),
    ("cupy", "CUDARuntimeError: cudaErrorInvalidDevice: invalid device ordinal", "invalid-device"),
    ("cupy", "CUDADriverError: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available", "no-kernel-image"),
    (
        "cudf",
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: a.hpp:62: cudaErrorMemoryAllocation",
        "cuda-oom",
    ),
    ("nvidia", "RuntimeError: CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory", "cuda-oom"),
    ("numba", "CudaAPIError: [719] Call to cuMemFree results in CUDA_ERROR_LAUNCH_FAILED", "illegal-memory-access"),
    (
        "numba",
        "LinkerError: [222] Call to cuLinkAddData results in CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "driver-mismatch",
    ),
    ("jax", "XlaRuntimeError: INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error", "gpu-hardware"),
    ("jax", "XlaRuntimeError: INTERNAL: CUDA_ERROR_DEVICE_UNAVAILABLE: device busy", "gpu-busy"),
    ("jax", "XlaRuntimeError: INTERNAL: CUDA_ERROR_ASSERT: device-side assert", "device-side-assert"),
    ("jax", "XlaRuntimeError: INTERNAL: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: no", "peer-access"),
    ("jax", "XlaRuntimeError: INTERNAL: CUDA_ERROR_SYSTEM_NOT_READY: no", "fabric-manager"),
    ("aiter", "RuntimeError: call failed: hipErrorOutOfMemory", "cuda-oom"),
    ("jittor", "RuntimeError: CUDA error at mem.cc:34 code=2( cudaErrorMemoryAllocation ) cudaMalloc", "cuda-oom"),
    ("cutlass", "DSLCudaRuntimeError: cudaErrorInsufficientDriver (error code: 35)", "driver-mismatch"),
    (
        "torch",
        "AcceleratorError: CUDA error: API call is not supported in the installed CUDA driver",
        "driver-mismatch",
    ),
]
MEMORY = [
    ("onnxruntime", "Fail: [ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0", "cuda-oom"),
    ("ctranslate2", "RuntimeError: CUDA failed with error out of memory", "cuda-oom"),
    ("mxnet", "MXNetError: [12:01:07] pool.h:161: cudaMalloc retry failed: out of memory", "cuda-oom"),
    ("tensorrt", "RuntimeError: Error Code 1: Cuda Runtime (out of memory)", "cuda-oom"),
    ("pycuda", "MemoryError: cuMemAlloc failed: out of memory", "cuda-oom"),
    ("oneflow", "RuntimeError: Check failed: (cudaMalloc(&ptr, size)) : out of memory (2)", "cuda-oom"),
    ("triton", "RuntimeError: Triton Error [HIP]:  Code: 2, Messsage: out of memory", "cuda-oom"),
    ("warp", "RuntimeError: Failed to allocate 8589934592 bytes on device 'cuda:0'", "cuda-oom"),
    ("nvidia", "RuntimeError: Can't allocate 805306368 bytes on device 0.", "cuda-oom"),
    (
        "jax",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        "cuda-oom",
    ),
    ("jax", "XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 21G of 15G", "cuda-oom"),
    ("jax", "XlaRuntimeError: Attempting to reserve 6.48G at the bottom of memory. That was not possible.", "cuda-oom"),
    (
        "tensorflow",
        "ResourceExhaustedError: Graph execution error:\n\nOOM when allocating tensor with shape[64] and type half "
        "on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        "cuda-oom",
    ),
    (
        "tensorflow",
        "ResourceExhaustedError: OOM when allocating tensor with shape[64,256] and type float on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
        "host-oom",
    ),
    (
        "torch_npu",
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0;",
        "cuda-oom",
    ),
    ("torch", "RuntimeError: MPS backend out of memory (MPS allocated: 17.93 GB, max allowed: 18.13 GB).", "cuda-oom"),
    (
        "habana_frameworks",
        "RuntimeError: FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::40265",
        "cuda-oom",
    ),
    (
        "torch",
        'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830, please',
        "cuda-oom",
    ),
    ("cupy", "CuFFTError: CUFFT_ALLOC_FAILED", "cuda-oom"),
    # its words for something else
    (
        "grpc",
        "RpcError: RESOURCE_EXHAUSTED: Received message larger than max (5000000 vs. 4194304)",
        "python-exception",
    ),
    ("google", "ClientError: 429 RESOURCE_EXHAUSTED. Quota exceeded", "python-exception"),
    ("sched", "ValueError: Failed to allocate 5 workers on devices", "python-exception"),
    ("sched", "ValueError: policy 'out of memory' is not known to CUDA", "python-exception"),
]
LIBRARIES = [
    ("cupy", "CURANDError: CURAND_STATUS_INITIALIZATION_FAILED", "cuda-library-error"),
    ("cupy", "CUSOLVERError: CUSOLVER_STATUS_INTERNAL_ERROR", "cuda-library-error"),
    ("nvidia", "RuntimeError: nvJPEG error (6): NVJPEG_STATUS_EXECUTION_FAILED", "cuda-library-error"),
    (
        "transformer_engine",
        "RuntimeError: gemm.cu:403: cuBLAS Error: the library was not initialized",
        "cuda-library-error",
    ),
    ("bitsandbytes", "Exception: cublasLt ran into an error!", "cuda-library-error"),
    ("jax", "XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed.", "cuda-library-error"),
    ("tensorflow", "InternalError: Blas GEMM launch failed : a.shape=(64, 784)", "cuda-library-error"),
    ("nvidia", "RuntimeError: nvJPEG error (2): NVJPEG_STATUS_BAD_JPEG", "python-exception"),
    ("api", "ValueError: ORDER_STATUS_UNKNOWN is no status", "python-exception"),
    ("fft", "ValueError: FFT_SIZE must be even", "python-exception"),
]
OLD_GPUS = [
    ("flash_attn", "RuntimeError: FlashAttention only supports Ampere GPUs or newer.", "no-kernel-image"),
    (
        "vllm",
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
        "no-kernel-image",
    ),
    (
        "vllm",
        "ValueError: gptq_marlin is not supported for the current GPU. Minimum capability: 80.",
        "no-kernel-image",
    ),
    (
        "torch",
        "RuntimeError: torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0",
        "no-kernel-image",
    ),
    (
        "transformer_engine",
        "AssertionError: Device compute capability 8.9 or higher required for FP8",
        "no-kernel-image",
    ),
    ("sglang", "RuntimeError: SGLang only supports sm75 and above.", "no-kernel-image"),
    # one of three reasons, which it does not tell apart
    ("transformers", "ValueError: You need torch>=1.10, using Ampere GPU with cuda>=11.0", "python-exception"),
    ("user", "ValueError: this recipe was tuned for compute capability 8.0", "python-exception"),
    ("agents", "ValueError: this tool requires a model with capability level 3", "python-exception"),
    ("agents", "ValueError: capability 'vision' is required", "python-exception"),
    ("models", "ValueError: Ampere is no known model; known: Hopper", "python-exception"),
]
BUILT = [
    ("pytorch3d", "RuntimeError: Not compiled with GPU support.", "cuda-unavailable"),
    ("torch_scatter", "RuntimeError: Not compiled with CUDA support", "cuda-unavailable"),
    (
        "jax",
        "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices.",
        "cuda-unavailable",
    ),
    (
        "jax",
        "RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 7",
        "gpu-busy",
    ),
    (
        "torchvision",
        "NotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend.",
        "version-mismatch",
    ),
    (
        "torch",
        "NotImplementedError: Could not run 'aten::foo' with arguments from the 'CUDA' backend.",
        "python-exception",
    ),
    (
        "bitsandbytes",
        "AttributeError: 'NoneType' object has no attribute 'cquantize_blockwise_fp16_nf4'",
        "import-error",
    ),
    ("user", "AttributeError: 'NoneType' object has no attribute 'cget'", "python-exception"),
    ("ctranslate2", "RuntimeError: Library libcublas.so.12 is not found or cannot be loaded", "import-error"),
    (
        "numba",
        "NvvmSupportError: libNVVM cannot be found.\nlibnvvm.so: cannot open shared object file: No such file",
        "import-error",
    ),
]
VERSIONS = [
    (
        "torch",
        "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found",
        "version-mismatch",
    ),
    (
        "jax",
        "RuntimeError: jaxlib version 0.4.7 is newer than and incompatible with jax version 0.4.6.",
        "version-mismatch",
    ),
    ("numba", "ImportError: Numba needs NumPy 2.0 or less. Got NumPy 2.2.", "version-mismatch"),
    (
        "transformer_engine",
        "RuntimeError: TransformerEngine package version mismatch. Found v1.11.0",
        "version-mismatch",
    ),
    ("bitsandbytes", "RuntimeError: \n🚨 CUDA VERSION MISMATCH 🚨\nRequested CUDA version: 12.8", "version-mismatch"),
    ("torch", "RuntimeError: torch.compile is not supported on Python 3.14+", "version-mismatch"),
    (
        "torch",
        "RuntimeError: The installed version of g++ is greater than the maximum required version by CUDA 11.8.",
        "version-mismatch",
    ),
    ("pynvml", "NVMLError: Driver/library version mismatch", "driver-mismatch"),
    ("kaolin", "ImportError: Kaolin requires PyTorch >= 2.0, <= 2.4; but found version 2.5.1", "version-mismatch"),
    ("user", "ValueError: schema version mismatch: 3 and 4", "python-exception"),
    ("user", "ValueError: shape (3, 4) is incompatible with (4, 3)", "python-exception"),
]
COMPILERS = [
    ("cupy", 'CompileException: /tmp/a.cubin.cu(5): error: identifier "fooo" is undefined', "compile-failure"),
    ("jax", "JaxRuntimeError: INTERNAL: Mosaic failed to compile TPU kernel: unsupported", "compile-failure"),
    (
        "torch",
        "OSError: ROCM_HOME environment variable is not set. Please set it to your ROCm install root.",
        "compile-failure",
    ),
    ("torch", "ValueError: Unknown CUDA arch (12.0+PTX) or GPU not supported", "compile-failure"),
    (
        "torch",
        "RuntimeError: Error building extension 'a': /tmp/a.cu(7): error: 'cudaErrorMemoryAllocation' was not declared",
        "compile-failure",
    ),
    (
        "job",
        "subprocess.CalledProcessError: Command '['make', 'train']' returned non-zero exit status 2.",
        "python-exception",
    ),
    ("job", "RuntimeError: expected key 'cudaErrorPolicy' in config", "python-exception"),
]


@pytest.mark.parametrize(
    ("library", "said", "cause"),
    [*NAMES, *MEMORY, *LIBRARIES, *OLD_GPUS, *BUILT, *VERSIONS, *COMPILERS],
)
def test_raised(library: str, said: str, cause: str) -> None:
    assert explain(RAISED.format(library=library, said=said)).cause == cause


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("  what():  CUDA free failed: cudaErrorIllegalAddress: an illegal memory access", "illegal-memory-access"),
        ("Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION", "illegal-memory-access"),
        (
            "Memory access fault by GPU node-1 (Agent handle: 0x8) on address (nil). Reason: Unknown.",
            "illegal-memory-access",
        ),
        ("HSA_STATUS_ERROR_INVALID_ISA: The instruction set architecture is invalid.", "no-kernel-image"),
        ("rocBLAS error: Could not initialize Tensile host: No devices found", "cuda-unavailable"),
        ("HSA_STATUS_ERROR: A generic error has occurred.", "native-abort"),
    ],
)
def test_aborted(said: str, cause: str) -> None:
    assert explain(ABORTED.format(said=said)).cause == cause


@pytest.mark.parametrize(
    "line",
    [
        "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
        "INFO: Unable to initialize backend 'tpu': UNIMPLEMENTED: no TPU",
        "CUDA failure 2: out of memory, trying batch size 8",
        "UserWarning: faiss was not compiled with GPU support",
        "WARNING: CUDA version mismatch between torch and the toolkit",
        "ptxas info    : 0 bytes gmem",
    ],
)
def test_only_said_before(line: str) -> None:  # the program went on, and failed of something else
    said = RAISED.replace("site-packages/{library}/core", "user/main").format(said="ValueError: 3 channels, expected 1")
    assert explain(f"{line}\n{said}").cause == "python-exception"


def test_of_a_cpus_memory_too() -> None:
    """XLA says the same of a CPU's memory, and NVML's assertion does not name the memory: no sure answers."""
    unsure = [row for row in MEMORY if "trying to allocate" in row[1] or "NVML_SUCCESS" in row[1]]
    assert len(unsure) == 2
    for library, said, _ in unsure:
        assert explain(RAISED.format(library=library, said=said)).confidence == "likely"


def test_switches_that_refuse_a_multicast() -> None:
    told = (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled cuda error\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to bind NVLink SHARP (NVLS) "
        "Multicast memory of size 2097152 : CUDA error {} '{}'"
    )
    found = explain(RAISED.format(library="torch", said=told.format(401, "the operation cannot be performed")))
    assert (found.cause, found.confidence) == ("fabric-manager", "likely")
    assert explain(RAISED.format(library="torch", said=told.format(2, "out of memory"))).cause == "cuda-oom"
