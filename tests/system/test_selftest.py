"""`ddp-run selftest` tells an installation that works from one that does not; what is published is one that works."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.waiting import limit

from .conftest import DDP_RUN, Launcher

pytestmark = pytest.mark.slow_system
ROOT = Path(__file__).resolve().parents[2]
OTHER_JOBS = {"NNODES": "2", "MASTER_ADDR": "192.0.2.1", "PET_NNODES": "2", "DDP_RUN_CONSOLE": "none", "RANK": "1"}


def selftest(ddp: Launcher, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    temporary = {"TMPDIR": str(ddp.cwd)}
    environ = ddp.environ({**temporary, **variables})
    line = [str(DDP_RUN), "selftest", *words]
    return subprocess.run(line, cwd=ddp.cwd, env=environ, capture_output=True, text=True, timeout=limit(120))


def test_an_installation_that_works(ddp: Launcher) -> None:
    """Variables of a job that this is not part of change nothing."""
    done = selftest(ddp, **OTHER_JOBS)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    head, *lines = done.stdout.splitlines()
    assert head.startswith("ddp-run ")
    assert [line[:7] for line in lines] == ["ok     "] * 3
    assert list(ddp.cwd.iterdir()) == [], "it left files behind"


def test_ranks_that_cannot_meet(ddp: Launcher) -> None:
    done = selftest(ddp, "--json", GLOO_SOCKET_IFNAME="nosuch0")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert [check["ok"] for check in answer["checks"]] == [False, False, True]
    assert "exit code 1, rank" in answer["checks"][0]["said"]
    assert len(list(Path(answer["folder"]).glob("2*/verdict.json"))) == 2


def test_without_torch(ddp: Launcher) -> None:
    """A torch without its launcher is found first."""
    (ddp.cwd / "first" / "torch").mkdir(parents=True)
    (ddp.cwd / "first" / "torch" / "__init__.py").touch()
    done = selftest(ddp, PYTHONPATH=f"{ddp.cwd / 'first'}:{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode == 1
    assert done.stdout.count("FAILED nothing was started: error[DDP601]: torch is not installed") == 2
    assert "FAILED no job was started" in done.stdout


def test_an_executor_runs_trainings(ddp: Launcher) -> None:
    """The example for submitit, without submitit."""
    example = [sys.executable, str(ROOT / "scripts" / "examples" / "executor_job.py"), "--nproc-per-node", "2"]
    script = ddp.script("import sys\nsys.exit(int(sys.argv[1]))\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line = [*example, *words]
        environ = ddp.environ({"MAX_RETRIES": "0"})
        return subprocess.run(line, cwd=ddp.cwd, env=environ, capture_output=True, text=True, timeout=limit(240))

    good, bad, none = run(str(script), "0"), run(str(script), "6"), run("no-such.py")
    assert good.returncode == 0, good.stderr
    assert f"done: {ddp.cwd / 'ddp-run-logs'}/2" in good.stdout
    assert bad.returncode == 6
    assert "failed: rank" in bad.stdout
    assert none.returncode == 2
    assert none.stderr.startswith("error[DDP102]")


def test_what_is_published_works_away_from_this_tree(tmp_path: Path) -> None:
    """scripts/publish, on this tree as it is: wheel and sdist are built and checked, the wheel runs real jobs."""
    missing = [name for name in ("build", "twine") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed (extra release)")
    fetched = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(tmp_path), "setuptools>=77"]
    if subprocess.run(fetched, capture_output=True, timeout=limit(120)).returncode != 0:
        pytest.skip("no package index to take setuptools from")
    tree = tmp_path / "tree"
    _copy(tree)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHON": sys.executable}
    script = tree / "scripts" / "publish"
    done = subprocess.run([script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=limit(280))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok     ") == 3
    assert {path.suffix for path in (tree / "dist").glob("ddp_run-*")} == {".whl", ".gz"}
    assert "not uploaded" in done.stdout
    (source,) = (tree / "dist").glob("*.tar.gz")
    with tarfile.open(source) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"docs/guide.md", "configs/single-node.toml", "scripts/examples/two-machines.sh", "CHANGELOG.md"} <= names


def _copy(tree: Path) -> None:
    """What git would take of this tree, as a commit of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    who = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "as it is"]):
        subprocess.run(["git", *words], cwd=tree, check=True)
