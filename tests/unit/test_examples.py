"""The files to copy in scripts/: shells and schedulers can read them, and ddp-run takes the command lines in them."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import limit

from ddp_run import commands
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.settings.options import Options
from ddp_run.settings.parse import parse

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
EXAMPLES = SCRIPTS / "examples"
SHELL_SCRIPTS = [
    path
    for path in sorted(SCRIPTS.rglob("*"))
    if path.is_file() and re.match(rb"#!.*\b(ba)?sh\n", path.read_bytes()[:80])
]
BATCH_FILES = sorted(EXAMPLES.glob("*.sbatch"))
# In place of ddp-run: writes down the words that a shell made of the line.
STAND_IN = f"#!{sys.executable}\nimport json, os, sys\njson.dump(sys.argv[1:], open(os.environ['WORDS'], 'w'))\n"
KUBERNETES = "1.34"


def documents(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (extra dev)")
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def containers(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Of all pods that it describes."""
    for key, value in document.items():
        if key == "containers":
            yield from value
        elif isinstance(value, dict):
            yield from containers(value)


def in_pod(container: Mapping[str, Any], variables: Mapping[str, str]) -> Options:
    """What ddp-run makes of the container's words, as Kubernetes would give them: `$(NAME)` is replaced."""
    assert container["command"] == ["ddp-run"]
    words = [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in container["args"]]
    return parse(words, {}, torch_rows=torch_rows())


def by_shell(line: list[str], folder: Path, variables: Mapping[str, str]) -> Options:
    """What ddp-run makes of the words that a real shell makes of a script."""
    stand_in = folder / "ddp-run"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "WORDS": str(folder / "words"), **variables}
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, timeout=limit(60))
    assert (done.returncode, done.stderr) == (0, "")
    return parse(json.loads((folder / "words").read_text()), {}, torch_rows=torch_rows())


def by_sbatch(line: list[str], folder: Path, variables: Mapping[str, str]) -> Options:
    """The same of a batch file: srun becomes what it starts. As in all of them, ranks and retries can be chosen."""
    srun = folder / "srun"
    srun.write_text('#!/bin/sh\n[ "$SRUN_CPUS_PER_TASK" = 12 ] && exec "$@"\n')
    srun.chmod(0o755)
    plain = by_shell(["bash", *line], folder, {**variables, "SLURM_CPUS_PER_TASK": "12"})
    assert (plain.nproc, plain.max_retries) == ("gpu", 2)
    chosen = {"SLURM_CPUS_PER_TASK": "12", "NPROC_PER_NODE": "3", "MAX_RETRIES": "0"}
    options = by_shell(["bash", *line], folder, {**variables, **chosen})
    assert (options.nproc, options.max_retries) == ("3", 0)
    return options


# ------------------------------------------------------------------------------------------ what ddp-run takes


@pytest.mark.parametrize("index", ["0", "1"])
def test_indexed_job(index: str) -> None:
    service, job = documents("kubernetes-indexed-job.yaml")
    (container,) = containers(job)
    options = in_pod(container, {"JOB_COMPLETION_INDEX": index})
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (options.max_nodes, options.node_rank) == (spec["completions"], int(index))
    assert spec["completions"] == spec["parallelism"]
    # Kubernetes names the pods of an Indexed Job JOB-INDEX, and with a subdomain they are hosts of that service.
    assert options.master == (f"{job['metadata']['name']}-0.{pod['subdomain']}", 29500)
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert options.nproc_count == container["resources"]["limits"]["nvidia.com/gpu"]
    assert options.grace_s < pod["terminationGracePeriodSeconds"]
    assert options.has_fixed_nodes


@pytest.mark.parametrize("role", ["Master", "Worker"])
def test_pytorch_job(role: str) -> None:
    (job,) = documents("kubernetes-pytorchjob.yaml")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    (container,) = containers(replicas[role])
    rank = {"Master": "0", "Worker": "1"}[role]
    options = in_pod(container, {"RANK": rank, "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"})
    assert (options.max_nodes, options.node_rank) == (sum(each["replicas"] for each in replicas.values()), int(rank))
    assert options.master == ("train-master-0", 23456)
    assert options.nproc_count == container["resources"]["limits"]["nvidia.com/gpu"]
    assert options.grace_s < replicas[role]["template"]["spec"]["terminationGracePeriodSeconds"]


def test_skypilot(tmp_path: Path) -> None:
    (task,) = documents("skypilot.yaml")
    variables = {
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
    }
    options = by_shell(["bash", "-euc", task["run"]], tmp_path, variables)
    assert (options.max_nodes, options.node_rank, options.nproc_count) == (2, 1, 8)
    assert options.master == ("10.0.0.7", 29500)
    assert task["resources"]["accelerators"].endswith(":8")


def test_two_machines(tmp_path: Path) -> None:
    script = str(EXAMPLES / "two-machines.sh")
    options = by_shell([script, "1", "10.0.0.7", "train.py", "--name", "a b"], tmp_path, {"PORT": "3000"})
    assert (options.max_nodes, options.node_rank, options.nproc) == (2, 1, "gpu")
    assert options.master == ("10.0.0.7", 3000)
    assert (options.script, options.script_args) == ("train.py", ("--name", "a b"))
    usage = subprocess.run([script, "1"], capture_output=True, text=True, timeout=limit(60))
    assert usage.returncode == 2
    assert "./two-machines.sh 0 10.0.0.7 train.py" in usage.stderr


@pytest.mark.parametrize("name,log_dir", [("one-node", None), ("several-nodes", "7.0")])
def test_slurm(tmp_path: Path, name: str, log_dir: str | None) -> None:
    script = str(EXAMPLES / f"slurm-{name}.sbatch")
    options = by_sbatch([script, "train.py", "--name", "a b"], tmp_path, {"SLURM_JOB_ID": "7"})
    assert (options.script, options.script_args) == ("train.py", ("--name", "a b"))
    assert options.log_dir == (log_dir and f"ddp-run-logs/{log_dir}")


def test_slurm_array(tmp_path: Path) -> None:
    (tmp_path / "sweep.txt").write_text("--lr 1e-3\n--lr  1e-4 --name *\n")
    script = str(EXAMPLES / "slurm-array.sbatch")
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_ID": "9"}
    options = by_sbatch([script, "sweep.txt", "train.py", "--epochs", "3"], tmp_path, task)
    assert (options.script, options.script_args) == ("train.py", ("--epochs", "3", "--lr", "1e-4", "--name", "*"))
    assert options.log_dir == "ddp-run-logs/7_2"


@pytest.mark.parametrize("path", BATCH_FILES, ids=lambda path: path.stem)
def test_slurm_batch_files(path: Path) -> None:
    """Options end where commands begin, and what the comments propose is a command."""
    text = path.read_text()
    first_command = re.search(r"^[^#\n]", text, re.MULTILINE)
    assert first_command
    assert "#SBATCH" not in text[first_command.start() :]
    assert "\n#SBATCH --ntasks-per-node=1 " in text
    for line in re.findall(r"^# srun ddp-run (.*?)(?: \|\||$)", text, re.MULTILINE):
        word, *words = line.split()
        commands.all_commands()[word].make_context(word, words)


def test_dockerfile() -> None:
    text = (EXAMPLES / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= {
        *("ARG", "FROM", "ENV", "COPY", "RUN", "WORKDIR", "VOLUME", "ENTRYPOINT", "CMD")
    }
    assert 'ENTRYPOINT ["ddp-run"]' in lines
    (log_dir,) = re.findall(r"^ENV (PET_\w+)=", text, re.MULTILINE)
    assert log_dir in {row.pet for row in torch_rows()}
    for word, *words in (found.split() for found in re.findall(r"^#   docker run .*? train (.*)$", text, re.MULTILINE)):
        if word in commands.names():
            commands.all_commands()[word].make_context(word, words)
        else:
            assert parse([word, *words], {}, torch_rows=torch_rows()).script == "train.py"


# --------------------------------------------------------------------------------------- what others check


@pytest.mark.parametrize("name", ["kubernetes-indexed-job.yaml", "kubernetes-pytorchjob.yaml"])
def test_kubernetes_knows_all_fields(name: str) -> None:
    """PyTorchJob itself is not Kubernetes' own: the pods in it are."""
    try:
        checker = importlib.import_module("kubernetes_validate")
    except ImportError:
        pytest.skip("kubernetes-validate is not installed (extra release)")
    for document in documents(name):
        if document["kind"] == "PyTorchJob":
            for role, spec in document["spec"]["pytorchReplicaSpecs"].items():
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role.lower()}, **spec["template"]}
                checker.validate(pod, KUBERNETES, strict=True)
        else:
            checker.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("path", SHELL_SCRIPTS, ids=lambda path: str(path.relative_to(SCRIPTS)))
def test_shellcheck(path: Path) -> None:
    checker = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if checker is None:
        pytest.skip("shellcheck is not installed (extra dev)")
    done = subprocess.run([checker, path], capture_output=True, text=True, timeout=limit(60))
    assert (done.returncode, done.stdout) == (0, "")


def test_shell_scripts_are_found() -> None:
    assert {path.name for path in SHELL_SCRIPTS} >= {"publish", "test", "try", "slurm-array.sbatch", "two-machines.sh"}


def test_the_documents_name_each() -> None:
    documents = "".join(path.read_text() for path in (SCRIPTS.parent / "docs").glob("*.md"))
    assert {path.name for path in EXAMPLES.iterdir()} <= {*re.findall(r"scripts/examples/([\w.-]+)", documents)}
