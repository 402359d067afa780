"""Ranks of which something else tells: the kernel by a process ID, SLURM that stopped them, a handler that fails, too,
or an agent that knows only a local rank."""

from __future__ import annotations

import pytest

from ddp_run import explain

FRAMES = 'Traceback (most recent call last):\n  File "/app/fit.py", line 71, in <module>\n    main()\n'
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ../c10d/NCCLUtils.hpp:317, {0}, NCCL version 2.21.5\n"
    "{1}\nLast error:\nsocketPollConnect: connect returned Connection refused, exceeded error retry count (35)\n"
)
SYSTEM = NCCL.format(
    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
)
REMOTE = NCCL.format(
    "remote process exited or there was a network error",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
)
IN_COLLECTIVE = (
    '  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4159, in barrier\n'
    "    work = group.barrier(opts=opts)\n"
)
NO_LIBRARY = "ImportError: libGL.so.1: cannot open shared object file: No such file or directory\n"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
WATCHDOG = (
    "[rank{0}]:[E330 02:21:09.102440000 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1614, OpType=ALLREDUCE, NumelIn=262144, NumelOut=262144, Timeout(ms)=600000) ran for "
    "600070 milliseconds before timing out.\n"
)
STARTS = "".join(f"[launcher] node=a3 spawn rank {rank} pid {40210 + rank}\n" for rank in range(4))
ENDS = "".join(f"[launcher] rank {rank} pid {40210 + rank} exit -6\n" for rank in range(3))
WAITED = WATCHDOG.format(0) + WATCHDOG.format(1) + WATCHDOG.format(2)
KILLED = "[kern] 2025-03-30T02:11:09 Memory cgroup out of memory: Killed process {0} (python) total-vm:98211004kB\n"
FALLEN = "kernel: [811122.410021] NVRM: Xid (PCI:0000:5d:00): 79, pid={0}, name=python, GPU has fallen off the bus.\n"
ONE_BY_ONE = (
    "srun: error: g15: task 1: Exited with exit code 1\nsrun: Terminating StepId=3082812.1\n"
    "srun: error: g13: task 0: {0}\nsrun: Force Terminated StepId=3082812.1\n"
)
OBSERVED = (
    "[node-2] E0330 21:11:11.110000 18811 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 3) "
    "local_rank: {0} (pid: 18877) of binary: /usr/bin/python3\n"
)


def of(rank: int, text: str) -> str:
    """The text as this rank writes it under torch's agent."""
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def report(rank: int, action: str) -> str:
    """A handler that fails as it tells of a missing file."""
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/data/stats.json'\n"
    return of(rank, f"{FRAMES}{missing}{HANDLING}{FRAMES.replace('main()', action)}AttributeError: no 'post'\n")


@pytest.mark.parametrize(
    ("text", "cause", "rank"),
    [
        pytest.param(STARTS + KILLED.format(40213) + WAITED + ENDS, "host-oom", 3, id="killed for memory"),
        pytest.param(STARTS + KILLED.format(777) + WAITED + ENDS, "nccl-timeout-hang", 0, id="another process killed"),
        pytest.param(STARTS + FALLEN.format(40211) + of(0, FRAMES + REMOTE), "gpu-hardware", 1, id="a GPU's process"),
        pytest.param(
            FALLEN.format("'<unknown>'") + of(0, FRAMES + REMOTE) + "mpirun noticed that process rank 2 with PID 3303 "
            "on node h1 exited on signal 6 (Aborted).\n",
            "gpu-hardware",
            2,
            id="a GPU, and the rank that others lost",
        ),
        pytest.param(
            of(1, FRAMES + REMOTE) + ONE_BY_ONE.format("Terminated"), "nccl-network", 1, id="stopped by SLURM after one"
        ),
        pytest.param(
            "srun: error: g15: task 0: Terminated\nsrun: Terminating StepId=3082812.1\n",
            "preempted-sigterm",
            0,
            id="stopped first",
        ),
        pytest.param(
            of(2, f"{FRAMES}ZeroDivisionError: division by zero\n{HANDLING}{FRAMES}{IN_COLLECTIVE}{SYSTEM}"),
            "python-exception",
            2,
            id="a collective of a handler",
        ),
        pytest.param(report(0, 'self.notifier.post(f"no stats: {e}")'), "file-not-found", 0, id="a report of it"),
        pytest.param(report(0, "self.notifier.post()"), "python-exception", 0, id="something else"),
        pytest.param(
            "[node-2] rank 7: non-finite loss (nan) at step 8112, stopping\n" + OBSERVED.format(3),
            "nan-divergence",
            7,
            id="a local rank",
        ),
        pytest.param(
            "[rank0]:Fatal Python error: Aborted\n" + OBSERVED.format(1).replace("code: 3", "code: -6"),
            "native-abort",
            1,
            id="not another rank's words",
        ),
        pytest.param(
            "03:11:02 r0 INFO  step 3000 loss 2.6\n03:11:08 r3 INFO  /d/train-000713.tar: no such file, leaving\n"
            + WATCHDOG.format(1),
            "file-not-found",
            3,
            id="a logger's column",
        ),
        pytest.param(
            "[rank3]: Please include the loss function and the structure of the return value of `forward`.\n"
            "Parameter indices which did not receive grad for rank 1: 149 150\n",
            "ddp-unused-parameters",
            1,
            id="a rank that the line names",
        ),
        pytest.param(
            "[rank6]: For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n\nterminate called after throwing an "
            "instance of 'c10::AcceleratorError'\n  what():  CUDA error: misaligned address\n",
            "illegal-memory-access",
            6,
            id="below the only rank",
        ),
        pytest.param(
            '  File "D:\\lvg\\train.py", line 323, in main\n    distributed.init(temp_dir)\n'
            "RuntimeError: CUDA error: invalid device ordinal\n"
            "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 13452 closing signal CTRL_C_EVENT\n"
            "WARNING:torch.distributed.elastic.agent.server.api:Received 2 death signal, shutting down workers\n",
            "invalid-device",
            None,
            id="Windows' event for all",
        ),
        pytest.param(
            "    raise RuntimeError(\ntorch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
            "RuntimeError: Not all inputs to pattern found\n",
            "compile-failure",
            None,
            id="what a compiler's backend raised",
        ),
        pytest.param(
            "/v/torch/cuda/__init__.py:52: UserWarning: CUDA initialization: Unexpected error from "
            "cudaGetDeviceCount(). Error 802: system not yet initialized\n...\n"
            "    assert torch.cuda.is_available()\nAssertionError:\n",
            "fabric-manager",
            None,
            id="only the statement is left",
        ),
        pytest.param(
            "".join(
                f"|> [W220 14:40:1{k}.020413220 socket.cpp:759] [c10d] The IPv4 network address\n|> es of (trainer-0, "
                "29500) cannot be retrieved (gai error: -2 - \n|> Name or service not known).\n"
                for k in range(4)
            ),
            "rendezvous-dns",
            None,
            id="quoted in a reply",
        ),
        pytest.param(
            "batch 128: probing\n"
            + FRAMES.replace("<module>", "probe")
            + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.00 GiB. GPU 1 has a capacity of 39.39 "
            "GiB of which 2.20 GiB is free.\nbatch 64: ok\n[0] epoch 1 loss 0.9\n"
            "accelerate launch: all processes ended with 0\n",
            None,
            None,
            id="all ended with 0",
        ),
        pytest.param(
            of(
                0,
                f"{FRAMES}torch._inductor.exc.InductorError: CppCompileError: C++ compile error\n\nCommand:\ng++ a\n"
                "\nOutput:\na.cpp:31:1: fatal error: error writing to /tmp/c.s: No space left on device\n",
            ),
            "disk-full",
            0,
            id="a compiler's disk",
        ),
        pytest.param(
            of(
                0,
                f"{FRAMES}{NO_LIBRARY}\nThe above exception was the direct cause of the following exception:\n\n"
                f"{FRAMES.replace('<module>', 'load_all')}trainer.plugins.PluginError: 'augment' is broken\n{HANDLING}"
                f"{FRAMES.replace('main()', 'raise RuntimeError(str(n))')}RuntimeError: 1 plugin(s) failed\n",
            ),
            "import-error",
            0,
            id="told in the program's own words",
        ),
        pytest.param(
            "[0] sample> Q: bash: cannot create temp file: No space left on device. A: Free the partition.\n"
            + WAITED
            + OBSERVED.format(0).replace("code: 3", "code: -6"),
            "nccl-timeout-hang",
            0,
            id="what a model wrote",
        ),
        pytest.param(
            "chaos: [5/5] SIGTERM to the agent\n"
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 355 got signal: 15\n"
            "chaos: emergency checkpoint written in 1.1 s\nchaos: 5 passed, 0 failed in 143 s\n",
            None,
            None,
            id="a suite of failures",
        ),
        pytest.param(
            of(
                3,
                f"{FRAMES}RuntimeError: DDP expects same model across all ranks, but Rank 3 has 51 params, while rank "
                "0 has inconsistent 0 params.\n",
            ),
            "ddp-shape-mismatch",
            3,
            id="no number came",
        ),
    ],
)
def test_who_failed_and_why(text: str, cause: str | None, rank: int | None) -> None:
    found = explain(text)
    first = found.first_failure.rank if found.first_failure is not None else None
    assert (found.cause, first) == (cause, rank), found.title


def test_seffs_report_follows_every_job() -> None:
    raised = f"{FRAMES}" + '  File "/v/lib/python3.12/site-packages/torch/distributed/run.py", line 901, in main\n'
    raised += (
        "RuntimeError: The server socket has failed to listen on any local network address. useIpv6: 0, code: -98, "
    )
    raised += "name: EADDRINUSE, message: address already in use\n\n"
    used = "CPU Utilized: 00:00:03\nCPU Efficiency: 1.17% of 00:04:16 core-walltime\nJob Wall-clock time: 00:00:16\n"
    used += "Memory Utilized: 2.03 MB\nMemory Efficiency: 0.00% of 180.00 GB\n"
    report = (
        f"Job ID: 98\nCluster: a\nUser/Group: me/us\nState: FAILED (exit code 1)\nNodes: 1\nCores per node: 16\n{used}"
    )
    assert explain(raised + report).cause == "port-in-use"


def test_the_chain_of_a_spawned_child_is_its_own() -> None:
    failed = "OSError: [Errno 5] Input/output error\n"
    spawned = (
        f"{FRAMES}torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 0 terminated with the following "
    )
    child = '  File "/app/fit.py", line 9, in fit\n    with open(name, "w") as file:\n'
    text = f"{spawned}error:\n{failed}{HANDLING}Traceback (most recent call last):\n{child}{failed}"
    assert explain(text).cause == "filesystem-error"
