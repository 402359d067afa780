"""Exceptions without a rank, of a thread, of another rank's checkpoint, quoted, or torn: whose are they, do they
count?"""

from __future__ import annotations

import pytest

from ddp_run import explain
from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText

PYTHON = "cannot import name 'Shuffler' from 'torchdata' (/env/lib/python3.10/site-packages/torchdata/__init__.py)"
READY = "".join(f"n{rank // 2}: rank {rank} of 4 is ready\n" for rank in range(4))
LOST = "n{1}: [rank{0}]: RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.1.0.7]:2044\n"
OTHERS = LOST.format(0, 0) + LOST.format(1, 0) + LOST.format(3, 1)
AWAITED = (
    "[rank{0}]:[E7 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9"
    ", OpType=BROADCAST, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600041 milliseconds before timing out.\n"
)
TIMEOUTS = "".join(AWAITED.format(rank) for rank in (0, 1, 3))
ABORTED = "E1 torch/distributed/elastic/multiprocessing/api.py:8] failed (exitcode: -6) local_rank: 0 (pid: 31) of x\n"
IN_A_THREAD = """Exception in thread Thread-2 (feed):
Traceback (most recent call last):
  File "/usr/lib/python3.12/threading.py", line 1073, in _bootstrap_inner
    self.run()
  File "{}", line 31, in feed
    self.queue.put(decode(next(self.clips)))
zlib.error: Error -3 while decompressing data: incorrect header check
"""


def said(text: str) -> tuple[str | None, int | None]:
    found = explain(text)
    return found.cause, None if found.first_failure is None else found.first_failure.rank


# --------------------------------------------------------------------------------- one that nobody's line shows


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("n1: KeyError: 'speaker 12'\n", "python-exception"),
        ("n1: ModuleNotFoundError: No module named 'sox'\n", "import-error"),
        ("n1: OSError: [Errno 28] No space left on device: '/tmp/cache/12.idx'\n", "disk-full"),
    ],
)
def test_an_exception_without_a_rank_is_the_cause_if_all_ranks_only_lost_a_peer(line: str, cause: str) -> None:
    assert said(READY + line + OTHERS) == (cause, None)


@pytest.mark.parametrize(
    "line",
    [
        "n1: KeyError: 'speaker 12' - will retry with the next\n",
        "n1: ConnectionResetError: [Errno 104] Connection reset by peer\n",
        "n1: ValueError in 3 of 900 rows\n",
    ],
)
def test_one_that_is_handled_or_shows_a_loss_itself_is_not(line: str) -> None:
    assert said(READY + line + OTHERS)[0] == "peer-died"


def test_one_below_all_others_is_not() -> None:
    assert said(READY + OTHERS + "n1: KeyError: 'speaker 12'\n")[0] == "peer-died"


def test_a_thread_of_the_program_for_which_all_ranks_waited() -> None:
    assert said(IN_A_THREAD.format("/home/me/feed.py") + TIMEOUTS) == ("python-exception", None)


def test_a_thread_of_a_library_is_no_reason_to_wait() -> None:
    assert said(IN_A_THREAD.format("/env/lib/python3.12/site-packages/wandb/feed.py") + TIMEOUTS)[0] == (
        "nccl-timeout-hang"
    )


def test_a_thread_after_which_the_ranks_went_on_is_none() -> None:
    steps = "".join(f"step {number}, ppl {9 - number / 7:.3f}\n" for number in range(7))
    assert said(steps[:90] + IN_A_THREAD.format("/home/me/feed.py") + steps + TIMEOUTS)[0] == "nccl-timeout-hang"


def test_what_a_host_says_of_its_rank_that_a_barrier_awaited() -> None:
    words = "n1: rank 3: OSError: [Errno 122] Disk quota exceeded\nn1: rank 3: giving up\n"
    waited = (
        'Traceback (most recent call last):\n  File "/home/me/fit.py", line 3, in <module>\n    barrier()\n'
        "RuntimeError: Rank 3 failed to pass monitoredBarrier in 900000 ms\n"
    )
    barrier = "".join(f"[rank0]: {line}\n" for line in waited.splitlines())
    assert said(words + barrier) == ("disk-full", 3)
    assert said(barrier) == ("gloo-timeout-hang", 3)


# ----------------------------------------------------------------------------------- one that all ranks get

GATHERED = """Traceback (most recent call last):
  File "/home/me/fit.py", line 12, in <module>
    dcp.load(state, checkpoint_id="ck")
  File "/env/lib/python3.11/site-packages/torch/distributed/checkpoint/utils.py", line 263, in all_reduce
    raise final_result
torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])
Traceback (most recent call last): (RANK 2)
  File "/env/lib/python3.11/site-packages/torch/distributed/checkpoint/utils.py", line 241, in all_reduce
    local_data = map_fun()
  File "/env/lib/python3.11/site-packages/torch/distributed/checkpoint/filesystem.py", line 500, in read_data
    with self.fs.create_stream(path, "rb") as stream:
{}
"""


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/ck/__2_0.distcp'", "permission-denied"),
        ("AssertionError: req.storage_index not found", "python-exception"),
    ],
)
def test_a_checkpoints_exception_is_of_the_rank_that_it_names(last: str, cause: str) -> None:
    text = GATHERED.format(last)
    assert said(text) == (cause, 2)
    for rank in (0, 3):
        text = "".join(f"[rank{rank}]: {line}\n" for line in GATHERED.format(last).splitlines()) + text
    found = explain(text)
    assert (found.cause, found.first_failure and found.first_failure.rank) == (cause, 2)
    assert found.title is not None and found.title.startswith("rank 2 ") and "fit.py:12" in found.title


# ------------------------------------------------------------------------------------------ quoted, or torn


def test_an_exception_that_a_program_quotes_indented_did_not_end_it() -> None:
    sample = (
        'answer: the log ends with\n    Traceback (most recent call last):\n      File "a.py", line 3, in <module>\n'
        "        step()\n    torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nend of answer\n"
    )
    ended = 'Traceback (most recent call last):\n  File "/home/me/chat.py", line 9, in <module>\n    turn()\n{}\n'
    seen = (
        "E1 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 0 (pid: 31) of x\n"
    )
    assert said(sample + ended.format("IndexError: list index out of range") + seen)[0] == "python-exception"
    assert said(sample + seen)[0] == "cuda-oom"


def test_code_that_a_program_ran_under_a_name_of_its_own() -> None:
    ran = 'Traceback (most recent call last):\n  File "{0}", line 6, in <module>\n  File "{0}", line 3, in order\n'
    for name, cause in (("<candidate>", None), ("<answer 7>", None), ("<string>", "host-oom")):
        assert said(f"[r0] task 11: FAIL\n{ran.format(name)}MemoryError\npass@1 0.4\n") == (cause, None)
    killed = "Segmentation fault (core dumped)"
    tasks = "".join(f"[r{k % 2}] task {k}: pass\n" for k in range(13, 20))
    assert said(f"[r1] task 12: FAIL (killed: {killed})\n{tasks}")[0] is None
    assert said(f"{tasks}run.sh: line 3: 71 {killed} python fit.py\n")[0] == "segfault"


def test_launchers_lines_and_the_kernels_that_a_program_quotes() -> None:
    quotes = (
        'sample 1: "srun: error: n3: task 2: Segmentation fault (core dumped)"\n'
        'sample 2: "[  7.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=31, GPU has fallen off the bus."\n'
    )
    real = "srun: error: n3: task 2: Segmentation fault (core dumped)\n"
    xid = "[  7.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=31, GPU has fallen off the bus.\n"
    ended = (
        'Traceback (most recent call last):\n  File "/home/me/chat.py", line 9, in <module>\n    turn()\nKeyError: 3\n'
    )
    steps = "".join(f"step {number}, ppl {9 - number / 7:.3f}\n" for number in range(7))
    assert said(quotes + steps + ended)[0] == "python-exception"
    assert said(real)[0] == "segfault"
    assert said(xid + real)[0] == "gpu-hardware"


def test_a_rank_whose_traceback_is_torn_counts_beside_one_with_a_whole_traceback() -> None:
    whole = (
        '[rank4]: Traceback (most recent call last):\n[rank4]:   File "/home/me/fit.py", line 9, in <module>\n'
        "[rank4]:     fit()\n[rank4]: torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:2, "
        "unhandled system error, NCCL version 2.20.5\n[rank4]: Last error:\n"
        "[rank4]: socketStartConnect: Connect to 10.1.0.9<50209> failed : Connection refused\n"
    )
    torn = (
        "[rank6]:     raise RuntimeError(\n[rank6]: RuntimeError: DataLoader worker (pid(s) 81) exited unexpectedly\n"
    )
    assert said(torn + whole) == ("dataloader-worker-died", 6)
    assert said(whole)[0] == "nccl-network"


# ----------------------------------------------------------------------------------- handled, or told from outside


def test_bars_that_go_on_after_an_error_that_the_program_says_it_ignores() -> None:
    bars = [
        f"Epoch 2: {share}%|###      | {share * 5}/500 [0{share % 7}:10<09:00, 0.9it/s]\n" for share in range(20, 60)
    ]
    error = "[rank 1] hook ignored: OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')\n"
    told = "Detected KeyboardInterrupt, attempting graceful shutdown ...\n"
    assert said(bars[0] + error + bars[10] + told)[0] == "user-interrupt"
    assert said(bars[0] + error.replace("ignored", "raised") + told)[0] == "cuda-oom"


def test_an_exception_below_the_line_that_says_that_it_is_ignored() -> None:
    steps = [f"{{'loss': 0.{number}, 'epoch': {number}}}\n" for number in range(1, 5)]
    error = (
        'ERROR: not sent, ignored\nTraceback (most recent call last):\n  File "/home/me/mail.py", line 3, in send\n'
        "    connect()\nurllib.error.URLError: <urlopen error [Errno 101] Network is unreachable>\n"
    )
    assert explain(steps[0] + steps[1] + error + steps[2] + steps[3]).cause is None
    assert explain(steps[0] + steps[1] + error.replace(", ignored", "") + steps[2] + steps[3]).cause == "hub-network"


def test_a_trial_that_was_restored_and_failed_for_another_reason() -> None:
    text = (
        "2026-01-01 10:00:00,1\tERROR tune.py:13 -- Trial task failed\nray.exceptions.OutOfMemoryError: Task was "
        "killed due to the node running low on memory.\n2026-01-01 10:00:01,1\tINFO tune.py:15 -- {}\n"
        "(Worker pid=7) epoch 5\n(Worker pid=7) begins to sample\n"
        '  File "/home/me/loop.py", line 148, in fit\n    loss = f(batch.w)\n'
        "AttributeError: 'Batch' object has no attribute 'w'\n2026-01-01 10:41:03,1\tINFO tune.py:15 -- it ends\n"
    )
    assert said(text.format("Restoring trial 1 from checkpoint_3"))[0] == "python-exception"
    assert "tune.py" not in (explain(text.format("Restoring trial 1 from checkpoint_3")).title or "")
    assert said(text.format("Trial 1 is lost"))[0] == "host-oom"


def test_workers_that_ctrl_c_ended_with_their_rank() -> None:
    workers = (
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f3d21c8a4d0>\n"
        'Traceback (most recent call last):\n  File "/env/torch/utils/data/dataloader.py", line 1604, in __del__\n'
        "    self._shutdown_workers()\nRuntimeError: DataLoader worker (pid 93) is killed by signal: {}. \n"
    )
    told = "Detected KeyboardInterrupt, attempting graceful shutdown ...\n"
    ended = "[rank: 1] Child process with PID 31 terminated with code 1. Forcefully terminating all other processes\n"
    assert said(told + workers.format("Interrupt") + ended)[0] == "user-interrupt"
    assert said(told + workers.format("Killed") + ended)[0] == "dataloader-worker-died"


def test_tasks_that_are_agents_are_no_ranks() -> None:
    agent = (
        'Traceback (most recent call last):\n  File "/env/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        '  File "/env/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py", line 8, in _loop\n'
        "    raise SignalException()\n"
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 31 got signal: 15\n"
        "srun: error: n1: task 0: Exited with exit code 1\n"
    )
    cancelled = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-01-01T06:00:21 DUE TO TIME LIMIT ***\n"
    aborted = "[rank11]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 11.\n"
    found = explain(cancelled + aborted + agent)
    assert (found.outcome, found.cause) == ("interrupted", "preempted-sigterm")


def test_a_limit_of_lsf() -> None:
    text = (
        "step 31400 | ppl 9.1\nUser defined signal 2\n\nSender: LSF System <lsfadmin@b5>\nSubject: Job 71: <fit> \n"
        "The output (if any) is above this job summary.\n\n{}: job killed.\nExited with exit code {}.\n"
    )
    assert said(text.format("TERM_RUNLIMIT", 140))[0] == "preempted-sigterm"
    assert said(text.format("TERM_CPULIMIT", 152))[0] == "preempted-sigterm"
    assert said(text.format("Note", 140))[0] == "unknown"


def test_a_module_that_a_rank_says_it_lacks() -> None:
    waited = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.\n"
    store = "{0}: [rank{0}]: " + waited
    words = " 2: rank 2 (n1): cannot import the model (No module named 'apex'), exit 1\n"
    assert said(words + "".join(store.format(rank) for rank in (0, 1, 3))) == ("import-error", 2)


def test_a_node_that_kubernetes_lost_while_the_ranks_waited() -> None:
    aborted = "[rank0]: frame #{0}: c10d::work() + 0x{0} (0x7f0{0} in /env/libtorch_cpu.so)\n"
    events = "22:51:08   Warning   NodeNotReady   pod/fit-1   Node is not ready\n"
    events = "".join(aborted.format(number) for number in range(40)) + "$ kubectl get events\n" + events
    assert said(TIMEOUTS + events) == ("node-failed", None)
    assert said(TIMEOUTS + "memo: pod eval-1 was OOMKilled, which is another job\n")[0] == "nccl-timeout-hang"


def test_a_container_that_crashed_beside_those_that_lost_it() -> None:
    lost = (
        'site{0}-1  | Traceback (most recent call last):\nsite{0}-1  |   File "/app/site.py", line 12, in <module>\n'
        "site{0}-1  |     average()\n"
        "site{0}-1  | RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.1.0.7]:2044\n"
    )
    ends = "site2-1 exited with code 134\nsite1-1 exited with code 1\nsite0-1 exited with code 1\n"
    crash = "site2-1  | corrupted size vs. prev_size: double free or corruption (out)\n"
    assert said(crash + lost.format(0) + lost.format(1) + ends)[0] == "native-abort"
    assert said(lost.format(0) + lost.format(1) + ends.replace("134", "1"))[0] == "peer-died"


def test_a_prompt_or_another_ranks_line_ends_a_message() -> None:
    raised = (
        'Traceback (most recent call last):\n  File "/home/me/fit.py", line 9, in <module>\n    fit()\nKeyError: 3\n'
    )
    quoted = "me@n1:~/fit$ grep -c 'CUDA out of memory. Tried to allocate 2.00 GiB' old.log\n"
    found = explain(raised + quoted)
    assert (found.cause, found.title) == ("python-exception", "a rank raised KeyError in fit.py:9: 3")
    stall = "[1,0]<stderr>:stall_inspector: some ranks are late\n[1,0]<stderr>:Missing ranks:\n[1,0]<stderr>:3: [fc]\n"
    ignored = "".join(f"[1,3]<stderr>:{line}\n" for line in ("Exception ignored in: <f>", *raised.splitlines()))
    assert said(f"{stall}{ignored}[1,0]<stdout>:epoch 3\n[1,0]<stdout>:all 4 ranks finished\n")[0] is None


def test_a_source_line_that_does_not_parse_may_be_a_raise() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/home/me/fit.py", line 3, in <module>\n    import shops\n'
        '  File "/home/me/shops.py", line 31\n    raise RuntimeError(f"{store.wait s}")\n{}SyntaxError: {}\n'
    )
    marks = "                              ^^^^\n"
    assert said(text.replace("{}SyntaxError", f"{marks}SyntaxError").replace(": {}", ": f-string: invalid syntax"))[
        0
    ] == ("syntax-or-usage")


def test_an_exception_that_ray_passes_on_is_the_workers_own() -> None:
    task = "ray.exceptions.RayTaskError({0}): ray::{1}() (pid=7, ip=10.3.0.14, actor_id=0e, repr=Trainer)\n"
    frame = '  File "{0}", line {1}, in {2}\n    pass\n'
    driver = frame.format("/env/lib/python3.10/site-packages/ray/_private/worker.py", 26, "get")
    train = frame.format("/env/lib/python3.10/site-packages/ray/tune/trainable/trainable.py", 33, "train")
    fit = frame.format("/home/me/fit.py", 12, "step")
    for last, cause in (("IndexError: 7", "python-exception"), (f"ImportError: {PYTHON}", "import-error")):
        name = last.partition(":")[0]
        text = f"Traceback (most recent call last):\n{driver}{task.format(name, '_Inner.train')}{train}"
        text += f"{task.format(name, '_Worker.get_next')}{fit}{last}\n"
        found = explain(text)
        assert (found.cause, found.confidence) == (cause, "certain")
        assert found.title is not None
        assert "fit.py:12" in found.title
        points = (
            "\nThe above exception was the direct cause of the following exception:\n\n"
            "Traceback (most recent call last):\n"
            + frame.format("/home/me/main.py", 3, "<module>")
            + "ray.train.base_trainer.TrainingFailedError: Please inspect the previous error messages for a cause.\n"
        )
        assert said(text + points)[0] == cause


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "10:49 [0/4] test crashed: ModuleNotFoundError(\"No module named 'sox'\"), exiting with code 2\n",
            "import-error",
        ),
        (
            '{"rank": 2, "event": "exit", "why": "part 2 unreadable: EOFError(\'Ran out of input\')"}\n',
            "checkpoint-corrupt",
        ),
        ("n2 rank 2-3 stop: no apex here (No module named 'apex')\n", "import-error"),
    ],
)
def test_the_last_line_before_all_others_waited_says_who_leaves_and_why(line: str, cause: str) -> None:
    assert said(f"fit: 4 workers\n{line}{TIMEOUTS}{ABORTED}")[0] == cause
    assert said(f"fit: 4 workers\n{line}fit: next round\n{TIMEOUTS}{ABORTED}")[0] == "nccl-timeout-hang"


def test_a_last_line_in_which_nobody_leaves_says_nothing() -> None:
    assert (
        said(f"fit: 4 workers\nboard: No module named 'tensorboard', no plots\n{TIMEOUTS}{ABORTED}")[0]
        == "nccl-timeout-hang"
    )


def test_progress_of_ranks_clears_an_exception_without_a_rank() -> None:
    compiled = (
        'Traceback (most recent call last):\n  File "/env/site-packages/torch/_inductor/codecache.py", line 1, in f\n'
        "    raise CppCompileError(cmd, output)\ntorch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
        "CppCompileError: C++ compile error\n\n"
    )
    steps = "".join(f"[rank 0] step {number}00/9000 ppl {9 - number / 7:.3f} 1.8 it/s\n" for number in range(7))
    assert said(compiled)[0] == "compile-failure"
    assert said(compiled + steps)[0] is None


def test_an_abort_that_only_tells_of_a_lost_peer_is_no_crash() -> None:
    lost = (
        "[rank4]:[E2 ProcessGroupNCCL.cpp:1895] [PG 0 Rank 4] Process group watchdog thread terminated with exception: "
        "NCCL error: remote process exited or there was a network error\nncclRemoteError: A call failed.\n"
    )
    seen = (
        "E1 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: -6) local_rank: 4 (pid: 31) of x\n"
    )
    assert (
        said(f"{lost}terminate called after throwing an instance of 'c10::DistBackendError'\n{seen}")[0] == "peer-died"
    )


def test_bare_numbers_before_all_lines_are_ranks_if_torch_names_the_same() -> None:
    words = "[2] 10:44 ERROR OSError: [Errno 28] No space left on device: '/tmp/2.idx'\n"
    torchs = "".join(
        f"[{rank}] {line}" for rank, line in zip((0, 1, 3), TIMEOUTS.splitlines(keepends=True), strict=True)
    )
    assert said("".join(f"[{rank}] ready\n" for rank in range(4)) + words + torchs) == ("disk-full", 2)


def test_a_machine_that_was_preempted() -> None:
    steps = "".join(f"step {number}00 ppl {9 - number / 7:.3f}\n" for number in range(7))
    assert said(f"{steps}batch: task 0 RUNNING -> FAILED, exit code 50001 (VM preempted)\n")[0] == "preempted-sigterm"


# --------------------------------------------------------------------------------------- whose lines they are


def test_the_lines_below_a_ranks_native_message_are_its_own() -> None:
    lost = (
        "[rank1]:[E7 11:02:08.1 ProcessGroupNCCL.cpp:552] [Rank 1] Collective WorkNCCL(SeqNum=9) raised the following "
        "async exception: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nNET/IB : Got completion from peer 10.1.0.9<4711> with status=5 opcode=0\n"
        "Exception raised from checkForNCCLErrors at ProcessGroupNCCL.cpp:1723 (most recent call first):\n"
        "frame #0: c10::Error::Error() + 0x96 (0x7f5 in /env/torch/lib/libc10.so)\n"
    )
    own = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x07 (most recent call first):\n"
    own += '  File "/home/me/kernels.py", line 3 in fused\n'
    assert said(lost + own + ABORTED.replace("-6", "-11").replace("local_rank: 0", "local_rank: 3")) == ("segfault", 3)


def test_an_agent_in_a_pod_means_the_rank_that_raised_there() -> None:
    raised = (
        'fit-{0} [rank{1}]: Traceback (most recent call last):\nfit-{0} [rank{1}]:   File "/app/fit.py", line 9, in '
        "<module>\nfit-{0} [rank{1}]:     step()\nfit-{0} [rank{1}]: {2}\n"
    )
    noted = "fit-{0} [rank{1}]: step 40 | loss 2.1\n"
    steps = "".join(noted.format(rank // 2, rank) for rank in (0, 1, 2, 4, 5))
    seen = (
        "fit-{} E1 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: {} (pid: 3)"
    )
    ended = f"{seen.format(2, 1)} of binary: /usr/bin/python\n"
    assert said(steps + raised.format(2, 5, "KeyError: 'masks'") + ended) == ("python-exception", 5)
    assert said(steps + raised.format(0, 0, "KeyError: 'masks'") + ended)[1] != 5


RECORD = '{{"ts": 17660000{0:02d}.5, "level": "{1}", "rank": {2}, "event": "{3}"{4}}}\n'
PUSHED = (
    ', "exc_info": "Traceback (most recent call last):\\n  File \\"/app/push.py\\", line 4, in push\\n    post()'
    '\\nrequests.exceptions.ConnectTimeout: timed out"'
)


def test_numbers_beside_the_text_of_a_record_show_steps() -> None:
    steps = [RECORD.format(k, "info", 0, "fit", f', "step": {k}, "loss": 2.{k}') for k in range(10, 40)]
    pushed = RECORD.format(20, "error", 0, "push failed", PUSHED)
    assert said("".join([*steps[:10], pushed, *steps[10:]])) == (None, None)
    assert said("".join([*steps, pushed])) == ("hub-network", 0)  # and nothing shows that it went on
    same = [RECORD.format(k, "info", 0, "fit", ', "pid": 7') for k in range(10, 40)]
    assert said("".join([*same[:10], pushed, *same[10:]]))[0] is not None  # times alone are no steps
    ended = [RECORD.format(45, "info", 0, "over", f', "exit_code": {code}') for code in (0, 1)]
    assert said("".join([*steps, pushed, ended[0]])) == (None, None)
    assert said("".join([*steps, pushed, ended[1]])) == ("hub-network", 0)


def test_of_ranks_that_a_scheduler_killed_together_none_failed_first() -> None:
    cancelled = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-01-01T06:00:21 DUE TO TIME LIMIT ***\n"
    killed = "srun: error: n2: tasks 2-3: {}\nsrun: error: n1: tasks 0-1: Terminated\n"
    found = explain(cancelled + killed.format("Terminated"))
    assert (found.cause, found.first_failure, found.exit_code) == ("preempted-sigterm", None, 143)
    assert found.title is not None and found.title.startswith("the job was killed by the scheduler")
    raised = 'Traceback (most recent call last):\n  File "fit.py", line 9, in <module>\n    step()\nKeyError: 3\n'
    ended = "".join(f"2: {line}\n" for line in raised.splitlines())
    assert said(ended + cancelled + killed.format("Exited with exit code 1")) == ("python-exception", 2)


REFUSED = (
    "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:31, internal error, NCCL version 2.19.3\n"
    "ncclInternalError: Internal check failed.\nLast error:\nNet : Connect to 10.1.0.7<5711> failed : {}\n"
)


@pytest.mark.parametrize(
    ("words", "cause", "rank"),
    [("Connection refused", "permission-denied", 5), ("No route to host", "nccl-network", None)],
)
def test_who_refuses_a_connection_may_have_left(words: str, cause: str, rank: int | None) -> None:
    text = "20:01:58 rank 5/8 reading /nfs/part-5 failed: [Errno 13] Permission denied\n20:01:58 rank 5/8 exits\n"
    head = 'Traceback (most recent call last):\n  File "/home/me/dpo.py", line 188, in <module>\n    main()\n'
    assert said(text + (head + REFUSED.format(words)) * 3) == (cause, rank)


def test_a_cause_that_another_rank_shows_above_those_that_only_lost_it() -> None:
    failed = (
        "[rank6]:[E7 20:15:20.1 ProcessGroupNCCL.cpp:1414] [PG 0 (default_pg) Rank 6] Process group watchdog thread "
        "terminated with exception: CUDA error: an illegal memory access was encountered\n"
    )
    lost = (
        "[rank{0}]:[E7 20:15:24.4 ProcessGroupNCCL.cpp:563] [Rank {0}] Collective WorkNCCL(SeqNum=9) raised the "
        "following async exception: NCCL error: remote process exited or there was a network error, NCCL version 2.2\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketProgress: Connection closed by remote peer n3<421{0}>\n"
        "[rank{0}]:[E7 20:15:24.5 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank {0}] Process group watchdog "
        "thread terminated with exception: NCCL error: remote process exited or there was a network error\n"
    )
    ended = ABORTED.replace("local_rank: 0", "local_rank: 3")
    assert said(failed + lost.format(3) + lost.format(2) + ended) == ("illegal-memory-access", 6)
    assert said(lost.format(3) + lost.format(2) + ended)[0] == "peer-died"


def test_a_label_with_host_and_local_rank_is_that_of_the_rank_that_torch_names_behind_it() -> None:
    named, other = "[{0}:{1}] 11:08:11 [rank{2}]:[E7 ProcessGroupNCCL.cpp:616] timeout", "[{0}:{1}] 11:08:12 terminate"
    places = (("b", 1, 9), ("a", 1, 1), ("b", 2, 10), ("a", 0, 0))
    lines = [form.format(*place) for place in places for form in (named, other)]
    spoken = SpokenText.of_logs([Log(LogText("log", (*lines, "[b:3] 11:08:13 step 7")))])
    assert [each.ranks for each in spoken.by] == [(rank,) for _host, _local, rank in places for _form in "ab"] + [()]
    both = [*lines, named.format("b", 1, 17)]  # a label of several ranks is nobody's
    assert SpokenText.of_logs([Log(LogText("log", tuple(both)))]).by[1].ranks == ()


def test_what_each_of_several_exceptions_says_once_shows_no_progress() -> None:
    """A thread's exception is the cause if the others waited, unless the program went on after it."""
    thread = IN_A_THREAD.format("/home/me/clips.py")
    told = "RuntimeError: Rank {0} successfully reached monitoredBarrier, but received errors while waiting for "
    told += "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n"
    told += "[../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]:2011{0}\n"
    head = 'Traceback (most recent call last):\n  File "/home/me/fit.py", line 71, in <module>\n    main()\n'
    missed = "[E ProcessGroupGloo.cpp:138] [Rank 0]: Ranks 6 failed to pass monitoredBarrier in 1800000 ms\n"
    waited = missed + "".join(head + told.format(rank) for rank in (1, 2, 3, 4, 5, 7))
    steps = "".join(f"step {k} loss 2.{k}\n" for k in range(9))
    assert said(steps + thread + waited)[0] == "python-exception"
    assert said(thread + steps + waited)[0] == "gloo-timeout-hang"
