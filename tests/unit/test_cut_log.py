"""A piece of a log, as people paste it: what it shows is found and called likely; what it does not show stays null."""

from __future__ import annotations

import pytest

from ddp_run import explain
from ddp_run.evidence.pasted.wrapped import NOTE as JOINED
from ddp_run.judge.cut_log import FOLLOWED, NOTE

STEPS = "\n".join(f"step {number} loss {5 / (number + 1):.4f}" for number in range(12))
HUB = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    model = AutoModel.from_pretrained("org/model")
  File "/env/lib/python3.11/site-packages/huggingface_hub/utils/_http.py", line 409, in hf_raise_for_status
    response.raise_for_status()
  File "/env/lib/python3.11/site-packages/requests/models.py", line 1026, in raise_for_status"""
GATED = """  File "/env/lib/python3.11/site-packages/transformers/utils/hub.py", line 403, in cached_file
    resolved_file = hf_hub_download(
  File "/env/lib/python3.11/site-packages/huggingface_hub/utils/_http.py", line 426, in hf_raise_for_status
    raise _format(GatedRepoError, message, response) from e"""
COMPILER = """    return f(*args)
  File "/env/lib/python3.11/site-packages/torch/_inductor/codecache.py", line 2013, in result
    return self.result_fn()
  File "/env/lib/python3.11/site-packages/triton/runtime/jit.py", line 390, in run"""
WANDB = """Traceback (most recent call last):
  File "/home/me/train.py", line 5, in <module>
    wandb.init(project="x")
  File "/env/lib/python3.11/site-packages/wandb/sdk/wandb_init.py", line 1170, in init
    handle = backend.interface.deliver_run(run)"""
NO_CUDA = """  File "/home/me/train.py", line 7, in main
    model.cuda()
  File "/env/lib/python3.11/site-packages/torch/cuda/__init__.py", line 293, in _lazy_init
    raise AssertionError("Torch not compiled with CUDA enabled")"""
OWN = """Traceback (most recent call last):
  File "/home/me/train.py", line 30, in main
    check(batch)
  File "/home/me/train.py", line 22, in check
    raise ValueError(f"bad batch {number}")"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (HUB, "auth"),
        (GATED, "auth"),
        (COMPILER, "compile-failure"),
        (WANDB, "hub-network"),
        (NO_CUDA, "cuda-unavailable"),
        (OWN, "python-exception"),
    ],
)
def test_a_traceback_without_its_last_line(text: str, cause: str) -> None:
    found = explain(f"{STEPS}\n{text}\n")
    assert (found.cause, found.confidence, found.exit_code) == (cause, "likely", None)
    assert NOTE in found.notes or found.outcome == "failed"


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
ACCELERATE = """Traceback (most recent call last):
  File "/env/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/env/lib/python3.10/site-packages/accelerate/commands/launch.py", line 769, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/env/bin/python', 'train.py']' returned non-zero exit status 1."""
SPAWN = """Traceback (most recent call last):
  File "/home/me/train.py", line 90, in <module>
    mp.spawn(main, nprocs=2)
  File "/env/lib/python3.10/site-packages/torch/multiprocessing/spawn.py", line 140, in join
    raise ProcessRaisedException(msg, error_index, failed_process.pid)
torch.multiprocessing.spawn.ProcessRaisedException"""
RAY = """ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker
unexpectedly exits. (1) The process is killed by SIGKILL by OOM killer due to high memory usage."""
VLLM = """(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/usr/local/bin/vllm", line 8, in <module>
(APIServer pid=1)     sys.exit(main())
(APIServer pid=1)   File "/env/lib/python3.12/site-packages/vllm/v1/engine/utils.py", line 729, in wait
(APIServer pid=1)     raise RuntimeError("Engine core initialization failed. "
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"""
DEEPSPEED = "[2026-11-22 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return"
MPIRUN = "mpirun noticed that process rank 1 with PID 0 on node node-a exited"


@pytest.mark.parametrize("last", [ACCELERATE, SPAWN, RAY, VLLM, DEEPSPEED, MPIRUN])
@pytest.mark.parametrize(
    "above",
    [
        OOM,
        f"(EngineCore_DP0 pid=27) ERROR 11-22 10:00:01 [core.py:708] {OOM}",
        f"(WorkerDict pid=2710) {OOM} [repeated 3x across cluster]",
        f"[1,4]<stderr>:{OOM}",
        f"2026-11-22 10:00:01,100 - trainer - ERROR - {OOM}",
    ],
)
def test_what_a_launcher_says_last_is_no_cause(above: str, last: str) -> None:
    found = explain(f"{above}\n{last}\n")
    assert found.cause == "cuda-oom"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("[rank3]: torch.distributed.DistNetworkError: The client socket has timed out after 60000ms", None),
        ("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error", "nccl-network"),
        ("[ 712.3] Memory cgroup out of memory: Killed process 31 (python3) total-vm:9kB", "host-oom"),
        ("train.py: error: unrecognized arguments: --lr 3", "bad-arguments"),
        ("node-a:71:93 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
         "duplicate-gpu"),
        ("/bin/sh: 1: train.py: Permission denied", None),
    ],
)  # fmt: skip
def test_a_line_alone(line: str, cause: str | None) -> None:
    found = explain(line)
    assert cause in (None, found.cause)
    assert found.confidence != "certain" or found.outcome is not None


def test_the_rank_that_a_line_names() -> None:
    first = explain(f"[rank2]:[E logging.cc:1] {OOM}").first_failure
    assert first is not None
    assert (first.rank, first.exit_code) == (2, None)


def test_a_rank_without_words_does_not_hide_anothers_exception() -> None:
    box = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 71)
"""
    raised = f'[rank0]: Traceback (most recent call last):\n[rank0]:   File "a.py", line 3, in f\n[rank0]: {OOM}'
    assert explain(f"{STEPS}\n{raised}\n{box}").cause == "cuda-oom"


@pytest.mark.parametrize(
    "after",
    [
        STEPS,
        "\n".join(f"Epoch 1:  {number}%|###    | {number}/100 [00:01<00:02, 1.00it/s]" for number in range(10, 20)),
        "\n".join(f"{{'loss': {number / 7:.4f}, 'epoch': 0.{number}}}" for number in range(10, 20)),
    ],
)
@pytest.mark.parametrize("before", [OOM, HUB, COMPILER, RAY, "oom_kill 3", VLLM])
def test_what_a_job_went_on_after_is_no_alarm(before: str, after: str) -> None:
    found = explain(f"{STEPS}\n{before}\n{after}\n")
    assert found.cause is None


def test_a_store_that_went_after_the_end_is_no_alarm() -> None:
    lost = "[rank1]:[W1122 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=6): failed to recv, got 0 bytes"
    assert explain(f"{STEPS}\n{lost}\n").cause == "store-lost"
    assert explain(f"{STEPS}\nTraining finished in 20 s\n{lost}\n").cause is None


RAISED = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    main()
ValueError: shapes do not match"""
WRAPPER = """Traceback (most recent call last):
  File "/home/me/run_all.py", line 3, in <module>
    subprocess.run(command, check=True)
  File "/usr/lib/python3.11/subprocess.py", line 571, in run
    raise CalledProcessError(retcode, process.args,
subprocess.CalledProcessError: Command '{command}' returned non-zero exit status 1."""


@pytest.mark.parametrize(
    "command",
    ["['torchrun', '--nproc_per_node=2', 'train.py']", "srun -n 2 python train.py", "accelerate launch train.py"],
)
def test_a_script_that_starts_the_launcher_is_no_cause(command: str) -> None:
    found = explain(f"{RAISED}\n{WRAPPER.format(command=command)}\n")
    assert (found.cause, found.title) == (
        "python-exception",
        "a rank raised ValueError in train.py:12: shapes do not match",
    )


def test_a_server_that_kills_itself_after_an_exception() -> None:
    left = "[2026-11-22 10:00:01] Received sigquit from a child process. It usually means the child failed."
    tree = RAISED.replace("ValueError: shapes do not match", OOM)
    found = explain(f"[2026-11-22 10:00:00 TP0] Scheduler hit an exception: {tree}\n\n{left}\nKilled\n")
    assert (found.cause, found.confidence) == ("cuda-oom", "likely")


def test_frames_of_a_launcher_alone_say_nothing() -> None:
    cut = SPAWN.rpartition("\n")[0]
    assert explain(cut).cause in (None, "unknown")


REFUSED = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    model = AutoModel.from_pretrained(name)
  File "/venv/lib/python3.11/site-packages/huggingface_hub/utils/_http.py", line 409, in hf_raise_for_status
    raise _format(GatedRepoError, message, response) from e
huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-69f0)
Cannot access gated repo for url https://huggingface.co/org/model/resolve/main/config.json.
"""
SUMMARY = """Traceback (most recent call last):
  File "/home/me/train.py", line 30, in <module>
    print(f"{size:.2f} MB")
TypeError: unsupported format string passed to NoneType.__format__
"""


def test_what_a_program_raises_after_its_failure_is_not_the_cause() -> None:
    verdict = explain(REFUSED + "writing the summary\n" + SUMMARY)
    assert (verdict.cause, verdict.confidence) == ("auth", "likely")
    assert FOLLOWED in verdict.notes


def test_what_a_program_got_over_is_not_the_cause() -> None:
    verdict = explain(REFUSED + STEPS + "\n" + SUMMARY)
    assert (verdict.cause, verdict.confidence) == ("python-exception", "certain")


def test_a_log_within_a_list_or_a_block_of_code_is_read_as_it_was() -> None:
    prefixed = "".join(f"    [rank1]: {line}\n" for line in REFUSED.splitlines())
    verdict = explain(prefixed)
    assert verdict.cause == "auth"
    assert verdict.first_failure is not None
    assert verdict.first_failure.rank == 1


def test_what_the_agent_writes_is_no_progress() -> None:
    closing = "".join(
        f"W0902 15:37:28.77{pid} 1133389 torch/distributed/elastic/multiprocessing/api.py:906] "
        f"Sending process 113352{pid} closing signal SIGTERM\n"
        for pid in range(6)
    )
    verdict = explain("train.py: error: unrecognized arguments: --what\n" + closing)
    assert verdict.cause == "bad-arguments"


# --------------------------------------------------------------------------- who says it, and what stands behind it

REMOTE = """ray.exceptions.RayTaskError(RuntimeError): ray::Runner.run() (pid=31, ip=10.0.0.3, repr=<Runner object>)
  File "/home/me/runner.py", line 19, in run
    self.workers.init()
RuntimeError: No backend type associated with device type cpu
(Worker pid=44) Loading shards: 100%|##########| 4/4 [00:16<00:00,  4.09s/it]
Loading shards: 100%|##########| 4/4 [00:16<00:00,  4.18s/it] [repeated 3x across cluster]
"""
MONITOR = (
    "pipeline failed: Task was killed due to the node running low on memory.\nTop 10 memory users:\n"
    + "".join(f"{30000 + pid} {20 + pid}.5   ray::Loader\n" for pid in range(6))
    + 'Traceback (most recent call last):\n  File "/home/me/run.py", line 3, in main\n    rest = ray.get(tasks)\n'
)
ABSEIL = "(Worker pid=7) *** SIGSEGV received at time=1762945937 on cpu 6 ***\n" + "".join(
    f"(Worker pid=7)     @     0x71bb1bfd07{row:02x}  (unknown)  (unknown)\n" for row in range(9)
)
ENGINE = """(APIServer pid=1)     wait_for_engine_startup(
(APIServer pid=1)   File "/env/lib/python3.12/site-packages/vllm/v1/engine/utils.py", line 1209, in wait_for_startup
(APIServer pid=1)     raise RuntimeError(
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
WORKER = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    for batch in loader:
RuntimeError: DataLoader worker (pid 93) is killed by signal: Killed.
slurmstepd: error: Detected 1 oom_kill event in StepId=6.batch. Some of the step tasks have been OOM Killed.
"""
BLAS = """OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 40: Resource temporarily unavailable
OpenBLAS blas_thread_init: RLIMIT_NPROC 200 current, 4096 max
ImportError: Error importing numpy: you should not try to import numpy from its source directory
"""
WRITE = """Traceback (most recent call last):
  File "/env/lib/python3.9/site-packages/torch/serialization.py", line 967, in save
    _save(
OSError: [Errno 5] Input/output error

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/train.py", line 40, in save
    torch.save(state, path)
RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 2358135232 vs 2358135124
"""
BACKEND = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    kernel[grid](x)
other_vendor.OtherCompilationError:
lowering of kernel failed
"""
CACHE = """Traceback (most recent call last):
  File "/env/lib/python3.12/site-packages/vllm/v1/core/kv_cache_utils.py", line 623, in check
    raise ValueError(
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.
"""
CAUGHT = """Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=4, \
Timeout(ms)=600000) ran for 600004 milliseconds before timing out."""
WATCHDOG = f"""[rank2]:[E606 09:09:08.1 ProcessGroupNCCL.cpp:757] [Rank 2] {CAUGHT}
[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/me/train.py", line 69, in main
[rank2]:     model = DDP(model)
[rank2]: RuntimeError: DDP expects same model across all ranks, but Rank 2 has 51 params, while rank 0 has \
inconsistent 0 params.
"""
ABORTED = f"""[rank2]:[E ProcessGroupNCCL.cpp:577] [Rank 2] To avoid data inconsistency, we are taking the process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG 0 Rank 2] watchdog thread terminated with exception: [Rank 2] {CAUGHT}
./launcher.sh: line 14: 191644 Aborted                 (core dumped) $@
node-b.example: rank 0 exited with code 134
"""
OLD_LAUNCHER = """Traceback (most recent call last):
  File "train.py", line 15, in <module>
    dist.init_process_group('nccl')
  File "/env/lib/python3.7/site-packages/torch/distributed/distributed_c10d.py", line 201, in _store_based_barrier
    worker_count = store.add(store_key, 0)
RuntimeError: Broken pipe
Killing subprocess 31050
Traceback (most recent call last):
  File "/env/lib/python3.7/site-packages/torch/distributed/launch.py", line 301, in sigkill_handler
    raise subprocess.CalledProcessError(returncode=last_return_code, cmd=cmd)
subprocess.CalledProcessError: Command '['/env/bin/python', '-u', 'train.py', '--local_rank=3']' returned non-zero \
exit status 1.
"""
DUMP = """Process 79655: /env/bin/python -u train.py
Python v3.8.18 (/env/bin/python3.8)

Thread 79655 (idle): "MainThread"
    wait (torch/utils/file_baton.py:42)
    main (train.py:12)
"""
IMAGE = """slurmstepd: error: pyxis:     [INFO] Extracting image layers...
slurmstepd: error: pyxis:     zstd: /raid/cache/d9270b9c: Permission denied
slurmstepd: error: pyxis: couldn't start container
srun: error: node-a: task 0: Exited with exit code 1
"""
ACTIVE = """=== PID 54 ===
Thread 54 (active): "MainThread"
    run (loop.py:9)
=== PID 55 ===
Thread 55 (active): "MainThread"
    synchronize (torch/cuda/streams.py:102)
    main (train.py:12)
=== PID 56 ===
Thread 56 (active): "MainThread"
    run (loop.py:9)
"""
SERVER = """(Worker pid=17) ERROR 07-01 00:38:05 [worker.py:239]   File "/env/site-packages/x/c10d.py", line 126, in f
(Worker pid=17) ERROR 07-01 00:38:05 [worker.py:239]     dist.broadcast_object_list(sizes, dst, group)
(Worker pid=17) ERROR 07-01 00:38:05 [worker.py:239]   File "/env/site-packages/torch/distributed/\
distributed_c10d.py", line 2649, in _tensor_to_object
(Worker pid=17) ERROR 07-01 00:38:05 [worker.py:239]     return _unpickler(io.BytesIO(buf)).load()
(Worker pid=17) ERROR 07-01 00:38:05 [worker.py:239] _pickle.UnpicklingError: invalid load key, '\\x00'.
ready
"""
DRIVER = """(Runner pid=23)   File "/home/me/rollout.py", line 50, in <module>
(Runner pid=23)     from vllm.model_executor.sampling import Sampling
(Runner pid=23) ModuleNotFoundError: No module named 'vllm.model_executor.sampling'
(Runner pid=23) Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): ray::Worker.init() (pid=26)
(Runner pid=23)   File "/home/me/base.py", line 708, in func
(Runner pid=23)     return getattr(self.workers[key], name)(*args, **kwargs)
"""
SHELL = """cuda_driver.cc:271] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected
/spool/slurm_script: line 22: 443552 Killed                  python main.py
slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.batch. Some of your processes may have been killed.
"""
CRASHED = """Fatal Python error: PyThreadState_Get: the function must be called with the GIL held
[2026-09-10 09:23:00 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/env/site-packages/sglang/srt/utils.py", line 950, in broadcast_pyobj
    dist.broadcast(tensor_size, src=src, group=dist_group)
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:58054
Segmentation fault
"""
MESH = (
    "".join(f"[Gloo] Rank {rank} is connected to 15 peer ranks. Expected number is : 15\n" for rank in range(6))
    + "[Gloo] Rank 8 is NOT connected to: [1]\n[Gloo] Rank 7 is connected to 15 peer ranks. Expected number is : 15\n"
    + "TimeoutError: Server failed to start within the timeout period.\n"
)
SPLIT = (
    "[rank3] Watchdog caught collective operation timeout:\nWorkNCCL(SeqNum=6, OpType=ALLGATHER, Timeout(ms)=6000)\n"
)
PROXY = "a:1:1 [3] proxy.cpp:1177 NCCL WARN [Proxy Service 3] Failed to execute operation Connect from rank 3, code 2\n"
PROXY += "a:1:1 [3] socket.cpp:57 NCCL WARN socketProgress: Connection closed by remote peer a.example<57521>\n"
NUMBERED = """507 Traceback (most recent call last):
508   File "/env/lib/python3.9/runpy.py", line 197, in _run_module_as_main
509     return _run_code(code, main_globals, None,
510   File "/env/lib/python3.9/runpy.py", line 87, in _run_code
511   File "/home/me/run.py", line 41, in <module>
512     trainer.train()
513   File "/env/lib/python3.9/site-packages/torch/serialization.py", line 463, in __init__
514     super().__init__(torch._C.PyTorchFileWriter(self.name))
515 RuntimeError: Parent directory /data/tmp-checkpoint-500 does not exist.
"""
CONTAINER = """FATAL:   "train": executable file not found in $PATH
srun: error: node-a: tasks 0-7: Exited with exit code 255
"""
BARE = """[1,3]<stderr>:  File "train.py", line 75, in <module>
[1,3]<stderr>:    group="DDP",
[1,3]<stderr>:  File "/env/lib/python3.6/site-packages/wandb/sdk/wandb_init.py", line 846, in init
[1,3]<stderr>:    six.raise_from(Exception("problem"), error_seen)
[1,3]<stderr>:Exception: problem
"""
NODE = """RuntimeError: NCCL communicator was aborted on rank 3: Connection closed by remote peer
srun: error: Node failure on node-7
slurmstepd: error: *** STEP 42.0 ON node-1 CANCELLED AT 2026-01-02T03:04:05 DUE TO NODE FAILURE ***
"""
PAGES = (
    "Memory access fault by GPU node-1 on address 0x7f9587e00000. Reason: Page not present or supervisor privilege.\n"
    + "./run.sh: line 304:  4388 Aborted                 python train.py\n"
    + "".join(
        f"[Tue Jul 23 13:49:2{second} 2024] amdgpu 0000:0d:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24)\n"
        for second in range(8)
    )
)
TRAINER = """[rank1]: torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 2488)
[2]:
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 2489)
[3]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 2486)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-04-08_05:39:46
  host      : node-a
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 2487)
  error_file: <N/A>
============================================================
Traceback (most recent call last):
  File "/home/me/engine/trainer.py", line 237, in train
    subprocess.run(cmd, check=True)
  File "/usr/lib/python3.12/subprocess.py", line 571, in run
    raise CalledProcessError(retcode, process.args,
subprocess.CalledProcessError: Command '['/usr/bin/python3', '-m', 'torch.distributed.run', '--nproc_per_node', '4', \
'/tmp/ddp.py']' returned non-zero exit status 1.
"""
BUILD = """(Engine pid=37) ERROR 06-06 19:51:14 [core.py:1165] /usr/bin/ld: cannot find -lcuda: No such file
(Engine pid=37) ERROR 06-06 19:51:14 [core.py:1165] collect2: error: ld returned 1 exit status
(Engine pid=37) ERROR 06-06 19:51:14 [core.py:1165] ninja: build stopped: subcommand failed.
(Engine pid=37) ERROR 06-06 19:51:14 [core.py:1165] ', please check the stack trace above for the root cause
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
CELL = """<ipython-input-64-2d704495e19a> in <module>
---> 27       loss.backward()
/usr/local/lib/python3.8/dist-packages/torch/_tensor.py in backward(self, gradient, retain_graph, create_graph, inputs)
--> 487         torch.autograd.backward(
KeyboardInterrupt:
"""
OPTION = """Usage: train.py [OPTIONS]
Try 'train.py --help' for help.

Error: No such option: --remove_h (Possible options: --charge_norm, --pos_norm)
using rdkit
"""
SOURCE = """/usr/include/c++/6/type_traits:1558:8: note: provided for template<class _From>
/usr/include/c++/6/tuple:502:1: error: body of constexpr function not a return-statement
 ^
"""
BARS = """[rank3]: RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing \
file data/6: file write failed
 25%|##5       | 1818/7272 [8:24:29<25:13:27, 16.65s/it]
[2025-01-30 15:35:22,266] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 3946385
"""
TOLD = """Traceback (most recent call last):
  File "/env/lib/python3.12/site-packages/vllm/entrypoints/openai/api_server.py", line 579, in signal_handler
    raise KeyboardInterrupt("terminated")
KeyboardInterrupt: terminated
"""
CARD = "".join(
    f"2024-01-26 19:15:09.74{row}: E event.cc:34] Error destroying event: CUDA_ERROR_ECC_UNCORRECTABLE: "
    "uncorrectable ECC error encountered\n"
    for row in range(1402, 1408)
)
CARD += "Fatal Python error: Aborted\n\nCurrent thread 0x00007fb45f48a740 (most recent call first):\n"
TRITON = """  File "/env/lib/python3.10/site-packages/triton/runtime/driver.py", line 20, in _initialize_obj
    self._obj = self._init_fn()
  File "/env/lib/python3.10/site-packages/triton/runtime/build.py", line 48, in _build
    ret = subprocess.check_call(cc_cmd)
  File "/env/lib/python3.10/subprocess.py", line 369, in check_call
    raise CalledProcessError(retcode, cmd)
"""
CUDNN = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in forward
    return F.conv2d(input, weight)
RuntimeError: Unable to find a valid cuDNN algorithm to run convolution
"""
LINK = (
    "node-a:18:18 [1] net_ib.cc:2453 NCCL WARN NET/IB: Got completion from peer 10.9.1.3<511> with status=4 opcode=3\n"
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param(REMOTE, "process-group-misuse", id="bars of others behind a driver's exception"),
        pytest.param(MONITOR, "host-oom", id="a table is no progress"),
        pytest.param(ABSEIL, "segfault", id="native frames are no progress"),
        pytest.param(ENGINE, "unknown", id="a server that points to another process"),
        pytest.param(WORKER, "host-oom", id="a worker killed, and who counts says for what"),
        pytest.param(BLAS, "process-limit", id="an import that follows from a limit"),
        pytest.param(WRITE, "filesystem-error", id="an error number beside a short write"),
        pytest.param(BACKEND, "compile-failure", id="another compiler's class"),
        pytest.param(CACHE, "cuda-oom", id="no room for a server's cache"),
        pytest.param(WATCHDOG, "nccl-timeout-hang", id="what a collective never received"),
        pytest.param(ABORTED, "nccl-timeout-hang", id="an abort whose rank is not named"),
        pytest.param(OLD_LAUNCHER, "peer-died", id="the launcher before torchrun"),
        pytest.param(DUMP, "hang", id="a dump of what stands still"),
        pytest.param(IMAGE, "permission-denied", id="a container that does not start"),
        pytest.param(LINK, "nccl-network", id="a transfer that failed"),
        pytest.param(ACTIVE, "hang", id="a dump of one that waits for its GPU"),
        pytest.param(SERVER, "collective-mismatch", id="a server's name and logger before each line"),
        pytest.param(DRIVER, "import-error", id="frames of a driver behind its worker's exception"),
        pytest.param(SHELL, "host-oom", id="a warning of the GPU before a kill for memory"),
        pytest.param(CRASHED, "native-abort", id="a crash beside a lost peer"),
        pytest.param(MESH, "gloo-network", id="one that is not connected"),
        pytest.param(SPLIT, "nccl-timeout-hang", id="a report whose lines somebody split"),
        pytest.param(PROXY, "nccl-network", id="a connection that was not made, and one that was closed for it"),
        pytest.param(NUMBERED, "file-not-found", id="a pager's numbers"),
        pytest.param(CONTAINER, "script-not-found", id="a program that a container has not"),
        pytest.param(BARE, "python-exception", id="a class that is only called Exception"),
        pytest.param(NODE, "node-failed", id="a node that failed"),
        pytest.param(PAGES, "illegal-memory-access", id="the kernel's lines behind an abort"),
        pytest.param(TRAINER, "no-kernel-image", id="a trainer that starts the launcher itself"),
        pytest.param(BUILD, "compile-failure", id="the linker's words"),
        pytest.param(CELL, "user-interrupt", id="a notebook's cell"),
        pytest.param(OPTION, "bad-arguments", id="click's words without a code"),
        pytest.param(SOURCE, "compile-failure", id="a compiler's words alone"),
        pytest.param(BARS, "disk-full", id="a bar drawn once more at the end"),
        pytest.param(TOLD, "preempted-sigterm", id="a server's own words for SIGTERM"),
        pytest.param(CARD, "gpu-hardware", id="an abort that comes of the hardware"),
        pytest.param(TRITON, "compile-failure", id="frames whose first lines are cut off"),
        pytest.param(CUDNN, "cuda-library-error", id="no algorithm"),
    ],
)
def test_the_cause_behind_other_words(text: str, cause: str | None) -> None:
    found = explain(text)
    assert found.cause == cause, found.title


STORE = '  File "/v/site-packages/torch/distributed/rendezvous.py", line 1, in _env_rendezvous_handler\n'
UPPER = """Traceback (most recent call last):
  File "/home/me/fit.py", line 9, in <module>
    main()
  File "/v/site-packages/torch/nn/modules/module.py", line 1739, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
"""


@pytest.mark.parametrize(
    ("above", "cause"),
    [
        ("", "unknown"),
        ("Parameter at index 7 has been marked as ready twice. This means that\n", "ddp-marked-twice"),
        ("Parameter indices which did not receive grad for rank 0: 3 4\n", "ddp-unused-parameters"),
        ("[HAMI-core ERROR (pid:9 thread=7 allocator.c:49)]: Device 0 OOM 900 / 800\n", "cuda-oom"),
    ],
)
def test_a_traceback_without_its_end_says_nothing_but_where(above: str, cause: str) -> None:
    found = explain(above + UPPER)
    assert found.cause == cause
    if not above:
        assert found.confidence == "unknown"
        assert found.title == "a rank died with a traceback that is cut off, in fit.py:9"
        assert found.advice[0].startswith("look at the end of that traceback")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.\nOr", "file-not-found"),
        ("store.errors.Error: no such bucket", "python-exception"),
        (
            "n1:7:9 [2] proxy.cc:15 NCCL WARN [Proxy Service 2] Failed to execute operation Connect from rank 2, "
            "retcode 3\n[n1:7 :0:7] Caught signal 11 (Segmentation fault: address not mapped to object at address 0)",
            "segfault",
        ),
        (
            "n1:7:9 [2] proxy.cc:15 NCCL WARN [Proxy Service 2] Failed to execute operation Connect from rank 2, "
            "retcode 2\n",
            "nccl-network",
        ),
        ("n1:7:9 [0] p2p.cc:237 NCCL WARN Cuda failure 'invalid argument'", "nccl-init"),
        ("n1:7:9 [0] init.cc:9 NCCL WARN Odd\nn1:7:9 [0] NCCL INFO init.cc:1585 -> 3", "nccl-init"),
        ("n1:7:9 [0] misc/odd.cc:9 NCCL WARN Odd\nn1:7:9 [0] NCCL INFO misc/odd.cc:504 -> 2", "nccl-network"),
        ("n1:7:9 [0] init.cc:9 NCCL WARN Odd\nn1:7:9 [0] NCCL INFO Using network Socket", None),
        (
            "[rank1]:        size mismatch for head.weight: copying a param with shape torch.Size([2])",
            "checkpoint-mismatch",
        ),
        (f"{UPPER}RuntimeError: Error(s) in loading state_dict for", "checkpoint-mismatch"),
        (f"{UPPER}{STORE}RuntimeError: connect() timed out. Original timeout was 60000 ms.", "rendezvous-timeout"),
        (f"{UPPER}ValueError: host not found: Name or service not known", "rendezvous-dns"),
        (f"{UPPER}RuntimeError: write(): fd 29 failed with Input/output error", "filesystem-error"),
        (
            "subprocess.CalledProcessError: Command '['python', 'fit.py']' returned non-zero exit status 2.",
            "unknown",
        ),
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=9, Ch 8, caused by previous Xid 79", "gpu-hardware"),
        (
            f"{UPPER}RuntimeError: GlooDeviceFactory::f(): interface or hostname can't be empty",
            "gloo-network",
        ),
        (
            "Checkout your internet connection or see how to run the library in offline mode at 'https://x'.",
            "hub-network",
        ),
        ("python.exe: No module named fit", "script-not-found"),
        ('  "message": {\n    "message": "KeyError: \'tokens\'",\n    "extraInfo": {', "python-exception"),
        (
            "n1:7:9 [0] include/socket.h:403 NCCL WARN Connect to 10.0.0.9<57> failed : No route to host",
            "nccl-network",
        ),
        ("OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 0.0, reducing to 0.0", "nan-divergence"),
        ("NVRM: The GPU has\nNVRM: fallen off the bus and is not responding to commands.", "gpu-hardware"),
        (f"{UPPER}RuntimeError: Only one usage of each socket address is normally permitted.", "port-in-use"),
        ("Collectives differ in the following aspects: \tTensor shapes: 22vs 13", "collective-mismatch"),
        ("torch._dynamo.exc.Unsupported: Unsupported method call", "compile-failure"),
        ("*** Error in `python': malloc(): smallbin double linked list corrupted: 0x7f ***", "native-abort"),
        (f"{UPPER}RuntimeError: Permission denied", "permission-denied"),
        ("amdgpu 0000:c6:00.0: amdgpu: VM_L2_PROTECTION_FAULT_STATUS:0x00341051", "illegal-memory-access"),
    ],
)
def test_the_end_of_a_piece(text: str, cause: str | None) -> None:
    assert explain(text).cause == cause


def test_what_is_raised_behind_a_kill_is_not_its_reason() -> None:
    killed = """run.sh: line 3:  6965 Killed                  python -u train.py
Traceback (most recent call last):
  File "report.py", line 9, in <module>
    print(open("steps.txt").read())
FileNotFoundError: [Errno 2] No such file or directory: 'steps.txt'
"""
    found = explain(killed)
    assert (found.cause, found.confidence) == ("unknown", "unknown")


def test_the_rank_whose_build_failed_is_first() -> None:
    build = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 8, in <module>
[rank1]: RuntimeError: Error building extension 'cpu_adam'
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 8, in <module>
[rank0]: ImportError: /home/me/torch_extensions/cpu_adam/cpu_adam.so: cannot open shared object file: No such file
srun: error: node-a: task 0: Exited with exit code 1
srun: error: node-b: task 1: Exited with exit code 1
"""
    first = explain(build).first_failure
    assert first is not None
    assert first.rank == 1


WORDS = "one two three four five six seven eight nine ten eleven twelve to and from of at in".split()  # noqa: SIM905


@pytest.mark.parametrize(
    "text",
    [
        "Failed to resume: loaded state dict contains a parameter group that doesn't match the size of optimizer's "
        "group\n"
        "Starting fresh instead\nready\nmemory: 493 MB\n",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit type: "
        "SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly by a signal. The process receives a SIGTERM.\n",
        "gpu:1:1 [0] nvmlwrap.cc:100 NCCL WARN nvmlInit_v2() failed: Driver/library version mismatch\n"
        + "".join(f"answering {word} and {word[::-1]}\n" for word in WORDS),
    ],
    ids=["got over", "told to end", "went on"],
)
def test_what_is_no_failure(text: str) -> None:
    assert explain(text).cause is None


WIDTH = 45
PAD = "".join(f"{letter * WIDTH}\n" for letter in "xyz")


def wrapped(line: str) -> str:
    """As a terminal of this width shows a line below others."""
    return PAD + "".join(f"{line[start : start + WIDTH]}\n" for start in range(0, len(line), WIDTH))


NO_TRITON = "torch._inductor.exc.TritonMissing: Cannot find a working triton installation. It is not installed or old."
LIMIT = "slurmstepd: error: *** JOB 7 ON node-1 CANCELLED AT 2025-10-01T10:10:20 DUE TO TIME LIMIT ***"
MISTAKE = """Traceback (most recent call last):
  File "/home/me/train.py", line 7, in <module>
    raise ValueError(why)
ValueError: bad shard
"""


AT_THE_EDGE = MISTAKE.replace("raise ValueError(why)", f"main({'a' * (WIDTH - 10)})").replace(
    "ValueError: bad shard", "RuntimeError: labels out of order"
)
"""Its last frame is as wide as what was wrapped, so the exception itself may be taken for the rest of it."""


@pytest.mark.parametrize(("line", "cause"), [(NO_TRITON, "compile-failure"), (LIMIT, "preempted-sigterm")])
def test_lines_that_wrap_though_one_is_longer(line: str, cause: str) -> None:
    found = explain(f"{wrapped(line)}{'-' * 60}\n")
    assert (found.cause, found.confidence) == (cause, "likely")
    assert JOINED in found.notes


def test_lines_are_not_joined_where_single_ones_show_a_certain_end() -> None:
    found = explain(MISTAKE + wrapped(NO_TRITON))
    assert (found.cause, found.confidence, found.notes) == ("python-exception", "certain", ())


def test_who_ended_a_job_according_to_joined_lines_is_not_the_cause_of_an_exception() -> None:
    found = explain(wrapped(LIMIT) + AT_THE_EDGE)
    assert (found.cause, found.confidence) == ("python-exception", "likely")
    assert JOINED not in found.notes
