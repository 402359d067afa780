"""The agent's command line and environment, from options."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_run.plan import installed_torch, plan_file
from ddp_run.plan.checks import warm
from ddp_run.plan.launch_plan import (
    RANK_PROGRAM,
    AgentNeeded,
    LaunchPlan,
    agent_argv,
    agent_environment,
    agent_needed,
    local_restarts,
    make_plan,
)
from ddp_run.plan.preflight import Launch
from ddp_run.settings.options import Options
from ddp_run.settings.parse import parse
from ddp_run.settings.table import Row

ROWS = installed_torch.torch_rows()


# As torch 2.13 and newer have --master-port, and as older releases have it.
NEWER, OLDER = (
    tuple(replace(row, default=default) if row.dest == "master_port" else row for row in ROWS)
    for default in (None, 29500)
)


def options(*words: str, **environ: str) -> Options:
    return parse(words, environ, torch_rows=ROWS)


def plan(*words: str, master: str | None = None, **environ: str) -> LaunchPlan:
    return make_plan(options(*words, **environ), environ, python=sys.executable, master=master)


@pytest.mark.parametrize(
    ("interface", "own", "shown"),
    [("eth0", {}, "eth0"), ("eth0", {"GLOO_SOCKET_IFNAME": "ib0"}, None), (None, {}, None)],
    ids=["of the route", "the user's own counts", "not known"],
)
def test_gloo_is_told_the_interface_of_the_route(interface: str | None, own: dict[str, str], shown: str | None) -> None:
    given = options("--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "t.py")
    made = make_plan(given, own, python=sys.executable, master="10.0.0.1", interface=interface)
    assert {each.name: each.value for each in made.environment}.get("GLOO_SOCKET_IFNAME") == shown


def argv(given: LaunchPlan, port: int | None = None) -> list[str]:
    return agent_argv(given, folder=Path("/run/attempt_0"), port=port)


def test_the_bootstrap_stands_in_the_scripts_place() -> None:
    words = argv(plan("--nproc-per-node=2", "train.py", "--lr", "1"))
    assert words[-5:] == [str(RANK_PROGRAM), "script", "train.py", "--lr", "1"]
    assert "--nproc-per-node=2" in words
    assert "--logs-specs=ddp-run" in words


def test_a_warm_agent_has_the_same_command_line() -> None:
    assert argv(plan("--warm", "train.py")) == argv(plan("train.py"))


@pytest.mark.parametrize(
    ("words", "environ", "text", "said"),
    [
        ([], {}, "import torch\n", None),
        ([], {}, "# OMP_NUM_THREADS\nos.environ['TORCH_NCCL_BLOCKING_WAIT'] = '1'\n", None),
        ([], {}, "os.environ['OMP_NUM_THREADS'] = '4'\n", "names OMP_NUM_THREADS"),
        ([], {}, 'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "x")\n', "names PYTORCH_CUDA_ALLOC_CONF"),
        (["--run-path"], {}, "", "--run-path starts them in another way"),
        (["--no-python"], {}, "", "--no-python starts them in another way"),
        (["--start-method=fork"], {}, "", "--start-method starts them in another way"),
        ([], {"PYTHON_EXEC": "python"}, "", "PYTHON_EXEC starts them in another way"),
        (["--nproc-per-node=cpu"], {}, "", "torch sets OMP_NUM_THREADS once it has counted the devices"),
        (["--nproc-per-node=cpu"], {"OMP_NUM_THREADS": "1"}, "", None),
    ],
)
def test_what_does_not_suit_a_warm_start(
    tmp_path: Path, words: list[str], environ: dict[str, str], text: str, said: str | None
) -> None:
    (tmp_path / "train.py").write_text(text)
    given = options("--warm", *words, "train.py", **environ)
    answer = warm.CHECK.run(Launch(given, environ, tmp_path))
    assert answer.options.warm == (said is None)
    assert [said in each for each in answer.warnings if said] == [True] * bool(said)
    if said:
        assert said in answer.options.settings["warm"].origin


@pytest.mark.parametrize(
    ("rows", "line", "needed"),
    [
        (NEWER, "t.py", False),
        (OLDER, "t.py", True),
        (OLDER, "--nnodes=1 --master-addr=elsewhere t.py", True),
        (OLDER, "--standalone t.py", False),
        (OLDER, "--nnodes=2 t.py", False),
        (OLDER, "--master-port=29511 t.py", False),
        (OLDER, "--rdzv-endpoint=localhost:29511 t.py", False),
        (OLDER, "--rdzv-backend=c10d t.py", False),
    ],
)
def test_one_node_takes_a_free_port_whatever_torchs_default(rows: tuple[Row, ...], line: str, needed: bool) -> None:
    given = parse(line.split(), {}, torch_rows=rows)
    assert given.needs_port is needed
    words = argv(make_plan(given, {}, python=sys.executable, master=None), 4711 if needed else None)
    if needed:
        last = {word.partition("=")[0]: word for word in words}
        assert (last["--master-addr"], last["--master-port"]) == ("--master-addr=127.0.0.1", "--master-port=4711")
    else:
        assert not {"--master-addr=127.0.0.1", "--master-port=4711"} & set(words)


@pytest.mark.parametrize(
    ("given", "end"),
    [
        (("-m", "pkg.train", "x"), [str(RANK_PROGRAM), "module", "pkg.train", "x"]),
        (("--run-path", "train.py"), [str(RANK_PROGRAM), "run-path", "train.py"]),
        (
            ("--no-python", "bash", "x.sh"),
            ["--no-python", sys.executable, "-I", "-S", "-u", str(RANK_PROGRAM), "exec", "bash", "x.sh"],
        ),
    ],
)
def test_the_other_ways_to_name_a_program(given: tuple[str, ...], end: list[str]) -> None:
    words = argv(plan(*given))
    assert words[-len(end) :] == end
    assert "--module" not in words
    assert "-m" not in words[words.index("torch.distributed.run") :]


def test_a_fresh_port_replaces_the_one_that_was_given() -> None:
    words = argv(plan("--master-port=29500", "t.py"), 4711)
    assert [word for word in words if word.startswith("--master-port")] == ["--master-port=4711"]
    given = plan("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29500", "t.py")
    assert "--rdzv-endpoint=localhost:4711" in argv(given, 4711)
    assert given.chosen_port == 29500


def test_where_torch_takes_a_free_port_nobody_chose_one() -> None:
    assert plan("t.py").chosen_port is None
    assert plan("--standalone", "t.py").chosen_port is None
    assert plan("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "t.py").chosen_port is None


def test_the_resolved_address_replaces_the_name() -> None:
    given = ("--nnodes=2", "--master-addr=node-0", "t.py")
    words = argv(plan(*given, master="10.0.0.7"))
    assert [word for word in words if word.startswith("--master-addr")] == ["--master-addr=10.0.0.7"]
    assert "--master-addr=[fd00::7]" in argv(plan(*given, master="fd00::7"))


def test_presets_never_touch_what_the_user_set() -> None:
    assert {each.name for each in plan("--nccl-debug=trace", "t.py").environment} == {
        "NCCL_DEBUG",
        "NCCL_DEBUG_SUBSYS",
        "TORCH_DISTRIBUTED_DEBUG",
    }
    mine = plan("--nccl-debug=trace", "t.py", NCCL_DEBUG="INFO")
    assert "NCCL_DEBUG" not in {each.name for each in mine.environment}
    assert not mine.nccl_log
    assert plan("t.py").nccl_log
    assert not plan("--nccl-debug=off", "t.py").environment


def test_no_preset_sets_detail() -> None:
    for preset in ("warn", "info", "trace"):
        assert all(each.value != "DETAIL" for each in plan(f"--nccl-debug={preset}", "t.py").environment)


def test_variables_changed_for_the_agent_are_given_back_to_the_ranks() -> None:
    given = plan("pkg", PET_MODULE="1")
    environ = agent_environment(given, {"PET_MODULE": "1", "HOME": "/me"}, "id-1")
    assert environ["PET_MODULE"] == "0"
    assert environ["HOME"] == "/me"
    assert environ["DDP_RUN_ID"] == "id-1"
    assert given.restore == {"PET_MODULE": "1"}


def test_what_torch_sets_by_itself_is_shown_and_left_to_it() -> None:
    several = plan("--nproc-per-node=2", "t.py")
    assert [each.name for each in several.by_torch] == ["OMP_NUM_THREADS"]
    assert "  OMP_NUM_THREADS" in plan_file.as_text(several, ("ddp-run", "t.py"), None)
    assert "OMP_NUM_THREADS" not in agent_environment(several, {}, "id")
    for given in (
        plan("t.py"),
        plan("--nproc-per-node=2", "t.py", OMP_NUM_THREADS="4"),
        plan("--nproc-per-node=cpu", "t.py"),
    ):
        assert given.by_torch == ()


def test_restarts_need_a_store_of_their_own_unless_the_user_decided() -> None:
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    assert name in {each.name for each in plan("--max-restarts=1", "t.py").environment}
    assert name not in {each.name for each in plan("t.py").environment}
    assert name not in {each.name for each in plan("--max-restarts=1", "t.py", **{name: "0"}).environment}


def test_who_counts_restarts() -> None:
    assert local_restarts(options("--max-restarts=2", "t.py")) == 2
    assert local_restarts(options("--nnodes=2", "t.py")) == 0
    assert local_restarts(options("--nnodes=2", "--max-restarts=2", "t.py")) is None
    assert local_restarts(options("--nnodes=1:2", "--rdzv-backend=c10d", "t.py")) is None


MASTER = "--master-addr=10.0.0.1"
C10D = ("--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:29400")


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ((), AgentNeeded.FOR_ITS_RANKS),
        (("--max-restarts=1",), AgentNeeded.FOR_ITS_RANKS),
        (("--event-log-handler=console",), AgentNeeded.TO_ITS_END),
        (("--nnodes=2", MASTER), AgentNeeded.FOR_ALL_RANKS),
        (("--nnodes=2", MASTER, "--node-rank=1"), AgentNeeded.FOR_OTHER_AGENTS),
        (("--nnodes=2", MASTER, "--event-log-handler=console"), AgentNeeded.TO_ITS_END),
        (("--nnodes=2", MASTER, "--max-restarts=1"), AgentNeeded.TO_ITS_END),
        (("--nnodes=1:2", *C10D), AgentNeeded.TO_ITS_END),
        (("--nnodes=2", *C10D), AgentNeeded.FOR_OTHER_AGENTS),
        (("--nnodes=2", *C10D, "--rdzv-conf=is_host=1"), AgentNeeded.FOR_ALL_RANKS),
        (("--nnodes=2", *C10D, "--max-restarts=1"), AgentNeeded.TO_ITS_END),
    ],
)
def test_how_long_the_agent_is_needed(words: tuple[str, ...], needed: AgentNeeded) -> None:
    assert agent_needed(plan(*words, "t.py", master="10.0.0.1")) is needed


@pytest.mark.parametrize(
    ("master", "is_here", "conf", "needed"),
    [
        ("10.0.0.1", True, "timeout=9", AgentNeeded.FOR_ALL_RANKS),
        ("10.0.0.1", True, "is_host=0", AgentNeeded.FOR_OTHER_AGENTS),
        (None, False, "timeout=9", AgentNeeded.FOR_ALL_RANKS),  # it isn't known who has the store
    ],
)
def test_an_agent_that_may_have_the_store_stays(
    master: str | None, is_here: bool, conf: str, needed: AgentNeeded
) -> None:
    given = options("--nnodes=2", *C10D, "--rdzv-conf", conf, "t.py")
    assert agent_needed(make_plan(given, {}, python="python", master=master, master_is_here=is_here)) is needed


def test_signals_of_the_agent() -> None:
    if "signals_to_handle" not in options("t.py").settings:
        pytest.skip("this torch has no --signals-to-handle")
    assert signal.SIGUSR1 not in plan("t.py").agent_signals
    assert signal.SIGUSR1 in plan("--signals-to-handle=SIGTERM,SIGUSR1", "t.py").agent_signals


def test_the_agents_poll_is_faster_unless_the_user_set_it() -> None:
    assert "--monitor-interval=0.03" in argv(plan("t.py"))
    assert not [word for word in argv(plan("t.py", PET_MONITOR_INTERVAL="1")) if word.startswith("--monitor")]
