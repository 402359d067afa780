"""The paths that ranks' system calls were given, from their memory.

Reading memory takes a lock that a rank may hold for ever (a mapped file on a dead mount), so a process of its own does
it (`ddp_run.values.helper_process`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self, final

from ddp_run.observe.kernel_wait import PathArgument, memory_of, read_path, with_path
from ddp_run.observe.process_look import ProcessLook
from ddp_run.values.helper_process import HelperProcess, HelperProcesses, fork

_WAIT_S = 5.0


@final
@dataclass(slots=True)
class PathProbe:
    """A process that reads."""

    process: HelperProcess
    _asked: tuple[PathArgument, ...]

    @classmethod
    def ask(cls, looks: Iterable[ProcessLook]) -> Self | None:
        """Have the paths read that these looks lack; null where there are none that may be. Raises OSError."""
        arguments = [look.wait.argument for look in looks if look.wait is not None and look.wait.argument is not None]
        asked = [(each, memory) for each in arguments if (memory := memory_of(each.pid)) is not None]
        if not asked:
            return None
        memories = [memory for _, memory in asked]
        try:
            return cls(fork(lambda fd: _answer(asked, fd), _WAIT_S, keep=memories), tuple(each for each, _ in asked))
        finally:
            for memory in memories:
                os.close(memory)

    def answers(self) -> dict[PathArgument, str]:
        """What has been read so far."""
        held, _ = self.process.read()
        found = [json.loads(line) for line in held.split(b"\n")[:-1]]
        return {self._asked[index]: path for index, path in found}


@final
class WaitedPaths:
    """The paths that are known by now, and the question for more."""

    def __init__(self, helpers: HelperProcesses) -> None:
        self._helpers = helpers
        self._question: PathProbe | None = None
        self.known: dict[PathArgument, str] = {}

    def ask(self, looks: Iterable[ProcessLook]) -> None:
        """Have those read that these looks lack; a question of before is over."""
        self.end()
        try:
            self._question = PathProbe.ask(looks)
        except OSError:
            return
        if self._question is not None:
            self._helpers.add(self._question.process)

    def end(self) -> None:
        """Keep what has been answered, and wait no longer."""
        if self._question is not None:
            self.known |= self._question.answers()
            self._question.process.end()
            self._question = None


def _answer(asked: Iterable[tuple[PathArgument, int]], fd: int) -> None:
    for index, (argument, memory) in enumerate(asked):
        path = read_path(memory, argument.address)
        if path is not None:
            os.write(fd, json.dumps([index, path]).encode() + b"\n")


def completed(look: ProcessLook, paths: Mapping[PathArgument, str]) -> ProcessLook:
    """A look with the path of its call, where that was read."""
    if look.wait is None or look.wait.argument is None or look.wait.argument not in paths:
        return look
    return replace(look, wait=with_path(look.wait, paths[look.wait.argument]))
