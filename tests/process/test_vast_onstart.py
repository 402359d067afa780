"""scripts/vast_onstart.sh by itself, as in a template: exit codes, boots, what is installed. Shells are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import limit, wait_until

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "vast_onstart.sh"


class Instance:
    """A machine with this much: a disk, and the script at every boot."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.state = self.work / ".ddp-run-vast"
        self.bin = folder / "bin"
        self.bin.mkdir()
        # the system's commands, and a ddp-run that is never started here
        self.path = f"{self.bin}:/usr/bin:/bin"
        self.program("ddp-run", "exit 99")

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def start(self, *words: str, **settings: str) -> subprocess.Popen[str]:
        environ = {"PATH": self.path, "WORK_DIR": str(self.work), "LINGER_S": "0", **settings}
        return subprocess.Popen(
            ["bash", str(SCRIPT), *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def boot(self, *words: str, **settings: str) -> tuple[int, list[str]]:
        process = self.start(*words, **settings)
        said, _ = process.communicate(timeout=limit(30))
        return process.returncode, said.splitlines()


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(tmp_path)


def last(code: int, *, uploaded: str = "no", next: str = "keep", folder: object = "-", id: str = "-") -> str:
    return f"vast-onstart: finished id={id} exit={code} uploaded={uploaded} next={next} folder={folder}"


def test_the_code_is_its_own_in_a_file_and_in_the_last_line(instance: Instance) -> None:
    code, said = instance.boot(TRAIN_CMD="sh -c 'echo \"two words\"; exit 7'", LAUNCH_ID="ab12")
    assert (code, said) == (7, ["two words", last(7, id="ab12")])
    assert (instance.state / "exit_code").read_text() == "7\n"


def test_a_run_that_ended_is_not_started_again(instance: Instance) -> None:
    instance.boot("sh", "-c", "echo run >> runs; exit 7", ON_END="stop")
    code, said = instance.boot("sh", "-c", "echo run >> runs; exit 7", ON_END="stop")
    assert code == 7
    assert said[-1] == last(7, uploaded="unknown")
    assert (instance.work / "runs").read_text() == "run\n"


@pytest.mark.parametrize(("resume", "code", "runs"), [("0", 75, "run\n"), ("1", 0, "run\nrun\n")])
def test_a_run_that_was_cut_off_is_resumed_only_if_asked(instance: Instance, resume: str, code: int, runs: str) -> None:
    words = ("sh", "-c", "echo run >> runs; [ -e go ] || { echo $$ > pid; exec sleep 600; }")
    process = instance.start(*words)
    told = instance.work / "pid"
    pid = int(wait_until(lambda: told.read_text() if told.exists() else None, "the run"))
    process.kill()  # as the machine goes: nobody has time to write anything
    os.kill(pid, signal.SIGKILL)
    process.communicate()
    (instance.work / "go").touch()
    assert instance.boot(*words, RESUME=resume)[0] == code
    assert (instance.work / "runs").read_text() == runs


def test_a_signal_reaches_the_training_and_its_code_counts(instance: Instance) -> None:
    process = instance.start("sh", "-c", "trap 'exit 9' TERM; touch up; while :; do sleep 0.05; done")
    wait_until((instance.work / "up").exists, "the training")
    process.terminate()
    said, _ = process.communicate(timeout=limit(30))
    assert process.returncode == 9
    assert said.splitlines()[-1] == last(9)


def test_setup_runs_in_the_same_shell_and_ends_at_its_first_failure(instance: Instance) -> None:
    setup = "mkdir repo; cd repo\nexport MODE=quiet$NOT_SET"
    assert instance.boot("sh", "-c", 'echo "$MODE $(basename "$PWD")"', SETUP_CMD=setup)[1][1] == "quiet repo"
    code, said = Instance(instance.work).boot("echo", "training", SETUP_CMD="echo one\nfalse\necho two")
    assert (code, said) == (1, ["vast-onstart: setting up", "one", last(1)])


def test_ddp_run_is_installed_where_it_is_missing(instance: Instance) -> None:
    (instance.bin / "ddp-run").unlink()
    assert instance.boot("true")[0] == 127
    (instance.state / "exit_code").unlink()
    (instance.state / "started").unlink()
    instance.program("python3", f'echo "$*" > {instance.work}/asked; exit ${{PIP_FAILS:-0}}')
    source = "git+https://example.org/ddp-run"
    assert instance.boot("true", INSTALL_FROM=source)[0] == 0
    assert (instance.work / "asked").read_text() == f"-m pip install --quiet {source}\n"
    assert Instance(instance.state).boot("true", INSTALL_FROM=source)[0] == 0  # there is one: nothing is installed


def test_the_folder_is_uploaded_with_the_code_in_its_environment(instance: Instance) -> None:
    run = "mkdir -p ddp-run-logs/1; ln -s 1 ddp-run-logs/latest; exit 4"
    folder = instance.work / "ddp-run-logs" / "1"
    code, said = instance.boot("sh", "-c", run, UPLOAD_CMD='echo "$EXIT_CODE $RUN_FOLDER" > told')
    assert (code, said) == (4, [last(4, uploaded="yes", folder=folder)])
    assert (instance.work / "told").read_text() == f"4 {folder}\n"


def test_a_url_gets_an_archive(instance: Instance) -> None:
    instance.program("curl", f'for last; do :; done; echo "$last" > {instance.work}/url; cp "$7" {instance.work}/sent')
    run = "mkdir -p ddp-run-logs/1; echo {} > ddp-run-logs/1/verdict.json; ln -s 1 ddp-run-logs/latest"
    code, said = instance.boot("sh", "-c", run, UPLOAD_CMD="https://example.org/put?signature=x")
    assert (code, "uploaded=yes" in said[-1]) == (0, True)
    assert (instance.work / "url").read_text() == "https://example.org/put?signature=x\n"
    listed = subprocess.run(["tar", "tzf", instance.work / "sent"], capture_output=True, text=True, check=True).stdout
    assert listed.splitlines() == ["1/", "1/verdict.json"]


def test_folders_of_other_runs_are_not_taken_for_this_one(instance: Instance) -> None:
    old = instance.work / "ddp-run-logs" / "1"
    old.mkdir(parents=True)
    (instance.work / "ddp-run-logs" / "latest").symlink_to("1")
    os.utime(old, (1, 1))
    assert instance.boot("false", UPLOAD_CMD="touch uploaded")[1] == [last(1)]
    assert not (instance.work / "uploaded").exists()


@pytest.mark.parametrize(("on_end", "words"), [("stop", "stop instance 77"), ("destroy", "destroy instance 77 --yes")])
def test_it_ends_its_instance_with_the_key_it_was_given(instance: Instance, on_end: str, words: str) -> None:
    instance.program("vastai", f'echo "$VAST_API_KEY: $*" > {instance.work}/asked')
    instance.boot("true", ON_END=on_end, CONTAINER_ID="77", CONTAINER_API_KEY="own")
    assert (instance.work / "asked").read_text() == f"own: {words}\n"


@pytest.mark.parametrize(("settings", "said"), [({"ON_END": "burn"}, "ON_END=burn"), ({}, "TRAIN_CMD is not set")])
def test_bad_settings(instance: Instance, settings: dict[str, str], said: str) -> None:
    code, lines = instance.boot(*(["true"] if settings else []), **settings)
    assert code == 2
    assert said in lines[0]
    assert not instance.state.exists()


@pytest.mark.slow_system
def test_ddp_run_tells_where_its_folder_is(instance: Instance, tmp_path: Path) -> None:
    (instance.work / "train.py").write_text("raise SystemExit(3)")
    (instance.bin / "ddp-run").unlink()
    (instance.bin / "ddp-run").symlink_to(Path(sys.executable).with_name("ddp-run"))
    paths = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    code, said = instance.boot("ddp-run", "--log-dir", str(tmp_path / "logs"), "train.py", **paths)
    assert code == 3
    assert said[-1] == last(3, folder=(tmp_path / "logs" / "latest").resolve())
    assert said[-2].startswith("ddp-run: verdict outcome=failed ")
