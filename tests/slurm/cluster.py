"""A real SLURM on the nodes of `tests.nodes.cluster`: munged and slurmctld on node 0, a slurmd on each.

Everything it needs is in a folder of its own (configuration, munge's key and socket, spool, logs), and every daemon
runs in the foreground in a node's namespaces: the end of the cluster ends them, and another SLURM of this machine is
not disturbed.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.nodes import cluster
from tests.nodes.cluster import Cluster, Failed, Node, Started
from tests.waiting import limit, wait_until

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("srun", "sbatch", "scontrol", "scancel", "sinfo", "squeue")
CPUS = 4
"""Of each node, for SLURM: what tests start at the same time has room."""
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
OF_A_JOB = re.compile(
    r"SLURM|DDP_|PET_|NCCL_|TORCH|MASTER_|RANK$|WORLD_SIZE$|LOCAL_|NNODES|NODE_RANK|NPROC|MAX_RETRIES"
)
"""Variables that would tell ddp-run of another job."""

# proctrack/pgid: signals reach the tasks' process groups, as with proctrack/cgroup the tasks alone (proctrack/linuxproc
# sends each to every process of a task, so that torch's agent dies of SIGUSR1 whoever started it).
# KillWait: more than the 5 s for which a node that heard of the stop from another waits for its agent.
# cred_expire: a job that was put back into the queue waits so many seconds before it starts again (default: 120).
CONFIGURATION = """
ClusterName=tests
SlurmctldHost=node0
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
NodeName=node[0-{last}] CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@functools.cache
def missing() -> str | None:
    """Why there can be no SLURM here, if so."""
    if reason := cluster.missing():
        return reason
    if lacking := [name for name in (*DAEMONS, *COMMANDS) if _command(name) is None]:
        return f"a SLURM needs {', '.join(lacking)} (Debian: slurmctld, slurmd, slurm-client, munge)"
    return None


class Slurm:
    """On all nodes of a cluster, whose end ends it. Commands are given on node 0."""

    def __init__(self, on: Cluster, folder: Path) -> None:
        self.nodes, self.folder = on.nodes, folder
        for each in ("state", *(f"spool.{node.host}" for node in on.nodes)):
            (folder / each).mkdir(parents=True)
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, last=len(on.nodes) - 1, cpus=CPUS))
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        self.daemons = [self._start_munge(), self._start(on.node(0), "slurmctld", "-D", "-i")]
        self.daemons += [self._start(node, "slurmd", "-D") for node in on.nodes]
        wait_until(self._is_idle, lambda: f"idle nodes: {self.run('sinfo')}{self.logs()}", 60)

    def environ(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """That of a user: ddp-run is found, and nothing says which job or rank this is."""
        kept = {name: value for name, value in os.environ.items() if not OF_A_JOB.match(name)}
        path = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
        own = {"PATH": path, "SLURM_CONF": f"{self.folder}/slurm.conf", "OMP_NUM_THREADS": "1"}
        return kept | own | dict(env or {})

    def start(self, *words: object, cwd: Path, env: Mapping[str, str] | None = None) -> Started:
        """A command in the background, on node 0."""
        return self.nodes[0].start(words, cwd, self.environ(env))

    def run(self, *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """A command to its end, on node 0; what it printed, or `Failed`."""
        entered = [*self.nodes[0].within, *map(str, words)]
        environ = self.environ(env)
        done = subprocess.run(entered, cwd=cwd, env=environ, capture_output=True, text=True, timeout=limit(60))
        if done.returncode != 0:
            raise Failed(f"{words}: exit code {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def job(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says of it."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.run("scontrol", "show", "job", job)))

    def wait_for(self, job: str, state: str, within_s: float = 60.0) -> dict[str, str]:
        """Until the job is in that state ("COMPLETED"); what is known of it."""
        said: dict[str, str] = {}

        def there() -> bool:
            said.update(self.job(job))
            return said["JobState"] == state

        wait_until(there, lambda: f"job {job} to be {state}: {said}{self.logs()}", within_s)
        return said

    def logs(self) -> str:
        """The ends of all daemons' logs, for who looks into a failure."""
        return "".join(f"\n--- {path}\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log")))

    def clear(self) -> None:
        """No job is left."""
        if jobs := self.run("squeue", "--noheader", "--format=%i").split():
            for words in (["--full", "--signal=KILL"], []):
                with suppress(Failed):  # a job has ended meanwhile
                    self.run("scancel", *words, *jobs)
        wait_until(lambda: not self.run("squeue", "--noheader"), lambda: f"an empty queue: {self.run('squeue')}", 60)

    def _is_idle(self) -> bool:
        states = self.run("sinfo", "--noheader", "--Node", "--format=%T").split()
        return len(states) == len(self.nodes) and set(states) == {"idle"}

    def _start_munge(self) -> Started:
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        words = ["munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files]
        started = self._start(self.nodes[0], *words)
        socket = self.folder / "munge.socket"
        wait_until(socket.exists, lambda: f"{socket}: {started.err}", 30)
        return started

    def _start(self, node: Node, *words: str) -> Started:
        return node.start([_command(words[0]), *words[1:]], self.folder, self.environ())


def _command(name: str) -> str | None:
    return shutil.which(name, path=SYSTEM_PATH)
