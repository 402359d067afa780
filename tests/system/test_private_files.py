"""Who may read and move what ddp-run writes, whatever the umask and whoever was in the temporary folder before."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from tests.loaded_process import COMMAND

from .conftest import DDP_RUN, Launcher, cases


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def named(command: str, cwd: Path, temporary: Path) -> list[str]:
    """The runs that a command names which looks where a launch from there puts its own."""
    environ = {**os.environ, "TMPDIR": str(temporary)}
    done = COMMAND.run(DDP_RUN, command, cwd=cwd, env=environ)
    return re.findall(r"\d{8}-\d{6}-[0-9a-f]{4}", done.stdout)


def test_under_umask_0(ddp: Launcher) -> None:
    program = ddp.script("raise SystemExit(3)")
    opened = ("sh", "-c", 'umask 0; exec "$@"', "sh")
    running = ddp.start("--nproc-per-node", 1, "--log-dir", "new/logs", program, within=opened)
    assert running.wait().code == 3
    logs = running.cwd / "new" / "logs"
    folder = (logs / "latest").resolve()
    written = [folder / name for name in ("plan.json", "events.jsonl", "verdict.json", "attempt_0/agent.log")]
    assert {path.name: oct(mode(path)) for path in written if mode(path) != 0o600} == {}
    folders = [folder, folder / "attempt_0", folder / "attempt_0" / "rank_0"]
    assert {path.name: oct(mode(path)) for path in folders if mode(path) != 0o700} == {}
    assert not mode(logs) & 0o002
    assert not mode(logs.parent) & 0o002


@pytest.mark.parametrize("planted", cases(("link", "writable", "somebody else's", "nothing"), ("link",)))
def test_the_folder_of_last_resort(ddp: Launcher, tmp_path: Path, planted: str) -> None:
    """Where the working directory takes no files, logs go to the temporary folder, which everybody may write to."""
    temporary, victim = tmp_path / "temporary", tmp_path / "victim"
    temporary.mkdir()
    temporary.chmod(0o1777)
    victim.mkdir()
    usual = temporary / f"ddp-run-logs-{os.getuid()}"
    if planted == "link":
        usual.symlink_to(victim)
    elif planted == "writable":
        usual.mkdir()
        usual.chmod(0o777)
    elif planted == "somebody else's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder to another user")
        usual.mkdir()
        os.chown(usual, 65534, 65534)
    (tmp_path / "run0").mkdir()
    (tmp_path / "run0" / "ddp-run-logs").write_text("a file, so no folder")
    outcome = ddp("--nproc-per-node", 1, ddp.script("print('ran')"), env={"TMPDIR": str(temporary)})
    assert (outcome.code, outcome.stdout) == (0, "[rank0]: ran\n")
    assert list(victim.iterdir()) == []
    (folder,) = [path.parent for path in temporary.glob("ddp-run-logs-*/2*/verdict.json")]
    assert f"logs go to {folder.parent}: " in outcome.stderr
    assert (folder.parent == usual) == (planted == "nothing")
    assert mode(folder.parent) == 0o700
    assert [named(run, tmp_path / "run0", temporary) for run in ("runs", "explain")] == [[folder.name]] * 2


def test_a_folder_that_somebody_made_in_a_shared_place(ddp: Launcher, tmp_path: Path) -> None:
    """A working directory like /tmp: whoever made ddp-run-logs there can put links in the place of files."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    shared = tmp_path / "run0"
    (shared / "ddp-run-logs").mkdir(parents=True)
    (shared / "ddp-run-logs").chmod(0o777)
    os.chown(shared / "ddp-run-logs", 65534, 65534)
    shared.chmod(0o1777)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    outcome = ddp("--nproc-per-node", 1, ddp.script("print('ran')"), env={"TMPDIR": str(temporary)})
    assert outcome.code == 0
    assert list((shared / "ddp-run-logs").iterdir()) == []
    assert (
        f"logs go to {temporary}/ddp-run-logs-{os.getuid()}: {shared}/ddp-run-logs belongs to another user"
        in outcome.stderr
    )
    assert outcome.folder is None, "no link there"
    (folder,) = temporary.glob("ddp-run-logs-*/2*")
    assert [named(run, shared, temporary) for run in ("runs", "explain")] == [[folder.name]] * 2
