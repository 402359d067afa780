"""What shells, schedulers, container runtimes, installers and clouds say around a job, and what only looks like it."""

from __future__ import annotations

import pytest

from ddp_run import explain

STEPS = "".join(f"[2024-05-03 10:12:{7 * k:02d}] epoch 3 step {1200 + 10 * k} loss 2.{31 - k}\n" for k in range(6))
RAISED = """Traceback (most recent call last):
  File "train.py", line 60, in <module>
    rate = options['lr']
KeyError: 'lr'
"""
EXIT = "srun: error: gpu03: task 0: Exited with exit code 1\n"
PYXIS = "slurmstepd: error: pyxis: "
STARTED = (
    "docker: Error response from daemon: OCI runtime create failed: runc create failed: unable to start container: "
)
CONDOR = "001 (8.0.0) 2024-05-03 09:01:00 Job executing on host: <10.0.0.7:9618>\n...\n"
HELD = f"{CONDOR}012 (8.0.0) 2024-05-03 10:00:00 Job was held.\n\tError from slot1@gpu07: {{}}\n...\n"
SUBMITIT = (
    'Traceback (most recent call last):\n  File "launch.py", line 30, in <module>\n    job.result()\n'
    "submitit.core.utils.UncompletedJobError: Job 8 (task: 0) with path 8_0_result.pkl\n"
    "has not produced any output (state: {})\n"
)
SAGEMAKER = (
    "sagemaker.exceptions.UnexpectedStatusException: Error for Training job x: Failed. Reason: AlgorithmError: "
    'ExecuteUserScriptError: ExitCode 1 ErrorMessage "{}" Command "/opt/conda/bin/python3.8 train.py", exit code: 1\n'
)
AGENTS = """Traceback (most recent call last):
  File "/home/me/train.py", line 60, in main
KeyError: 'lr'
E0503 10:12:30.123000 4242 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 \
(pid: 4243) of binary: /env/bin/python
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 264, in launch_agent
"""
LIMIT = "slurmstepd: error: *** JOB 812 ON gpu03 CANCELLED AT 2024-05-03T12:13:00 DUE TO TIME LIMIT ***\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        # shells
        ("train.sh: line 12: torchrun: command not found\n", "script-not-found"),
        ("run.sh: 5: accelerate: not found\n", "script-not-found"),
        ("zsh: command not found: deepspeed\n", "script-not-found"),
        ("/usr/bin/env: 'python': No such file or directory\n", "script-not-found"),
        ("nohup: failed to run command 'torchrun': No such file or directory\n", "script-not-found"),
        ("-bash: ./train.sh: /bin/bash^M: bad interpreter: No such file or directory\n", "script-not-found"),
        ("train.sh: line 22: syntax error: unexpected end of file\n", "syntax-or-usage"),
        ("train.sh: line 5: WORLD_SIZE: unbound variable\n", "syntax-or-usage"),
        ("train.sh: line 8: --lr: command not found\n", "syntax-or-usage"),
        ("train.sh: line 7: cd: /scratch/me/code: No such file or directory\n", "file-not-found"),
        ("cp: cannot stat '/data/imagenet.tar': No such file or directory\n", "file-not-found"),
        ("mkdir: cannot create directory '/scratch/me': Permission denied\n", "permission-denied"),
        ("mkdir: cannot create directory '/mnt/out': Read-only file system\n", "filesystem-error"),
        ("curl: (6) Could not resolve host: huggingface.co\n", "hub-network"),
        ("git@github.com: Permission denied (publickey).\nfatal: Could not read from remote repository.\n", "auth"),
        ("python: error while loading shared libraries: libx.so.1: cannot open shared object file\n", "import-error"),
        # SLURM
        (f"slurmstepd: error: execve(): torchrun: No such file or directory\n{EXIT}", "script-not-found"),
        (f"slurmstepd: error: execve(): /home/me/run.sh: Permission denied\n{EXIT}", "permission-denied"),
        ("sbatch: error: Batch job submission failed: Invalid partition name specified\n", "syntax-or-usage"),
        ("srun: unrecognized option '--gpu-per-task'\nTry \"srun --help\" for more information\n", "syntax-or-usage"),
        (LIMIT.replace("TO TIME LIMIT", "to SIGNAL Terminated"), "preempted-sigterm"),
        ("Job ID: 8\nState: TIMEOUT (exit code 0)\nNodes: 1\n", "preempted-sigterm"),
        ("JobState=NODE_FAIL Reason=NodeDown Dependency=(null)\n", "node-failed"),
        ("srun: error: Task launch for StepId=8.0 failed on node gpu07: Job prolog failed\n", "node-failed"),
        (SUBMITIT.format("TIMEOUT"), "preempted-sigterm"),
        (SUBMITIT.format("OUT_OF_MEMORY"), "host-oom"),
        (SUBMITIT.format("NODE_FAIL"), "node-failed"),
        # other schedulers
        (f"{STEPS}=>> PBS: job killed: mem 67371048kb exceeded limit 67108864kb\nTerminated\n", "host-oom"),
        (f"{STEPS}=>> PBS: job killed: node 2 (gpu07) requested job terminate, 'EOF' (code 1099)\n", "node-failed"),
        (f'{STEPS}W|job 3.1 exceeds job hard limit "h_rt" of queue - sending SIGKILL\n', "preempted-sigterm"),
        (f'{STEPS}W|job 3.1 exceeds job hard limit "h_vmem" of queue - sending SIGKILL\n', "host-oom"),
        (HELD.format("Job has gone over cgroup memory limit of 65536 megabytes."), "host-oom"),
        (HELD.format("Failed to execute '/home/me/run.sh': (errno=2: 'No such file')"), "script-not-found"),
        (f"{CONDOR}004 (8.0.0) 2024-05-03 10:00:00 Job was evicted.\n...\n", "preempted-sigterm"),
        (f"{STEPS}3601.021s: job.exception type=timeout severity=0 resource allocation expired\n", "preempted-sigterm"),
        # containers
        (f'{STARTED}exec: "/entrypoint.sh": permission denied: unknown.\n', "permission-denied"),
        (f'{STARTED}exec: "./run.sh": stat ./run.sh: no such file or directory: unknown.\n', "script-not-found"),
        (f"{STARTED}nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6\n", "driver-mismatch"),
        (f"{STARTED}nvidia-container-cli: initialization error: driver not loaded\n", "cuda-unavailable"),
        ("docker: failed to register layer: write /opt/lib/libmkl.so: no space left on device.\n", "disk-full"),
        ("docker: pull access denied for train, repository does not exist or may require 'docker login'\n", "auth"),
        ("docker: manifest for pytorch/pytorch:9.9 not found: manifest unknown: manifest unknown.\n", "file-not-found"),
        ("docker: Bind for 0.0.0.0:29500 failed: port is already allocated.\n", "port-in-use"),
        (f"FATAL:   container creation failed: mount source /data doesn't exist\n{EXIT}", "file-not-found"),
        (f"{PYXIS}failed to import\n{PYXIS}    URL https://r.io/v2/x returned error code: 401 No\n{EXIT}", "auth"),
        (f"{PYXIS}    [ERROR] No such file or directory: /images/x.sqsh\n{PYXIS}no start\n{EXIT}", "file-not-found"),
        # Kubernetes
        ("Reason: DeadlineExceeded\nMessage: Job was active longer than specified deadline\n", "preempted-sigterm"),
        ("Reason: Evicted\nMessage: The node was low on resource: memory. Threshold: 100Mi\n", "host-oom"),
        ("Reason: Evicted\nMessage: The node was low on resource: ephemeral-storage. Threshold: 10Gi\n", "disk-full"),
        ('Warning  Evicted  kubelet  Usage of EmptyDir volume "dshm" exceeds the limit "8Gi".\n', "shm-exhausted"),
        ("Events:\n  Warning  NodeNotReady  2m  node-controller  Node is not ready\n", "node-failed"),
        ("train.sh: line 12: python: command not found\nJob finished at Mon May 3\n", "script-not-found"),
        # installers
        ("ERROR: Could not find a version\nERROR: No matching distribution found for torch==9\n", "version-mismatch"),
        ("LibMambaUnsatisfiableError: Encountered problems while solving:\n  - package x\n", "version-mismatch"),
        ("error: Failed to spawn: `torchrun`\n  Caused by: No such file (os error 2)\n", "script-not-found"),
        ("EnvironmentNameNotFound: Could not find conda environment: train\n", "file-not-found"),
        ("ERROR: Could not build wheels for flash-attn, which is required to install\n", "compile-failure"),
        # clouds
        (SAGEMAKER.format("ModuleNotFoundError: No module named 'peft'"), "import-error"),
        (SAGEMAKER.format("KeyError: 'train'"), "python-exception"),
        ("The replica workerpool0-0 ran out-of-memory and exited with a non-zero status of 137\n", "host-oom"),
        (f"{STEPS}The spot instance i-0ab has been preempted.\n", "preempted-sigterm"),
        # the kernel
        ("[123.6] python3[24311]: segfault at 0 ip 00007f12 sp 00007ffd error 4 in libtorch.so[7f10]\n", "segfault"),
        ("[123.6] cgroup: fork rejected by pids controller in /kubepods/pod12\n", "process-limit"),
    ],
)
def test_the_cause_is_named(text: str, cause: str) -> None:
    assert explain(text).cause == cause


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"train.sh: line 3: module: command not found\n{RAISED}", id="a command that was not needed"),
        pytest.param(f"/bin/sh: 1: nvcc: not found\n{STEPS}{RAISED}", id="a program that a library looked for"),
        pytest.param(f"ls: cannot access '/x': No such file or directory\n{RAISED}", id="a file that was not needed"),
        pytest.param(f"{AGENTS}{LIMIT}", id="a time limit, long after the failure"),
    ],
)
def test_an_exception_counts_more_than_what_others_say(text: str) -> None:
    assert explain(text).cause == "python-exception"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"train.sh: line 3: module: command not found\n{STEPS}", id="a command"),
        pytest.param(f"ls: cannot access '/opt/conda': No such file or directory\n{STEPS}{STEPS}", id="a file"),
        pytest.param(f"{STEPS}Training finished\nrm: cannot remove 'x': No such file or directory\n", id="cleaning"),
        pytest.param(f"find: '/proc/1/fd': Permission denied\n{STEPS}Training finished\n", id="a folder"),
        pytest.param(
            "Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError(\"HTTPSConnectionPool("
            "host='pypi.org', port=443): Read timed out.\")': /x/\nInstalling: x\nSuccessfully installed x-1.0\n",
            id="an installer that tried again",
        ),
        pytest.param(
            "Warning  Failed  kubelet  Failed to pull image: dial tcp 3.94.2.3:443: i/o timeout\n"
            "Normal   Pulled  kubelet  Successfully pulled image\nNormal   Started  kubelet  Started container x\n",
            id="an image that came later",
        ),
        pytest.param(
            "WARNING scheduler.py:1057] Sequence group 12 is preempted by PreemptionMode.RECOMPUTE mode\n",
            id="a server that preempts a request",
        ),
        pytest.param(LIMIT + "".join(f"Epoch {k} of 90: accuracy 0.{k}\n" for k in range(40)), id="started again"),
        pytest.param(f"{LIMIT}Job 8 requeued\n{STEPS}Training completed in 4:12:33\nSaved x\n", id="ended well"),
    ],
)
def test_who_went_on_did_not_fail(text: str) -> None:
    assert explain(text).cause is None


@pytest.mark.parametrize(
    ("told", "listed"),
    [
        ("EE1001: … Reason: Set visible device failed, invalid device=0, input visible devices:5,6\n", " (5,6)"),
        ("[ERROR] RUNTIME GetVisibleDevices: set ASCEND_RT_VISIBLE_DEVICES error, input data range[0-1)\n", ""),
    ],
)
def test_devices_that_ascend_does_not_see(told: str, listed: str) -> None:
    found = explain(STEPS + told)
    assert found.cause == "invalid-device"
    assert found.title == f"a rank sees other devices than ASCEND_RT_VISIBLE_DEVICES lists{listed}"
    assert [each for each in found.advice if "nvidia" in each or "CUDA" in each] == []
