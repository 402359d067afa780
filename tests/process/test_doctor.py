"""`ddp-run doctor --quick`, and what it refuses; through the real command, without torch."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import limit

DDP_RUN = Path(sys.executable).with_name("ddp-run")


def doctor(
    cwd: Path, *words: str, env: Mapping[str, str] | None = None, within: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PET_", "DDP_", "MASTER_", "NCCL_", "GLOO_", "COLUMNS", "OMP_"))
    }
    command = [*within, sys.executable, "-X", "importtime", str(DDP_RUN), "doctor", *words]
    return subprocess.run(
        command, cwd=cwd, env={**kept, **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=limit(120), check=False,
    )  # fmt: skip


def by_check(done: subprocess.CompletedProcess[str]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return found


def test_quick_looks_at_this_host_without_torch(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--quick", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["fit"]) == ((0, True) if document["fit"] else (78, False))
    assert (document["schema"], document["level"], document["folder"]) == (1, "quick", None)
    assert document["seconds"] > 0
    assert not [each for each in document["findings"] if "the check itself failed" in (each["against"] or "")]
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "ddp_run.doctor.examination" in loaded
    assert not loaded & {"torch", "numpy", "structlog", "ddp_run.supervise.job"}
    assert list(tmp_path.iterdir()) == []


def test_a_log_gets_lines(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--quick")
    *lines, last = done.stdout.splitlines()
    assert all(line.startswith("ddp-run doctor: ") for line in lines)
    assert last.startswith("ddp-run doctor: fit: " if done.returncode == 0 else "ddp-run doctor: unfit: ")


def test_what_fails_makes_the_host_unfit(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--quick", "--json", "--data-path", "missing", env={"GLOO_SOCKET_IFNAME": "nope0"})
    found = by_check(done)
    assert done.returncode == 78
    assert [each["grade"] for each in found["data_paths"] + found["interfaces"]] == ["fail", "fail"]
    assert found["data_paths"][0]["value"] == "No such file or directory"


def test_a_low_limit_is_a_warning(tmp_path: Path) -> None:
    found = by_check(doctor(tmp_path, "--quick", "--json", within=("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh")))
    assert (found["limits"][0]["value"], found["limits"][0]["grade"]) == ("1024", "warn")


def test_a_taken_port_is_named_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = ("--quick", "--json", "--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={port}")
        done = doctor(tmp_path, *words)
    (found,) = by_check(done)["ports"]
    assert (done.returncode, found["grade"], found["looked_at"]) == (78, "fail", f"port {port}")
    assert f"pid {os.getpid()} " in found["against"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py"], "the doctor takes no script"),
        (["--nnodes=x"], "'x' is not a number of nodes or MIN:MAX"),
        (["-m", "package"], "the doctor runs its own program"),
        (["--no-such-option"], "unknown option --no-such-option"),
        (["--quick", "--full"], "--quick and --full exclude each other"),
    ],
)
def test_wrong_words(tmp_path: Path, words: list[str], said: str) -> None:
    done = doctor(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "doctor_ranks/__main__.py" not in "".join(
        line for line in done.stderr.splitlines() if not line.startswith("import time:")
    )
    assert list(tmp_path.iterdir()) == []


def test_a_mount_without_an_answer_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe that nobody writes to: opening it waits, as a dead server does."""
    os.mkfifo(tmp_path / "pipe")
    done = doctor(tmp_path, "--quick", "--json", "--data-path", "pipe")
    (found,) = by_check(done)["data_paths"]
    assert (done.returncode, found["grade"], found["value"]) == (78, "fail", "no answer")


def test_folders_that_jobs_can_do_without_are_no_failure(tmp_path: Path) -> None:
    """As in containers whose user has no home, or whose file system is read-only."""
    found = by_check(doctor(tmp_path, "--quick", "--json", env={"HOME": "/no/home", "TMPDIR": str(tmp_path / "no")}))
    told = {each["looked_at"]: (each["value"], each["grade"]) for each in found["disk_space"]}
    assert told["disk for home"] == told["disk for temporary files"] == ("no such folder", "warn")


def test_without_torch_all_else_is_looked_at(tmp_path: Path) -> None:
    """A Python that finds ddp-run and its libraries, and no torch."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name in ("click", "psutil", "tenacity", "ddp_run"):
        (libraries / name).symlink_to(Path(str(importlib.import_module(name).__file__)).parent)
    command = [sys.executable, "-S", "-m", "ddp_run", "doctor", "--quick", "--json", "--nproc-per-node=2"]
    environ = {"PYTHONPATH": str(libraries), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = by_check(done)
    assert done.returncode == 78
    assert [(each["looked_at"], each["value"], each["grade"]) for each in found["torch_build"]] == [
        ("torch", "not found", "fail")
    ]
    assert found["host_memory"][0]["grade"] in ("pass", "warn")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [("doctor --quick", 78, "it was removed or recreated"), ("train.py", 2, "removed or recreated")],
)
def test_a_working_directory_that_is_gone(tmp_path: Path, command: str, code: int, said: str) -> None:
    script = f'mkdir gone && cd gone && rmdir ../gone && exec "{DDP_RUN}" {command}'
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"{DDP_RUN}" doctor --quick | true; exit ${{PIPESTATUS[0]}}'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=limit(60),
        check=False,
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_without_a_loopback(tmp_path: Path) -> None:
    within = ("unshare", "--net")
    try:
        subprocess.run([*within, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces cannot be made here")
    done = doctor(tmp_path, "--json", within=within)
    found = by_check(done)
    assert (done.returncode, found["loopback"][0]["grade"]) == (78, "fail")
    # ranks that cannot meet would wait for each other for minutes
    assert found["launch"][0]["against"] == "no ranks were started: loopback: Network is unreachable"
    assert "process_group" not in found
