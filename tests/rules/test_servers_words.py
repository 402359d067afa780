"""What servers and other distributed runtimes say when they fail, and words that only look like theirs."""

from __future__ import annotations

import pytest

from ddp_run import explain

RAISED = 'Traceback (most recent call last):\n  File "/home/me/serve.py", line 3, in <module>\n    main()\n{}\n'
XLA = "jaxlib.xla_extension.XlaRuntimeError: "
HOROVOD = "horovod.common.exceptions.HorovodInternalError: "
NODE_DIED = "The actor died because its node has died. Node Id: 9ab"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        # vLLM, SGLang, text-generation-inference, lmdeploy, TensorRT-LLM
        ("ValueError: (16.00 GiB KV cache is needed, which is larger than the available KV cache memory", "cuda-oom"),
        ("RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.", "cuda-oom"),
        ("RuntimeError: Prefill out of memory. Try to lower your batch size.", "cuda-oom"),
        ("RuntimeError: No enough gpu memory for kv cache.", "cuda-oom"),
        ("RuntimeError: CUDA runtime error in cudaMalloc(ptr, n): out of memory (a.h:112)", "cuda-oom"),
        ("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", "gpu-busy"),
        ("ValueError: World size (8) is larger than the number of available GPUs (4) in this node.", "invalid-device"),
        ("TimeoutError: RPC call to sample_tokens timed out.", "hang"),
        ("ValueError: nccl_port at 30001 is not available in 30 seconds. It is used already.", "port-in-use"),
        ("ImportError: FlashAttention only supports Ampere GPUs or newer.", "no-kernel-image"),
        (
            "ValueError: awq is not supported for the current GPU. Minimum capability: 80. Current capability: 75.",
            "no-kernel-image",
        ),
        (
            "Exception: x is installed with version 0.2, which is less than the minimum required version 0.3.",
            "version-mismatch",
        ),
        ("RuntimeError: Cannot find any model weights with `/models/llama`", "file-not-found"),
        ("ValueError: Following weights were not initialized from checkpoint: {'a.weight'}", "checkpoint-mismatch"),
        ("RuntimeError: weight model.embed_tokens.weight does not exist", "checkpoint-mismatch"),
        ("ValueError: Ray Compiled Graph is not installed. Run `pip install ray[cgraph]`", "import-error"),
        # Ray, Dask
        ("ray.exceptions.NodeDiedError: Task failed due to the node (where it ran)  was dead", "node-failed"),
        (f"ray.exceptions.ActorDiedError: The actor died unexpectedly before\n{NODE_DIED}", "node-failed"),
        ("ray.exceptions.OutOfDiskError: Local disk is full", "disk-full"),
        ("ray.exceptions.OwnerDiedError: Failed to retrieve object 00ff.", "ray-actor-died"),
        ("RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.9.3", "version-mismatch"),
        ("OSError: Timed out trying to connect to tcp://10.0.0.1:8786 after 30 s", "rendezvous-timeout"),
        # JAX, Horovod, MPI, oneCCL, Ascend
        (f"{XLA}RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.", "cuda-oom"),
        (f"{XLA}DEADLINE_EXCEEDED: Barrier timed out. Id: PjRT_Client_Connect::0.", "rendezvous-timeout"),
        ("RuntimeError: Unable to initialize backend 'cuda': No visible GPU devices.", "cuda-unavailable"),
        (
            "RuntimeError: Unable to initialize backend 'tpu': The TPU is already in use by process with pid 4",
            "gpu-busy",
        ),
        (f"{HOROVOD}Mismatched data types: One rank had type float32, but another rank had", "collective-mismatch"),
        (f"{HOROVOD}Horovod has been shut down. This was caused by an exception on one of the ranks", "peer-died"),
        ("mpi4py.MPI.Exception: MPI_ERR_TRUNCATE: message truncated", "collective-mismatch"),
        (f"{HOROVOD}ncclCommInitRank failed: unhandled system error", "nccl-network"),
        (f"{XLA}DEADLINE_EXCEEDED: Barrier timed out. Id: sync_global_devices:save::2.", "hang"),
        ("RuntimeError: oneCCL: a.cpp:3 init: EXCEPTION: can not get host IP", "nccl-network"),
        ("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 1; 60.97 GiB total capacity)", "cuda-oom"),
        (
            "RuntimeError: [ERROR] HCCL error in: a.cpp:110\n[ERROR] 2026-03-01-10:00:00 (PID:4, Device:1, RankID:1) "
            "ERR02200 DIST call hccl api failed.\nEI0006: [PID: 4] 2026-03-01-10:00:00.1 Getting socket times out.",
            "nccl-timeout-hang",
        ),
        # the same words, or nearly, of somebody else
        ("RuntimeError: build failed: /usr/bin/python3: No module named 'decorator'", "python-exception"),
        ("RuntimeError: FlashAttention only supports head dimension at most 256", "python-exception"),
        ("RuntimeError: weight column does not exist", "python-exception"),
        ("ValueError: port at index 3 is not available in table", "python-exception"),
        ("ValueError: name 'x' already in use", "python-exception"),
        ("ValueError: Mismatched shapes: one is 3, other 4", "python-exception"),
        ("TimeoutError: RPC call timed out", "python-exception"),
        ("OSError: Timed out trying to connect to the database after 3 s", "python-exception"),
        ("grpc.RpcError: DEADLINE_EXCEEDED: failed to connect to all addresses", "python-exception"),
        ("ValueError: argument lr is required, but found none", "python-exception"),
        ("google.api_core.exceptions.ResourceExhausted: RESOURCE_EXHAUSTED: Quota exceeded", "python-exception"),
        (
            "Exception: Capture CUDA graph failed: 'NoneType' object has no attribute 'shape'\nPossible solutions:\n"
            "3. if it is an OOM problem, set --mem-fraction-static to a smaller value",
            "python-exception",
        ),
    ],
)
def test_exceptions(said: str, cause: str) -> None:
    found = explain(RAISED.format(said))
    assert found.cause == cause, found.title


TGI = "2026-03-01T10:02:14.1Z ERROR shard-manager: text_generation_launcher: "
TRITON = "E0301 10:02:01.100000 1 model_lifecycle.cc:654] \"failed to load 'm' version 1: Internal: "
WAITS = "INFO 09-02 10:00:01 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 second(s).\n"
STALLED = (
    "[W stall_inspector.cc:107] One or more tensors were submitted by subset of ranks and are waiting for remainder "
)
WATCHDOG = "[2026-02-27 11:45:26 TP0] Watchdog timeout (self.watchdog_timeout=300{})\n"
ENDS = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 1 PID 4711 RUNNING AT node-a\n"
PRRTE = "prterun noticed that process rank 2 with PID 4711 on node node-a exited on\nsignal 11 (Segmentation fault).\n"
KILLED_WORKER = RAISED.format(
    "distributed.scheduler.KilledWorker: Attempted to run task 'f-1' on 4 different workers, but all those workers "
    "died while running it."
)
FROM_A_WORKER = """Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    main()
  File "/env/lib/python3.11/site-packages/ray/_private/worker.py", line 2755, in get
    raise value
ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, \
ray::W.__init__() (pid=411, ip=10.0.0.7, actor_id=1, repr=<x.W>)
  File "/home/me/w.py", line 9, in __init__
    import flash_attn
ModuleNotFoundError: No module named 'flash_attn'
"""
OF_A_RANK = """torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0])
Traceback (most recent call last): (RANK 0)
  File "/env/lib/python3.11/site-packages/torch/distributed/checkpoint/filesystem.py", line 800, in read_metadata
    with path.open("rb") as metadata_file:
FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/step-10/.metadata'
"""
POINTS = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for "


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param(
            RAISED.format("OSError: [Errno 28] No space left on device") + RAISED.format(f"{POINTS}root cause."),
            "disk-full",
            id="an exception that points to another",
        ),
        pytest.param(RAISED.format(OF_A_RANK.rstrip()), "file-not-found", id="a checkpoint's exception of a rank"),
        pytest.param(FROM_A_WORKER, "import-error", id="an exception that Ray's worker sent"),
        pytest.param(
            f"{TGI}Shard process was signaled to shutdown with signal 11 rank=0\n", "segfault", id="TGI's shard"
        ),
        pytest.param(f"{ENDS}=   KILLED BY SIGNAL: 11 (Segmentation fault)\n", "segfault", id="hydra"),
        pytest.param(PRRTE, "segfault", id="PRRTE breaks the line"),
        pytest.param(
            'Error: NotEnoughCUDADevices("`num_shard` is 4 but only 2 CUDA")\n', "invalid-device", id="shards"
        ),
        pytest.param(
            RAISED.format("SystemError: (Fatal) DataLoader process (pid 71) exited is killed by signal: Terminated."),
            "dataloader-worker-died",
            id="Paddle's worker",
        ),
        pytest.param(
            RAISED.format("OSError: (External)  Nccl error, unhandled cuda error  (at /p/collective_helper.cc:80)"),
            "nccl-init",
            id="NCCL, in Paddle",
        ),
        pytest.param(
            "nid1: Test NCCL failure common.cu:1012 'unhandled system error (run with NCCL_DEBUG=INFO) / '\n"
            " .. nid1 pid 71: Test failure common.cu:891\nsrun: error: nid1: task 3: Exited with exit code 3\n",
            "nccl-network",
            id="nccl-tests",
        ),
        pytest.param(
            RAISED.format("BrokenPipeError: [Errno 32] Broken pipe")
            + "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.batch cgroup.\n",
            "host-oom",
            id="the other end of a pipe was killed",
        ),
        pytest.param(RAISED.format("BrokenPipeError: [Errno 32] Broken pipe"), "python-exception", id="a pipe"),
        pytest.param(f"{TRITON}ModuleNotFoundError: No module named 'x'\"\n", "import-error", id="Triton's backend"),
        pytest.param(
            "failed to start HTTP service: Socket '0.0.0.0:8000' already in use\n", "port-in-use", id="a socket"
        ),
        pytest.param(WAITS * 4, "hang", id="a log that ends while it waits"),
        pytest.param(f"{WAITS * 4}INFO:     Application startup complete.\n", None, id="it went on"),
        pytest.param(
            f"{STALLED}of ranks for more than 60 seconds.\nMissing ranks:\n1: [fc.weight]\n", "hang", id="stall"
        ),
        pytest.param(WATCHDOG.format(""), "hang", id="a watchdog"),
        pytest.param(WATCHDOG.format(", self.soft=True"), None, id="a watchdog that only warns"),
        pytest.param(
            "  HNP daemon   : [[5131,0],0] on node node-a\n  Remote daemon: [[5131,0],1] on node node-b\n",
            "node-failed",
            id="mpirun's daemon",
        ),
        pytest.param(
            "There are not enough slots available in the system to satisfy the 8\nslots that were requested\n",
            "syntax-or-usage",
            id="more processes than slots",
        ),
        pytest.param(
            "mpirun was unable to find the specified executable file, and therefore did\nnot launch the job.\n\n"
            "Node:       node-a\nExecutable: ./trainn\n",
            "script-not-found",
            id="mpirun's program",
        ),
        pytest.param(
            "distributed.nanny.memory - WARNING - Worker tcp://10.0.0.7:41234 (pid=411) exceeded 95% memory budget. "
            f"Restarting...\n{KILLED_WORKER}",
            "host-oom",
            id="Dask's nanny",
        ),
        pytest.param(KILLED_WORKER, "python-exception", id="workers that died of what is not shown"),
        pytest.param(
            "INFO:jax._src.xla_bridge:Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so\n"
            "step 1 loss 0.5\nstep 2 loss 0.4\n",
            None,
            id="a backend that JAX does without",
        ),
        pytest.param(
            "(raylet) The node with node id: 9ab and address: 10.0.0.7 has been marked dead because of its heartbeats\n"
            + "".join(f"(TrainWorker pid=31) epoch {epoch} loss {1 / epoch:.3f}\n" for epoch in range(1, 25)),
            None,
            id="a node that Ray does without",
        ),
    ],
)
def test_logs(text: str, cause: str | None) -> None:
    found = explain(text)
    assert found.cause == cause, found.title
