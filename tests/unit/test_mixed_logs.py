"""Logs in which several programs speak: the failure, what they do about it, and what ends with it."""

from __future__ import annotations

import json

import pytest

from ddp_run import explain

OVERLAY = """Traceback (most recent call last):
  File "/app/train.py", line 177, in parse
    raise ValueError("no model was given")
ValueError: no model was given
E1129 08:28:39.935000 237610 site-packages/torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) \
local_rank: 0 (pid: 237637) of binary: /opt/conda/bin/python3.11
Uncaught exception in compile_worker subprocess
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/_inductor/compile_worker/__main__.py", line 38, in main
    pre_fork_setup()
OSError: [Errno 107] Transport endpoint is not connected
Uncaught exception in compile_worker subprocess
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/_inductor/compile_worker/__main__.py", line 38, in main
    pre_fork_setup()
OSError: [Errno 107] Transport endpoint is not connected
"""
AGENTS = """Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/env/lib/python3.11/site-packages/torch/distributed/run.py", line 918, in main
    run(args)
  File "/env/lib/python3.11/site-packages/torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py", line 67, in \
next_rendezvous
    self._store = TCPStore(
RuntimeError: The server socket has failed to listen on any local network address. port: 32789, useIpv6: 0, code: -98, \
name: EADDRINUSE, message: address already in use
Traceback (most recent call last):
  File "/env/bin/start", line 7, in <module>
    subprocess.run(command, check=True)
subprocess.CalledProcessError: Command '['torchrun', '--nnodes', '2', 'train.py']' returned non-zero exit status 1.
srun: error: node-b: task 1: Killed
srun: error: node-a: task 0: Killed
"""
STUCK = """[node3:0]:[rank0]:   File "/env/lib/python3.11/site-packages/wandb/sdk/wandb_init.py", line 1603, in init
[node3:0]:[rank0]:     raise exc
[node3:0]:[rank0]: wandb.errors.ServicePollForTokenError: Failed to read port info after 30.0 seconds.
[node3:0]:[rank0]:[E422 09:25:19.063769402 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 0] \
ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.
E0422 09:33:20.906000 2781091 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) \
local_rank: 0 (pid: 2784663) of binary: /env/bin/python
"""
RUNNER = """{'loss': 0.6931, 'learning_rate': 5e-06}
[2025-02-20 20:27:13,107] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 2606346
[2025-02-20 20:27:14,902] [INFO] [launch.py:328:sigkill_handler] Main process received SIGINT, exiting
"""
QUOTED = """Traceback (most recent call last):
  File "/home/me/train.py", line 132, in load
    dataset = load_dataset(path)
  File "/env/lib/python3.11/site-packages/datasets/builder.py", line 972, in _download_and_prepare
    raise OSError(
OSError: Cannot find data file.
Original error:
[Errno 2] No such file or directory: '/cache/json-train-00000.arrow'
"""
SIGQUIT = """[2026-02-27 11:31:26 TP15] Scheduler hit an exception: Traceback (most recent call last):
  File "/env/lib/python3.12/site-packages/server/scheduler.py", line 373, in __init__
    self.engine.initialize(
RuntimeError: open: Address family not supported by protocol

[2026-02-27 11:31:26] Received sigquit from a child process. It usually means the child failed.
Killed
"""
PICTURE = """Traceback (most recent call last):
  File "/home/me/data.py", line 46, in read
    image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
cv2.error: OpenCV(4.10.0) /io/opencv/modules/imgproc/src/color.cpp:196: error: (-215:Assertion failed) !_src.empty() \
in function 'cvtColor'
"""
CAUGHT = """Epoch: 8 [ 63328/100000], loss: 35.1014
Exception in thread Thread-1 (_pin_memory_loop):
Traceback (most recent call last):
  File "/env/lib/python3.10/multiprocessing/connection.py", line 379, in _recv
    chunk = read(handle, remaining)
ConnectionResetError: [Errno 104] Connection reset by peer
LOGS - Keyboard interruption. Exiting from early training
"""
NOTEBOOK = """Traceback (most recent call last):
  File "/env/bin/papermill", line 8, in <module>
    sys.exit(papermill())
papermill.exceptions.PapermillExecutionError:
---------------------------------------------------------------------------
Exception encountered at "In [1]":
---------------------------------------------------------------------------
NotImplementedError                       Traceback (most recent call last)
Cell In[1], line 5
----> 5 import finetuning

NotImplementedError: Unsloth cannot find any torch accelerator? You need a GPU.
"""
TOLD = """Epoch 0: 31%| | 1225/3999 [1:07:35<2:33:02, 3.31s/it][rank: 2] Received SIGTERM: 15
Traceback (most recent call last):
  File "/home/me/train.py", line 48, in <module>
    trainer.fit(model)
  File "/env/lib/python3.8/site-packages/torch/utils/data/_utils/signal_handling.py", line 66, in handler
    _error_if_any_worker_fails()
RuntimeError: DataLoader worker (pid 4020138) is killed by signal: Terminated.
"""
LSF = """rm: write error: No space left on device

------------------------------------------------------------
Sender: LSF System <lsfadmin@node-11>
Subject: Job 20872132: <train> in cluster <dcc> Exited

Job <train> was submitted from host <node-30> by user <me> in cluster <dcc> at Mon Apr  1 17:11:56 2024
Started at Mon Apr  1 21:23:53 2024
Your job looked like:
# LSBATCH: User input
#!/bin/sh
#BSUB -q gpuv100
module load python3
source env/bin/activate
python main.py
------------------------------------------------------------
Exited with exit code 120.

Resource usage summary:

    CPU time :                                   1863.00 sec.
    Max Memory :                                 1259 MB
    Run time :                                   1859 sec.

The output (if any) is above this job summary.
"""
ENGINE = """(EngineCore pid=340)   File "/env/lib/python3.13/typing.py", line 3817, in __getattr__
(EngineCore pid=340)     raise AttributeError(name)
(EngineCore pid=340) KeyboardInterrupt
(APIServer pid=339) Traceback (most recent call last):
(APIServer pid=339)   File "/env/bin/vllm", line 7, in <module>
(APIServer pid=339)     sys.exit(main())
(APIServer pid=339)   File "/env/lib/python3.13/site-packages/vllm/entrypoints/cli/main.py", line 95, in main
(APIServer pid=339)     args.dispatch_function(args)
(APIServer pid=339)   File "/env/lib/python3.13/site-packages/vllm/v1/engine/utils.py", line 1187, in wait
(APIServer pid=339)     raise RuntimeError(
(APIServer pid=339) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
ASCEND = """ERROR 07-01 00:40:04 [engine.py:458] The current working operator name is HcclAllreduce.
ERROR 07-01 00:40:04 [engine.py:458] EI0006: [PID: 17] 2025-07-01-00:40:04 Getting socket times out. Reason: Remote \
Rank did not send the data in time.
"""
CANCELLED = """ 98%|#########8| 983/1000 [00:49<00:00, 20.14it/s]
srun: forcing job termination
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd: error: *** STEP 1354217.0 ON node-3 CANCELLED AT 2023-05-14T05:32:53 ***
srun: error: node-3: task 0: Killed
"""
OWNER = f"""{LSF.partition("Exited with")[0].removeprefix("rm: write error: No space left on device")}
TERM_OWNER: job killed by owner.
Exited with exit code 143.

The output (if any) is above this job summary.
"""
MEMORY = """slurmstepd: error: *** JOB 91762 ON node-19 CANCELLED AT 2025-11-16T03:47:55 ***
slurmstepd: error: Detected 1 oom_kill event in StepId=91762.batch. Some of the step tasks have been OOM Killed.
"""
CONTAINER = """pyxis: imported docker image: docker://nvcr.io#nvidia/cuda:13.0.2
slurmstepd: error: execve(): /var/spool/scripts/inner.sh: No such file or directory
srun: error: node-13: task 0: Exited with exit code 2
"""
EXTENSION = """Traceback (most recent call last):
  File "/home/me/setup.py", line 12, in <module>
    build()
  File "/env/lib/python3.12/site-packages/torch/utils/cpp_extension.py", line 506, in _check_cuda_version
    raise RuntimeError(CUDA_MISMATCH_MESSAGE, cuda_str_version, torch.version.cuda)
RuntimeError: ('The detected CUDA version (%s) mismatches the version that was used to compilePyTorch (%s)', '11', '12')
"""
SHARD = """Traceback (most recent call last):
  File "/home/me/eval.py", line 391, in main
    load(path)
OSError: Model file not found: /mnt/moe/model-shared-rank-0.pt
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param(CANCELLED, "preempted-sigterm", id="srun that was told to end"),
        pytest.param(OWNER, "preempted-sigterm", id="LSF's reason"),
        pytest.param(MEMORY, "host-oom", id="SLURM that counts kills for memory"),
        pytest.param(CONTAINER, "script-not-found", id="a script that the container has not"),
        pytest.param(EXTENSION, "compile-failure", id="an exception that shows its arguments"),
        pytest.param(SHARD, "file-not-found", id="a library's own words"),
        pytest.param(OVERLAY, "python-exception", id="what fails when the container goes"),
        pytest.param(AGENTS, "port-in-use", id="agents that raised, and srun that tells of its tasks"),
        pytest.param(STUCK, "python-exception", id="a watchdog that waits for a rank which failed"),
        pytest.param(RUNNER, "user-interrupt", id="DeepSpeed's launcher that was interrupted"),
        pytest.param(QUOTED, "file-not-found", id="an error that another one quotes"),
        pytest.param(SIGQUIT, "python-exception", id="a server that says why it kills itself"),
        pytest.param(PICTURE, "python-exception", id="OpenCV's words are no compiler's"),
        pytest.param(CAUGHT, "user-interrupt", id="a trainer that caught Ctrl-C"),
        pytest.param(NOTEBOOK, "cuda-unavailable", id="what a notebook's runner quotes"),
        pytest.param(TOLD, "preempted-sigterm", id="a worker that got the rank's SIGTERM"),
        pytest.param(LSF, "disk-full", id="above LSF's report"),
        pytest.param(ENGINE, "user-interrupt", id="an engine that was interrupted, and its server"),
        pytest.param(ASCEND, "nccl-timeout-hang", id="another vendor's collectives"),
    ],
)
def test_the_cause(text: str, cause: str) -> None:
    found = explain(text)
    assert found.cause == cause, found.title


def test_a_worker_that_torchs_agent_ended_shows_no_preemption() -> None:
    """Its rank was ended with the others."""
    agent = "W0422 09:33:20 1 torch/distributed/elastic/multiprocessing/api.py:897]"
    assert explain(f"{agent} Sending process 7 closing signal SIGTERM\n{TOLD}").cause != "preempted-sigterm"


def test_who_crashes_did_not_lose_a_peer() -> None:
    crashed = """[W316 13:16:35.463208845 TCPStore.cpp:122] [c10d] sendBytes failed on SocketImpl(fd=4): Broken pipe
E0316 13:16:36.000000 7 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -7) local_rank: 1 \
(pid: 575909) of binary: /env/bin/python
"""
    found = explain(crashed)
    assert (found.cause, found.exit_code) == ("unknown", 135)


def test_a_head_whose_words_are_in_the_next_line_names_their_rank() -> None:
    wrapped = """[rank1]:[E810 15:36:05.945860779 ProcessGroupNCCL.cpp:1899] [PG ID 0 PG GUID 0(default_pg) Rank 1]
Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered
[rank0]:[E810 15:46:05.718597139 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran for 600072 milliseconds
"""
    found = explain(wrapped)
    assert found.cause == "gpu-hardware"
    assert found.first_failure is not None
    assert found.first_failure.rank == 1


SAVED = """[node5:0]: 95%| | 155/163 [00:17<00:01, 7.79it/s]
[node5:0]:[INFO|trainer.py:4309] Saving model checkpoint to /data/checkpoints
[node6:2]:Exception ignored in atexit callback: <function update at 0x7f5b3ce6d9e0>
[node6:2]:Traceback (most recent call last):
[node5:3]:Exception ignored in atexit callback: <function update at 0x7f19946a19e0>
[node5:3]:Traceback (most recent call last):
[node5:3]:  File "/env/lib/python3.11/site-packages/filelock/_unix.py", line 84, in _acquire
[node6:2]:  File "/env/lib/python3.11/site-packages/filelock/_api.py", line 550, in __enter__
[node5:3]:    if os.fstat(fd).st_nlink == 0:
[node5:3]:OSError: [Errno 116] Stale file handle
[node6:2]:    if os.fstat(fd).st_nlink == 0:
[node6:2]:OSError: [Errno 116] Stale file handle
[node5:0]:[INFO|modeling_utils.py:4185] Model weights saved in /data/checkpoints
"""


def test_what_python_ignores_is_no_failure_though_processes_write_into_each_other() -> None:
    assert explain(SAVED).cause is None


def test_srun_that_ends_a_job_in_which_something_failed_shows_no_preemption() -> None:
    failed = CANCELLED.replace(
        "srun: forcing", "FATAL: container creation failed: mount source not there\nsrun: forcing"
    )
    assert explain(failed).cause == "unknown"


def test_a_job_that_was_started_again_and_ended_well() -> None:
    steps = "".join(f"INFO - Step: {step} | Loss: {9 - step / 100:.2f}\n" for step in range(5, 60, 5))
    ended = "slurmstepd: error: *** JOB 454600 ON node-9 CANCELLED AT 2025-05-21T11:34:48 DUE TO TIME LIMIT ***\n"
    assert explain(steps + ended).cause == "preempted-sigterm"
    assert explain(f"{steps}{ended}INFO - Recovered\n{steps}INFO - Training completed\n").cause is None


def test_killed_behind_a_bar() -> None:
    found = explain("training:  14%|#3   | 3/22 [00:06<00:38,  2.02s/it]Killed\n")
    assert (found.outcome, found.cause, found.exit_code) == ("failed", "unknown", 137)
    assert explain("epochs:  20%|##   | 3/15 [1:27:15<5:56:40, 1783.41s/it, lr=0.01]Killed\n").exit_code == 137


def test_an_assertion_that_there_is_a_gpu() -> None:
    asserted = FRAME.replace("step()", "assert(torch.cuda.is_available())") + "AssertionError\n"
    assert explain(asserted).cause == "cuda-unavailable"
    assert explain(asserted.replace("cuda.is_available()", "is_tensor(x)")).cause == "python-exception"


def test_an_import_that_another_error_kept_from_ending() -> None:
    importing = "RuntimeError: Failed to import trl.trainer because of the following error (look up):\n"
    denied = "PermissionError: [Errno 13] Permission denied: '/home/me/.triton'"
    text = f"{FRAME}{denied}\n{CAUSED}{FRAME}{importing}{denied.partition(': ')[2]}\n"
    assert explain(text).cause == "permission-denied"
    assert explain(FRAME + importing + "No module named 'x'\n").cause == "import-error"


def test_a_server_that_refused_a_request() -> None:
    refused = of("ERROR 08-18 [serving.py:203] ", f"{FRAME}ValueError: the maximum context length is 2048 tokens.")
    answered = 'INFO:     127.0.0.1:33760 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    bad = answered.replace("200 OK", "400 Bad Request")
    assert explain(answered + refused + bad + answered).cause is None
    assert explain(answered + refused + answered).cause == "python-exception"  # an answer that had begun
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace.\n"
    assert explain(answered + refused + bad + FRAME + dead + answered).cause == "python-exception"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("RuntimeError: Failed to import trl.trainer because of the following error (look up):", "import-error"),
        ("RuntimeError: WandbCallback requires wandb to be installed. Run `pip install wandb`.", "import-error"),
        ("ValueError: You need to have PEFT library installed in your environment.", "import-error"),
        ("RuntimeError: The actor with name WorkerDict failed to import on the worker.", "import-error"),
        ("OSError: Cannot find empty port in range: 7860-7860.", "port-in-use"),
        ("RuntimeError: Invalid device string: 'cuda:0:0'", "invalid-device"),
        ("RuntimeError: create:a.ts:89 HCCL function error: HcclCommInitRootInfo(n), error code is 2", "nccl-init"),
        ("NotFoundError: 2 root errors\n  (0) Not found:  a/b_1.jpg; No such file or directory", "file-not-found"),
        ("OSError: Cannot save file into a non-existent directory: '/mnt/results'", "file-not-found"),
        ("ValueError: Can't find a valid checkpoint at /mnt/saves/checkpoint-465", "file-not-found"),
        ("ValueError: Expected input batch_size (41) to match target batch_size (96).", "python-exception"),
    ],
)
def test_what_libraries_say_in_exceptions_of_general_classes(said: str, cause: str) -> None:
    text = f'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in <module>\n    main()\n{said}\n'
    assert explain(text).cause == cause


STEPS = "".join(f"step {step} loss 2.{9 - step}\n" for step in range(8))
FRAME = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 88, in main\n    step()\n'
OOM = f"{FRAME}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
NO_GROUP = f"{FRAME}RuntimeError: Default process group has not been initialized, please call init_process_group.\n"
NO_MODULE = f"{FRAME}ModuleNotFoundError: No module named 'flash_attn'\n"
NEEDED = f"{FRAME}RuntimeError: this model needs flash attention\n"
NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/data/a'"
FAILED = "E1001 10:10:10.000000 1 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) \
local_rank: {rank} (pid: 7) of binary: python\n"
PEER = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:24135"
DEEPSPEED = "[2025-10-01 10:10:15,000] [ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = 1\n"
WAITED = "[rank0]:[E1001 10:20:10.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600004 milliseconds before \
timing out.\n"


def of(speaker: str, text: str) -> str:
    """The text with who wrote it before each line."""
    return "".join(f"{speaker}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "cause", "rank"),
    [
        pytest.param(
            f"{FRAME}KeyboardInterrupt\n{HANDLING}{NO_GROUP}", "user-interrupt", None, id="a clean-up that fails"
        ),
        pytest.param(NO_MODULE + CAUSED + NEEDED, "import-error", None, id="raised from"),
        pytest.param(NO_MODULE + HANDLING + NEEDED, "python-exception", None, id="raised beside"),
        pytest.param(
            of("[rank3]: ", f"{FRAME}ZeroDivisionError: division by zero") + WAITED + FAILED.format(code=-6, rank=0),
            "python-exception",
            3,
            id="whom a rank waited for",
        ),
        pytest.param(
            of("[rank1]: ", f"{FRAME}ZeroDivisionError: division by zero")
            + "[rank: 1] Child process with PID 42 terminated with code 1. Forcefully terminating all others\nKilled\n",
            "python-exception",
            1,
            id="Lightning's launcher",
        ),
        pytest.param(of("trainer-1  | ", STEPS) + "trainer-1 exited with code 137\n", "unknown", None, id="compose"),
        pytest.param(
            of("[rank2]: ", OOM) + DEEPSPEED,
            "cuda-oom",
            2,
            id="a launcher's code without a rank",
        ),
        pytest.param(
            f"==> 0.log <==\n{FRAME}{PEER}\n==> 1.log <==\n{OOM}\n==> 2.log <==\n{FRAME}{PEER}\n",
            "cuda-oom",
            None,
            id="files one after the other",
        ),
        pytest.param(
            f"{FRAME}{NO_FILE}\n".replace('"', "&quot;").replace("'", "&#39;"), "file-not-found", None, id="a page"
        ),
        pytest.param(OOM.replace(" ", "\u00a0"), "cuda-oom", None, id="web pages' blanks"),
        pytest.param(of("[1,mpirank:5,algo-1]<stderr>:", OOM), "cuda-oom", 5, id="SageMaker's ranks"),
        pytest.param(
            of("(VllmWorker rank=1 pid=411) ERROR 10-01 10:10:10 [multiproc_executor.py:487] ", OOM),
            "cuda-oom",
            1,
            id="vLLM's ranks",
        ),
        pytest.param(
            '{"level": "ERROR", "error": {"type": "OSError", "stack": ' + json.dumps(f"{FRAME}{NO_FILE}") + "}}\n",
            "file-not-found",
            None,
            id="a record within a record",
        ),
        pytest.param(
            '  File [35m"/home/me/a.py"[0m, line [35m8[0m, in [35mmain[0m\n[1;35mFileNotFoundError[0m: [35m'
            + NO_FILE.partition(": ")[2]
            + "[0m\n",
            "file-not-found",
            None,
            id="what is left of colours",
        ),
        pytest.param(
            of("(Replica:default:App pid=648, ip=10.0.0.1) ", "Fatal Python error: Aborted\n\n")
            + of("(Replica:default:App pid=2712) ", NO_MODULE.partition("\n")[2]),
            "import-error",
            None,
            id="a bracket that all lines open",
        ),
        pytest.param(
            f"{FRAME}ValueError: bad loss\nterminate called after throwing an instance of 'c10::Error'\n"
            f"  what():  CUDA error: driver shutting down\n{FAILED.format(code=-6, rank=0)}",
            "python-exception",
            0,
            id="its end",
        ),
    ],
)
def test_who_failed_among_several_programs(text: str, cause: str, rank: int | None) -> None:
    found = explain(text)
    first = found.first_failure.rank if found.first_failure is not None else None
    assert (found.cause, first) == (cause, rank), found.title


AGAIN = "I1001 10:10:11.000000 1 torch/distributed/elastic/agent/server/api.py:889] [default] Worker group FAILED. 3/3 \
attempts left; will restart worker group\n"
TAKEN = "OSError: [Errno 98] Address already in use: port 29500; trying port 29501\n"
THREADS = "Exception in thread Thread-1:\nException in thread Thread-3:\n\nend\n" + "".join(
    f"{line}\n" * 2
    for line in (
        "Traceback (most recent call last):",
        '  File "/env/lib/python3.10/threading.py", line 1016, in _bootstrap_inner',
        "    self.run()",
        "OSError: handle is closed",
    )
)
EVALUATED = "evaluating\nERROR sample 4: TimeoutError: no answer, counted as wrong\n"
LOST = of("[rank1]: ", f"{FRAME}ConnectionResetError: [Errno 104] Connection reset by peer")
RESTARTED = STEPS + LOST + FAILED.format(code=1, rank=1) + AGAIN


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            f"{STEPS}run.sh: line 9:    99 Terminated    tensorboard\n{STEPS}done\n", id="a program beside it"
        ),
        pytest.param(f"{STEPS}done\n{THREADS}", id="threads that write into each other"),
        pytest.param(f"{RESTARTED}{STEPS}done\n", id="workers that were started again"),
        pytest.param(TAKEN + STEPS, id="another port"),
        pytest.param(
            "WARNING retry.py:20 attempt 1: RuntimeError: CUDA error: an illegal memory access was encountered\n"
            "====== 1 passed, 2 warnings in 0.10s ======\n",
            id="tests that passed",
        ),
        pytest.param(f"{STEPS}{OOM}halving the batch size to 8\n{STEPS}done\n", id="a smaller batch"),
        pytest.param("CUDA out of memory. Retrying with batch size 16\nusing batch size 16\n" + STEPS, id="a retry"),
        pytest.param(EVALUATED + STEPS, id="an evaluation"),
        pytest.param(f"{STEPS}job.sh: line 12: 77 Terminated              node_exporter --port 9100\n", id="a monitor"),
        pytest.param(
            f"{STEPS}job.sh: line 8: 78 Killed                  python warm_cache.py\n"
            "JobID     State      ExitCode\n41.batch  COMPLETED       0:0\n41.0      COMPLETED       0:0\n",
            id="a helper, in a job that SLURM accounts as completed",
        ),
        pytest.param(
            f"{STEPS}ERROR:    Traceback (most recent call last):\n{FRAME}asyncio.exceptions.CancelledError\n",
            id="a server that shuts down",
        ),
    ],
)
def test_what_was_got_over(text: str) -> None:
    assert explain(text).cause is None


def test_workers_that_were_started_again_in_vain() -> None:
    assert explain(RESTARTED).cause is not None
    assert explain(f"{RESTARTED}{STEPS}{of('[rank0]: ', OOM)}{FAILED.format(code=1, rank=0)}").cause == "cuda-oom"


def test_tests_that_failed() -> None:
    failed = f"{FRAME}{NO_FILE}\n====== 1 failed, 2 passed in 0.10s ======\n"
    assert explain(failed).cause == "file-not-found"


def test_a_step_that_slurm_accounts_as_failed_counts() -> None:
    rows = "41.batch  COMPLETED       0:0\n41.0      FAILED       137:0\n"
    found = explain(f"{STEPS}job.sh: line 8: 78 Killed                  python train.py\n{rows}")
    assert (found.outcome, found.exit_code) == ("failed", 137)
