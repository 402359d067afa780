"""A rank that leaves with a line of its own is the cause, if all others only report that they lost it."""

from __future__ import annotations

import pytest

from ddp_run import explain
from ddp_run.judge.verdict import Verdict

STEPS = "".join(f"{rank}: fit: rank {rank} ready\n" for rank in range(4))
LOST = (
    "{0}: Traceback (most recent call last):\n"
    '{0}:   File "/home/me/fit.py", line 90, in <module>\n'
    "{0}: RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.1.0.7]:2044\n"
)
SURVIVED = "2: fit: OSError: [Errno 116] Stale file handle\n" + "2: fit: on with the next\n" * 3
OTHERS = LOST.format(0) + LOST.format(1) + LOST.format(3)


def read(words: str, others: str = OTHERS) -> tuple[Verdict, int | None]:
    found = explain(STEPS + words + others)
    return found, None if found.first_failure is None else found.first_failure.rank


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("cannot open /cache/rank2.lock for writing: Permission denied, rank 2 stops here", "permission-denied"),
        ("shard 7: OSError: [Errno 116] Stale file handle - leaving", "filesystem-error"),
        ("RuntimeError: can't start new thread", "process-limit"),
        ("fatal: no such directory: /local/train (is it mounted?)", "file-not-found"),
        ("hook: app.manifest.ManifestError: line 88 has no audio", "python-exception"),
        ("cannot append to part-3: ENOSPC after 12 of 40 MiB", "disk-full"),
        ("stopping, out of resource: shared memory, Required: 300000, Hardware limit: 232448", "triton-resources"),
        ("torch.cuda.is_available() is False here, giving up", "cuda-unavailable"),
    ],
)
def test_they_say_why(words: str, cause: str) -> None:
    found, rank = read(f"2: fit: {words}\n2: fit: leaving\n")
    assert (found.cause, found.confidence, rank) == (cause, "likely", 2)
    assert [each.rank for each in found.collateral] == [0, 1, 3]
    assert found.evidence[0].line == 5


@pytest.mark.parametrize(
    ("words", "others"),
    [
        pytest.param(SURVIVED, OTHERS, id="survived"),
        pytest.param("2: fit: lost: Connection reset by peer\n", OTHERS, id="lost them, too"),
        pytest.param("2: fit: ConnectionResetError: [Errno 104] of a peer\n", OTHERS, id="raised for a loss"),
    ],
)  # fmt: skip
def test_others_words_say_nothing(words: str, others: str) -> None:
    found, _ = read(words, others)
    assert found.cause == "peer-died"


def test_words_after_the_loss_say_nothing() -> None:
    found = explain(STEPS + OTHERS + "2: fit: cannot write: Permission denied\n")
    assert found.cause == "peer-died"


def test_a_rank_may_have_a_short_name() -> None:
    text = (STEPS + "2: fit: Disk quota exceeded\n" + OTHERS).replace("0: ", "[r0] ").replace("1: ", "[r1] ")
    found = explain(text.replace("2: ", "[r2] ").replace("3: ", "[r3] "))
    assert found.first_failure is not None
    assert (found.cause, found.first_failure.rank) == ("disk-full", 2)


def test_what_the_rank_printed_that_the_others_waited_for() -> None:
    lost = (
        "DataLoader worker (pid 5120) is killed by signal: Bus error. It is possible that dataloader's workers are out"
    )
    said = f"[rank5] worker lost ({lost} of shared memory.)\n"
    waited = (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/home/me/fit.py", line 255, in main\n'
        "[rank0]:     dist.monitored_barrier(timeout=timedelta(seconds=120))\n"
        "[rank0]: RuntimeError: Rank 5 failed to pass monitoredBarrier in 120000 ms\n"
    )
    found = explain(f"[rank0] it 200 loss 1.9020\n{said}{waited}")
    assert (found.cause, found.confidence) == ("shm-exhausted", "likely")
    assert found.first_failure is not None
    assert found.first_failure.rank == 5
    steps = "".join(f"[rank0] it {step} loss 1.{step}\n" for step in range(300, 900, 100))
    for other in (said.replace("rank5", "rank3"), f"{said}{steps}"):
        assert explain(f"[rank0] it 200 loss 1.9020\n{other}{waited}").cause == "gloo-timeout-hang"
    assert explain(f"[rank0] it 200 loss 1.9020\n{waited}{said}").cause == "gloo-timeout-hang"


WAITED = (
    "n1[{0}]: [rank{0}]:[E101 03:00:04.1 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=BROADCAST, NumelIn=9, NumelOut=9, Timeout(ms)=300000) ran for 300010 "
    "milliseconds before timing out.\n"
)
WAITING = WAITED.format(0) + WAITED.format(1) + "n1[0]: terminate called after throwing an instance of 'c10::Error'\n"
WAITING += (
    "E1 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -6) local_rank: 0 (pid: 9) of x\n"
)
STORE_GONE = "n2[3]: [rank3]:[W101 03:01:06.2 ProcessGroupNCCL.cpp:1659] [Rank 3] Failed to check the store\n"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("rank 3: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n", "illegal-memory"),
        ("n2[3]: reader: cannot append: Permission denied, this one ends\n", "permission-denied"),
        ("2031-01-01 02:55:00,120 [rank3] CRITICAL no boxes in sample 88 (KeyError, boxes.py:12), bye\n", "python-"),
        ("03:54:59 rank=3 fit: OSError: [Errno 5] Input/output error: 'a.tar'\n", "filesystem-error"),
        (
            "[b] [rank3] Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized\n",
            "fabric-manager",
        ),
        ("ts=02:55:00.1 rank=3 loader ends: EMFILE\n", "too-many-open-files"),
        ("[02:55:00 rank3] loader: [Errno 2] No such file or directory: '/data/7.tar'\n", "file-not-found"),
    ],
)
def test_the_others_only_waited(words: str, cause: str) -> None:
    found = explain(f"n1[0]: step 1\n{words}{WAITING}{STORE_GONE}")
    assert found.cause is not None
    assert found.cause.startswith(cause)
    assert found.confidence == "likely"
    assert found.first_failure is not None
    assert found.first_failure.rank == 3


@pytest.mark.parametrize(
    "words",
    [
        "n2[3]: reader: a.tar: OSError: [Errno 116] Stale file handle; skipping it\n",
        "reader[9]: cannot append: Permission denied\n",  # nothing says which rank has that name
        "n1[0]: reader: cannot append: Permission denied\n",  # it waited later
        "n2[3]: reader: PermissionError: no\n" + "".join(f"n2[3]: shard {word}\n" for word in "abcd"),
        "rank 3: no such file\nrank 2: Permission denied\n",  # which one?
    ],
)
def test_others_words_before_all_waited_say_nothing(words: str) -> None:
    assert explain(f"n1[0]: step 1\n{words}{WAITING}{STORE_GONE}").cause == "nccl-timeout-hang"


def test_numbers_before_lines_are_ranks_if_torch_names_the_same() -> None:
    words = "[w3] reader ends: [Errno 116] Stale file handle: '/nfs/a.bin'\n"
    text = f"[w0] step 1\n{words}{WAITING}".replace("n1[", "[w").replace("[w0]:", "[w0]").replace("[w1]:", "[w1]")
    found = explain(text)
    assert (found.cause, found.first_failure and found.first_failure.rank) == ("filesystem-error", 3)
    assert explain(text.replace("[w1] [rank1]", "[w1] [rank5]")).cause == "nccl-timeout-hang"  # they're no ranks


def test_ranks_that_waited_in_vain_for_one_that_left() -> None:
    store = "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 3/4 clients joined.\n"
    said = "[1,2]<stdout>:fit: cannot open /data/index: Permission denied, leaving\n"
    waited = "".join(f"[1,{rank}]<stderr>:[rank{rank}]: {store}" for rank in (0, 1, 3))
    found = explain("[1,0]<stdout>:fit: ready\n" + said + waited)
    assert (found.cause, found.first_failure and found.first_failure.rank) == ("permission-denied", 2)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("KeyError: 'user 7'", "python-exception"),
        ("RuntimeError: NCCL communicator was aborted on rank 3.", "nccl-timeout-hang"),
    ],
)
def test_a_mistake_below_the_timeouts_is_why_the_others_waited(message: str, cause: str) -> None:
    raised = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/home/me/fit.py", line 3, in <module>\n'
    found = explain(f"n1[0]: step 1\n{WAITING}{raised}[rank3]:     table[key]\n[rank3]: {message}\n")
    assert found.cause == cause


COLUMNS = (
    "h{1} | rank {0} | Traceback (most recent call last):\n"
    'h{1} | rank {0} |   File "/home/me/fit.py", line 90, in <module>\n'
    "h{1} | rank {0} | RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.1.0.7]:2044\n"
)
LABELS = COLUMNS.replace("h{1} | rank {0} | ", "[h{1}:{0}] ")


@pytest.mark.parametrize(
    ("words", "others"),
    [
        pytest.param("h2 | rank 11 | cannot write part-1: Disk quota exceeded\n", COLUMNS, id="columns"),
        pytest.param("[h2:11] cannot write part-1: Disk quota exceeded\n", LABELS, id="labels"),
    ],
)
def test_the_prefix_of_every_line_names_the_rank(words: str, others: str) -> None:
    torchs = others[: others.index("Trace")].format(9, 2) + "[rank9]:[W1 TCPStore.cpp:106] [c10d] sendBytes failed\n"
    found = explain(f"{words}{others.format(3, 1)}{others.format(5, 1)}{torchs}")
    assert (found.cause, found.first_failure and found.first_failure.rank) == ("disk-full", 11)


def test_a_number_that_two_hosts_have_is_no_rank() -> None:
    words = "[h2:3] cannot write part-1: Disk quota exceeded\n"
    torchs = "[h1:4] [rank4]:[W1 TCPStore.cpp:106] [c10d] sendBytes failed\n"
    found = explain(f"{words}{LABELS.format(3, 1)}{LABELS.format(5, 1)}{torchs}")
    assert found.first_failure is None or found.first_failure.rank is None
