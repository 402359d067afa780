"""The path arguments of ranks' system calls, read from their memory, and the holders of lock files they wait for.

A separate process (`ddp_run.values.helper_process`) does this. Reading memory takes a lock that a rank may hold
forever, for a mapped file on a dead mount. A lock file may be on such a mount too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import final

from ddp_run.observe.close_look import LockFile
from ddp_run.observe.kernel_wait import PathArgument, holder_of, memory_of, read_path, with_path
from ddp_run.observe.process_look import ProcessLook, described
from ddp_run.record.events import Rank
from ddp_run.values.helper_process import HelperProcess, HelperProcesses, fork

_WAIT_S = 5.0


@final
class WaitedPaths:
    """The paths and lock files known so far, and the question for more."""

    def __init__(self, helpers: HelperProcesses) -> None:
        self._helpers = helpers
        self.question: HelperProcess | None = None
        """The process that reads."""
        self._asked: tuple[PathArgument | str, ...] = ()
        self.known: dict[PathArgument, str] = {}
        self.lock_files: dict[str, LockFile] = {}
        """By path, as last seen."""

    def ask(
        self, looks: Iterable[ProcessLook], locks: Mapping[str, Collection[int]], ranks: Mapping[int, Rank]
    ) -> None:
        """Start reading the paths that these looks lack, and examining lock files. Ends the previous question.

        `locks`: the pids that wait for each lock file; `ranks`: by pid.
        """
        self.end()
        arguments = [look.wait.argument for look in looks if look.wait is not None and look.wait.argument is not None]
        asked = [(each, memory) for each in arguments if (memory := memory_of(each.pid)) is not None]
        if not asked and not locks:
            return
        memories = [memory for _, memory in asked]
        try:
            self.question = fork(lambda fd: _answer(asked, locks, ranks, fd), _WAIT_S, keep=memories)
        except OSError:
            return
        finally:
            for memory in memories:
                os.close(memory)
        self._asked = (*(each for each, _ in asked), *locks)
        self._helpers.add(self.question)

    def end(self) -> None:
        """Keep the answers so far, and stop waiting for more."""
        if self.question is None:
            return
        for line in self.question.lines()[0]:
            index, answer = json.loads(line)
            asked = self._asked[index]
            if isinstance(asked, PathArgument):
                self.known[asked] = answer
            else:
                self.lock_files[asked] = LockFile(asked, *answer)
        self.question.end()
        self.question = None


def _answer(
    asked: Collection[tuple[PathArgument, int]],
    locks: Mapping[str, Collection[int]],
    ranks: Mapping[int, Rank],
    fd: int,
) -> None:
    for index, (argument, memory) in enumerate(asked):
        path = read_path(memory, argument.address)
        if path is not None:
            os.write(fd, json.dumps([index, path]).encode() + b"\n")
    for index, (path, waiting) in enumerate(locks.items(), len(asked)):
        try:
            age_s = max(0.0, time.time() - os.stat(path).st_mtime)
            holder = holder_of(path, waiting)
        except OSError:
            continue
        said = None
        if holder is not None:
            said = f"rank {ranks[holder]}" if holder in ranks else f"process {described(holder)}"
        os.write(fd, json.dumps([index, [age_s, said]]).encode() + b"\n")


def completed(look: ProcessLook, paths: Mapping[PathArgument, str]) -> ProcessLook:
    """The look, with the path of its system call if that was read."""
    if look.wait is None or look.wait.argument is None or look.wait.argument not in paths:
        return look
    return replace(look, wait=with_path(look.wait, paths[look.wait.argument]))
