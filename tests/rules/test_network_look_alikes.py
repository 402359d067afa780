"""Wordings of other releases, and texts that hold a network or collective cause's words for another reason."""

from __future__ import annotations

import pytest

from ddp_run import explain
from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted import transcript
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge.diagnose import judge
from ddp_run.judge.text_signs import shows
from ddp_run.judge.verdict import Verdict

MAIN = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 8, in <module>\n    main()\n'
TORCH = '  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 900, in {}\n    pass\n'
NCCL = "torch.distributed.DistBackendError: NCCL error in: ../c10d/NCCLUtils.hpp:317, {}, NCCL version 2.21.5\n{}\n"
ENDED = (
    "E0914 10:05:42.218000 4121 torch/distributed/elastic/multiprocessing/api.py:869] "
    "failed (exitcode: {}) local_rank: 0 (pid: 4188) of binary: /usr/bin/python\n"
)
UNRESOLVED = (
    "[W1121 08:22:16.838437673 socket.cpp:752] [c10d] The IPv6 network addresses of (node-a, 29500) cannot be "
    "retrieved (gai error: -2 - Name or service not known).\n"
)
UNREACHED = "The client socket has timed out after 8000ms while trying to connect to (node-a, 29500)."
TRIED = "[W socket.cpp:697] [c10d] The client socket has failed to connect to [10.0.3.7]:29500 (errno: 110 - x).\n"
UNIQUE_ID = (
    "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
    "c10d key-value store by key '0', but store->get('0') got error: "
)
DEAD_WATCHDOG = (
    "[rank0]:[E1120 ProcessGroupNCCL.cpp:1414] [PG 0 Rank 0] Process group watchdog thread terminated with exception: "
    "CUDA error: an illegal memory access was encountered\n"
    "[rank0]:[E1120 ProcessGroupNCCL.cpp:577] [Rank 0] Some NCCL operations have failed or timed out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)


def verdict_of(text: str) -> Verdict:
    lines = tuple(text.removesuffix("\n").split("\n"))
    return judge(transcript.read(SpokenText.of_logs([Log(LogText("log.txt", lines))]), shows))


@pytest.mark.parametrize(
    ("function", "raised", "cause", "confidence"),
    [
        ("init_process_group", "RuntimeError: Socket Timeout", "rendezvous-timeout", "certain"),
        (
            "_store_based_barrier",
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
            "store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)",
            "rendezvous-timeout",
            "certain",
        ),
        (
            "init_process_group",
            "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
            "rendezvous-timeout",
            "certain",
        ),
        ("init_process_group", f"TimeoutError: {UNREACHED}", "rendezvous-timeout", "certain"),
        ("init_process_group", "socket.gaierror: [Errno -2] Name or service not known", "rendezvous-dns", "certain"),
        ("barrier", NCCL.format("internal error", "ncclInternalError: Internal check failed."), "nccl-init", "likely"),
        ("barrier", "RuntimeError: NCCL Error 1: unhandled cuda error", "nccl-init", "likely"),
        ("barrier", "RuntimeError: NCCL error: unhandled system error", "nccl-network", "likely"),
        (
            "barrier",
            NCCL.format("internal error", "Last error:\nProxy Call to rank 8 failed (Connect)"),
            "nccl-network",
            "likely",
        ),
        (
            "barrier",
            NCCL.format(
                "unhandled system error",
                "Last error:\nError while creating shared memory segment /dev/shm/nccl-5b (size 9637888)",
            ),
            "shm-exhausted",
            "certain",
        ),
        (
            "barrier",
            NCCL.format("remote error", "ncclRemoteError: x\nLast error:\nConnection closed by remote peer b<4123>"),
            "peer-died",
            "certain",
        ),
        ("barrier", f"{UNIQUE_ID}wait timeout after 600000ms, keys: /default_pg/0", "nccl-init", "likely"),
        ("barrier", f"{UNIQUE_ID}Connection reset by peer", "peer-died", "certain"),
        (
            "monitored_barrier",
            "RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 4000 ms",
            "gloo-timeout-hang",
            "certain",
        ),
        (
            "all_reduce",
            "RuntimeError: [../gloo/transport/tcp/pair.cc:589] Read error [127.0.0.1]:24197: Connection reset by peer",
            "peer-died",
            "certain",
        ),
        (
            "init_process_group",
            "RuntimeError: [/gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:25432: Connection refused",
            "gloo-network",
            "likely",
        ),
        ("all_reduce", "RuntimeError: Tensors must be CUDA and dense", "process-group-misuse", "certain"),
    ],
)
def test_wordings(function: str, raised: str, cause: str, confidence: str) -> None:
    verdict = verdict_of(f"{MAIN}{TORCH.format(function)}{raised}\n")
    assert (verdict.cause, verdict.confidence) == (cause, confidence)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{MAIN}RuntimeError: Socket Timeout\n", id="a socket of the program's own"),
        pytest.param(f"{MAIN}ValueError: Unknown backend agg\n", id="a backend of another library"),
        pytest.param(f"{UNRESOLVED}{MAIN}ValueError: 3 channels, expected 1\n", id="a lookup that did not matter"),
        pytest.param(
            f"Timed out waiting 4000ms for recv operation to complete\n{MAIN}KeyError: 'x'\n", id="a handled time-out"
        ),
    ],
)
def test_words_for_another_reason(text: str) -> None:
    assert verdict_of(text).cause == "python-exception"


def test_a_harmless_lookup_is_not_why_a_silent_rank_ended() -> None:
    assert verdict_of(f"{UNRESOLVED}step 3 loss 0.2\n{ENDED.format(1)}").cause == "unknown"


def test_a_name_that_resolves_is_not_to_blame() -> None:
    raised = f"{MAIN}{TORCH.format('init_process_group')}torch.distributed.DistNetworkError: {UNREACHED}\n"
    assert verdict_of(UNRESOLVED + raised).cause == "rendezvous-dns"
    assert verdict_of(UNRESOLVED + TRIED + raised).cause == "rendezvous-timeout"


def test_the_watchdog_also_tells_of_other_errors() -> None:
    assert verdict_of(DEAD_WATCHDOG + ENDED.format(-6)).cause != "nccl-timeout-hang"


@pytest.mark.parametrize(
    ("frame", "raised", "helps"),
    [
        ("/usr/lib/python3.11/socketserver.py", "OSError: [Errno 98] Address already in use", False),
        (
            "/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py",
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use",
            True,
        ),
    ],
)
def test_a_new_master_port_cures_only_the_stores(frame: str, raised: str, helps: bool) -> None:
    verdict = verdict_of(f'{MAIN}  File "{frame}", line 466, in bind\n    pass\n{raised}\n{ENDED.format(1)}')
    assert verdict.cause == "port-in-use"
    assert verdict.retry is not None
    assert verdict.retry.helps is helps


@pytest.mark.parametrize("file", ["/home/user/train.py", "/usr/lib/python3.11/queue.py"])
def test_what_the_program_handled_is_not_certain(file: str) -> None:
    unreached = "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.wandb.ai', port=443): Max retries"
    handling = "\nDuring handling of the above exception, another exception occurred:\n\n"
    later = f'{MAIN}  File "{file}", line 33, in log\n    backlog[step].append(d)\nKeyError: 30\n'
    verdict = verdict_of(f"{MAIN}{unreached} exceeded\n{handling}{later}{ENDED.format(1)}")
    assert (verdict.cause, verdict.confidence) == ("hub-network", "likely")


def test_an_agent_that_had_met_the_others_only_lost_their_store() -> None:
    api = "torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1290] The node 'b_7_0' has failed to"
    lost = (
        "[rank5]:[W1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=9, addr=[b]:4, remote=[a]:9): Broken\n"
    )
    for name, cause in (("RendezvousConnectionError", "store-lost"), ("RendezvousTimeoutError", "rendezvous-timeout")):
        beat = f"W1 {api} send a keep-alive heartbeat to the rendezvous 'fit' due to an error of type {name}.\n"
        assert explain(lost + beat * 2).cause == "store-lost"
        assert explain(f"{beat}torch.distributed.elastic.rendezvous.api.{name}: gone\n").cause == cause


@pytest.mark.parametrize(
    ("enqueued", "rank"),
    [
        pytest.param("Last enqueued NCCL work: 70, last completed NCCL work: 70", 2, id="it didn't join the next one"),
        pytest.param("Last enqueued NCCL work: 74, last completed NCCL work: 70", 0, id="it had joined as many"),
        pytest.param("Last enqueued NCCL work: 12, last completed NCCL work: 12", 0, id="of an earlier attempt"),
    ],
)
def test_who_is_missing_may_only_answer_the_others(enqueued: str, rank: int) -> None:
    """Only the ranks that waited are seen to end."""
    work = "WorkNCCL(SeqNum=71, OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=60000)"
    waited = "[rank{0}]:[E1 ProcessGroupNCCL.cpp:1] [Rank {0}] Watchdog caught collective operation timeout: " + work
    waited += " ran for 60001 milliseconds before timing out.\n[rank{0}]:[E1 ProcessGroupNCCL.cpp:2] [PG ID 0 PG GUID "
    waited += "0(default_pg) Rank {0}]  last enqueued work: 74, last completed work: 70\n"
    answered = "[rank2]:[E1 ProcessGroupNCCL.cpp:3] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal. "
    died = "E1 torch/distributed/elastic/multiprocessing/api.py:8] " + ENDED.partition("] ")[2].format(-6)
    found = explain(waited.format(0) + waited.format(1) + f"{answered}{enqueued}.\n{died}")
    assert found.first_failure is not None
    assert (found.cause, found.first_failure.rank) == ("nccl-timeout-hang", rank)


@pytest.mark.parametrize(
    ("group", "one", "other", "cause", "sure"),
    [
        pytest.param(
            "PG ID 0 PG GUID 0(default_pg) ", "8, ALLREDUCE", "8, BROADCAST", "met", "certain", id="other calls"
        ),
        pytest.param("", "8, ALLREDUCE", "8, BROADCAST", "met", "likely", id="of a group that isn't named"),
        pytest.param("", "8, ALLREDUCE", "9, ALLREDUCE", "met", "likely", id="other sizes"),
        pytest.param("", "8, ALLTOALL", "9, ALLTOALL", "waited", "likely", id="sizes that may differ"),
        pytest.param(
            "PG ID 3 PG GUID 7(tp_0) ", "8, ALLREDUCE", "8, BROADCAST", "waited", "likely", id="of part of it"
        ),
        pytest.param("", "8, ALLREDUCE", "8, ALLREDUCE", "waited", "likely", id="the same"),
    ],
)
def test_ranks_that_waited_in_different_collectives(group: str, one: str, other: str, cause: str, sure: str) -> None:
    said = "[rank{0}]:[E1 ProcessGroupNCCL.cpp:1] [{1}Rank {0}] Watchdog caught collective operation timeout: WorkNCCL("
    said += "SeqNum=71, OpType={3}, NumelIn={2}, NumelOut=8, Timeout(ms)=60000) ran for 60001 milliseconds\n"
    lines = (said.format(rank, group, *called.split(", ")) for rank, called in enumerate((one, other)))
    ends = "".join(ENDED.partition("] ")[2].format(-6).replace("local_rank: 0", f"local_rank: {k}") for k in (0, 1))
    found = explain("".join(lines) + f"E1 torch/distributed/elastic/multiprocessing/api.py:8] {ends}")
    named = {"met": "collective-mismatch", "waited": "nccl-timeout-hang"}[cause]
    assert (found.cause, found.confidence) == (named, sure), found.title


def test_the_odd_one_of_several_ranks_that_waited() -> None:
    said = "[rank{0}]:[E1 ProcessGroupNCCL.cpp:1] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL("
    said += "SeqNum=71, OpType=BROADCAST, NumelIn={1}, NumelOut=8, Timeout(ms)=60000) ran for 60001 milliseconds\n"
    died = f"E1 torch/distributed/elastic/multiprocessing/api.py:8] {ENDED.partition('] ')[2].format(-6)}"
    found = explain("".join(said.format(rank, 9 if rank == 2 else 8) for rank in range(4)) + died)
    assert found.title == (
        "rank 2 called BROADCAST of 9 elements while ranks 0-1,3 called BROADCAST of 8 elements (collective #71)"
    )


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        pytest.param(0, "rank 0 called BARRIER while rank 1 called GATHER", id="a rank of the whole job"),
        pytest.param(3, "rank 3 called BARRIER while another rank of its group called GATHER", id="of a group"),
    ],
)
def test_torch_counts_ranks_within_the_group(rank: int, said: str) -> None:
    """Source: torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp; a barrier's print has no comma."""
    mark = f"[rank{rank}]: "
    text = f'{mark}Traceback (most recent call last):\n{mark}  File "/home/me/fit.py", line 3, in main\n'
    text += f"{mark}RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
    text += "CollectiveFingerPrint(SequenceNumber=13OpType=BARRIER), but Rank 1 is running collective: "
    text += "CollectiveFingerPrint(SequenceNumber=0OpType=GATHER).Collectives differ in the following aspects: \n"
    assert explain(text).title == said


def test_words_of_the_watchdog_that_a_program_prints_are_not_its_own() -> None:
    printed = "ignored: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n"
    waited = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 16000ms for recv operation to complete\n"
    assert verdict_of(f"{printed}{MAIN}{TORCH.format('barrier')}{waited}").cause == "gloo-timeout-hang"


def test_what_was_raised_from_the_loss_of_a_peer_only_follows_it() -> None:
    lost = f"{MAIN}{TORCH.format('barrier')}RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer\n"
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    raised = f"{MAIN.replace('main()', 'raise RuntimeError(name) from e')}RuntimeError: training was aborted\n"
    assert verdict_of(lost + link + raised).cause == "peer-died"


def test_sighup_after_sigterm_ends_a_login_session() -> None:
    said = f"{MAIN}torch.distributed.elastic.multiprocessing.api.SignalException: Process 491 got signal: {{}}\n"
    handling = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert verdict_of(said.format(15)).cause == "preempted-sigterm"
    assert verdict_of(said.format(15) + handling + said.format(1)).cause == "terminal-closed"
    assert verdict_of(said.format(1) + handling + said.format(15)).cause == "terminal-closed"
