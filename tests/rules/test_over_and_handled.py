"""What is over in a log, printed as help, or raised by a handler isn't what ended the job: what came before it is."""

from __future__ import annotations

import pytest

from ddp_run import explain
from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.traceback_text import from_text
from ddp_run.judge.diagnose import judge
from ddp_run.record.events import MonotonicNs, Rank

FIT = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/home/me/fit.py", line {1}, in <module>\n'
OOM = FIT.format(3, 40) + "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
DENIED = FIT.format(5, 90) + "[rank5]: PermissionError: [Errno 13] Permission denied: '/runs/7/iter_900'\n"
ENDED = "srun: error: n1: task {0}: Exited with exit code 1\nsrun: Terminating StepId=77.{1}\n"
STEPS = "".join(
    f" iteration {step:8d}/ 9000 | elapsed (ms): 99{step % 7}.1 | ppl {9 - step / 99:.4f} |\n" for step in range(9)
)
SEEN = "E1 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: -11) local_rank: 1 (pid: 31) of x\n"
EXITED = SEEN.replace("-11", "1").replace("local_rank: 1", "local_rank: 0")
LOST = "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.1.0.7]:2044\n"
GONE = "[W8 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=5, addr=[n1]:4, remote=[n1]:2): Failed to recv\n"
ABORTS = (
    "terminate called after throwing an instance of 'c10::DistNetworkError'\n  what():  Failed to recv, got 0 bytes.\n"
)
AFTER = "\nDuring handling of the above exception, another exception occurred:\n\n"
HERE = 'Traceback (most recent call last):\n  File "/home/me/fit.py", line {0}, in train\n'


def answer(text: str) -> tuple[str | None, str | None]:
    found = explain(text)
    return found.outcome, found.cause


def test_a_step_that_failed_before_the_job_ran_again() -> None:
    assert answer(STEPS + OOM + ENDED.format(3, 0)) == ("failed", "cuda-oom")
    assert answer(OOM + ENDED.format(3, 0) + STEPS + DENIED + ENDED.format(5, 1)) == ("failed", "permission-denied")
    killed = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.\n"
    )
    killed += "srun: error: n1: task 0: Out Of Memory\n"
    cancelled = "slurmstepd: error: *** STEP 77.{0} ON n1 CANCELLED AT 2024-08-23T07:41:30 DUE TO NODE FAILURE ***\n"
    steps = "".join(f"fit: step {step} | loss {9 / step:.4f}\n" for step in range(1, 9))
    assert answer(killed + steps + cancelled.format(2)) == ("failed", "node-failed")
    assert answer(killed + steps + cancelled.format(0)) == ("failed", "host-oom")


def test_what_passed_tests_and_jobs_that_completed_print() -> None:
    tests = f"tests/test_launch.py::test_a_rank_dies\n{SEEN}PASSED\n"
    assert answer(f"{tests}===== 3 passed, 1 xfailed in 8.20s =====\n") == (None, None)
    assert answer(f"{tests}===== 1 failed, 2 passed in 8.20s =====\n")[0] == "failed"
    assert answer(f"{tests}2 passed, 4 skipped in 0.51s\n") == (None, None)
    assert answer(f"{tests}1 failed, 2 passed in 0.51s\n")[0] == "failed"
    assert answer(f"{tests}eval: 2 passed in 0.51s\n")[0] == "failed"
    shown = "Root Cause\n  rank 2\n  exitcode: -11 (SIGSEGV)\n", "ops.cu:7: sum(int): Assertion `i < n' failed.\n"
    for piece in shown:  # as the tests of a launcher show them
        assert answer(f"{piece}===== 4 passed in 61.00s (0:01:01) =====\nexit: 0\n") == (None, None)
        assert answer(f"{piece}===== 1 error in 61.00s (0:01:01) =====\n")[1] is not None
    rows = "JobID    State  ExitCode\n77   {0} 0:0\n77.0 {0} 0:0\n"
    again = "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2024-08-23T07:41:30 DUE TO NODE FAILURE ***\n"
    again += "fit: going on at 500\n9  NODE_FAIL 0:0\n{0}  COMPLETED 0:0\n{1}"
    assert answer(again.format(9, "")) == (None, None)
    assert answer(again.format("8", ""))[0] == "failed"
    assert answer(again.format(9, "9  PREEMPTED 0:0\n"))[0] == "failed"
    late = f"done\n{GONE * 2}W1 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py: failed to shutdown: "
    late += "RendezvousConnectionError: The connection to the C10d store has failed\n"
    assert answer(late + rows.format("COMPLETED")) == (None, None)
    assert answer(late + rows.format("FAILED"))[0] == "failed"


def test_what_options_are_for_is_no_failure() -> None:
    usage = "usage: fit.py [-h] [--port P] [--ckpt C]\n\noptions:\n"
    usage += '  --port P   choose another one on "address already in use"\n  --ckpt C   or CUDA out of memory\n'
    refused = f"{usage}fit.py: error: unrecognized arguments: --prot 1\n"
    box = "Root Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : 2 (pid: 9)\n"
    assert answer(f"{refused}{box}srun: error: n1: task 0: Exited with exit code 1\n") == ("failed", "bad-arguments")
    short = "usage: fit.py [-h] [--port P] [--ckpt C]\nfit.py: error: unrecognized arguments: --prot 1\n"
    for text in (f"{usage}+ torchrun fit.py\n{short}{box}", f"[rank0]: {usage}[rank0]: {short}{box}"):
        assert answer(text) == ("failed", "bad-arguments")


def test_connections_to_a_node_that_was_told_to_stop() -> None:
    told = "W1 torch/distributed/elastic/agent/server/api.py:739] Received 15 death signal, shutting down workers\n"
    lost = FIT.format(0, 7) + "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:9\n"
    lost += "[rank0]: ncclSystemError: System call failed.\n[rank0]: Last error:\n"
    lost += "[rank0]: socketStartConnect: Connect to 10.1.0.9<4001> failed : Connection refused\n"
    assert answer(told + lost) == ("interrupted", "preempted-sigterm")
    assert answer(lost + told) == ("failed", "nccl-network")


def test_of_two_nodes_the_stamps_say_which_agent_was_told_or_failed_first() -> None:
    api = "torch/distributed/elastic/agent/server/api.py:719]"
    told = f"W0302 11:20:{{0}}.100000 77 {api} Received 1 death signal, shutting down workers\n"
    died = f"E0302 11:20:31.500000 99 {api} failed (exitcode: -6) local_rank: 1 (pid: 5) of binary: /bin/python\n"
    assert answer(died + told.format(29)) == ("interrupted", "terminal-closed")
    assert answer(told.format(33) + died) == ("failed", "native-abort")
    assert answer(died + told.format(33)) == ("failed", "native-abort")
    own = "Traceback (most recent call last):\n  File \"fit.py\", line 3, in <module>\n    go()\nKeyError: 'lr'\n"
    raised = died.replace("-6", "1")  # what fails by itself may be why the job was ended
    assert answer(own + raised + told.format(29)) == ("failed", "python-exception")


def test_a_lost_peer_has_a_name_elsewhere_in_the_log() -> None:
    lost = HERE.format(8) + LOST
    stale = "09:06:44 rank2 ERROR data: /mnt/part-71.zst: [Errno 116] Stale file handle; leaving\n"
    assert answer(lost)[1] == "peer-died"
    assert answer(stale + lost)[1] == "filesystem-error"
    crash = "rank0 | Fatal Python error: Segmentation fault\n"
    followers = "".join(f"rank{n} | {line}\n" for n in (1, 2) for line in (GONE + ABORTS).splitlines())
    assert answer(followers)[1] == "store-lost"
    assert answer(crash + followers)[1] == "segfault"


def test_the_members_of_a_group_say_why() -> None:
    group = (
        '  + Exception Group Traceback (most recent call last):\n  |   File "/home/me/fit.py", line 9, in <module>\n'
    )
    group += "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
    member = '    | Traceback (most recent call last):\n    |   File "/home/me/fit.py", line 3, in save\n'
    member += "    | OSError: [Errno 28] No space left on device: '/runs/7'\n"
    text = f"{group}  +-+---------------- 1 ----------------\n{member}    +------------------------------------\n"
    text = "".join(f"[rank1]: {line}\n" for line in text.splitlines())
    found = explain(text)
    assert (found.cause, found.confidence) == ("disk-full", "certain")
    assert found.first_failure is not None
    assert found.first_failure.rank == 1


def test_a_clean_up_that_fails_too() -> None:
    first = HERE.format(5) + "ZeroDivisionError: division by zero\n"
    clean = HERE.format(9) + '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 1, in barrier\n'
    unmade = f"{clean}ValueError: Default process group has not been initialized, please make sure to call it.\n"
    found = explain(first + AFTER + unmade)
    assert (
        found.cause,
        found.first_failure and found.first_failure.exception and found.first_failure.exception.type,
    ) == (
        "python-exception",
        "ZeroDivisionError",
    )
    assert explain(first + AFTER + clean + LOST).cause == "python-exception"
    end_of_data = HERE.format(5) + "    batch = next(batches)\nStopIteration\n"
    assert explain(end_of_data + AFTER + clean + LOST).cause == "peer-died"
    assert explain(unmade).cause == "process-group-misuse"


def test_what_could_not_be_removed_while_an_error_was_handled() -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: {0!r}\n"
    read = HERE.format(5) + "    open(path)\n" + missing.format("/d/part-7.idx")
    told = f"{read}\nThe above exception was the direct cause of the following exception:\n\n"
    told += HERE.format(8) + "RuntimeError: cannot open shard 7\n"
    removed = HERE.format(20) + '  File "/usr/lib/python3.11/pathlib.py", line 1147, in unlink\n    os.unlink(self)\n'
    denied = "PermissionError: [Errno 13] Permission denied: '/s/lock'\n"
    assert explain(told + AFTER + removed + denied).cause == "file-not-found"
    found = explain(read + AFTER + HERE.format(20) + "    os.mkdir(scratch)\n" + denied)  # the fallback failed
    assert found.cause == "permission-denied"
    for saved in ("log = open(name, 'w')", "with path.open(mode='wb') as f:", "torch.save(state, last)"):
        found = explain(
            told + AFTER + HERE.format(20) + f"    {saved}\n" + denied
        )  # the failure's report, or last save
        assert (found.cause, found.confidence) == ("file-not-found", "likely")
    for work in ("rows = open(other, 'r')", "shutil.copy(other, scratch)"):
        found = explain(told + AFTER + HERE.format(20) + f"    {work}\n" + denied)
        assert (found.cause, found.confidence) == ("permission-denied", "likely")


def test_a_later_job_in_the_same_log_that_was_stopped_otherwise() -> None:
    stopped = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 71 got signal: {0}\n"
    assert answer(stopped.format(2) + STEPS + stopped.format(15)) == ("interrupted", "preempted-sigterm")
    assert answer(stopped.format(15) + STEPS + stopped.format(2)) == ("interrupted", "user-interrupt")
    assert answer(STEPS + stopped.format(2) + stopped.format(15)) == ("interrupted", "user-interrupt")
    again = explain(stopped.format(2) + STEPS * 5)
    assert (again.cause, again.confidence) != ("user-interrupt", "certain")
    alone = explain(STEPS + stopped.format(2))
    assert (alone.cause, alone.confidence) == ("user-interrupt", "certain")


@pytest.mark.parametrize(
    ("left_at", "blamed"), [(1, ("peer-died", 0, "certain")), (9, ("python-exception", 1, "likely"))]
)
def test_a_peer_that_had_ended_before_is_lost_whatever_is_handled(left_at: int, blamed: tuple[str, int, str]) -> None:
    """Some programs raise and handle an exception of their own on purpose, and then call a collective."""
    stopped = HERE.format(5) + "EarlyStop: patience\n"
    raised = from_text(stopped + AFTER + HERE.format(9) + LOST)
    left = Death(Rank(0), code=0, died_at=MonotonicNs(left_at * 10**9))
    death = Death(Rank(1), code=1, exception=raised, failed_at=MonotonicNs(4 * 10**9), died_at=MonotonicNs(5 * 10**9))
    found = judge(Evidence(deaths=(death,), clean_exits=(left,), started=2))
    assert found.first_failure is not None
    assert (found.cause, found.first_failure.rank, found.confidence) == blamed


def test_a_class_of_the_program_may_use_the_words_of_a_port() -> None:
    own = HERE.format(3) + '    raise PortInUseError(f"{berth} in use")\n'
    assert (
        explain(f"{own}sim.ports.PortInUseError: berth 7: address already in use by a vessel\n").cause
        == "python-exception"
    )
    bound = HERE.format(3) + "    server.bind(('', 9000))\nOSError: [Errno 98] Address already in use\n"
    assert explain(bound).cause == "port-in-use"


def test_a_loss_may_have_a_name_before_it() -> None:
    assert explain(HERE.format(3) + "AssertionError: d_loss is nan at it 945\n").cause == "nan-divergence"


def test_a_file_that_tail_names_may_name_its_rank() -> None:
    raised = HERE.format(3) + "KeyError: 'uid'\n"
    found = explain(f"==> logs/rank_0.log <==\nstep 1\n\n==> logs/rank_2.log <==\n{raised}")
    assert found.first_failure is not None
    assert found.first_failure.rank == 2


def test_a_key_is_data() -> None:
    raised = HERE.format(3) + "    y = labels[kind]\nKeyError: 'CUDA error: device-side assert triggered'\n"
    assert explain(raised).cause == "python-exception"
    assert explain(raised.replace("KeyError: '", "RuntimeError: ")).cause == "device-side-assert"


def test_the_words_of_an_own_class_are_not_certain() -> None:
    said = "uncorrectable ECC error encountered"
    own = HERE.format(3) + f"    raise WarpError(f'{said} in {{name}}')\nfit.warp.WarpError: {said} in sub-7\n"
    assert explain(own).confidence == "likely"
    assert explain(f"{HERE.format(3)}    y.cpu()\nRuntimeError: CUDA error: {said}\n").confidence == "certain"


def test_what_python_ignores_at_the_exit() -> None:
    ignored = "Exception ignored in atexit callback: <bound method Engine.close of <serve.Engine object at 0x7f>>\n"
    raised = "AttributeError: 'NoneType' object has no attribute 'shutdown'\n"
    assert answer(f"100%|##########| 10/10 [00:09<00:00]\n{ignored}{raised}") == (None, None)
    assert answer(f"100%|##########| 10/10 [00:09<00:00]\n{raised}")[1] == "python-exception"


def test_steps_that_absl_logs_are_progress() -> None:
    tried = "W1201 04:02:10.020102 133 remat.py:44] dots: RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes\n"
    steps = "".join(f"I1201 04:{n}:11.020102 9 train.py:2] step={n}00 ppl={9 - n / 99:.3f}\n" for n in range(10, 20))
    assert answer(tried + steps) == (None, None)
    assert answer(tried)[1] == "cuda-oom"


def test_a_signal_that_a_passed_test_sends() -> None:
    told = (
        "test_stop W1 torch/distributed/elastic/agent/server/api.py:704] Received 15 death signal, shutting down\n.\n"
    )
    assert answer(f"{told}====== 9 passed in 141.88s ======\n") == (None, None)
    assert answer(f"{told}====== 1 failed, 8 passed in 141.88s ======\n")[0] == "interrupted"


def test_what_is_retried_or_gone_on_without_is_no_failure() -> None:
    lost = "Error while uploading 'runs/7' to the Hub: 504 Server Error: Gateway Time-out{0}\nuploaded 3 files\n"
    lost += "uploaded all other files of this run, of which there are ninety, to the same place on the Hub as before\n"
    assert answer(lost.format(", retrying")) == (None, None)
    assert answer(lost.format(" - going on without it")) == (None, None)
    assert answer(lost.format("")) == (None, "hub-network")


def test_numbers_that_are_aligned_are_progress() -> None:
    steps = "".join(f">>> step {step:7d} | ce {9 / step:7.4f}\n" for step in (5, 50, 500, 5000, 50000))
    pushed = 'Traceback (most recent call last):\n  File "/home/me/gauge.py", line 21, in push\n'
    pushed += "urllib.error.URLError: <urlopen error timed out>\n"
    assert answer(pushed + steps) == (None, None)
    assert answer(pushed) == ("failed", "hub-network")


def test_words_that_the_program_raises_are_its_own() -> None:
    bound = 'Traceback (most recent call last):\n  File "/home/me/graph.py", line 61, in <module>\n    {0}\n'
    bound += "ValueError: bind: Address already in use: 88 belongs to 17\n"
    assert answer(bound.format("raise ValueError(text)")) == ("failed", "python-exception")
    assert answer(bound.format("server.bind(place)")) == ("failed", "port-in-use")


UNCAUGHT = 'Traceback (most recent call last):\n  File "/home/me/fit.py", line 188, in <module>\n'
STALE = "OSError: [Errno 116] Stale file handle\n"


def test_what_a_program_caught_did_not_end_it() -> None:
    """All that nothing catches begins at `<module>`."""
    login = (
        HERE.format(18)
        + "wandb.errors.CommError: It appears that you do not have permission to access the requested resource.\n"
    )
    assert answer(f"{login}logged offline\n{UNCAUGHT}{STALE}{EXITED}") == ("failed", "filesystem-error")
    assert answer(f"{login}logged offline\n{EXITED}") == ("failed", "auth")
    lost = f"{UNCAUGHT}{LOST}"  # of another rank
    assert answer(f"{login}{lost}{EXITED}") == ("failed", "auth")


def test_progress_between_two_exceptions_clears_the_first() -> None:
    quoted = f"{UNCAUGHT}RuntimeError: CUDA error: device-side assert triggered\n"
    steps = "".join(f"step {step} | ce {9 / step:.4f}\n" for step in (10, 500, 1000))
    assert answer(f"{quoted}{steps}{UNCAUGHT}{STALE}{EXITED}") == ("failed", "filesystem-error")
    assert answer(f"{quoted}{UNCAUGHT}{STALE}{EXITED}") == ("failed", "device-side-assert")


@pytest.mark.parametrize(
    ("handled", "told"),
    [
        ("RuntimeError: CUDA error: an illegal memory access was encountered", ("illegal-memory-access", "likely")),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", ("cuda-oom", "likely")),
        ("KeyError: 'tokens'", ("permission-denied", "certain")),
        ("app.errors.Odd: nothing known", ("permission-denied", "certain")),
    ],
)
def test_a_report_of_a_failure_that_fails_itself(handled: str, told: tuple[str, str]) -> None:
    """No handler cures a CUDA error after which the process can't use its GPU. Others may have been handled."""
    found = explain(
        f"{HERE.format(77)}{handled}\n{AFTER}{UNCAUGHT}PermissionError: [Errno 13] Permission denied: '/x'\n"
    )
    assert (found.cause, found.confidence) == told


def test_workers_that_finished_after_a_restart() -> None:
    agent = "I1 torch/distributed/elastic/agent/server/api.py:9] [default] "
    failed = f"{SEEN}{agent}Worker group FAILED. 20/20 attempts left; will restart worker group\nfit: from epoch 3\n"
    assert answer(f"{failed}{agent}worker group successfully finished. Waiting 300 seconds\n") == (None, None)
    assert answer(failed)[0] == "failed"


def test_ranks_that_waited_or_lost_a_connection_cannot_know_why() -> None:
    waited = "[rank0]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. "
    waited += "2/4 clients joined.\n"
    found = explain(FIT.format(0, 12) + waited)
    assert (found.cause, found.confidence) == ("rendezvous-timeout", "likely")
    error = "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:9, unhandled system error\n"
    error += (
        "[rank0]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    )
    error += "[rank0]: Last error:\n[rank0]: socketPollConnect: connect to 10.0.0.7<40001> returned {0}\n"
    for reason, sure in (
        ("Connection refused, exceeded error retry count (35)", "likely"),
        ("No route to host", "certain"),
    ):
        found = explain(FIT.format(0, 12) + error.format(reason))
        assert (found.cause, found.confidence) == ("nccl-network", sure)


def test_a_job_that_its_launcher_saw_end_well() -> None:
    caught = HERE.format(30) + "OSError: [Errno 5] Input/output error: '/data/a.h5'\n"
    deepspeeds = "[2025-02-03 11:00:02,881] [INFO] [launch.py:347:main] Process 77 {0}"
    well = deepspeeds.format("exits successfully.")
    for end in (
        "[runner] exit code 0 after 00:13:41",
        "accelerate launch returned 0; marker written",
        "rc=0",
        "done, exiting with status 0",
        well,
    ):
        assert answer(f"{caught}test csi 0.612\n{end}\n") == (None, None)
    uncaught = caught.replace("in train", "in <module>")  # a pipe's last command ended with 0
    assert answer(f"{uncaught}exit code 0\n") == ("failed", "filesystem-error")
    assert answer(f"{caught}exit code 1\n")[1] == "filesystem-error"
    assert answer(f"{caught}{deepspeeds.format('exits with return code = 1')}\n{well}\n")[1] == "filesystem-error"
    killed = "srun: error: n1: task 0: Killed\n"
    assert answer(f"{killed}exit code 0\n")[0] == "failed"
    done = "=== JobId=77 State={0} ExitCode=0:0 DerivedExitCode=0:0 ===\n"
    cancelled = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-05-01T10:59:02 DUE TO PREEMPTION ***\n"
    assert answer(cancelled + STEPS + done.format("COMPLETED")) == (None, None)
    assert answer(cancelled + STEPS + done.format("FAILED"))[0] is not None


def test_lines_that_look_wrapped_do_not_bring_back_what_was_survived() -> None:
    seen = "gauge: pynvml.NVMLError_GpuIsLost: GPU is lost\n"
    epochs = "".join(f"epoch {number}/3  train 0.{number}12\n" for number in (1, 2, 3))
    assert answer(seen + epochs + "best val 0.560, weights in best.pt\n") == (None, None)
    assert answer(seen) == (None, "gpu-hardware")


def test_a_command_that_failed_beside_the_job_is_no_rank() -> None:
    board = 'Traceback (most recent call last):\n  File "/env/bin/tensorboard", line 5, in <module>\n'
    board += "TypeError: Descriptors cannot be created directly.\n"
    assert answer(f"{board}{UNCAUGHT}{STALE}{EXITED}") == ("failed", "filesystem-error")
    assert answer(f"{board}{EXITED}")[1] != "filesystem-error"


def test_ray_train_points_to_what_it_printed_before() -> None:
    asks = "The Ray Train run failed. Please inspect the previous error messages for a cause."
    assert answer(f"{UNCAUGHT}ray.train.base.TrainError: {asks}\n")[1] == "unknown"
    assert (
        answer(f"(pid=7) {UNCAUGHT}(pid=7) {STALE}{UNCAUGHT}ray.train.base.TrainError: {asks}\n")[1]
        == "filesystem-error"
    )


def test_a_launcher_that_could_not_start_has_no_ranks() -> None:
    torchrun = (
        'Traceback (most recent call last):\n  File "/env/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
    )
    torchrun += '  File "/env/lib/python3.11/site-packages/torch/distributed/{0}", line 66, in next_rendezvous\n'
    torchrun += (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    )
    torchrun += "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
    static = torchrun.format("elastic/rendezvous/static_tcp_rendezvous.py")
    assert answer(OOM + static) == ("failed", "port-in-use")
    assert answer(static + OOM) == ("failed", "cuda-oom")
    assert answer(OOM + torchrun.format("rendezvous.py"))[1] == "cuda-oom"


def test_another_services_failure_is_likely_at_most() -> None:
    raised = "".join(f"{{0}} | {line}\n" for line in f"{UNCAUGHT}{STALE}".splitlines())
    ended = f"trainer-1 | {EXITED.replace('E1', 'E0617 19:03:44.310000 1')}"
    ready = "labeler-1 | ready\ntrainer-1 | ready\nlabeler-1 | up\ntrainer-1 | up\n"
    assert explain(ready + raised.format("trainer-1") + ended).confidence == "certain"
    assert explain(ready + raised.format("labeler-1") + ended).confidence == "likely"


def test_a_job_that_was_requeued_and_ended_well() -> None:
    told = "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2024-08-23T07:41:30 DUE TO PREEMPTION ***\n"
    told += "srun: error: n1: tasks 0-3: Terminated\n"
    again = f"restart 1\n{STEPS}++ exit 0\n"
    assert answer(STEPS + told)[1] == "preempted-sigterm"
    assert answer(STEPS + told + again) == (None, None)
    assert answer(STEPS + told + "++ exit 0\n")[1] == "preempted-sigterm"
    assert answer(OOM + ENDED.format(3, 0) + STEPS + "exit status of fit.sh: 0\n") == (None, None)


def test_a_server_beside_the_job_that_could_not_answer() -> None:
    request = 'Traceback (most recent call last):\n  File "/v/site-packages/aiohttp/web.py", line 9, in start\n'
    request += "  File \"/home/me/board.py\", line 4, in show\nFileNotFoundError: [Errno 2] No such file: 'live.json'\n"
    assert answer(f"{STEPS}{request}{STEPS}exit code of fit: 0\n") == (None, None)
    assert answer(request)[1] == "file-not-found"


def test_an_error_in_the_last_resort_of_a_program_is_not_the_reason() -> None:
    """What a program does at its top after any failure: it reports, or saves what it can."""
    first = FIT.format(0, 7) + "[rank0]: ZeroDivisionError: division by zero\n"
    report = FIT.format(0, 12) + "[rank0]: requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='hook.example', "
    report += "port=443): Read timed out. (read timeout=9)\n"
    found = explain(first + "".join(f"[rank0]: {line}\n" for line in AFTER.splitlines()) + report)
    assert (found.cause, found.confidence) == ("python-exception", "likely")
    assert "ZeroDivisionError" in (found.title or "")
    assert answer(report)[1] == "hub-network"


def test_what_fails_after_ctrl_c() -> None:
    pressed = FIT.format(0, 7) + "[rank0]: KeyboardInterrupt\n"
    saving = FIT.format(0, 12) + "[rank0]: RuntimeError: DataLoader worker (pid(s) 5100) exited unexpectedly\n"
    handled = "".join(f"[rank0]: {line}\n" for line in AFTER.splitlines())
    assert answer(pressed + handled + saving)[1] == "user-interrupt"
    assert answer(saving)[1] == "dataloader-worker-died"


def test_who_cancelled_a_job_is_in_its_accounts() -> None:
    killed = "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2024-08-23T07:41:30 ***\n"
    killed += "srun: error: n1: tasks 0-3: Killed\n"
    accounts = "77       fit  CANCELLED by 1007      0:0\n77.0     fit  CANCELLED      0:9\n"
    assert answer(STEPS + killed + accounts)[1] == "preempted-sigterm"
    assert answer(STEPS + killed)[1] == "unknown"


def test_hardware_that_failed_below_the_timeout_of_those_that_waited() -> None:
    waited = (
        "[rank0]:[E612 10:40:12.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds "
        "before timing out.\n"
    )
    broken = FIT.format(2, 8) + "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    found = explain(waited + broken)
    assert (found.cause, found.confidence) == ("gpu-hardware", "likely")
    assert found.first_failure is not None
    assert found.first_failure.rank == 2


def test_a_collective_in_a_finally_of_an_error_does_not_hide_it() -> None:
    first = FIT.format(1, 7) + "[rank1]: KeyError: 'boxes'\n"
    handled = "".join(f"[rank1]: {line}\n" for line in AFTER.splitlines())
    lost = (
        HERE.format(9) + '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 1, in barrier\n' + LOST
    )
    lost = "".join(f"[rank1]: {line}\n" for line in lost.splitlines())
    found = explain(first + handled + lost)
    assert (found.cause, found.confidence) == ("python-exception", "likely")
    assert explain(lost).cause == "peer-died"


def test_bars_that_begin_anew_after_a_requeue() -> None:
    epochs = "".join(f"Epoch {n}: 100%|████| 90/90 [05:00<00:00,  0.30it/s, loss=0.{n}]\n" for n in range(3, 7))
    told = "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2024-08-23T07:41:30 DUE TO JOB REQUEUE ***\n"
    told += "srun: error: n1: tasks 0-1: Terminated\n"
    assert answer(told + epochs + "`Trainer.fit` stopped: `max_epochs=7` reached.\n") == (None, None)
    assert answer(told + epochs)[1] == "preempted-sigterm"


def test_a_trial_of_a_sweep_that_failed() -> None:
    trial = "[I 2025-04-02 10:{0}:12,501] Trial {0} finished with value: 0.{0} and parameters: {{'lr': 0.00{0}}}.\n"
    failed = "[W 2025-04-02 10:13:02,004] Trial 13 failed because of the following error: OutOfMemoryError('…')\n"
    failed += (
        'Traceback (most recent call last):\n  File "/v/site-packages/optuna/study/_optimize.py", line 201, in _run\n'
    )
    failed += '  File "/home/me/sweep.py", line 70, in objective\ntorch.OutOfMemoryError: CUDA out of memory.\n'
    trials = [trial.format(n) for n in range(11, 17)]
    assert answer("".join((*trials[:2], failed, *trials[3:]))) == (None, None)
    assert answer("".join((*trials[:2], failed)))[1] == "cuda-oom"


def test_a_server_of_the_job_itself_has_its_own_reason() -> None:
    refused = FIT.format(0, 7) + "[rank0]: requests.exceptions.ConnectionError: HTTPConnectionPool(host='0.0.0.0', "
    refused += "port=8000): Max retries exceeded with url: /health (Caused by NewConnectionError('refused'))\n"
    assert answer(refused)[1] == "python-exception"
    assert answer(refused.replace("0.0.0.0", "hub.example"))[1] == "hub-network"


@pytest.mark.parametrize(
    ("file", "type_", "cause"),
    [
        ("/home/me/triton/runtime/bot.py", "triton.runtime.errors.OutOfResources", "python-exception"),
        ("/opt/source/triton/runtime/bot.py", "triton.runtime.errors.OutOfResources", "triton-resources"),
        ("/home/me/bch.py", "bch.DecodeError", "python-exception"),
        ("/v/site-packages/triton/runtime/bot.py", "triton.runtime.errors.OutOfResources", "triton-resources"),
    ],
)
def test_a_class_of_the_programs_own_module_means_what_the_program_says(file: str, type_: str, cause: str) -> None:
    said = "out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes may help."
    raised = f'  File "{file}", line 3, in step\n    raise {type_.rpartition(".")[2]}(what)\n{type_}: {said}\n'
    assert answer(HERE.format(8) + raised)[1] == cause


def test_what_a_torch_that_is_built_from_source_says_counts() -> None:
    torchs = '  File "/home/me/torch/nn/linear.py", line 125, in forward\n    return F.linear(input, self.weight)\n'
    assert answer(f"{HERE.format(8)}{torchs}torch.OutOfMemoryError: CUDA out of memory.\n")[1] == "cuda-oom"


def test_what_a_chain_handled_before_its_last_link_is_less_sure() -> None:
    refused = (
        'Traceback (most recent call last):\n  File "/home/me/weights.py", line 9, in restore\n    model.load(path)\n'
        'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a.b".\n'
    )
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    denied = (
        'Traceback (most recent call last):\n  File "/home/me/weights.py", line 30, in restore_old\n    os.mkdir(new)\n'
        "PermissionError: [Errno 13] Permission denied: '/models/new'\n"
    )
    direct = "\nThe above exception was the direct cause of the following exception:\n\n"
    last = 'Traceback (most recent call last):\n  File "/home/me/fit.py", line 5, in <module>\n    main()\n'
    last += "RuntimeError: the old weights could not be kept\n"
    assert explain(refused + during + denied + direct + last).confidence == "likely"
    found = explain(refused + direct + last)
    assert (found.cause, found.confidence) == ("checkpoint-mismatch", "certain")


def test_where_a_scheduler_or_a_shell_says_that_it_ended_well() -> None:
    lost = "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2024-08-23T07:41:30 DUE TO NODE FAILURE ***\n"
    caught = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n" + HERE.format(3)
    caught += "    fit(32)\nRuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED\nbatch 16 fits\n"
    for told in (
        "epilog: job=9 state=COMPLETED\n",
        "job finished, state COMPLETED, exit code 0:0\n",
        "JobId=9 JobState=COMPLETED Reason=None\n",
    ):
        assert answer(f"{lost}{STEPS}{told}") == (None, None)
        assert answer(f"{lost}{told.replace('COMPLETED', 'NODE_FAIL')}")[0] == "failed"
        assert answer(f"{told}{lost}{told.replace('COMPLETED', 'FAILED')}")[0] == "failed"
    assert answer(f"{OOM}upload: state=COMPLETED\n")[0] == "failed"  # of something else
    for told in (
        "me@n1:~$ echo $?\n0\n",
        "fit.sh: finished, status 0\n",
        "done (exit code 0)\n",
        "ended (rc=0)\n",
        "Job succeeded\n",
    ):
        assert answer(caught + told) == (None, None)
    for told in ("me@n1:~$ echo $?\n1\n", "fit.sh: finished, status 10\n", "0\n"):
        assert answer(caught + told)[0] == "failed"
    found = explain(f"{OOM}fit.sh: finished, status 0\n")  # of a pipe, maybe
    assert (found.cause, found.confidence) == ("cuda-oom", "likely")
    assert explain(f"{OOM}fit.sh: finished, status 9\n").confidence == "certain"


def test_a_report_of_what_was_raised_from_another_fails_too() -> None:
    cause = 'Traceback (most recent call last):\n  File "/v/site-packages/tokens/load.py", line 7, in load\n'
    cause += "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory\n"
    caught = FIT.replace("[rank{0}]: ", "").format("", 40) + "fit.data.BrokenSet: no tokens\n"
    saving = FIT.replace("[rank{0}]: ", "").format("", 44) + "PermissionError: [Errno 13] Permission denied: '/err'\n"
    direct = "\nThe above exception was the direct cause of the following exception:\n\n"
    assert answer(cause + direct + caught + AFTER + saving)[1] == answer(cause + direct + caught)[1]
    inside = caught.replace("<module>", "tokens")
    assert answer(cause + direct + inside + AFTER + saving.replace("<module>", "tokens"))[1] == "permission-denied"


@pytest.mark.parametrize(
    ("head", "rank"),
    [
        pytest.param("===== out/rank{0}.err =====", 2, id="a path"),
        pytest.param("=== rank_{0}.log ===", 2, id="a name"),
        pytest.param("==== step {0} ====", 0, id="no file"),
        pytest.param("=== run{0}.log ===", 0, id="no rank"),
    ],
)
def test_a_file_that_a_script_names_may_name_its_rank(head: str, rank: int) -> None:
    """Else it's the agent's first."""
    steps = "".join(f"it {step} loss {1 / step:.3f}\n" for step in range(1, 4))
    agent = head.replace("rank", "agent").format(9)
    found = explain(f"{head.format(0)}\n{steps}{head.format(2)}\n{HERE.format(3)}KeyError: 'uid'\n{agent}\n{EXITED}")
    assert found.first_failure is not None
    assert found.first_failure.rank == rank


def test_of_those_that_were_only_killed_none_explains_the_end() -> None:
    told = "srun: error: n1: tasks 2-3: Terminated\n"
    memory = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.\n"
    )
    found = explain(f"{STEPS}{told}{memory}srun: error: n2: task 6: Out Of Memory\n")
    assert found.first_failure is not None
    assert (found.cause, found.first_failure.rank, found.confidence) == ("host-oom", 6, "likely")
    assert answer(f"{STEPS}{told}srun: error: n2: task 6: Exited with exit code 1\n")[1] == "preempted-sigterm"
    pressed = FIT.format(0, 7) + "[rank0]: KeyboardInterrupt\n" + OOM
    assert answer(pressed)[1] == "user-interrupt"  # and what else fails then


def test_of_those_with_one_cause_the_one_is_named_whose_exception_shows_it() -> None:
    kernel = "/p/Indexing.cu:1553: indexSelectLargeIndex: block: [1,0,0], thread: [6,0,0] Assertion `a < b` failed.\n"
    raised = FIT.format(2, 8) + "[rank2]: torch.AcceleratorError: CUDA error: device-side assert triggered\n"
    aborted = SEEN.replace("-11", "-6")
    found = explain(f"{kernel}{raised}{aborted}")
    assert found.first_failure is not None
    assert (found.cause, found.first_failure.rank) == ("device-side-assert", 2)


def test_what_a_script_goes_on_from() -> None:
    step = HERE.format(3).replace("train", "<module>") + "OSError: [Errno 122] Disk quota exceeded\n"
    missing = FIT.format(1, 4) + "[rank1]: ModuleNotFoundError: No module named 'flash'\n"
    assert answer(f"{step}## cache: failed, going on without it\n## fit\nfit: 4 tasks\n{missing}")[1] == "import-error"
    assert answer(f"{step}## cache: failed, going on without it\n")[1] == "disk-full"
    assert answer(f"{step}## cache: failed\n## fit\nfit: 4 tasks\n")[1] == "disk-full"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        pytest.param("+ : 'on \"Duplicate GPU detected : rank 0 and rank 1\" ask for more'", None, id="a note"),
        pytest.param("+ echo 'on CUDA out of memory use less'", None, id="a message"),
        pytest.param("torch.OutOfMemoryError: CUDA out of memory.", "cuda-oom", id="an error"),
    ],
)
def test_notes_that_a_shell_traces_are_no_errors(line: str, cause: str | None) -> None:
    assert answer(f"{line}\n{STEPS.splitlines()[0]}\n")[1] == cause


def test_what_passed_tests_of_unittest_print() -> None:
    lines = f"test_rank_dies (t.T) ...\n{SEEN}ok\n\n{'-' * 70}\nRan 3 tests in 8.20s\n\n"
    assert answer(f"{lines}OK\n") == (None, None)
    assert answer(f"{lines}OK (skipped=1)\n") == (None, None)
    assert answer(f"{lines}FAILED (errors=1)\n")[0] == "failed"
    assert answer(lines.replace("Ran 3", "Ran 0") + "OK\n")[0] == "failed"


def test_what_led_to_the_exception_of_a_worker() -> None:
    """A file that was not there yet, and what failed in its place."""
    worker = FIT.format(3, 31) + "[rank3]: RuntimeError: Caught MemoryError in DataLoader worker process 1.\n"
    worker += "[rank3]: Original Traceback (most recent call last):\n"
    inside = '[rank3]:   File "/home/me/set.py", line {0}, in means\n[rank3]:     {1}\n[rank3]: {2}\n'
    first = inside.format(40, "open(p)", "FileNotFoundError: [Errno 2] No such file or directory: '/c/means.npy'")
    then = "[rank3]: Traceback (most recent call last):\n" + inside.format(44, "np.stack(x)", "MemoryError: no room")
    handled = "".join(f"[rank3]: {line}\n" for line in AFTER.splitlines())
    assert answer(worker + first + handled + then)[1] == "host-oom"


def test_a_wrapped_watchdog_says_more_than_the_abort_below_it() -> None:
    said = (
        "[rank6]:[E506 21:19:02.1 ProcessGroupNCCL.cpp:632] [Rank 6] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=8, OpType=_ALLGATHER_BASE, NumelIn=3, NumelOut=3, Timeout(ms)=1800000) ran for 1800109 "
        "milliseconds before timing out.",
        "[rank6]:[E506 21:19:02.5 ProcessGroupNCCL.cpp:698] [Rank 6] To avoid data inconsistency, we are taking the "
        "entire process down.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 6] Process group watchdog thread terminated with exception: "
        "[Rank 6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=_ALLGATHER_BASE, NumelIn=3, "
        "NumelOut=3, Timeout(ms)=1800000) ran for 1800109 milliseconds before timing out.",
    )
    wrapped = "".join(f"{line[at : at + 70]}\n" for line in said for at in range(0, len(line), 70))
    assert answer(wrapped)[1] == "nccl-timeout-hang"


def test_sizes_that_a_loader_skipped_before_the_first_steps_are_over() -> None:
    sizes = "[21:00:15][WARNING] size mismatch for head.weight: copying a param with shape torch.Size([77, 768]) from "
    sizes += "checkpoint, the shape in current model is torch.Size([81, 768]).{}\n"
    steps = "[21:00:16][INFO] loaded 590 tensors\n[21:03:02][INFO] rank 0: [0/20][  50/1402] loss 2.871\n"
    raised = (
        FIT.replace("[rank{0}]: ", "").format("", 44) + "RuntimeError: The size of tensor a (77) is not that of b\n"
    )
    assert answer(sizes.format("") + raised)[1] == "checkpoint-mismatch"
    assert answer(sizes.format(" -> skipped") + steps + raised)[1] == "python-exception"


def test_what_an_exception_was_raised_from_is_named_beside_it() -> None:
    """A wrapper says what gave up, its cause says why. What it was only handling is not named."""
    cause = "".join(f"[rank1]: {line}\n" for line in (
        "Traceback (most recent call last):", '  File "/home/me/report.py", line 85, in pack', "    dumps(rows)",
        "TypeError: cannot pickle '_thread.lock' object", "",
    ))  # fmt: skip
    direct = "[rank1]: The above exception was the direct cause of the following exception:\n[rank1]: \n"
    last = FIT.format(1, 31) + "[rank1]: fit.ReportError: gave up after 3 attempts\n"
    said = "rank 1 raised fit.ReportError in fit.py:31: gave up after 3 attempts"
    assert explain(cause + direct + last).title == (
        f"{said}; raised from TypeError in report.py:85: cannot pickle '_thread.lock' object"
    )
    handled = "[rank1]: During handling of the above exception, another exception occurred:\n[rank1]: \n"
    assert explain(cause + handled + last).title == said
