"""`[env]` of a preset, `[tool.ddp-run]` of a pyproject.toml, and the presets that ddp-run comes with."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from ddp_run.plan import plan_file
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.launch_plan import LaunchPlan, agent_environment, make_plan
from ddp_run.plan.read_options import project_files
from ddp_run.settings.options import Options
from ddp_run.settings.parse import parse
from ddp_run.settings.table import Row
from ddp_run.values.problem import Problem, Refused

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
SECRET = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return torch_rows()


def with_preset(rows: tuple[Row, ...], text: str, **variables: str) -> Options:
    return parse(["--config=p.toml", "x.py"], variables, torch_rows=rows, read_file=lambda _path: text)


def with_projects(rows: tuple[Row, ...], *texts: str, line: str = "x.py", **variables: str) -> Options:
    files = [(f"{number}/pyproject.toml", text) for number, text in enumerate(texts)]
    return parse(
        shlex.split(line), variables, torch_rows=rows, read_file=lambda _path: "console = 'none'\n",
        projects=lambda: files,
    )  # fmt: skip


def plan_of(options: Options, **environ: str) -> LaunchPlan:
    return make_plan(options, environ, python="python", master=None)


def problems(rows: tuple[Row, ...], text: str, *, project: bool = False) -> tuple[Problem, ...]:
    with pytest.raises(Refused) as caught:
        with_projects(rows, text) if project else with_preset(rows, text)
    return caught.value.problems


# ---------------------------------------------------------------------------------------------- [env]


def test_variables_reach_the_ranks_where_nobody_has_set_them(rows: tuple[Row, ...]) -> None:
    text = '[env]\nNCCL_IB_DISABLE = "1"\nOMP_NUM_THREADS = 4\nNCCL_SOCKET_IFNAME = "eth0"\nEMPTY = "x"\n'
    users = {"NCCL_SOCKET_IFNAME": "ib0", "EMPTY": ""}
    options = with_preset(rows, text, **users)
    assert [(each.name, each.origin) for each in options.rank_variables] == [
        ("NCCL_IB_DISABLE", "p.toml:2"),
        ("OMP_NUM_THREADS", "p.toml:3"),
    ]
    environ = agent_environment(plan_of(options, **users), users, "id")
    assert environ["NCCL_IB_DISABLE"] == "1"
    assert environ["OMP_NUM_THREADS"] == "4"
    assert environ["NCCL_SOCKET_IFNAME"] == "ib0"
    assert environ["EMPTY"] == ""


def test_a_variable_of_a_preset_is_as_if_the_user_had_set_it(rows: tuple[Row, ...]) -> None:
    plan = plan_of(with_preset(rows, 'nproc-per-node = 2\n[env]\nNCCL_DEBUG = "INFO"\nOMP_NUM_THREADS = "3"\n'))
    assert [(each.name, each.value, each.origin) for each in plan.environment] == [
        ("NCCL_DEBUG", "INFO", "p.toml:3"),
        ("OMP_NUM_THREADS", "3", "p.toml:4"),
    ]
    assert not plan.nccl_log
    assert plan.by_torch == ()


def test_variables_are_shown_with_their_origin_and_without_secrets(rows: tuple[Row, ...]) -> None:
    plan = plan_of(with_preset(rows, f'[env]\nHF_TOKEN = "{SECRET}"\nNCCL_NET = "IB"\n'))
    shown = plan_file.as_text(plan, ["ddp-run", "x.py"], None)
    assert SECRET not in shown
    assert re.search(r"HF_TOKEN +\[redacted\] +p.toml:2", shown)
    assert re.search(r"NCCL_NET +IB +p.toml:3", shown)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('RANK = "1"', "set by the launcher"),
        ('TORCHELASTIC_RUN_ID = "1"', "set by the launcher"),
        ('PET_NNODES = "1"', "write the option's own key"),
        ('MASTER_ADDR = "1"', "write the option's own key"),
        ("X = true", "expected a string or a number"),
        ("X = [1]", "expected a string or a number"),
        (r'X = "a\u0000b"', "expected a string or a number"),
        ('A-B = "1"', "expected a variable's name"),
        ('"" = "1"', "expected a variable's name"),
    ],
)
def test_a_wrong_variable_is_refused_with_its_line(rows: tuple[Row, ...], entry: str, says: str) -> None:
    (problem,) = problems(rows, f"console = 'all'\n[env]\nA = 'fine'\n{entry}\n")
    assert (problem.origin, says in problem.title) == ("p.toml:4", True), problem


def test_a_wrong_value_is_not_shown(rows: tuple[Row, ...]) -> None:
    (problem,) = problems(rows, f'[env]\nHF_TOKEN = ["{SECRET}"]\n')
    assert SECRET not in str(problem)


def test_env_is_a_table(rows: tuple[Row, ...]) -> None:
    (problem,) = problems(rows, "console = 'all'\nenv = 'A=1'\n")
    assert (problem.origin, problem.title) == ("p.toml:2", "env is not a table of variables")


# ------------------------------------------------------------------------------------- pyproject.toml

PROJECT = '[project]\nconsole = "x"\n[tool.ddp-run]\nconsole = "rank0"\nmax-retries = 2\n[tool.ddp-run.env]\nA = "1"\n'


def test_options_of_a_project_have_their_place(rows: tuple[Row, ...]) -> None:
    options = with_projects(rows, "[tool.ruff]\nx = 'ddp-run = '\n", PROJECT, "[tool.ddp-run]\nconsole = 'none'\n")
    assert options.settings["console"].origin == "1/pyproject.toml:4"
    assert (options.console, options.max_retries) == ("rank0", 2)
    assert [(each.name, each.origin) for each in options.rank_variables] == [("A", "1/pyproject.toml:7")]


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("--config none x.py", {}),
        ("x.py", {"DDP_RUN_CONFIG": ""}),
        ("x.py", {"DDP_RUN_CONFIG": "none"}),
        ("--config none x.py", {"DDP_RUN_CONFIG": "p.toml"}),
    ],
)
def test_a_project_can_be_turned_off(rows: tuple[Row, ...], line: str, variables: dict[str, str]) -> None:
    options = with_projects(rows, PROJECT, line=line, **variables)
    assert (options.console, options.max_retries, options.rank_variables) == ("all", 0, ())


def test_a_preset_replaces_what_a_project_says(rows: tuple[Row, ...]) -> None:
    options = with_projects(rows, PROJECT, line="--config p.toml x.py")
    assert (options.console, options.max_retries, options.rank_variables) == ("none", 0, ())


def test_what_the_user_says_wins(rows: tuple[Row, ...]) -> None:
    options = with_projects(rows, PROJECT, line="--console failed x.py", MAX_RETRIES="1", A="2")
    assert (options.console, options.max_retries, options.rank_variables) == ("failed", 1, ())


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("[x]\nconsol = 1\n[tool.ddp-run]\nconsol = 'all'\n", 4, "unknown key consol"),
        ("[tool]\nddp-run = 'x'\n", 2, "tool.ddp-run is not a table"),
        ("[tool.ddp-run]\nconsole = \n", 2, "not valid TOML"),
        ("[tool.ddp-run]\n[tool.ddp-run.env]\nRANK = 1\n", 3, "[env] RANK"),
    ],
)
def test_a_mistake_in_a_project_has_its_line(rows: tuple[Row, ...], text: str, place: int, says: str) -> None:
    (problem,) = problems(rows, text, project=True)
    assert (problem.origin, says in problem.title) == (f"0/pyproject.toml:{place}", True), problem


def test_another_tool_s_broken_file_is_not_ours(rows: tuple[Row, ...]) -> None:
    assert with_projects(rows, "[project\nddp-run = \n").console == "all"


def test_the_nearest_project_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert list(project_files()) == []
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "a" / "pyproject.toml").write_text('[project]\ndependencies = ["ddp-run>=0.1"]\n')
    assert list(project_files()) == [(str(tmp_path / "pyproject.toml"), PROJECT)]
    (inner / "pyproject.toml").write_text(PROJECT)
    assert [path for path, _ in project_files()] == ["pyproject.toml", str(tmp_path / "pyproject.toml")]


def test_no_project_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pyproject.toml")
    assert list(project_files()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_a_planted_project_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """In a place like /tmp, or /data where everybody may write, anybody can put one above a user's folder."""
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    project = tmp_path / "pyproject.toml"
    project.write_text(PROJECT)
    os.chown(project, 12345, 12345)
    assert len(list(project_files())) == 1
    tmp_path.chmod(mode)
    assert list(project_files()) == []
    monkeypatch.chdir(tmp_path)  # a container's workspace, where the script is anybody's too
    assert len(list(project_files())) == (mode == 0o777)


# ----------------------------------------------------------------------------------- the shipped presets


@pytest.mark.parametrize("preset", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_preset_is_valid(rows: tuple[Row, ...], preset: Path) -> None:
    """Also with the lines that are there to be uncommented."""
    written = preset.read_text(encoding="utf-8")
    whole = re.sub(r"^# (?=\[|[A-Za-z_-]+ = )", "", written, flags=re.MULTILINE)
    for text in {written, whole}:
        options = with_preset(rows, text)
        assert options.given > {"config"}
        shown = plan_file.as_text(plan_of(options), ["ddp-run", "x.py"], None)
        settings = [each.origin for each in options.settings.values() if each.source == "configuration file"]
        for origin in (*settings, *(each.origin for each in options.rank_variables)):
            assert origin in shown


@pytest.mark.parametrize("preset", CONFIGS, ids=lambda path: path.stem)
def test_each_key_of_a_shipped_preset_says_what_it_does(preset: Path) -> None:
    for line in preset.read_text(encoding="utf-8").splitlines():
        if re.match(r"(# )?[A-Za-z_-]+ = ", line):
            assert re.search(r" # [\w\[].{5,}", line), line
