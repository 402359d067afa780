"""Mistakes found before anything is started, on real files and real ports."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_run.plan.checks.devices import visible_gpus
from ddp_run.plan.installed_torch import find_torch_run, torch_rows
from ddp_run.plan.net import free_port
from ddp_run.plan.preflight import Answer, Launch, all_checks, check
from ddp_run.settings.parse import parse
from ddp_run.settings.table import Row
from ddp_run.values.problem import Problem, Refused, render


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return torch_rows()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('started')")
    return tmp_path


def _check(rows: tuple[Row, ...], folder: Path, line: str, **variables: str) -> Answer:
    environ = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", **variables}
    return check(parse(shlex.split(line), environ, torch_rows=rows), environ, folder)


def _only(checked: Answer) -> Problem:
    assert len(checked.problems) == 1, checked.problems
    return checked.problems[0]


def test_a_good_line_passes(rows: tuple[Row, ...], folder: Path) -> None:
    checked = _check(rows, folder, "--nproc-per-node=2 train.py --epochs 3")
    assert (checked.problems, checked.warnings, checked.master) == ((), (), None)
    assert list(folder.iterdir()) == [folder / "train.py"]


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("--nnodes 2 --rdzv-backend c10d train.py", True),
        ("--nnodes 1:4 --rdzv-backend c10d train.py", True),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:29400 train.py", False),
        ("--nnodes 1 --rdzv-backend c10d train.py", False),
    ],
)
def test_nodes_that_each_would_meet_on_themselves(rows: tuple[Row, ...], folder: Path, line: str, warned: bool) -> None:
    checked = _check(rows, folder, line)
    assert checked.problems == ()
    assert [warning.partition(":")[0] for warning in checked.warnings] == ["no --rdzv-endpoint"] * warned


@pytest.mark.parametrize(
    ("line", "variables", "named"),
    [
        ("--no-python --backend gloo --ddp-debug sh", {}, "--backend, --ddp-debug have"),
        ("--no-python sh", {"TORCH_DIST_TIMEOUT": "5"}, "TORCH_DIST_TIMEOUT has"),
        ("--no-python --preflight off --fallback-backend gloo sh", {}, "--fallback-backend has"),
        ("--no-python --hang-timeout 60 sh -c true", {}, None),
        ("--hang-timeout 60 --backend gloo --ddp-debug train.py", {"TORCH_DIST_TIMEOUT": "5"}, None),
    ],
)
def test_what_has_no_effect_in_a_program_that_is_not_looked_into(
    rows: tuple[Row, ...], folder: Path, line: str, variables: dict[str, str], named: str | None
) -> None:
    checked = _check(rows, folder, line, **variables)
    assert checked.problems == ()
    said = f"{named} no effect with --no-python: ddp-run can't hook into the program"
    assert checked.warnings == (() if named is None else (said,))


@pytest.mark.parametrize(
    ("line", "fixed"),
    [
        ("--nproc-per-node 2 python train.py --lr 1", "ddp-run --nproc-per-node 2 train.py --lr 1"),
        ("python3 -u train.py", "ddp-run train.py"),
        ("python3.11 -m pkg.mod x", "ddp-run -m pkg.mod x"),
        ("torchrun --nproc-per-node 2 train.py", "ddp-run --nproc-per-node 2 train.py"),
        ("python -m torch.distributed.run --standalone train.py", "ddp-run --standalone train.py"),
        (f"{sys.executable} train.py", "ddp-run train.py"),
    ],
)
def test_a_launcher_in_the_scripts_place(rows: tuple[Row, ...], folder: Path, line: str, fixed: str) -> None:
    problem = _only(_check(rows, folder, line))
    assert (problem.code, problem.cause) == ("DDP101", "syntax-or-usage")
    assert problem.helps == (fixed,)
    assert problem.word is not None
    assert shlex.split(line)[problem.word].rpartition("/")[2].startswith(("python", "torchrun"))


def test_a_script_called_python_runs(rows: tuple[Row, ...], folder: Path) -> None:
    (folder / "python").write_text("print('a script')")
    assert _check(rows, folder, "python train.py").problems == ()


def test_a_missing_script_shows_the_nearest(rows: tuple[Row, ...], folder: Path) -> None:
    problem = _only(_check(rows, folder, "--nproc-per-node 2 trian.py --lr 1"))
    assert (problem.code, problem.cause, problem.word) == ("DDP102", "script-not-found", 2)
    assert problem.helps == ("ddp-run --nproc-per-node 2 train.py --lr 1   # did you mean train.py?",)


def test_a_script_in_a_missing_folder(rows: tuple[Row, ...], folder: Path) -> None:
    problem = _only(_check(rows, folder, "no/train.py"))
    assert problem.notes == (f"folder {folder / 'no'} does not exist",)


def test_what_python_can_run_passes(rows: tuple[Row, ...], folder: Path) -> None:
    (folder / "app").mkdir()
    assert "without __main__.py" in _only(_check(rows, folder, "app")).title
    (folder / "app" / "__main__.py").write_text("")
    subprocess.run([sys.executable, "-m", "zipapp", "app", "-o", "app.pyz"], cwd=folder, check=True)
    assert _check(rows, folder, "app").problems == ()
    assert _check(rows, folder, "app.pyz").problems == ()
    assert _check(rows, folder, "/dev/stdin").problems == ()


@pytest.fixture
def package(folder: Path) -> Iterator[str]:
    pkg = folder / "some_training_pkg"
    pkg.mkdir()
    (pkg / "__init__.py").write_text("raise SystemExit('imported')")
    (pkg / "main.py").write_text("")
    yield pkg.name
    assert pkg.name not in sys.modules


def test_modules_are_found_without_importing_their_package(rows: tuple[Row, ...], folder: Path, package: str) -> None:
    assert _check(rows, folder, f"-m {package}.main").problems == ()
    assert _check(rows, folder, "-m json.tool").problems == ()
    missing = _only(_check(rows, folder, f"-m {package}.mian x"))
    assert missing.helps == (f"ddp-run -m {package}.main x",)
    assert "package without __main__" in _only(_check(rows, folder, f"-m {package}")).label
    assert _only(_check(rows, folder, "-m no_such_module_here")).code == "DDP102"
    (folder / package / "__init__.py").write_text("__path__.append('/elsewhere')")
    assert _check(rows, folder, f"-m {package}.mian").problems == ()


def test_folders_without_init_are_packages_too(rows: tuple[Row, ...], folder: Path) -> None:
    (folder / "outer" / "inner").mkdir(parents=True)
    (folder / "outer" / "inner" / "job.py").write_text("")
    assert _check(rows, folder, "-m outer.inner.job").problems == ()
    missing = _only(_check(rows, folder, "-m outer.inner.jab x"))
    assert missing.helps == ("ddp-run -m outer.inner.job x",)
    assert _only(_check(rows, folder, "-m outer.iner.job")).code == "DDP102"
    assert "package without __main__" in _only(_check(rows, folder, "-m outer.inner")).label
    (folder / "outer" / "inner" / "__main__.py").write_text("")
    assert _check(rows, folder, "-m outer.inner").problems == ()


def test_a_check_that_fails_ends_no_launch(rows: tuple[Row, ...], folder: Path) -> None:
    def broken(_launch: Launch) -> Answer:
        raise KeyError("outer")

    checks = [replace(each, run=broken) for each in all_checks()]
    checked = check(parse(["train.py"], {}, torch_rows=rows), {}, folder, checks=checks)
    assert checked.problems == ()
    assert len(checked.warnings) == len(checks) > 5
    named = "\n".join(checked.warnings)
    assert "check of the script skipped: KeyError: 'outer'" in named


def test_a_file_with_dash_m(rows: tuple[Row, ...], folder: Path) -> None:
    problem = _only(_check(rows, folder, "-m train.py x"))
    assert problem.helps == ("ddp-run train.py x", "ddp-run -m train x")


def test_no_python(rows: tuple[Row, ...], folder: Path) -> None:
    assert _check(rows, folder, "--no-python bash -c true").problems == ()
    assert _only(_check(rows, folder, "--no-python no-such-program")).code == "DDP102"
    assert _only(_check(rows, folder, "--no-python ./train.py")).helps == ("chmod u+x ./train.py",)
    assert _only(_check(rows, folder, "bash run.sh")).helps == ("ddp-run --no-python bash run.sh",)


@pytest.mark.parametrize(
    ("line", "title", "help"),
    [
        ("--rdzv-backend nccl", "unknown rendezvous backend nccl", "omit --rdzv-backend, or use --rdzv-backend=c10d"),
        ("--rdzv-backend=cd10 --rdzv-endpoint=h:1", "unknown rendezvous backend cd10", "--rdzv-backend=c10d"),
        ("--logs-specs ddp-rum", "unknown logs specs ddp-rum", "--logs-specs=ddp-run"),
        ("--logs-specs mine --preflight off", "unknown logs specs mine", "omit --logs-specs"),
    ],
)
def test_a_plug_in_that_is_not_installed(rows: tuple[Row, ...], folder: Path, line: str, title: str, help: str) -> None:
    problem = _only(_check(rows, folder, f"{line} train.py"))
    assert (problem.code, problem.title, problem.helps) == ("DDP101", title, (help,))
    assert problem.word is not None


def test_plug_ins_that_are_installed(rows: tuple[Row, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("etcd", "etcd-v2", "c10d", "static"):
        assert _check(rows, folder, f"--rdzv-backend={name} --rdzv-endpoint=127.0.0.1:1 train.py").problems == ()
    assert _check(rows, folder, "--standalone --rdzv-backend=nccl train.py").problems == ()
    info = folder / "site" / "mine-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torchrun.handlers]\nmine = mine:handler\n[torchrun.logs_specs]\nx = m:X\n")
    monkeypatch.syspath_prepend(str(folder / "site"))
    assert _check(rows, folder, "--rdzv-backend=mine --logs-specs=x train.py").problems == ()


def test_a_port_that_is_taken_names_its_holder(rows: tuple[Row, ...], folder: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        problem = _only(_check(rows, folder, f"--master-port {port} train.py"))
        assert (problem.code, problem.cause, problem.word) == ("DDP201", "port-in-use", 1)
        assert str(os.getpid()) in problem.notes[0]
        assert _check(rows, folder, f"--master-port {port} --preflight off train.py").problems == ()
        assert _check(rows, folder, f"--master-port {port} --standalone train.py").problems == ()
        other = _check(rows, folder, f"--master-port {port} --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 train.py")
        assert other.problems == ()
        assert other.master == "127.0.0.1"
        # A plain variable is a wish that one node can do without.
        exported = _check(rows, folder, "train.py", MASTER_PORT=str(port))
        assert exported.problems == ()
        assert exported.options.master_port is None
        assert (exported.options.notes, exported.warnings) == ((), ())
        origin = exported.options.settings["master_port"].origin
        assert origin == f"default, ignoring MASTER_PORT: port {port} is taken"


def test_the_master_becomes_an_address(rows: tuple[Row, ...], folder: Path) -> None:
    port = free_port()
    named = _check(rows, folder, f"--master-addr localhost --master-port {port} train.py")
    assert (named.problems, named.master) == ((), "127.0.0.1")
    variables = _check(rows, folder, "train.py", MASTER_ADDR="localhost", MASTER_PORT=str(port))
    assert (variables.problems, variables.master) == ((), "127.0.0.1")
    assert variables.options.master == ("localhost", port)
    foreign = _check(rows, folder, "train.py", MASTER_ADDR="192.0.2.199", MASTER_PORT=str(port))
    assert (foreign.problems, foreign.options.is_static) == ((), False)
    problem = _only(_check(rows, folder, f"--master-addr no-host.invalid --master-port {port} train.py"))
    assert (problem.code, problem.cause, problem.word) == ("DDP203", "rendezvous-dns", 1)


def test_log_folders(rows: tuple[Row, ...], folder: Path) -> None:
    (folder / "file").write_text("")
    problem = _only(_check(rows, folder, "--log-dir file/logs train.py"))
    assert "is not a folder" in problem.title
    assert problem.word == 1
    assert _check(rows, folder, "--log-dir new/logs train.py").problems == ()
    assert not (folder / "new").exists()


def test_a_log_folder_that_cannot_be_written(rows: tuple[Row, ...], folder: Path) -> None:
    """/proc takes no folder from anybody, root included."""
    problem = _only(_check(rows, folder, "--log-dir /proc/sys/logs train.py"))
    assert problem.code in ("DDP904", "DDP905")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("nowhere/train.prom", ("DDP101", "no such folder")),
        (".", ("DDP101", "expected a file")),
        ("/proc/self/train.prom", ("DDP904", "not writable")),
        ("train.txt", "node_exporter's textfile collector ignores train.txt: it reads files that end in .prom"),
        ("train.prom", None),
        ("", None),
    ],
)
def test_where_metrics_cannot_go(
    rows: tuple[Row, ...], folder: Path, file: str, said: tuple[str, str] | str | None
) -> None:
    checked = _check(rows, folder, f"--metrics={file} train.py")
    if isinstance(said, tuple):
        problem = _only(checked)
        assert (problem.code, problem.label) == said
    else:
        assert (checked.problems, checked.warnings) == ((), (said,) if said else ())


def test_gpus_are_counted_as_cuda_would(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    counts = {None: 4, "0,1": 2, "": 0, "-1": 0, "1,-1,2": 1, "GPU-abc,GPU-def": 2}
    for chosen, expected in counts.items():
        environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
        assert visible_gpus(environ, tmp_path) == expected
    assert visible_gpus({}, tmp_path / "none") is None


def test_torch_is_found_by_files_alone(tmp_path: Path) -> None:
    (tmp_path / "torch" / "distributed").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit")
    run = tmp_path / "torch" / "distributed" / "run.py"
    run.write_text("")
    assert find_torch_run([str(tmp_path)]) == run
    assert find_torch_run(sys.path) is not None


def test_nothing_heavy_is_loaded_for_a_good_line(folder: Path) -> None:
    program = """
import sys
from pathlib import Path
from ddp_run.settings.parse import parse
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.preflight import check
checked = check(parse(["--nproc-per-node=2", "train.py"], {}, torch_rows=torch_rows()), {}, Path.cwd())
assert not checked.problems
print(sorted({"torch", "asyncio", "tenacity", "psutil", "structlog", "socket", "tomllib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_problem_is_a_block_that_points_at_the_word(rows: tuple[Row, ...], folder: Path) -> None:
    argv = shlex.split("--nproc-per-node 2 trian.py --lr 1")
    checked = check(parse(argv, {}, torch_rows=rows), {}, folder)
    lines = render(checked.problems, argv).splitlines()
    assert lines[0] == "error[DDP102]: script trian.py does not exist"
    assert lines[1] == "  --> command line, word 3"
    command = next(line for line in lines if "trian.py --lr" in line)
    marks = lines[lines.index(command) + 1]
    assert marks.index("^") == command.index("trian.py")
    assert marks.count("^") == len("trian.py")


def test_torch_missing_is_told(tmp_path: Path) -> None:
    program = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p];"
    program += f"sys.path.insert(0, {str(Path(__file__).parents[2] / 'supervisor')!r});"
    program += "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)];"
    program += "from ddp_run.plan import installed_torch; from ddp_run.values import problem\n"
    program += "try: installed_torch.torch_rows()\nexcept problem.Refused as refused: print(refused.problems[0].title)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "torch is not installed for this Python", done.stderr


def test_refusals_carry_all_problems(rows: tuple[Row, ...]) -> None:
    with pytest.raises(Refused) as caught:
        parse(["--nnodes=two", "--nproc-per-node=0", "--retry=maybe", "train.py"], {}, torch_rows=rows)
    assert len(caught.value.problems) == 3
