"""The vendor's own client, `vastai`, as a program: words in, JSON out. It is never imported.

Of an error from Vast.ai it writes a JSON object to stderr and exits with 0 all the same (vastai 1.5, cli/main.py). So
only what stands on stdout counts.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class ClientError(Exception):
    """The client, or Vast.ai, refused or did not answer. `refused`: Vast.ai itself said no, for good."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Instance:
    """What is rented, as `show instance` tells. `price` in $/hour; `status` null while it is being prepared."""

    id: int
    status: str | None
    wanted: str | None
    """intended_status: what Vast.ai works towards."""
    message: str
    label: str
    price: float | None


@dataclass(frozen=True, slots=True)
class Client:
    """Runs `vastai`. The API key is its own matter: its file, or VAST_API_KEY."""

    environ: Mapping[str, str]
    program: str = "vastai"
    within_s: float = 120.0

    def ask(self, words: Sequence[str]) -> Any:
        """The JSON that it answers. Raises `ClientError`."""
        said = self._run(words)
        try:
            return json.loads(said.stdout)
        except ValueError:
            raise _error(words, said) from None

    def create(self, words: Sequence[str]) -> int:
        """Rent; the number of the new instance."""
        answer = self.ask(words)
        if isinstance(answer, dict) and answer.get("success") and isinstance(answer.get("new_contract"), int):
            return int(answer["new_contract"])
        why = answer.get("msg") or answer.get("error") if isinstance(answer, dict) else None
        raise ClientError(str(why or "not created, without a reason"), refused=True)

    def show(self, id: int) -> Instance | None:
        """The instance, null where there is none of that number any more."""
        answer = self.ask(("show", "instance", str(id), "--raw"))
        if not isinstance(answer, dict):
            raise ClientError(f"vastai show instance: {type(answer).__name__} instead of an object")
        return _instance(answer) if answer.get("id") == id else None

    def labelled(self, label: str) -> Instance | None:
        """The instance with that label."""
        rows = self.ask(("show", "instances", "--raw"))
        found = [row for row in rows if isinstance(row, dict) and row.get("label") == label]
        return _instance(found[0]) if found else None

    def logs(self, id: int, lines: int = 1000) -> list[str]:
        """The last lines of the container's log."""
        said = self._run(("logs", str(id), "--tail", str(lines)))
        if said.returncode != 0 or not said.stdout.strip():
            raise _error(("logs", str(id)), said)
        return said.stdout.rstrip().splitlines()

    def stop(self, id: int) -> None:
        """Ask for the end of the container; the disk stays, and costs. `show` tells whether it worked."""
        self._run(("stop", "instance", str(id), "--raw"))

    def destroy(self, id: int) -> None:
        """Ask for the end of everything, data too."""
        self._run(("destroy", "instance", str(id), "--yes", "--raw"))

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        # A session of its own: Ctrl-C is for us, and must not cut off a rental that is being made.
        try:
            return subprocess.run(
                [self.program, *words],
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.within_s,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ClientError(f"vastai {' '.join(words[:2])}: no answer within {self.within_s:.0f} s") from None


def _instance(row: Mapping[str, Any]) -> Instance:
    price = row.get("dph_total")
    return Instance(
        id=int(row["id"]),
        status=row.get("actual_status"),
        wanted=row.get("intended_status"),
        message=" ".join(str(row.get("status_msg") or "").split()),
        label=str(row.get("label") or ""),
        price=float(price) if isinstance(price, int | float) else None,
    )


def _error(words: Sequence[str], said: subprocess.CompletedProcess[str]) -> ClientError:
    name = f"vastai {' '.join(words[:2])}"
    lines = [line for line in said.stderr.splitlines() if line.strip()]
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and told.get("error"):
            status = told.get("status_code")
            refused = isinstance(status, int) and 400 <= status < 500 and status != 429
            return ClientError(f"{name}: {told.get('msg')} ({status})", refused=refused)
    last = lines[-1] if lines else (said.stdout.strip() or "it said nothing")
    return ClientError(f"{name}: {last[:300]} (exit code {said.returncode})", refused=said.returncode == 2)
