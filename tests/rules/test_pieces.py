"""Pieces of logs that show one canonical line of a failure and nothing else are answered as likely."""

from __future__ import annotations

import pytest

from ddp_run import explain

KERNEL = "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward: block: [0,0,0], thread: [{0},0,0] Assert"
LOSS = "iter {0} | loss {1:.2f} | grad norm: {2} | lr 0.0001\n"
NANS = "".join(LOSS.format(step, 2.3, "nan") for step in range(100, 104))
HEALED = "".join(LOSS.format(step, 2.2 - step / 1000, f"1.{step}") for step in range(104, 124))
SIZES = (
    "\tsize mismatch for head.weight: copying a param with shape torch.Size([1000, 768]) from checkpoint, "
    "the shape in current model is torch.Size([10, 768]).\n"
)
BARRIER = (
    "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 0, "
    "key: store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)\n"
)
TIMED_OUT = "torch.distributed.DistNetworkError: The client socket has timed out after "
WAITED = "torch.distributed.DistStoreError: wait timeout after "
BOOTSTRAP = "h:4:4 [0] bootstrap.cc:45 NCCL WARN Bootstrap : "
CHECK = "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<long>) + 0x1f2 (0x7f12 in a.so)\n"
CHILD = "subprocess.CalledProcessError: Command '['python', '-u', 'train.py']' died with <Signals.{0}>.\n"
BOX = "  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 4242)\n  error_file: <N/A>\n"
WRAPPED = "failed (exitcode: -9)\nlocal_rank: 3\n(pid: 4242) of\nbinary: python\n"
PADDLES = "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 2.0GB memory on GPU 0\n"
PADDLES_NCCL = "ExternalError: NCCL error(5), invalid usage. \n  [Hint: 'ncclInvalidUsage'.] (at nccl.cc:78)\n"
UNUSED = "Parameters which did not receive grad for rank 3: head.bias, head.weight\n"
MISMATCH = "circuit open: Detected mismatch between collectives on ranks. Rank 1 is running collective: ALLGATHER\n"
BUSY = "local.cuh@54: CUDA Runtime Error(46): all CUDA-capable devices are busy or unavailable\n"
FABRIC = (
    "ERROR: CUDA failed to initialize.  GPU functionality is off.\n  [[ System not yet initialized (error 802) ]]\n"
)
JAXS = "Original error: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0.\n"
WARNED = "cuda/__init__.py:1: UserWarning:\nNVIDIA L90 with CUDA capability sm_130 is not compatible with the current "
WARNED += "PyTorch installation.\n"
MEMORY = "of which 2.00 MiB is free. Including non-PyTorch memory, this process has 9.90 GiB memory in use. Of the al\n"
HELD = "in use. Of the allocated memory 9.50 GiB"
SUMMARY = "E1 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 9) of x\n"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:7873\n"
HCCLS = "[ERROR] HCCL(34,python):2026-07-15-19:50:49.176.080 [topoinfo_exchange_server.cc:314] [55][Get]"
FRAMES = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in <module>\n    check(x)\n'


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param(f"{KERNEL.format(3)}ion `t < n_classes` failed.\n", "device-side-assert", id="a kernel's check"),
        pytest.param(f"step 9 {KERNEL.format(3)}{KERNEL.format(4)}\n", "device-side-assert", id="two kernels' at once"),
        pytest.param("ops.cu:88: gather(int): Assertion `i < n' failed.\n", "device-side-assert", id="an own kernel's"),
        pytest.param(SIZES * 2, "checkpoint-mismatch", id="sizes"),
        pytest.param(SIZES.replace(": copying", ":\n\tcopying"), "checkpoint-mismatch", id="sizes in several lines"),
        pytest.param("io.cpp:80: Server::run():\n  Assertion `n > 0' failed.\n" + CLOSED, "native-abort", id="assert"),
        pytest.param("io.cpp:80: void run(): Assertion `n > 0' failed.\n", "native-abort", id="assert in one line"),
        pytest.param(
            f"{FRAMES}RuntimeError: store->get() got error: HCCL_BLOCKING_WAIT\n", "nccl-init", id="HCCL's id"
        ),
        pytest.param(f"{HCCLS}topo exchange server get socket timeout! timeout[120 s]\n", "nccl-init", id="HCCL's"),
        pytest.param(
            "RuntimeError: unable to open shared memory object </torch_5_9> in read-write mode\n",
            "too-many-open-files",
            id="shared memory",
        ),
        pytest.param(
            f"feed | {CLOSED}work0 exited with code 0\nwork1 exited with code 0\nfeed exited with code 1\n",
            "peer-died",
            id="containers",
        ),
        pytest.param(
            '^^^^^^  File "/a/fit.py", line 16, in read\n^^^FileNotFoundError^^: ^^    [Errno 2] No such file or '
            "directory: '/a/b.yaml'^^with open(name) as file:\n^^\n^^ ^^^^^^\n",
            "file-not-found",
            id="others' marks",
        ),
        pytest.param(NANS, "nan-divergence", id="nan on every line"),
        pytest.param(CHECK, "nccl-timeout-hang", id="a frame of the watchdog"),
        pytest.param(CHILD.format("SIGSEGV: 11"), "segfault", id="a child's SIGSEGV"),
        pytest.param(CHILD.format("SIGABRT: 6"), "native-abort", id="a child's SIGABRT"),
        pytest.param("Stalled ranks:\n0: [allreduce.1]\nmissing ranks: 1, 3\n", "hang", id="Horovod's"),
        pytest.param(BARRIER * 2, "rendezvous-timeout", id="waiting for the others"),
        pytest.param(
            f"{TIMED_OUT}120000ms\n  while trying to connect to (n0, 29500).\n", "rendezvous-timeout", id="filled"
        ),
        pytest.param(
            f"{WAITED}900000ms, keys:\n/none/torchelastic/role_info/0\n", "rendezvous-timeout", id="a key below"
        ),
        pytest.param(f"{BOOTSTRAP}no socket interface found\n", "nccl-network", id="no interface"),
        pytest.param(
            f"{BOOTSTRAP}no socket interface found\nh:4:4 [0] NCCL INFO init.cc:128 -> 3\n", "nccl-network", id="3"
        ),
        pytest.param("NCCL WARN NET/IB : Got completion with error 12, opcode 0\n", "nccl-network", id="InfiniBand's"),
        pytest.param("[0] misc/ibvwrap.cc:123 NCCL WARN Call to ibv_create_cq failed\n", "nccl-network", id="verbs"),
        pytest.param(PADDLES, "cuda-oom", id="Paddle's memory"),
        pytest.param(PADDLES_NCCL, "nccl-init", id="Paddle's NCCL"),
        pytest.param(UNUSED, "ddp-unused-parameters", id="unused parameters"),
        pytest.param(f"0: all good? {MISMATCH}", "collective-mismatch", id="an own logger's"),
        pytest.param(BUSY, "gpu-busy", id="a C++ program's"),
        pytest.param(FABRIC, "fabric-manager", id="a container's start"),
        pytest.param(JAXS, "rendezvous-timeout", id="JAX's barrier"),
        pytest.param(
            "python:699 terminated with signal 6 at PC=7f87 SP=7ffe.  Backtrace:\n", "native-abort", id="PSM's"
        ),
        pytest.param(f"{FRAMES}ValueError: NaN values found in decoder output\n", "nan-divergence", id="values"),
        pytest.param(f"{WARNED}    NVIDIA L90 sm_130 GPU, see\n", "no-kernel-image", id="a warning and the end"),
        pytest.param(f"{MEMORY}{SUMMARY}", "cuda-oom", id="memory without the first words"),
        pytest.param(f"{HELD} is allocated by PyTorch, and 3.00 MiB is reserved by PyTorch but u\n", "cuda-oom"),
        pytest.param("9.50 GiB already allocated; 2.00 MiB free; 9.90 GiB reserved in total by PyTorch)", "cuda-oom"),
    ],
)
def test_cause(text: str, cause: str) -> None:
    found = explain(text)
    assert (found.cause, found.outcome) == (cause, found.outcome), found.title
    assert found.confidence != "unknown"


@pytest.mark.parametrize("text", [BOX, WRAPPED])
def test_a_box_in_any_layout_shows_the_end(text: str) -> None:
    found = explain(text)
    assert (found.outcome, found.exit_code, found.cause) == ("failed", 137, "unknown")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(NANS + HEALED, id="steps after it"),
        pytest.param(LOSS.format(1, 2.3, "inf") + LOSS.format(2, 2.2, "1.1"), id="a scaled gradient that was skipped"),
        pytest.param(BARRIER + HEALED, id="the others came"),
        pytest.param(SIZES + HEALED, id="sizes that were let pass"),
        pytest.param(f"{WARNED}epoch 1\nmoved to cuda:1\n\nepoch 2\nval 0.7\n", id="another GPU, which works"),
        pytest.param(f"{MEMORY}{HEALED}", id="memory that a smaller batch did with"),
        pytest.param("GPU 0: 14.06 MiB is free, 23.62 GiB memory in use by PyTorch\n", id="a report of memory"),
    ],
)
def test_what_went_on_has_no_cause(text: str) -> None:
    assert explain(text).cause is None


def test_missing_values_of_a_table_are_no_divergence() -> None:
    assert explain(f"{FRAMES}ValueError: NaN values found in column 'age'\n").cause == "python-exception"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("RuntimeError: CUDA error: no kernel image is available for exec", "no-kernel-image"),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you set CUDA? Error 802: sys",
            "fabric-manager",
        ),
        (
            "RuntimeError: [2]: params[0] in this process with sizes [5, 256] appears not to match sizes of the>",
            "ddp-shape-mismatch",
        ),
        ("RuntimeError: Timed out after 901 seconds waiting for clients. 3/8 cl", "rendezvous-timeout"),
    ],
)
def test_the_end_of_a_line_may_be_cut_off(line: str, cause: str) -> None:
    assert explain(FRAMES + line + "\n").cause == cause


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("loaded state dict contains a parameter group", "checkpoint-mismatch"),
        ("loaded state dict has a different number of ", "checkpoint-mismatch"),
        ("optimizer got an empty parameter group", "python-exception"),
    ],
)
def test_a_source_line_may_show_only_the_first_words_of_a_message(words: str, cause: str) -> None:
    frame = '  File "/venv/lib/python3.11/site-packages/torch/optim/optimizer.py", line 512, in load_state_dict\n'
    assert explain(f'{FRAMES}{frame}    raise ValueError("{words}"\n').cause == cause
