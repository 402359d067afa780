"""Of two causes that hold for one end, the model says which explains it: never the order of the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import pytest
from tests.rules.test_corpus import records
from tests.rules.test_samples import NAMES, SAMPLES

from ddp_run.evidence.gather import gather
from ddp_run.evidence.model import AgentEnd, Death, Evidence, LogText
from ddp_run.evidence.pasted import transcript
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge.catalogue import catalogue
from ddp_run.judge.findings import Rules
from ddp_run.judge.order import explains, strongest
from ddp_run.judge.text_signs import shows
from ddp_run.judge.verdict import Finding
from ddp_run.record import journal
from ddp_run.record.events import Rank

Match = Callable[[Death, Evidence], Finding | None]
_FRAMES = 'Traceback (most recent call last):\n  File "{file}", line 7, in <module>\n    main()\n'
_LED_TO = "\n\nThe above exception was the direct cause of the following exception:\n\n"
_HANDLED = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


def raised(*said: str, link: str = _LED_TO, file: str = "/home/me/train.py") -> str:
    return link.join(f"{_FRAMES.format(file=file)}{each}" for each in said)


BOTH = {
    ("auth", "permission-denied"): raised("PermissionError: Access Denied"),
    ("compile-failure", "import-error"): raised(
        "RuntimeError: Error building extension 'fused_adam'",
        "ImportError: /tmp/ext/fused_adam.so: cannot open shared object file: No such file or directory",
        link=_HANDLED,
    ),
    ("cuda-library-error", "compile-failure"): raised(
        "torch._inductor.exc.InductorError: RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"
    ),
    ("cuda-library-error", "nccl-init"): raised(
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 'CUBLAS_STATUS_INTERNAL_ERROR'"
    ),
    ("dataloader-worker-died", "file-not-found"): raised(
        "FileNotFoundError: [Errno 2] No such file or directory",
        "RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly",
    ),
    ("filesystem-error", "checkpoint-corrupt"): raised(
        "OSError: [Errno 5] Input/output error: '/mnt/ckpt.pt'",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    ),
    ("gpu-hardware", "fabric-manager"): "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    + raised(
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
    ),
    ("host-oom", "cuda-unavailable"): "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.\n"
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.batch. Some of your processes may have been killed.\n",
    ("hub-network", "file-not-found"): raised(
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries "
        "exceeded with url: /a (Caused by NewConnectionError('<x>: Failed to establish a new connection: "
        "[Errno 101] Network is unreachable'))",
        "FileNotFoundError: [Errno 2] No such file or directory: '/cache/config.json'",
        link=_HANDLED,
    ),
    ("nccl-timeout-hang", "nccl-network"): "[Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds "
    "before timing out.\nnode:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with status=12 opcode=1 "
    "len=0 vendor err 129\n",
    ("peer-died", "native-abort"): "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.21.5\n",
    ("store-lost", "peer-died"): "[W1122 10:41:35.3 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=6, "
    "addr=[node-b]:37468, remote=[node-a]:29500): failed to recv, got 0 bytes\n"
    "NCCL error: remote process exited or there was a network error, NCCL version 2.21.5\n",
    ("version-mismatch", "compile-failure"): raised(
        "RuntimeError: ptxas fatal   : Unsupported .version 8.4; current version is '8.2'"
    ),
    ("version-mismatch", "import-error"): raised(
        "ImportError: DeepSpeed version must be >= 0.9.3. Please update DeepSpeed.",
        file="/env/lib/python3.11/site-packages/accelerate/accelerator.py",
    ),
    ("terminal-closed", "preempted-sigterm"): raised(
        *(f"torch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: {n}" for n in (15, 1)),
        link=_HANDLED,
    ),
}
"""For each pair of a `wins_over`: what one rank prints that both causes recognise."""
CODES = {("host-oom", "cuda-unavailable"): -9, ("peer-died", "native-abort"): -6, ("store-lost", "peer-died"): None}
"""How that rank ended, where no exception says so."""


def attempts() -> Iterator[tuple[str, Evidence]]:
    texts = {name: SAMPLES / name / "log.txt" for name in NAMES}
    pasted = {name: path.read_text() for name, path in texts.items() if path.exists()}
    pasted |= {name: record["log"] for name, record in records().items()}
    for name, text in pasted.items():
        yield (
            name,
            transcript.read(SpokenText.of_logs([Log(LogText("log.txt", tuple(text.split("\n"))))]), shows),
        )
    for name in NAMES:
        if name not in pasted:
            recorded = SAMPLES / name / "events.jsonl"
            yield name, gather(SAMPLES / name, list(journal.read(recorded)) if recorded.exists() else [], 0)


def at_the_ends(attempt: Evidence) -> list[list[Finding]]:
    """What the rules find for each rank, and for a stop of the job."""
    rules = Rules(attempt, catalogue(), [])
    found = [rules.ask(lambda cause: cause.match, partial(_ask, death, attempt)) for death in attempt.deaths]
    if attempt.stop_signal is not None:
        found.append(rules.ask(lambda cause: cause.match_stop, lambda ask: ask(attempt)))
    return found


def _ask(death: Death, attempt: Evidence, match: Match) -> Finding | None:
    return match(death, attempt)


def ordered(one: Finding, other: Finding) -> bool:
    lines = [found.evidence[0].line if found.evidence else None for found in (one, other)]
    return (
        explains(one.rule, other.rule)
        or explains(other.rule, one.rule)
        or one.confidence != other.confidence
        or (None not in lines and lines[0] != lines[1])
    )


def test_every_pair_has_an_order() -> None:
    met, chance = set[tuple[str, str]](), set[str]()
    for name, findings in ((name, each) for name, attempt in attempts() for each in at_the_ends(attempt)):
        for one, other in combinations(findings, 2):
            met.add((one.rule.name, other.rule.name))
            if not ordered(one, other):
                chance.add(f"{one.rule.name} and {other.rule.name} in {name}")
    assert len(met) >= 40
    assert not chance, "\n".join(sorted(chance))


def test_each_exception_to_the_layers_has_its_text() -> None:
    named = {(each.rule.name, other) for each in catalogue() for other, _ in each.rule.wins_over}
    assert named == BOTH.keys()


@pytest.mark.parametrize(("one", "other"), BOTH)
def test_a_cause_wins_over_another_where_both_show(one: str, other: str) -> None:
    text = BOTH[one, other]
    log = LogText("log.txt", tuple(text.split("\n")))
    attempt = transcript.read(SpokenText.of_logs([Log(log)]), shows)
    if (one, other) in CODES:
        death = Death(rank=Rank(0), code=CODES[one, other], stderr=log)
        attempt = Evidence(deaths=(death,), agent=AgentEnd(log=log), logs_only=True)
    (findings,) = at_the_ends(attempt)
    assert {one, other} <= {found.rule.name for found in findings}
    best = strongest(findings)
    assert best is not None
    assert best.rule.name == one
