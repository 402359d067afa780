"""Where a job's console goes: to the program's own descriptors, or through `sys.stdout` and `sys.stderr`.

A notebook shows what is written to these two; their descriptors, if they have any, lead elsewhere.
"""

from __future__ import annotations

import codecs
import os
import subprocess
from typing import IO, TextIO, final


@final
class Passed:
    """One stream of the child, read from a pipe and written to a stream of the program."""

    def __init__(self, source: IO[bytes], to: TextIO) -> None:
        self.fd = source.fileno()
        os.set_blocking(self.fd, False)
        self._to: TextIO | None = to
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode

    def pass_on(self) -> bool:
        """Hand on what there is; false at the end of it."""
        while True:
            try:
                got = os.read(self.fd, 65536)
            except BlockingIOError:
                return True
            self._write(self._decode(got, final=not got))
            if not got:
                return False

    def _write(self, text: str) -> None:
        """A stream that is closed or full costs the job nothing: the run's folder has every line."""
        if self._to is None or not text:
            return
        try:
            self._to.write(text)
            self._to.flush()
        except (OSError, ValueError):
            self._to = None


def target(stream: TextIO | None, descriptor: int) -> int | None:
    """For Popen: None if the child may inherit the program's own descriptor, else a pipe or /dev/null."""
    if stream is None:
        return subprocess.DEVNULL
    try:
        stream.flush()  # what the program wrote before stands before what the job writes
        return None if stream.fileno() == descriptor else subprocess.PIPE
    except (AttributeError, OSError, ValueError):
        return subprocess.PIPE
