"""Shows the doctor's findings on stdout as they come, and what it's doing on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

from ddp_run.doctor import findings
from ddp_run.doctor.findings import Finding, Row
from ddp_run.values.lines import neutral_text
from ddp_run.values.terminal import ERASE, colour, columns

_LONG_S = 10.0
"""After this long without a line, a log gets one that says what's going on."""


@final
class Page:
    """Findings are a table on a terminal, and one line each in a log. `node`: this node's name if there are several."""

    def __init__(self, *, as_json: bool, node: str = "") -> None:
        self._as_json, self._node = as_json, node
        self._width, self._colour = columns(), colour(sys.stdout)
        self._rows: list[Row] = []
        self._group = ""
        self._step = ""
        """What the terminal's last line shows."""
        self._began = self._shown_at = time.monotonic()

    def add(self, check: str, group: str, findings: Sequence[Finding]) -> None:
        """Show what a check found."""
        self._erase_step()
        rows = [Row(check, group, found) for found in findings]
        self._rows += rows
        if not self._as_json:
            sys.stdout.write("".join(map(self._shown, rows)))
            sys.stdout.flush()

    def _shown(self, row: Row) -> str:
        if not sys.stdout.isatty():
            return findings.plain_lines(row, self._node)
        heading = findings.heading(row.group, colour=self._colour) if row.group != self._group else ""
        self._group = row.group
        return heading + findings.table_rows(row, width=self._width, colour=self._colour)

    def say(self, line: str) -> None:
        """Show a line that stays."""
        self._erase_step()
        node = f"{self._node}: " if self._node else ""
        sys.stderr.write(f"ddp-run: {node}{neutral_text(line)}\n")
        sys.stderr.flush()

    def doing(self, step: str) -> None:
        """Show what's going on: in place of the last step on a terminal; in a log only if it takes long."""
        if sys.stderr.isatty():
            if step != self._step:
                sys.stderr.write(f"{ERASE}{neutral_text(step)[: self._width - 4]} ...")
                sys.stderr.flush()
                self._step = step
        elif time.monotonic() - self._shown_at > _LONG_S:
            self.say(step)

    def _erase_step(self) -> None:
        self._shown_at = time.monotonic()
        if self._step:
            sys.stderr.write(ERASE)
            sys.stderr.flush()
            self._step = ""

    def end(self, about: Mapping[str, Any]) -> bool:
        """Show the last line, or all of the JSON with `about`. Returns whether nothing failed."""
        self._erase_step()
        seconds = time.monotonic() - self._began
        if self._as_json:
            about = {**about, "seconds": round(seconds, 3)}
            sys.stdout.write(json.dumps(findings.as_json(self._rows, about), indent=2) + "\n")
        else:
            sys.stdout.write(findings.summary([row.found.grade for row in self._rows], seconds, self._node))
        sys.stdout.flush()
        return findings.is_fit(self._rows)
