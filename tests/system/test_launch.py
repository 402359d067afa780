"""Torchrun's command lines under ddp-run: the same ranks, the same environment, the same files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.ports import unused_port
from tests.waiting import limit

from .conftest import Launcher, Outcome, assert_first_failure, by_rank, cases

SHOW = """
import json, os, sys
print(json.dumps({"argv": sys.argv, "name": __name__, "env": dict(os.environ)}))
"""


def shown(outcome_folder: Path | None, rank: int = 0) -> dict[str, object]:
    assert outcome_folder is not None
    text = (outcome_folder / f"attempt_0/rank_{rank}/stdout.log").read_text()
    return dict(json.loads(text))


def assert_shown(outcome: Outcome, words: list[str]) -> None:
    """Both ranks have the program's words and their places, and nothing of how ddp-run starts them."""
    for rank in (0, 1):
        seen = shown(outcome.folder, rank)
        argv, env = seen["argv"], seen["env"]
        assert isinstance(argv, list)
        assert isinstance(env, dict)
        assert argv[1:] == words
        assert (env["RANK"], env["WORLD_SIZE"]) == (str(rank), "2")
        assert "DDP_RUN_BOOT" not in env


# ------------------------------------------------------------------------------------------ a job that goes well

WORDS = ["--lr", "1e-3", "--wandb-api-key", "s3cr3t-0001", "--token=s3cr3t-0002"]
MINE = {"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_FILE": "/dev/null", "TORCH_DISTRIBUTED_DEBUG": "OFF", "OMP_NUM_THREADS": "3"}


@pytest.fixture(scope="module")
def plain(shared_ddp: Launcher) -> Outcome:
    """Two ranks that show themselves, started where files have the names of Python's own."""
    work = shared_ddp.cwd / "work"
    work.mkdir()
    for name in ("logging", "json", "signal", "subprocess", "torch"):
        (work / f"{name}.py").write_text("raise SystemExit('imported the wrong file')")
    script = shared_ddp.script(SHOW)
    return shared_ddp("--nproc_per_node=2", "--nccl-debug", "trace", script, *WORDS, env=MINE, cwd="work")


def test_files_of_the_working_directory_do_not_replace_pythons_own(plain: Outcome) -> None:
    """As under torchrun, whose agent does not look there."""
    assert plain.code == 0, plain.stderr


def test_ranks_have_the_programs_words_and_their_places(plain: Outcome) -> None:
    assert_shown(plain, WORDS)


def test_success_says_nothing_but_what_the_ranks_said(plain: Outcome) -> None:
    assert plain.stderr == ""
    assert plain.folder is not None
    files = {rank: plain.folder / f"attempt_0/rank_{rank}/stdout.log" for rank in (0, 1)}
    assert by_rank(plain.stdout) == {rank: file.read_text().splitlines() for rank, file in files.items()}
    assert [len(lines) for lines in by_rank(plain.stdout).values()] == [1, 1]


def test_a_variable_that_the_user_set_is_never_changed(plain: Outcome) -> None:
    env = shown(plain.folder)["env"]
    assert isinstance(env, dict)
    assert {name: env[name] for name in MINE} == MINE


def test_without_a_terminal_ranks_are_told_of_none(plain: Outcome) -> None:
    env = shown(plain.folder)["env"]
    assert isinstance(env, dict)
    assert not {"TTY_COMPATIBLE", "TTY_INTERACTIVE"} & env.keys()


def test_folders_are_the_users_alone(plain: Outcome) -> None:
    assert plain.folder is not None
    assert os.stat(plain.folder).st_mode & 0o077 == 0
    assert os.stat(plain.folder / "events.jsonl").st_mode & 0o077 == 0


def test_no_secret_of_the_command_line_in_our_files(plain: Outcome) -> None:
    assert plain.folder is not None
    for name in ("plan.json", "events.jsonl", "verdict.json"):
        assert "s3cr3t" not in (plain.folder / name).read_text()


def test_nothing_is_looked_at_where_nobody_died(plain: Outcome) -> None:
    assert not plain.named("SpaceCounted")
    assert not plain.named("KernelLogged")


# ------------------------------------------------------------------------------------------ words, files, consoles

WAYS = {
    "standalone": ["--nproc-per-node", "2", "--standalone", "{script}", "--lr", "1e-3"],
    "redirect": ["--nproc_per_node", "2", "--redirect=3", "{script}", "--lr", "1e-3"],
    "c10d": ["--nnodes=1:1", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "{script}",
             "--lr", "1e-3"],
    "no-python": ["--nproc-per-node=2", "--no-python", "python3", "{script}", "--lr", "1e-3"],
    "run-path": ["--nproc-per-node=2", "--run-path", "{script}", "--lr", "1e-3"],
    "module": ["--nproc-per-node=2", "-m", "program", "--lr", "1e-3"],
}  # fmt: skip


@pytest.mark.parametrize("way", cases(WAYS, ()))
def test_the_ways_to_name_a_program(ddp: Launcher, way: str) -> None:
    """In the gate: a script (`plain`), and a module by its variable, below."""
    words = WAYS[way]
    script = ddp.script(SHOW)
    filled = [word.format(script=script) for word in words]
    outcome = ddp(*filled, env={"PYTHONPATH": str(ddp.cwd)})
    assert outcome.code == 0, outcome.stderr
    assert_shown(outcome, ["--lr", "1e-3"])


@pytest.mark.parametrize("closed", cases(("0", "1", "2", "0 1", "0 2", "1 2", "0 1 2"), ("0 1 2",)))
def test_closed_descriptors(ddp: Launcher, closed: str) -> None:
    program = (
        "import os, sys\nprint('a line')\nprint('another', file=sys.stderr)\nsys.exit(7 * int(os.environ['RANK']))"
    )
    shell = f'exec "$0" "$@" {" ".join(f"{fd}>&-" for fd in closed.split())}'
    outcome = ddp.start("--nproc-per-node", 2, ddp.script(program), within=["sh", "-c", shell]).wait()
    assert outcome.code == 7
    assert outcome.verdict["first_failure"]["rank"] == 1
    assert outcome.named("RunEnded"), "each line is an event"
    assert outcome.folder is not None
    assert (outcome.folder / "attempt_0/rank_0/stdout.log").read_text() == "a line\n"
    assert ("a line" in outcome.stdout) == ("1" not in closed)


def test_pet_variables_work_as_under_torchrun(ddp: Launcher) -> None:
    ddp.script(SHOW)
    environ = {"PET_NPROC_PER_NODE": "2", "PET_MODULE": "1", "PYTHONPATH": str(ddp.cwd)}
    outcome = ddp("--console", "failed", "program", "--lr", "1e-3", env=environ)
    assert (outcome.code, outcome.stdout) == (0, ""), "no rank failed, so none is shown"
    assert_shown(outcome, ["--lr", "1e-3"])
    env = shown(outcome.folder, 1)["env"]
    assert isinstance(env, dict)
    assert env["PET_MODULE"] == "1", "ranks see the user's value"


@pytest.mark.slow_system
@pytest.mark.parametrize("preset", ["off", "warn", "info", "trace"])
def test_no_preset_breaks_a_gloo_job(ddp: Launcher, preset: str) -> None:
    from .conftest import TRAIN

    outcome = ddp("--nproc-per-node", 2, "--nccl-debug", preset, TRAIN)
    assert outcome.code == 0, outcome.stderr


@pytest.mark.slow_system
def test_a_run_of_two_agents_on_one_host(ddp: Launcher) -> None:
    """Two nodes, both here: each `ddp-run` has its own folder and verdict."""
    script = ddp.script(SHOW)
    words = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={unused_port()}"]
    other = ddp.start(*words, "--node-rank=1", script)
    outcome = ddp(*words, "--node-rank=0", script)
    assert outcome.code == 0, outcome.stderr
    assert other.wait().code == 0
    env = shown(other.folder, 1)["env"]
    assert isinstance(env, dict)
    assert env["WORLD_SIZE"] == "2"


def test_a_closed_console_does_not_end_the_run(ddp: Launcher) -> None:
    """Its ranks have no Python, as a variable says; they see the user's value."""
    import subprocess

    from .conftest import DDP_RUN

    program = "echo $PET_NO_PYTHON; seq 100000; touch finished"
    shell = subprocess.run(
        ["bash", "-c", f"{DDP_RUN} sh -c '{program}' | head -n 1; exit ${{PIPESTATUS[0]}}"],
        cwd=ddp.cwd, env=ddp.environ({"PET_NO_PYTHON": "1"}), capture_output=True, text=True, timeout=limit(120),
    )  # fmt: skip
    assert shell.stdout == "[rank0]: 1\n"
    assert shell.returncode == 0, shell.stderr
    assert (ddp.cwd / "finished").exists()


def test_dry_run_starts_nothing_and_shows_origins(ddp: Launcher) -> None:
    outcome = ddp(
        "--nproc-per-node",
        2,
        "--dry-run",
        ddp.script("pass"),
        env={"PET_MAX_RESTARTS": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
    )
    assert outcome.code == 0
    assert outcome.folder is None
    text = outcome.stdout
    assert "PET_MAX_RESTARTS" in text
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in text
    assert "127.0.0.1" in text


def test_the_version(ddp: Launcher) -> None:
    outcome = ddp("--version")
    assert outcome.code == 0
    assert outcome.stdout.startswith("ddp-run ")


# Rank 0 writes what is no text, and much of it; then rank 1 fails.
ODD_BYTES = """
import os, sys, time
if os.environ["RANK"] == "0":
    out = sys.stdout.buffer
    out.write(b"\\xff\\xfe\\x00 bad \\r bar \\x1b[2J\\n"); out.write(b"x" * 5_000_000 + b"\\n")
    for i in range(50): out.write(b"y" * 999_999 + b"\\n")
    out.write(b"no newline at the end")
    out.flush()
    open("written", "w").close()
    time.sleep(600)
print("out of 1"); print("err of 1", file=sys.stderr)
while not os.path.exists("written"): time.sleep(0.02)
sys.exit("cannot go on")
"""


@pytest.fixture(scope="module")
def one_failed(shared_ddp: Launcher) -> Outcome:
    words = ("--console", "failed", "--nproc-per-node", 2)
    return shared_ddp(*words, shared_ddp.script(ODD_BYTES, "odd_bytes.py"))


def test_the_console_shows_ranks_that_failed(one_failed: Outcome) -> None:
    assert_first_failure(one_failed, 1, 1)
    assert one_failed.stdout == "[rank1]: out of 1\n"
    assert one_failed.stderr.startswith("[rank1]: err of 1\n[rank1]: cannot go on\nerror[")


def test_bytes_of_a_rank_are_kept_as_they_are(one_failed: Outcome) -> None:
    assert one_failed.folder is not None
    written = (one_failed.folder / "attempt_0/rank_0/stdout.log").read_bytes()
    expected = b"\xff\xfe\x00 bad \r bar \x1b[2J\n" + b"x" * 5_000_000 + b"\n" + (b"y" * 999_999 + b"\n") * 50
    assert written == expected + b"no newline at the end"


def test_an_elastic_job_takes_in_a_second_node(ddp: Launcher) -> None:
    """Its first ranks are ended and started again by the agents: that is no failure.

    A node that waits asks once a second whether it may join. So the first may come together without it once more.
    """
    program = ddp.script(
        "import os, time\nprint('world', os.environ['WORLD_SIZE'], flush=True)\n"
        "while os.environ['WORLD_SIZE'] == '1': time.sleep(1)"
    )
    words = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{unused_port()}", "--rdzv-id=grows"]
    words += ["--rdzv-conf=last_call_timeout=1", "--max-restarts=1", "--shutdown-timeout=3"]
    first = ddp.start(*words, program)
    first.wait_for_text("world 1")
    second = ddp.start(*words, program)
    for node in (first, second):
        outcome = node.wait()
        assert outcome.code == 0, outcome.stderr
        assert outcome.verdict["outcome"] == "succeeded"
        node.assert_nothing_left()
    assert first.folder is not None
    texts = [path.read_text() for path in sorted(first.folder.glob("attempt_0/**/stdout.log"))]
    assert sorted(set(texts)) == ["world 1\n", "world 2\n"]
    assert texts.count("world 2\n") == 1
