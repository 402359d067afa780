"""What checks look at: the launch that is meant, what the driver says (asked once), what the ranks have reported."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from ddp_run.doctor.reports import Reports
from ddp_run.plan import net
from ddp_run.settings.options import Options
from ddp_run.values.addresses import Resolved

_NVIDIA_SMI_S = 20.0
"""Without nvidia-persistenced, nvidia-smi wakes every GPU first: seconds for each."""
_ONCE_S, _ONE_NODE_S, _SEVERAL_NODES_S = 0.6, 5.0, 120.0
"""How long a name's address is waited for: a launch's own limits, and a part of what `--quick` may take."""
_DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


class NoAnswer(Exception):
    """nvidia-smi is not there, failed, or did not end in time."""


@final
@dataclass(slots=True)
class Surroundings:
    """`ranks`: on this node. `log_dir`: where a launch with these options would write."""

    options: Options
    environ: Mapping[str, str]
    ranks: int
    log_dir: Path
    full: bool = False
    """Whether long looks are wanted."""
    waits: bool = True
    """Whether a name that has no address yet may be waited for."""
    data_paths: tuple[Path, ...] = ()
    say: Callable[[str], None] = lambda _line: None
    """Takes a line for the user while a check waits."""
    driver_files: tuple[str, ...] = _DRIVER
    """Any of them shows that NVIDIA's driver is loaded."""
    reports: Reports | None = None
    """What the ranks reported, once they have ended; null before."""
    _asked: dict[tuple[str, ...], str | NoAnswer] = field(default_factory=dict)
    _hangs: NoAnswer | None = None
    """nvidia-smi did not end: it is not asked again."""
    _master: Resolved | net.Unresolvable | None = None

    @property
    def host(self) -> str:
        """This host's name."""
        return socket.gethostname()

    @property
    def one_of_several(self) -> str:
        """What tells this node from the job's others; empty where it is the only one."""
        if self.options.max_nodes == 1:
            return ""
        return f"node {self.options.node_rank}" if self.options.has_fixed_nodes else self.host

    @property
    def has_driver(self) -> bool:
        """Whether NVIDIA's driver is loaded here."""
        return any(Path(path).exists() for path in self.driver_files)

    def nvidia_smi(self, *words: str) -> str:
        """What it printed. Raises NoAnswer with its own words where it fails."""
        if self._hangs is not None:
            raise self._hangs
        if words not in self._asked:
            self._asked[words] = self._answer_of(words)
        answer = self._asked[words]
        if isinstance(answer, NoAnswer):
            raise answer
        return answer

    def _answer_of(self, words: Sequence[str]) -> str | NoAnswer:
        try:
            return _nvidia_smi(words)
        except subprocess.TimeoutExpired:
            self._hangs = NoAnswer(f"nvidia-smi gave no answer in {_NVIDIA_SMI_S:.0f} s: a GPU or the driver hangs")
            return self._hangs

    def master(self) -> Resolved | None:
        """Node 0's address; null where the launch names none. Raises net.Unresolvable."""
        options = self.options
        if not options.is_static or options.master is None:
            return None
        if self._master is None:
            host, port = options.master
            several = options.max_nodes > 1
            try:
                self._master = self.address_of(
                    host, port or 0, _SEVERAL_NODES_S if several else _ONE_NODE_S, several=several
                )
            except net.Unresolvable as error:
                self._master = error
        if isinstance(self._master, net.Unresolvable):
            raise self._master
        return self._master

    def address_of(self, name: str, port: int, limit_s: float, *, several: bool = False) -> Resolved:
        """What a name resolves to. Raises net.Unresolvable."""
        if not self.waits:
            return net.resolve(name, port, _ONCE_S, several_nodes=several, once=True)
        return net.resolve(name, port, limit_s, several_nodes=several, say=self.say)


def _nvidia_smi(words: Sequence[str]) -> str | NoAnswer:
    """Raises TimeoutExpired."""
    command = ["nvidia-smi", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_NVIDIA_SMI_S, check=False
        )
    except FileNotFoundError:
        return NoAnswer("the driver's tool nvidia-smi is not installed here")
    except OSError as error:
        return NoAnswer(f"nvidia-smi cannot be started: {error.strerror}")
    if done.returncode != 0:
        said = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        return NoAnswer(said[0])
    return done.stdout
