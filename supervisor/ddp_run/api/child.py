"""`ddp_run.launch`: `ddp-run` as a child process: what it reports, what it prints, how it ends, how to stop it.

ddp-run reaps all children, adopts orphans and handles signals, so it never runs in the calling program's process. It
has its own session: Ctrl-C reaches it once, from here.
"""

from __future__ import annotations

import codecs
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, Unpack, final

from ddp_run.api.options import LaunchOptions, words
from ddp_run.judge.verdict import Outcome, Verdict
from ddp_run.record import file_names
from ddp_run.record.run_folder import open_run_file
from ddp_run.values import typed_fields
from ddp_run.values.problem import why_not_here

_ASKED = 2
"""How often it is asked to stop; the second time, ddp-run ends the job at once. After that it is killed."""
_LOOK_S = 0.2
_UNKNOWN = 70
"""sysexits.h EX_SOFTWARE, with which ddp-run exits if it fails itself."""


def launch(
    script: str | Path,
    args: Iterable[str | int | float | Path] = (),
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    **options: Unpack[LaunchOptions],
) -> Result:
    """Run `ddp-run OPTIONS SCRIPT ARGS` as a child process, from any thread, and wait for its end.

    `options` are those of the command line, with underscores: `nproc_per_node=2`, `module=True`. `env` is the whole
    environment and `cwd` the working directory, both the program's own by default. What ddp-run prints goes to
    `sys.stdout` and `sys.stderr` as they are at the call; standard input is empty.

    A job that fails is a result like any other: see `Result.ok` and `Result.raise_for_failure`. If nothing was started,
    raises `LaunchRefused` with the text that the command prints. Raises TypeError for arguments that can't be words,
    and for shortened option names. An exception that interrupts the wait (such as KeyboardInterrupt) stops the job
    first. The job is also stopped when the program ends, for whatever reason.
    """
    if reason := why_not_here(sys.platform):
        raise LaunchRefused(reason)
    said = run(words(script, args, options), env, cwd)
    if said.refused is not None and said.folder is None:
        raise LaunchRefused(said.refused)
    if said.folder is None:
        raise LaunchRefused(f"ddp-run exited with code {said.exit_code} before it started a run\n")
    return read_result(1 if said.exit_code is None else said.exit_code, said.folder)


# --------------------------------------------------------------------------------------- how it ended


class LaunchRefused(Exception):
    """Nothing was started. Its text is what `ddp-run` prints for the same options."""


@final
@dataclass(frozen=True, slots=True)
class Result:
    """How a job ended."""

    exit_code: int
    """What `ddp-run` exited with: 0 to 255, see the README."""
    folder: Path
    """The run's folder, absolute: events.jsonl, the ranks' files."""
    verdict: Verdict | None
    """What verdict.json says, without times and `retry`; None if ddp-run was killed before it could write one."""
    attempts: int | None
    """How many attempts were made; None without a verdict."""

    @property
    def outcome(self) -> Outcome | None:
        """succeeded, failed, hung, interrupted, refused; None without a verdict."""
        return None if self.verdict is None else self.verdict.outcome

    @property
    def ok(self) -> bool:
        """Whether the job succeeded."""
        return self.exit_code == 0

    def raise_for_failure(self) -> None:
        """Raise `LaunchFailed` unless the job succeeded."""
        if not self.ok:
            raise LaunchFailed(self)


@final
class LaunchFailed(Exception):
    """A job that didn't succeed; `result` has the details."""

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        verdict = self.result.verdict
        title = verdict.title if verdict is not None else None
        code = f"[{verdict.code}]" if verdict is not None and verdict.code else ""
        said = f"{title or 'the job did not succeed'} {code}".rstrip()
        return f"{said} (exit code {self.result.exit_code}); its files: {self.result.folder}"


def read_result(exit_code: int, folder: Path) -> Result:
    """The result of a run that has ended, from its folder."""
    try:
        with open_run_file(folder, file_names.VERDICT) as file:
            document = json.load(file)
        # `retry` there is the decision, not a rule's policy.
        verdict = typed_fields.read(Verdict, {**document, "retry": None})
        attempts = document.get("attempts")
    except (OSError, ValueError, TypeError):
        return Result(exit_code, folder, None, None)
    return Result(exit_code, folder, verdict, attempts if isinstance(attempts, int) else None)


# --------------------------------------------------------------------------------------- the child


@final
@dataclass(slots=True)
class Said:
    """What the child reported over its channel."""

    folder: Path | None = None
    refused: str | None = None
    exit_code: int | None = None
    _begun: bytes = b""
    """A line that has begun."""

    def take(self, data: bytes) -> None:
        """Take what came; a line that was cut short by the child's death is ignored."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            with suppress(ValueError):
                said = json.loads(line)
                self.folder = Path(said["folder"]) if "folder" in said else self.folder
                self.refused = said.get("refused", self.refused)
                self.exit_code = said.get("exit_code", self.exit_code)


def run(
    words: Sequence[str],
    environ: Mapping[str, str] | None,
    cwd: str | Path | None,
    *,
    streams: tuple[TextIO | None, TextIO | None] | None = None,
    look: Callable[[], None] | None = None,
) -> Said:
    """Run `ddp-run` to its end. Raises LaunchRefused if it can't be started.

    What it prints goes to `streams` (default: `sys.stdout` and `sys.stderr`). `look` is called a few times a second.

    An exception in the meantime (KeyboardInterrupt, or from a signal handler) stops the job, and is raised when nothing
    is left of it.
    """
    with ExitStack() as stack:
        try:
            child = _Child(words, environ, cwd, streams or (sys.stdout, sys.stderr), stack)
        except OSError as error:
            raise LaunchRefused(f"ddp-run: cannot start: {error}\n") from error
        raised: list[BaseException] = []
        while not child.ended and len(raised) <= _ASKED:
            try:
                child.listen()
                if look is not None:
                    look()
            except BaseException as error:
                raised.append(error)
                child.stop(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
        if raised:
            raise raised[0]
        return child.said


@final
class _Child:
    def __init__(
        self,
        words: Sequence[str],
        environ: Mapping[str, str] | None,
        cwd: str | Path | None,
        streams: tuple[TextIO | None, TextIO | None],
        stack: ExitStack,
    ) -> None:
        self.said = Said()
        self.ended = False
        channel, told_to = os.pipe()
        stack.callback(os.close, channel)
        out, err = streams
        try:
            self._process = subprocess.Popen(
                # -P: no file in the working directory is mistaken for a module
                [sys.executable, "-P", "-m", "ddp_run.called", str(told_to), str(os.getpid()), *words],
                stdin=subprocess.DEVNULL,
                stdout=_target(out, 1),
                stderr=_target(err, 2),
                env=environ,
                cwd=cwd,
                pass_fds=(told_to,),
                start_new_session=True,
            )
        finally:
            os.close(told_to)
        stack.callback(self._kill)
        self._channel = channel
        self._takers: dict[int, Callable[[bytes], None]] = {channel: self.said.take}
        """What takes what comes through a pipe, and nothing at its end."""
        for pipe, to in ((self._process.stdout, out), (self._process.stderr, err)):
            if pipe is not None and to is not None:
                self._takers[stack.enter_context(pipe).fileno()] = _Passed(to).write
        self._open = stack.enter_context(selectors.DefaultSelector())
        for fd in self._takers:
            os.set_blocking(fd, False)
            self._open.register(fd, selectors.EVENT_READ)

    def listen(self) -> None:
        """Wait a moment for something to come from it, and handle that."""
        for key, _events in self._open.select(_LOOK_S):
            self._take(key.fd)
        # Its channel mostly shows its end first. But a fork that hangs in the kernel may hold pipes open forever.
        if self._channel not in self._open.get_map() or self._process.poll() is not None:
            self._finish()

    def stop(self, signum: int) -> None:
        """Tell it to stop."""
        self._process.send_signal(signum)

    def _kill(self) -> None:
        """Kill it if waiting for its end was given up."""
        if not self.ended:
            self._process.kill()
            self._process.wait()

    def _take(self, fd: int) -> bool:
        """Take what has come through a pipe; False if that was all so far."""
        try:
            got = os.read(fd, 65536)
        except BlockingIOError:
            return False
        self._takers[fd](got)
        if not got and fd in self._open.get_map():
            self._open.unregister(fd)
        return bool(got)

    def _finish(self) -> None:
        """Take what is left in the pipes after its end."""
        for fd in self._takers:
            while self._take(fd):
                pass
        code = self._process.wait()
        if self.said.exit_code is None:  # it was killed; 0 if SIGCHLD is ignored, so that the kernel says no more
            self.said.exit_code = 128 - code if code < 0 else code or _UNKNOWN
        self.ended = True


@final
class _Passed:
    """Writes one of the child's streams to `sys.stdout` or `sys.stderr`.

    A notebook shows what is written to these two; their descriptors, if they have any, lead elsewhere.
    """

    def __init__(self, to: TextIO) -> None:
        self._to: TextIO | None = to
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode

    def write(self, data: bytes) -> None:
        """A closed or full stream doesn't affect the job: the run's folder has every line."""
        text = self._decode(data, final=not data)
        if self._to is None or not text:
            return
        try:
            self._to.write(text)
            self._to.flush()
        except (OSError, ValueError):
            self._to = None


def _target(stream: TextIO | None, descriptor: int) -> int | None:
    """For Popen: None if the child may inherit the program's own descriptor, else a pipe or /dev/null."""
    if stream is None:
        return subprocess.DEVNULL
    try:
        stream.flush()  # what the program wrote so far comes before what the job writes
        return None if stream.fileno() == descriptor else subprocess.PIPE
    except (AttributeError, OSError, ValueError):
        return subprocess.PIPE
