"""Shows what the doctor finds while it looks: findings on stdout, what it is doing on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

from ddp_run.tell import doctor_table
from ddp_run.tell.doctor_table import Row
from ddp_run.values.finding import Finding
from ddp_run.values.lines import neutral_text

_ERASE = "\r\033[K"
_LONG_S = 10.0
"""Without any line: then a log is told what is going on."""


@final
class Page:
    """`terminal`: whether findings go to one; then they are a table, else a line each, for a log. `node`: this one of
    several, empty for one."""

    def __init__(self, *, as_json: bool, width: int, colour: bool, terminal: bool, node: str = "") -> None:
        self._as_json, self._width, self._colour, self._terminal, self._node = as_json, width, colour, terminal, node
        self._redraws = sys.stderr.isatty()
        self._rows: list[Row] = []
        self._group = ""
        self._step = ""
        """What stands on the terminal's last line."""
        self._shown_at = time.monotonic()

    def add(self, check: str, group: str, findings: Sequence[Finding]) -> None:
        """What one check found."""
        self._erase_step()
        rows = [Row(check, group, found) for found in findings]
        self._rows += rows
        if not self._as_json:
            for row in rows:
                self._show(row)
            sys.stdout.flush()

    def _show(self, row: Row) -> None:
        if not self._terminal:
            sys.stdout.write(doctor_table.plain_lines(row, self._node))
            return
        if row.group != self._group:
            self._group = row.group
            sys.stdout.write(doctor_table.heading(row.group, colour=self._colour))
        sys.stdout.write(doctor_table.table_rows(row, width=self._width, colour=self._colour))

    def say(self, line: str) -> None:
        """A line that stays."""
        self._erase_step()
        node = f"{self._node}: " if self._node else ""
        sys.stderr.write(f"ddp-run: {node}{neutral_text(line)}\n")
        sys.stderr.flush()

    def doing(self, what: str) -> None:
        """What takes its time now; on a terminal the next takes its place, a log gets a line where it takes long."""
        if self._redraws:
            if what != self._step:
                sys.stderr.write(f"{_ERASE}{neutral_text(what)[: self._width - 4]} ...")
                sys.stderr.flush()
                self._step = what
        elif time.monotonic() - self._shown_at > _LONG_S:
            self.say(what)

    def _erase_step(self) -> None:
        self._shown_at = time.monotonic()
        if self._step:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()
            self._step = ""

    def end(self, about: Mapping[str, Any], seconds: float) -> None:
        """The last line, or all of the JSON."""
        self._erase_step()
        if self._as_json:
            text = json.dumps(doctor_table.as_json(self._rows, about), indent=2) + "\n"
        else:
            text = doctor_table.summary([row.found.grade for row in self._rows], seconds, self._node)
        sys.stdout.write(text)
        sys.stdout.flush()
