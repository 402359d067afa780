"""What launchers, collectors and loggers put around the words of ranks: who speaks, and what is only shown."""

from __future__ import annotations

import json

import pytest

from ddp_run import explain

FRAMES = 'Traceback (most recent call last):\n  File "/app/fit.py", line 71, in <module>\n    main()\n'
SHAPES = "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for a.weight: copying a param with \
shape torch.Size([4]) from checkpoint, the shape in current model is torch.Size([8]).\n"
LOST = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.8.0.4]:2215"
NO_DRIVER = "RuntimeError: Found no NVIDIA driver on your system.\n"
BOX = """============================================================
victim.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-03-04_09:02:17
  host      : runner
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 860)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 860
============================================================
"""
HELP = """usage: {0} [-h] [--backbone {{r50,r101}}] [--port PORT]

Train a detector.

options:
  --port PORT           change it if you get "EADDRINUSE:
                        address already in use"
{0}: error: argument --backbone: invalid choice: 'x' (choose from 'r50')
"""
DEEPSPEED = """[2025-05-29 04:40:10,221] [INFO] [launch.py:146:main] WORLD INFO DICT: {{'localhost': [0, 1]{0}}}
[2025-05-29 04:46:52,812] [ERROR] [launch.py:325:sigkill_handler] ['python', 'sft.py', '--local_rank=1', '--x'] exits \
with return code = -11
"""
STOPPED = """ [2025-03-11 02:02:41] iteration    41200/  238418 | lm loss: 2.1
Traceback (most recent call last):
  File "/work/ckpt.py", line 76, in write
    os.fsync(fd)
OSError: [Errno 28] No space left on device
WARNING: /local/nvme is full, writing straight to /lustre
 [2025-03-11 02:12:12] iteration    41300/  238418 | lm loss: 2.1
 [2025-03-11 04:55:48] iteration    42100/  238418 | lm loss: 2.0
 [2025-03-11 07:57:30] iteration    43050/  238418 | lm loss: 2.0
slurmstepd: error: *** STEP 884213.0 ON hgx-031 CANCELLED AT 2025-03-11T08:00:21 DUE TO TIME LIMIT ***
W0311 08:00:21.418000 13 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGTERM death signal, \
shutting down workers
srun: error: hgx-031: task 0: Exited with exit code 1
srun: error: hgx-032: task 1: Terminated
"""
AGAIN = """slurmstepd: error: *** JOB 33 ON a1 CANCELLED AT 2026-04-19T23:40:03 DUE TO PREEMPTION ***
---- requeue 1 ----
[a3] resuming from last.ckpt (step 20400)
[a3] step 30000 hit@10 0.2210
[a3] finished
"""
KILLED = f"""[rank3]: {LOST}
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  NCCL error in: ProcessGroupNCCL.cpp:2093, remote process exited or there was a network error
E1009 04:51:21.611000 610 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 2 \
(pid: 690) of binary: /opt/conda/bin/python
{BOX.replace("rank      : 1 (local_rank: 1)", "rank      : 2 (local_rank: 2)")}"""
COMPILED = "[rank1]:W0214 18:30:12.660000 9110 torch/_dynamo/convert_frame.py:1125] "
FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/ref/mm39.fa'\n"
BARRIER = "".join(
    f"[rank0]: {line}\n"
    for line in f"{FRAMES}RuntimeError: Rank 2 failed to pass monitoredBarrier in \
300000 ms".splitlines()
)
RAYS = f"""({{0}} pid=20117, ip=10.0.3.4) Setting up process group for: env:// [rank=2, world_size=4]
Traceback (most recent call last):
  File "/ray/worker.py", line 2755, in get
    values = worker.get_objects(refs)
ray.exceptions.RayTaskError(RuntimeError): ray::_Inner.train() (pid=20002, ip=10.0.3.4, actor_id=5d3, repr=T)
ray.exceptions.RayTaskError(RuntimeError): ray::execute() (pid=20117, ip=10.0.3.4, actor_id=77e, repr=<W at 0x7f3a>)
  File "/home/ray/loop.py", line 64, in train_loop
    h = self.emb(tok)
{SHAPES}"""
CHAT = """**mira** 4:12 PM
seen this on the rented box?
> [rank2]:     x = self.norm2(x + self.ff
> (x))
> [rank2]: torch.OutOf
> MemoryError: CUDA out of
>  memory. Tried to allo
> cate 2.30 GiB.
> [rank1]:[W] failed to recv, g
> ot 0 bytes

**tobi** 4:15 PM
port already in use maybe?
"""
WAITED = (
    "[rank{0}]:[E602 14:30:02.3 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=9120, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds before \
timing out.\n"
)
RESTARTED = f"""{WAITED.format(6)}E0811 09:44:17.9 77 torch/distributed/elastic/multiprocessing/api.py:984] failed \
(exitcode: -6) local_rank: 6 (pid: 77196) of binary: python
I0811 09:44:17.9 77 torch/distributed/elastic/agent/server/api.py:974] [default] Worker group FAILED. 3/3 attempts \
left; will restart worker group
step 1800 wmse 0.0812
step 11100 wmse 0.0497
step 27200 wmse 0.0441
=>> PBS: job killed: walltime 86434 exceeded limit 86400
Terminated
"""
NO_INTERFACE = """torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, invalid usage
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Bootstrap : no socket interface found
"""
XID = "NVRM: Xid (PCI:0000:4f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
MISMATCH = "[rank0]: RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: \
CollectiveFingerPrint(SequenceNumber=1204, OpType=ALLREDUCE, TensorShape=[4], TensorDtypes=Float), but Rank 1 is \
running collective: CollectiveFingerPrint(SequenceNumber=1204OpType=BARRIER).\n"
RAYS_CAUSE = f"""ERROR worker_group.py:412 -- Worker group shut down due to an error in rank 8
ray.exceptions.RayTaskError(RuntimeError): ray::execute() (pid=20118, ip=10.1.7.12, actor_id=0b7, repr=<W at 0x7f>)
  File "/home/ray/main.py", line 71, in build
    restore()
{SHAPES}
The above exception was the direct cause of the following exception:

ray::execute() (pid=20118, ip=10.1.7.12, actor_id=0b7, repr=<W at 0x7f>)
  File "/home/ray/main.py", line 76, in build
    raise RuntimeError("not usable") from e
RuntimeError: not usable

The above exception was the direct cause of the following exception:

{FRAMES}ray.train.base_trainer.TrainingFailedError: The Ray Train run failed. Please inspect the previous error \
messages for a cause.
"""


def pods(*ranks: int) -> str:
    return "".join(
        f"[pod/w-{pod}/pytorch] RANK={rank} WORLD_SIZE=4\n"
        + "".join(f"[pod/w-{pod}/pytorch] {line}\n" for line in (FRAMES + NO_DRIVER if pod else "step 1").splitlines())
        for pod, rank in enumerate(ranks)
    )


def of(speaker: str, text: str) -> str:
    return "".join(f"{speaker}{line}\n" for line in text.splitlines())


def record(rank: object, text: str) -> str:
    return json.dumps({"severity": "ERROR", "labels": {"rank": rank}, "textPayload": text}) + "\n"


def files(**texts: str) -> str:
    return "\n".join(f"==> logs/{name}.out <==\n{text}" for name, text in texts.items())


@pytest.mark.parametrize(
    ("text", "cause", "rank"),
    [
        pytest.param(
            "2025-12-03 14:02:53.7 | CRITICAL | lm.guard:stop:20 - rank=9 loss is nan at step 1803, stopping (exit 1)\n"
            f"[rank8]: {LOST}\n",
            "nan-divergence",
            9,
            id="a logger's field",
        ),
        pytest.param(
            f"08:11:02 r6 | cannot go on: /nvme1/night.lmdb: No such file or directory\n[rank0]: {LOST}\n",
            "file-not-found",
            6,
            id="a logger's column",
        ),
        pytest.param(
            record("0", "loading") + record("0", FRAMES + SHAPES) + record("1", LOST) + 2 * record("1", "waiting"),
            "checkpoint-mismatch",
            0,
            id="labels of a collector",
        ),
        pytest.param(
            f"{FRAMES}ray.train.v2.api.exceptions.WorkerGroupError: Training failed due to worker errors:\n"
            f"[Rank 1 Error Snippet]:\n{FRAMES}{SHAPES}",
            "checkpoint-mismatch",
            1,
            id="Ray Train's snippet",
        ),
        pytest.param(pods(0, 1), "cuda-unavailable", 1, id="pods with a rank each"),
        pytest.param(pods(0, 8), "cuda-unavailable", None, id="pods with several ranks"),
        pytest.param(DEEPSPEED.format(""), "segfault", 1, id="DeepSpeed's local rank on the only host"),
        pytest.param(DEEPSPEED.format(", 'b': [0, 1]"), "segfault", None, id="DeepSpeed's local rank on a host"),
        pytest.param(f"{FRAMES}{NO_DRIVER}[job] rank 1 exit 1 at 18:40\n", "cuda-unavailable", 1, id="its code"),
        pytest.param(
            "2026-02-07T19:44:50.1Z stderr F [rank1]: Traceback (most recent call last):\n"
            '2026-02-07T19:44:50.1Z stderr F [rank1]:   File "/app/fit.py", line 7, in step\n'
            "2026-02-07T19:44:50.1Z stderr P [rank1]: RuntimeError: Expected to mark a vari\n"
            "2026-02-07T19:44:50.1Z stdout F step 7\n"
            "2026-02-07T19:44:50.1Z stderr F able ready only once.\n",
            "ddp-marked-twice",
            1,
            id="parts of a line",
        ),
        pytest.param(HELP.format("main.py"), "bad-arguments", None, id="help"),
        pytest.param(HELP.format("torchrun"), "syntax-or-usage", None, id="the launcher's help"),
        pytest.param(
            "=== FAILURES ===\nE   torch.distributed.DistNetworkError: The server socket has failed to listen on any "
            "local network address. port: 29500, name: EADDRINUSE\n"
            f"=== PASSES ===\n___ test_killed ___\n{BOX}=== short test summary info ===\n",
            "port-in-use",
            None,
            id="what passed tests print",
        ),
        pytest.param(
            f'{FRAMES}{SHAPES}disk: /ckpt 96% used; before a save, check for "No space left on device"\n',
            "checkpoint-mismatch",
            None,
            id="words that a note mentions",
        ),
        pytest.param(
            f"{FRAMES}__main__.GateError: canary said 'CUDA out of memory. Tried to allocate 2.00 GiB'\n",
            "python-exception",
            None,
            id="words that a message mentions",
        ),
        pytest.param(
            "1: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 802: system "
            'not yet initialized\n1: Traceback (most recent call last):\n1:   File "/app/a.py", line 4, in <module>\n'
            '1:     assert torch.cuda.is_available(), "nothing to start"\n1: AssertionError: nothing to start\n',
            "fabric-manager",
            1,
            id="why there is no GPU",
        ),
        pytest.param(
            f"[rank4]: {LOST}\nsrun: error: Node failure on c3\nsrun: error: c4: tasks 4-7: Killed\n",
            "node-failed",
            None,
            id="no rank failed before the node",
        ),
        pytest.param(
            files(a="acc 0.1\nexit 0\n", b=f"{FRAMES}{NO_DRIVER}exit 1\n", c="".join(f"acc {k}\n" for k in range(9))),
            "cuda-unavailable",
            None,
            id="files one after the other",
        ),
        pytest.param(KILLED, "unknown", 2, id="SIGKILL is no loss of a peer"),
        pytest.param(
            of(COMPILED, f"WON'T CONVERT forward\n{FRAMES}CppCompileError: C++ compile error") + FRAMES + SHAPES,
            "checkpoint-mismatch",
            None,
            id="what torch.compile left as it is",
        ),
        pytest.param(
            "test_a.py:6: in <module>\nE   ModuleNotFoundError: No module named 'jiwer'\n1 error in 0.61s\n",
            "import-error",
            None,
            id="a test that could not be collected",
        ),
        pytest.param(f"{FRAMES}{FILE}{BARRIER}", "file-not-found", 2, id="nobody's, and one didn't come"),
        pytest.param(RAYS.format("RayTrainWorker"), "checkpoint-mismatch", 2, id="Ray's process"),
        pytest.param(CHAT, "cuda-oom", 2, id="a chat that cut lines anywhere"),
        pytest.param(
            HELP.format("fit.py") + "srun: error: i2v-3: tasks 0-7: Exited with exit code 2\n",
            "bad-arguments",
            None,
            id="all ranks together",
        ),
        pytest.param(
            f"resume:load:58 - rank 6: optim-06.pt: Ran out of input (EOFError), file has 0 bytes\n"
            f"[rank1]: {LOST}\n[rank2]: {LOST}\n{of('[rank0]: ', FRAMES + LOST)}",
            "checkpoint-corrupt",
            6,
            id="one line, and short lines of those who lost it",
        ),
        pytest.param(
            f"[ ] OOMKilled / oom_kill event: raise mem\n{BOX}", "unknown", 1, id="a form that nobody filled in"
        ),
        pytest.param(
            of(
                "[rank4]: ",
                f"torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
                f"ranks:dict_keys([6])\nTraceback (most recent call last): (RANK 6)\n{FILE}",
            ),
            "file-not-found",
            6,
            id="what failed on another rank",
        ),
        pytest.param(
            RAYS.format("T").replace(
                "Setting up process group for: env:// [rank=2, world_size=4]",
                "- (node_id=f0, ip=10.0.3.4, pid=20117) world_rank=5, local_rank=1",
            ),
            "checkpoint-mismatch",
            5,
            id="Ray's list of its processes",
        ),
        pytest.param(
            of(
                "[rank6]: ",
                '  File "/work/a.py", line 31, in fetch\n    for item in it:\n  File "/work/b.py", line 90, '
                "in __call__",
            ),
            "unknown",
            6,
            id="a traceback that is cut off",
        ),
        pytest.param(RESTARTED, "preempted-sigterm", None, id="a restart that went well"),
        pytest.param(RAYS_CAUSE, "checkpoint-mismatch", 8, id="Ray's chain"),
        pytest.param(MISMATCH, "collective-mismatch", None, id="none of two that met failed first"),
        pytest.param(
            f"[2025-06-02 14:20:01][rank 0] ERROR validation failed\n{FRAMES}{FILE}"
            f"[2025-06-02 14:25:01][rank 0] still waiting for uploads\n{WAITED.format(1)}{WAITED.format(2)}",
            "file-not-found",
            0,
            id="what a logger announces",
        ),
        pytest.param(
            f"  g09  DRAINED   {XID}{of('[rank2]: ', FRAMES + NO_INTERFACE)}",
            "nccl-network",
            2,
            id="a report about another machine",
        ),
        pytest.param(
            f"[1234.5] {XID}{of('[rank2]: ', FRAMES + NO_INTERFACE)}", "gpu-hardware", 2, id="the kernel's log"
        ),
        pytest.param(
            '{"log":"step 1\\n","stream":"stdout"}\n' * 5
            + '{"log":"[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 2 has',
            "cuda-oom",
            2,
            id="a record that is cut off",
        ),
        pytest.param(
            files(a="done, exit 0\n", b=f"seed=1: auc 0.8 (best)\n{FRAMES}{SHAPES}exit 1\n")
            + files(c="seed=2: requeued, resuming at ep 30\nseed=1: auc 0.8 (best)\nseed=2: auc 0.9\ndone, exit 0\n"),
            "checkpoint-mismatch",
            None,
            id="a file after another",
        ),
        pytest.param(
            "[rank1]: step 1\nterminate called after throwing an instance of 'c10::DistBackendError'\n[rank4]:[E1219 "
            "00:09:01.1 ProcessGroupNCCL.cpp:1897] [PG ID 0 PG GUID 0(default_pg) Rank 4] Process group watchdog "
            "thread terminated with exception: CUDA error: an illegal memory access was encountered\n"
            "Exited with exit code 134.\n",
            "illegal-memory-access",
            4,
            id="the line that shows it",
        ),
        pytest.param(
            f"{FRAMES}FileNotFoundError: [Errno 2] No such file or directory: '/data/imagenet-c/corrupt/noise/3'\n",
            "file-not-found",
            None,
            id="a folder",
        ),
        pytest.param(
            f'{FRAMES}  File "/app/fit.py", line 9, in get\n    raise OutOfMemoryError(f"no slot")\n'
            "OutOfMemoryError: no slot\n",
            "python-exception",
            None,
            id="a class of the program",
        ),
        pytest.param(
            f'{FRAMES}  File "/app/fit.py", line 9, in get\n    raise AssertionError("codec is None")\n'
            "AssertionError: codec is None, checkpoint file corrupt or GPU out of memory?\n",
            "python-exception",
            None,
            id="a question",
        ),
        pytest.param(f"# Subtest\n{FRAMES}{SHAPES}ok 4 - as expected\n# pass  4\n# fail  0\n", None, None, id="TAP"),
        pytest.param(
            "6: bad sample 88121 -> ValueError: x_len must be positive\n6: exiting\n"
            f"{WAITED.format(2)}{WAITED.format(4)}terminate called without an active exception\n"
            "srun: error: dgx07: tasks 2,4: Aborted\nsrun: error: dgx07: task 6: Exited with exit code 1\n",
            "python-exception",
            6,
            id="the tasks that srun names",
        ),
        pytest.param(f"a\nb\nc\nd\n{of('[3] ', FRAMES + SHAPES)}", "checkpoint-mismatch", 3, id="a few labels"),
        pytest.param(
            f"[me@n1 ~]$ tail -n 9 logs/rank_1.err\n{FRAMES}{SHAPES}[me@n1 ~]$ date\n",
            "checkpoint-mismatch",
            1,
            id="a file that a command shows",
        ),
        pytest.param(f"{FRAMES}{FILE}rank 1 ended with status 1, rank 0 stopped\n", "file-not-found", 1, id="words"),
        pytest.param(
            "0: Traceback (most recent call last):\n"
            + of(
                "0: ",
                '  File "/app/fit.py", line 3, in save\n    dcp.save(state)\ntorch.distributed.checkpoint.api.'
                "CheckpointException: CheckpointException ranks:dict_keys([11])\nTraceback (most recent call last): "
                f'(RANK 11)\n  File "/env/site-packages/torch/distributed/checkpoint/filesystem.py", line 4, in '
                f"write\n    os.fsync(0)\n{FILE}",
            )
            + "srun: error: n0: tasks 0-7: Exited with exit code 1\nsrun: error: n1: tasks 8-15: Terminated\n",
            "file-not-found",
            11,
            id="one that was ended for what others raise",
        ),
        pytest.param(
            f"{FRAMES}UnicodeEncodeError: 'ascii' codec can't encode\nCall stack:\n"
            "  File \"/app/fit.py\", line 71, in <module>\n    main()\nMessage: '%s'\nArguments: (1,)\n",
            None,
            None,
            id="what logging could not write",
        ),
        pytest.param(
            f'####################\n#  when your job dies  #\n#  "No space left on device" -> clean /scratch\n'
            f"####################\n{of('[rank4]: ', LOST)}srun: error: Node failure on c3\n",
            "node-failed",
            None,
            id="a framed note",
        ),
        pytest.param(
            '  guards: {on_oom: "CUDA out of memory -> halve", on_nan: "Loss is nan, stopping training"}\n'
            "Could not override 'optim.lr_warmup'.\nKey 'lr_warmup' is not in struct\n",
            "bad-arguments",
            None,
            id="a printed configuration",
        ),
        pytest.param(
            "2025-02-17 06:00:04,120 WARN exited: exporter (exit status 1; not expected)\n"
            "OSError: [Errno 98] Address already in use: ('0.0.0.0', 9400)\n"
            "2025-02-17 09:48:13,764 WARN exited: trainer (terminated by SIGSEGV (core dumped); not expected)\n",
            "segfault",
            None,
            id="supervisord's programs",
        ),
        pytest.param(
            "=== FAILURES ===\n>       assert abs(a - b) < 1e-3\nE       assert 0.0214 < 0.001\n\ntests/test_auc.py:58"
            ": AssertionError\n--- Captured log call ---\nWARNING  mem.py:30 simulated: CUDA out of memory.\n",
            "python-exception",
            None,
            id="a test that failed",
        ),
        pytest.param(
            KILLED.replace("exitcode  : -9", "exitcode  : 1").replace("exitcode: -9", "exitcode: 1")
            + BOX.replace("-9", "-6").replace("Root Cause (first observed failure)", "Failures"),
            "peer-died",
            2,
            id="one that left, and one that aborted for it",
        ),
        pytest.param(
            '[rank5]: Traceback (most recent call last):\n[rank5]:   File "/ws/sim/train.py", line 1, in <module>\n'
            '[rank5]:     run()\n[rank5]:   File "/ws/sim/src/sim/ray/exceptions.py", line 12, in get\n[rank5]:     '
            "raise ActorDiedError(key)\n[rank5]: sim.ray.exceptions.ActorDiedError: The actor died unexpectedly before "
            "finishing this task: 14\n",
            "python-exception",
            5,
            id="a package in src",
        ),
        pytest.param(
            RAYS.format("RayTrainWorker").replace(
                "Setting up process group for: env:// [rank=2, world_size=4]",
                "[rank=6, local_rank=2] cuda:2 NVIDIA A10G",
            ),
            "checkpoint-mismatch",
            6,
            id="a name with another beside it",
        ),
        pytest.param(
            f"E1 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 860) "
            f"of binary: /v/bin/python\n{BOX}[Mon Sep 14 12:57:20 2026] java invoked oom-killer: order=0\n"
            "[Mon Sep 14 12:57:20 2026] Memory cgroup out of memory: Killed process 9931 (java) total-vm:12093316kB\n",
            "unknown",
            1,
            id="another program's memory",
        ),
        pytest.param(
            f"user@exo-1:~/transit$ ./run2.sh\n{of('[rank5]: ', FRAMES + SHAPES)}"
            f"user@exo-1:~/transit$ ./run2.sh --epochs 90\n{FRAMES}{FILE}user@exo-1:~/transit$ \n",
            "file-not-found",
            None,
            id="a script that was started again",
        ),
        pytest.param(STOPPED, "preempted-sigterm", None, id="survived for hours before the limit"),
        pytest.param(AGAIN, None, None, id="resumed"),
        pytest.param(AGAIN + FRAMES + SHAPES, "checkpoint-mismatch", None, id="resumed in vain"),
    ],
)
def test_who_failed_and_why(text: str, cause: str | None, rank: int | None) -> None:
    found = explain(text)
    first = found.first_failure.rank if found.first_failure is not None else None
    assert (found.cause, first) == (cause, rank), found.title
