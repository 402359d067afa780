"""The exit-code contract of the README, for the command itself and under `set -e` in a shell."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.loaded_process import COMMAND
from tests.waiting import limit, wait_until

from .conftest import DDP_RUN, Launcher, Outcome, assert_first_failure, cases

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"
QUICK = """
import os, signal, sys, time
kind = sys.argv[1]
if os.environ["RANK"] == "1":
    if kind.startswith("exit"): sys.exit(int(kind[4:]))
    if kind.startswith("os-exit"): os._exit(int(kind[7:]))
    if kind == "raise": raise KeyError("missing " * 40)
    if kind == "message": sys.exit("cannot go on")
    os.kill(os.getpid(), getattr(signal, kind))
time.sleep(0 if kind == "exit0" else 600)
"""
CASES = {
    "exit0": 0,
    "exit3": 3,
    "exit42": 42,
    "exit137": 137,
    "exit255": 255,
    "os-exit7": 7,
    "raise": 1,
    "message": 1,
    "SIGKILL": 137,
    "SIGSEGV": 139,
    "SIGABRT": 134,
    "SIGBUS": 135,
    "SIGTERM": 143,
    "SIGINT": 130,
}


@pytest.mark.parametrize("kind", cases(CASES, ()))
def test_the_first_failing_ranks_own_code(ddp: Launcher, kind: str) -> None:
    """In the gate, a message, an exception, os._exit and SIGKILL: see who calls `assert_first_failure`."""
    outcome = ddp("--nproc-per-node", 2, ddp.script(QUICK), kind)
    if kind != "exit0":
        assert_first_failure(outcome, CASES[kind], 1)
    assert (outcome.code, outcome.verdict["exit_code"]) == (CASES[kind], CASES[kind])


# What torch's threads may do to an interpreter that goes down: the exception came first.
ABORTED_ON_THE_WAY_OUT = """
import atexit, os, time
if os.environ["RANK"] == "1":
    atexit.register(os.abort)
    raise KeyError("missing")
time.sleep(600)
"""


def test_an_abort_on_the_way_out_keeps_its_code_and_the_exception_is_the_cause(ddp: Launcher) -> None:
    outcome = ddp("--nproc-per-node", 2, ddp.script(ABORTED_ON_THE_WAY_OUT))
    first = outcome.verdict["first_failure"]
    assert (outcome.code, outcome.verdict["cause"], first["rank"]) == (134, "python-exception", 1)
    assert (first["exception"]["type"], first["exception"]["line"]) == ("KeyError", 5)
    assert "SIGABRT then killed the process during shutdown" in outcome.verdict["title"]


# Ends the agent before it has imported torch, and before ddp-run has loaded all that it needs.
AGENT_WITHOUT_DESCRIPTORS = """
import resource, sys
if "torch.distributed.run" in sys.orig_argv: resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
"""


def test_an_agent_that_ends_at_once_is_judged_by_its_log(ddp: Launcher) -> None:
    (ddp.cwd / "site").mkdir()
    (ddp.cwd / "site" / "sitecustomize.py").write_text(AGENT_WITHOUT_DESCRIPTORS)
    environ = {"PYTHONPATH": str(ddp.cwd / "site"), "DDP_RUN_WARM": ""}  # Python couldn't open the agent of --warm
    outcome = ddp("--max-retries", 2, ddp.script("print('hello')"), env=environ)
    assert [event["code"] for event in outcome.named("AgentExited")] == [1], "no retry can help"
    assert (outcome.code, outcome.verdict["cause"]) == (1, "too-many-open-files"), outcome.stderr
    assert outcome.verdict["title"] == "torch's agent reached its limit of open files (ulimit -n)"
    assert outcome.verdict["first_failure"] is None


WROTE = 8 << 20
# Fails after it has written more than a slow reader takes in a minute.
TALKATIVE = f"""
import os, sys
sys.stdout.write(("x" * 99 + "\\n") * {WROTE // 100}); sys.stdout.flush()
os._exit(7)
"""


def test_the_verdict_does_not_wait_for_the_console(ddp: Launcher) -> None:
    words = [str(DDP_RUN), str(ddp.script(TALKATIVE))]
    shown = 0
    with subprocess.Popen(
        words, cwd=ddp.cwd, env=ddp.environ({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        verdict = ddp.cwd / "ddp-run-logs" / "latest" / "verdict.json"

        def written() -> bool:
            nonlocal shown
            assert running.stdout is not None
            shown += len(running.stdout.read(4096))
            return verdict.exists()

        wait_until(written, "verdict.json")
        assert json.loads(verdict.read_text())["exit_code"] == 7
        assert running.stderr.readline().startswith(b"error["), "the block is on stderr"
        assert running.poll() is None, "and stdout is behind"
        running.terminate()
        said = running.stderr.read().decode().splitlines()
        for data in iter(lambda: running.stdout.read(1 << 20), b""):  # type: ignore[union-attr]
            shown += len(data)
        assert running.wait(limit(60)) == 7
    assert shown < WROTE
    unshown = next(line for line in said if "not shown" in line).split(" lines of the ranks")[0].split()[-1]
    assert int(unshown) + shown // 109 in range(WROTE // 100 - 1, WROTE // 100 + 1)
    assert said[-1].startswith("ddp-run: verdict outcome=failed")


# What a program can write that looks like the text a verdict is made of; and what it can put in place of its log.
ODD_TEXT = f"""
import os, sys, time
if os.environ["RANK"] == "0": time.sleep(600)
print('Traceback (most recent call last):\\n  File "train.py", line {"9" * 5000}, in <module>', file=sys.stderr)
print('ValueError: bad\\ngot signal: {"9" * 5000}', file=sys.stderr, flush=True)
log = os.readlink("/proc/self/fd/1")
os.unlink(log)
os.symlink("/dev/zero", log)
os._exit(7)
"""


def test_odd_text_of_a_rank_does_not_change_its_code(ddp: Launcher) -> None:
    outcome = ddp("--nproc-per-node", 2, ddp.script(ODD_TEXT))
    assert_first_failure(outcome, 7, 1)
    assert [each["text"].endswith("stdout.log: not a regular file") for each in outcome.named("Noted")] == [True]


@pytest.mark.slow_system
@pytest.mark.parametrize("kind", ["exit0", "exit42"])
def test_a_shell_with_set_e_sees_it(ddp: Launcher, kind: str) -> None:
    program = ddp.script(QUICK)
    line = f"set -e; {DDP_RUN} --nproc-per-node 2 {program} {kind}; echo went-on"
    shell = subprocess.run(
        ["bash", "-c", line], cwd=ddp.cwd, env=ddp.environ({}), capture_output=True, text=True, timeout=limit(120)
    )
    assert shell.returncode == CASES[kind]
    assert ("went-on" in shell.stdout) == (kind == "exit0")


@pytest.fixture(scope="module")
def raised(shared_ddp: Launcher) -> Outcome:
    """A job in a shell script with `set -e`, of which one rank raises; it might be retried."""
    shell = ("bash", "-c", 'set -e; "$@"; echo went-on', "script")
    words = ("--nproc-per-node", 2, "--max-retries", 3, shared_ddp.script(QUICK), "raise")
    return shared_ddp(*words, within=shell)


def test_a_script_with_set_e_ends_with_it(raised: Outcome) -> None:
    assert_first_failure(raised, CASES["raise"], 1)
    assert "went-on" not in raised.stdout


def test_an_exception_is_not_retried(raised: Outcome) -> None:
    """Other causes that no retry can cure: test_retries.py."""
    assert (raised.verdict["cause"], raised.verdict["attempts"]) == ("python-exception", 1)


def test_without_a_terminal_the_first_line_stays_one(raised: Outcome) -> None:
    assert "missing " * 15 in raised.stderr.partition("error[")[2].partition("\n")[0]


def test_explain_gives_the_same_answer_again(raised: Outcome) -> None:
    explained = COMMAND.run(DDP_RUN, "explain", "--json", str(raised.folder))
    assert json.loads(explained.stdout) == raised.verdict


def test_the_folder_of_a_run_is_as_the_reference_lists_it(raised: Outcome) -> None:
    listing = REFERENCE.read_text().partition("## The files of a run\n")[2].split("```")[1]
    assert raised.folder is not None
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", raised.folder.name)
    assert (raised.folder.parent / "latest").is_symlink()
    within = [path.relative_to(raised.folder) for path in raised.folder.rglob("*")]
    found = {path.name for path in within if "rank_" not in str(path) or "rank_1" in str(path)}
    name = r"\w+\.(?:jsonl|json|log|txt|html)\b|attempt_0|rank_1"
    listed = set(re.findall(name, listing.replace("rank_3", "rank_1")))
    # A job on one node, without NCCL, that never stood still; on a busy host it may leave no page.
    others = {"nccl.log", "flight.json", "ras.txt", "stderr_end.log"}
    assert listed - others == found | {"report.html"}


# Rank 1 ends with 0 although its program failed; rank 0 does not need it, and ends when ddp-run knows of that. Rank 1
# waits until ddp-run holds it: on a busy host the agent may reap it before, and then it alone knows the exit code.
FAILED_AND_ENDED_WITH_0 = """
import atexit, os, time
journal = f"ddp-run-logs/{os.environ['DDP_RUN_ID']}/events.jsonl"
def wait_for(word, count):
    while open(journal).read().count(f'"{word}"') < count: time.sleep(0.01)
if os.environ["RANK"] == "1":
    wait_for("RankStarted", 2)
    atexit.register(os._exit, 0)
    raise ValueError("bad shard")
wait_for("RankExited", 1)
"""


def test_all_ranks_that_exit_with_0_are_a_success_whatever_their_programs_said(ddp: Launcher) -> None:
    """So it is under torchrun. A success has a last line where that was asked for."""
    program = ddp.script(FAILED_AND_ENDED_WITH_0)
    outcome = ddp("--nproc-per-node", 2, program, env={"DDP_RUN_VERDICT_LINE": "1"})
    assert outcome.code == 0, outcome.stderr
    assert (outcome.last_line["outcome"], outcome.last_line["exit"]) == ("succeeded", "0")
    assert not outcome.named("SignalSent") or {event["target"] for event in outcome.named("SignalSent")} == {"agent"}
    live, *_, note, _last_line = [line for line in outcome.stderr.splitlines() if line.startswith("ddp-run: ")]
    assert live.startswith("ddp-run: warning: rank 1 failed with ValueError: bad shard (program.py:9); its process")
    said = "rank 1 raised ValueError in program.py:9: bad shard; its process then exited with code 0"
    assert note == f"ddp-run: note: {said}"
    assert outcome.verdict["notes"] == [said]


# Rank 0 is in no need of torch to raise what gloo raises when rank 1 has left, after two steps of an optimizer.
LEAVES_EARLY = """
import os, sys, time
if os.environ["RANK"] == "1":
    import torch
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(2):
        weight.square().sum().backward()
        optimizer.step()
    open("part", "w").write(str(os.getpid()))
    os.rename("part", "leaves")
    while not os.path.exists("watched"): time.sleep(0.01)
    os._exit(0)
while not os.path.exists("leaves"): time.sleep(0.01)
pid = open("leaves").read()
open("watched", "w").close()
while os.path.exists(f"/proc/{pid}"): time.sleep(0.01)
raise RuntimeError("[gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]:41234")
"""


def test_an_early_leaver_makes_the_job_fail_with_1(ddp: Launcher) -> None:
    """With gloo between the ranks: test_the_cause_and_not_its_victims_in_a_training."""
    outcome = ddp("--nproc-per-node", 2, ddp.script(LEAVES_EARLY))
    assert outcome.code == 1
    assert (outcome.verdict["phase"], outcome.verdict["step"]) == ("training", 2)
    assert outcome.verdict["first_failure"]["rank"] == 1
    assert outcome.verdict["first_failure"]["exit_code"] == 0
    assert [each["rank"] for each in outcome.verdict["collateral"]] == [0]


def test_a_rendezvous_that_was_lost_is_worth_a_requeue(ddp: Launcher) -> None:
    outcome = ddp(
        "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0",
        "--rdzv-conf=join_timeout=3,timeout=3", ddp.script("pass"),
    )  # fmt: skip
    assert outcome.code == 75
    assert outcome.verdict["first_failure"] is None
    assert outcome.verdict["phase"] == "launch"


def test_a_rendezvous_whose_endpoint_is_another_programs(ddp: Launcher) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = ("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{server.server_port}")
        outcome = ddp(*words, ddp.script("pass"))
        server.shutdown()
    assert (outcome.code, outcome.verdict["outcome"], outcome.verdict["cause"]) == (2, "refused", "port-in-use")
    assert f"127.0.0.1:{server.server_port} is not torch's rendezvous" in outcome.stderr
