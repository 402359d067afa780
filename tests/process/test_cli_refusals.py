"""Bad input, typed as users type it: the real command says what is wrong and where, and starts nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from tests.loaded_process import COMMAND
from tests.waiting import limit

DDP_RUN = Path(sys.executable).with_name("ddp-run")


@dataclass
class Answer:
    """What `ddp-run` said."""

    code: int
    stdout: str
    stderr: str

    @property
    def titles(self) -> list[str]:
        return re.findall(r"^error\[DDP\d+\]: (.*)$", self.stderr, re.MULTILINE)

    @property
    def codes(self) -> list[str]:
        return re.findall(r"^error\[(DDP\d+)\]", self.stderr, re.MULTILINE)

    @property
    def marked(self) -> str | None:
        """The part of the command line that the marks stand under."""
        lines = self.stderr.splitlines()
        for line, marks in pairwise(lines):
            found = re.match(r"   \| ( *)(\^+)", marks)
            if found:
                return line[found.start(2) : found.end(2)]
        return None


class Refuser:
    """`refused(line)`: run it where `train.py` would leave a file behind, and see that it did not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text("open('started', 'w')")

    def run(self, line: str, **variables: str) -> Answer:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not re.match(r"(DDP_|PET_|MASTER_|NNODES|NODE_RANK|NPROC|MAX_RETRIES|TORCH|COLUMNS)", name)
        }
        done = COMMAND.run(DDP_RUN, *shlex.split(line), cwd=self.folder, env=kept | variables)
        return Answer(done.returncode, done.stdout, done.stderr)

    def __call__(self, line: str, **variables: str) -> Answer:
        before = sorted(path.name for path in self.folder.iterdir())
        answer = self.run(line, **variables)
        assert answer.code == 2, answer.stderr
        assert answer.stdout == ""
        assert answer.stderr.startswith("error["), "something stands before the first block"
        assert "Traceback" not in answer.stderr
        assert sorted(path.name for path in self.folder.iterdir()) == before, "something was started or written"
        return answer


@pytest.fixture
def refused(tmp_path: Path) -> Refuser:
    return Refuser(tmp_path)


@pytest.mark.parametrize(
    ("line", "marked", "title"),
    [
        ("--nproc-per-node 0 train.py", "0", "--nproc-per-node: must be at least 1"),
        ("--nproc-per-node -1 train.py", "-1", "--nproc-per-node: must be at least 1"),
        ("--nproc_per_node=two train.py", "--nproc_per_node=two", "'two' is not a whole number or one of auto, cpu"),
        ("--nproc-per-node 2.5 train.py", "2.5", "'2.5' is not a whole number"),
        ("--nproc-per-node '' train.py", "''", "the value is empty"),
        ("--redirects '' train.py", "''", "the value is empty"),
        ("--nnodes '' train.py", "''", "the value is empty"),
        ("--nnodes 0 train.py", "0", "--nnodes: must be at least 1"),
        ("--nnodes 3:2 train.py", "3:2", "the minimum, 3, is greater than the maximum, 2"),
        ("--nnodes 1:2:3 train.py", "1:2:3", "'1:2:3' is not a number of nodes or MIN:MAX"),
        ("--nnodes 2 --node-rank 2 train.py", "2", "node rank 2 is out of range for 2 nodes: 0 to 1"),
        ("--standalone --nnodes 2 train.py", "2", "--standalone is for one node"),
        ("--master-port 65536 train.py", "65536", "65536 is not a port (0 to 65535)"),
        ("--master-port -1 train.py", "-1", "-1 is not a port (0 to 65535)"),
        ("--master-port http train.py", "http", "'http' is not an integer"),
        ("--rdzv-backend c10d --rdzv-endpoint host:99999 train.py", "host:99999", "'99999' is not a port"),
        ("--max-restarts x train.py", "x", "'x' is not an integer"),
        ("--max-restarts -1 train.py", "-1", "must be at least 0"),
        ("--max-retries -1 train.py", "-1", "must be at least 0"),
        ("--redirects 7 train.py", "7", "'7' is not 0, 1 (stdout), 2 (stderr), 3 (both)"),
        ("--tee 0:4 train.py", "0:4", "'0:4' is not 0, 1"),
        ("--monitor-interval nan train.py", "nan", "nan is not a number of seconds"),
        ("--start-method thread --run-path train.py", "thread", "thread"),
        ("--rdzv-conf timeout train.py", "timeout", "'timeout' is not KEY=VALUE"),
        ("--console loud train.py", "loud", "invalid choice 'loud' (choose from all, rank0, failed, none, raw)"),
        ("--nccl-debug=verbose train.py", "--nccl-debug=verbose", "(choose from off, warn, info, trace)"),
        ("-m --no-python train.py", "-m", "-m and --no-python cannot be used together"),
        ("--nproc-per-nodes=2 train.py", "--nproc-per-nodes=2", "unknown option --nproc-per-nodes"),
        ("--max-retires 1 train.py", "--max-retires", "unknown option --max-retires"),
        ("--r 3 train.py", "--r", "--r"),
        ("--nproc-per-node", "--nproc-per-node", "--nproc-per-node needs a value"),
        ("--standalone=1 train.py", "--standalone=1", "--standalone"),
        ("python train.py", "python", "python is not a training script"),
        ("--nproc-per-node 2 python3 -u train.py", "python3", "python3 is not a training script"),
        ("torchrun train.py", "torchrun", "torchrun is not a training script"),
        ("trian.py", "trian.py", "script trian.py does not exist"),
        ("gone/train.py", "gone/train.py", "script gone/train.py does not exist"),
        ("-m no_such_module", "no_such_module", "module no_such_module does not exist"),
        ("-m train.py", "train.py", "-m takes a module, but train.py is a file"),
        ("--no-python no-such-program", "no-such-program", "program no-such-program is not on PATH"),
        ("--max-retries 1 --nnodes 1:2 train.py", "1", "--max-retries needs a fixed number of nodes that meet"),
        ("--spare-nodes 1 --max-retries 1 --nnodes 2 train.py", "1", "--spare-nodes needs a fixed number of nodes"),
        (
            "--spare-nodes 1 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:29400 train.py",
            "1",
            "--spare-nodes needs --max-retries",
        ),
        ("--config none.toml train.py", "none.toml", "cannot read none.toml: No such file"),
        ("--config . train.py", ".", "cannot read .: Is a directory"),
        ("--log-dir train.py train.py", "train.py", "train.py is not a folder"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_the_word_that_is_wrong(refused: Refuser, line: str, marked: str, title: str) -> None:
    answer = refused(line)
    assert len(answer.titles) == 1, answer.stderr
    assert title in answer.titles[0]
    assert answer.marked == marked


def test_nothing_to_run(refused: Refuser) -> None:
    answer = refused("")
    assert answer.titles == ["the script is missing"]
    assert "ddp-run --help" in answer.stderr


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("--max-retires 1 train.py", "--max-retries"),
        ("--nproc-per-nodes 2 train.py", "--nproc-per-node"),
        ("--console faild train.py", "--console=failed"),
        ("trian.py --lr 1", "ddp-run trian.py".replace("trian", "train") + " --lr 1"),
        ("--nproc-per-node 2 python train.py --lr 1", "ddp-run --nproc-per-node 2 train.py --lr 1"),
    ],
    ids=lambda value: value if value[0] == "-" and " " in value else "",
)
def test_what_was_meant(refused: Refuser, line: str, help: str) -> None:
    helps = refused(line).stderr.partition("help: ")[2]
    assert help in helps


@pytest.mark.parametrize(
    ("variable", "text", "reason"),
    [
        ("PET_NNODES", "zwei", "'zwei' is not a number of nodes or MIN:MAX"),
        ("PET_NPROC_PER_NODE", "0", "must be at least 1"),
        ("PET_MASTER_PORT", "65536", "65536 is not a port"),
        ("PET_MAX_RESTARTS", "many", "'many' is not an integer"),
        ("PET_STANDALONE", "yes", "'yes' is not 0 or 1"),
        ("NPROC_PER_NODE", "none", "'none' is not a whole number"),
        ("DDP_RUN_CONSOLE", "loud", "invalid choice 'loud'"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon", "soon is not a whole number of seconds"),
    ],
)
def test_a_variable_that_is_wrong(refused: Refuser, variable: str, text: str, reason: str) -> None:
    answer = refused("train.py", **{variable: text})
    assert len(answer.titles) == 1
    assert variable in answer.titles[0]
    assert reason in answer.titles[0]
    assert f"--> environment variable {variable}" in answer.stderr


def test_all_mistakes_at_once(refused: Refuser) -> None:
    answer = refused("--nnodes=two --nproc-per-node=0 --retry=maybe train.py", PET_MAX_RESTARTS="x")
    assert len(answer.titles) == 4, answer.stderr


# -------------------------------------------------------------------------------------------- presets


def test_all_wrong_keys_of_a_preset_at_once(refused: Refuser) -> None:
    (refused.folder / "preset.toml").write_text(
        'nproc-per-nod = 2\nmax-retires = 1\n\nconsole = "loud"\nbackend_ = "nccl"\nmaster-port = 99999\n'
    )
    answer = refused("--config preset.toml train.py")
    for line, text in (
        (1, "unknown key nproc-per-nod"),
        (2, "unknown key max-retires"),
        (4, "console: invalid choice 'loud' (choose from all, rank0, failed, none, raw)"),
        (5, "unknown key backend_"),
        (6, "master-port: 99999 is not a port"),
    ):
        assert re.search(rf"error\[DDP101\]: {re.escape(text)}.*\n  --> preset.toml:{line}\n", answer.stderr), text
    assert "did you mean nproc-per-node?" in answer.stderr
    assert len(answer.titles) == 5


@pytest.mark.parametrize("content", [b"nnodes = [", b"\xff\xfe", b"nnodes = {a = 1}\n"], ids=["toml", "text", "type"])
def test_a_preset_that_cannot_be_read(refused: Refuser, content: bytes) -> None:
    (refused.folder / "preset.toml").write_bytes(content)
    answer = refused("train.py", DDP_RUN_CONFIG="preset.toml")
    assert len(answer.titles) == 1
    assert "preset.toml" in answer.stderr


# ---------------------------------------------------------------------------------------- this machine


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_that_is_taken(refused: Refuser, taken: int) -> None:
    answer = refused(f"--master-port {taken} train.py")
    assert answer.codes == ["DDP201"]
    assert answer.marked == str(taken)
    assert f"pid {os.getpid()} listens there" in answer.stderr
    other = re.search(r"help: --master-port=(\d+)", answer.stderr)
    assert other is not None
    assert int(other[1]) != taken


@pytest.mark.parametrize("line", ["--master-port 0", "--master-port 65535", "--nnodes 1:1", "--monitor-interval 0"])
def test_the_last_values_that_are_allowed(refused: Refuser, line: str) -> None:
    answer = refused.run(f"--dry-run {line} train.py")
    if "65535 is already taken" not in answer.stderr:
        assert (answer.code, answer.stderr) == (0, "")
    assert not (refused.folder / "started").exists()


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        ("--master-addr no-such-host.invalid --master-port 1 train.py", "no-such-host.invalid"),
        ("--rdzv-backend c10d --rdzv-endpoint no-such-host.invalid:1 train.py", "no-such-host.invalid:1"),
    ],
)
def test_a_master_without_an_address(refused: Refuser, line: str, marked: str) -> None:
    answer = refused(line)
    assert (answer.codes, answer.marked) == (["DDP203"], marked)


def test_a_log_folder_below_a_file(refused: Refuser) -> None:
    answer = refused("train.py", PET_LOG_DIR="train.py/logs")
    assert answer.codes == ["DDP904"]
    assert "PET_LOG_DIR" in answer.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; see the test of the read-only mount")
def test_a_log_folder_without_permission(refused: Refuser) -> None:
    (refused.folder / "closed").mkdir(mode=0o500)
    answer = refused("--log-dir closed/logs train.py")
    assert answer.codes == ["DDP904"]
    assert "closed is not writable" in answer.stderr


def _mounted(line: str, folder: Path, options: str, prepare: str = "true") -> Answer:
    """Run `ddp-run` in a mount namespace of its own where `folder` is a tmpfs; skip where that is not allowed."""
    script = f"mount -t tmpfs -o {options} tmpfs {folder} && {prepare} && exec {DDP_RUN} {line}"
    unshare = ["unshare", "--mount", "--map-root-user"]
    try:
        probe = subprocess.run([*unshare, "mount", "-t", "tmpfs", "x", str(folder)], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no unshare(1) on this machine")
    if probe.returncode != 0:
        pytest.skip(f"no mount namespace of our own: {probe.stderr.strip()}")
    done = subprocess.run(
        [*unshare, "sh", "-c", script], cwd=folder.parent, capture_output=True, text=True, timeout=limit(120)
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def test_a_log_folder_that_is_full(refused: Refuser) -> None:
    disk = refused.folder / "disk"
    disk.mkdir()
    fill = f"dd if=/dev/zero of={disk}/full bs=64k count=64 2>/dev/null; true"
    answer = _mounted("--log-dir disk/logs train.py", disk, "size=1m", fill)
    assert (answer.code, answer.codes, answer.marked) == (2, ["DDP905"], "disk/logs"), answer.stderr
    assert "0 KiB free" in answer.stderr
    assert not (refused.folder / "started").exists()


def test_a_log_folder_on_a_read_only_disk(refused: Refuser) -> None:
    disk = refused.folder / "disk"
    disk.mkdir()
    answer = _mounted("--log-dir disk/logs train.py", disk, "ro")
    assert (answer.code, answer.codes, answer.marked) == (2, ["DDP904"], "disk/logs"), answer.stderr
    assert not (refused.folder / "started").exists()


def test_more_ranks_per_node_than_devices_by_word(refused: Refuser) -> None:
    if any(Path("/dev").glob("nvidia*")):
        pytest.skip("this machine has GPUs")
    answer = refused("--nproc-per-node gpu train.py")
    assert answer.codes == ["DDP302"]
    assert answer.marked == "gpu"


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("--log-format json --nproc-per-node none train.py", {}),
        ("--log_format=json --nproc-per-node none --max-retries x train.py", {}),
        ("--nproc-per-node none train.py --log-format console", {"DDP_RUN_LOG_FORMAT": "json"}),
    ],
)
def test_programs_get_the_verdict_of_a_refused_launch(refused: Refuser, line: str, variables: dict[str, str]) -> None:
    answer = refused.run(line, **variables)
    (told,) = map(json.loads, answer.stderr.splitlines())
    assert answer.code == told["exit_code"] == 2
    assert (told["event"], told["outcome"], told["cause"], told["code"]) == (
        *("verdict", "refused", "syntax-or-usage", "DDP101"),
    )
    said = [told["title"], *told["advice"]]
    for name in ("--nproc-per-node: ", "--max-retries: "):
        assert any(name in text for text in said) is (name[:-2] in line)
    assert told["schema"] == 1


def test_the_scripts_own_words_ask_for_nothing(refused: Refuser) -> None:
    answer = refused.run("--nproc-per-node none train.py --log-format json")
    assert answer.stderr.startswith("error[DDP101]")
