"""What can be known to go wrong before anything is started: asks each check of `checks/`; none of them needs torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_run.plan.check import Answer, Check, Cost, Launch, all_checks
from ddp_run.settings.options import Options
from ddp_run.values.problem import Problem


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer. `options` is what to launch: variables that this machine contradicts are dropped, with a note."""

    options: Options
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    master: str | None = None
    """IP address of the static rendezvous' host; null where none was given or torch is to take its default."""
    interface: str | None = None
    """That leads there, with several nodes; null where that is unknown, or this host's loopback."""


def check(
    options: Options,
    environ: Mapping[str, str],
    cwd: Path,
    *,
    say: Callable[[str], None] | None = None,
    checks: Iterable[Check] | None = None,
) -> Checked:
    """Look at this machine. `say` gets a line while a name is waited for (default: stderr).

    What waits is asked only where nothing is wrong otherwise: that is told at once.
    """
    checked = Checked(options)
    launch = Launch(options, environ, cwd, say or _say)
    for each in all_checks() if checks is None else checks:
        if (options.preflight == "off" and not each.needed) or (each.cost is Cost.WAITS and checked.problems):
            continue
        answer = _asked(each, replace(launch, options=checked.options))
        strict = options.preflight == "strict"
        suspicions = [f"{problem.title}: {problem.label}" for problem in answer.suspicions if not strict]
        checked = Checked(
            answer.options or checked.options,
            (*checked.problems, *answer.problems, *(answer.suspicions if strict else ())),
            (*checked.warnings, *answer.warnings, *suspicions),
            answer.master or checked.master,
            answer.interface or checked.interface,
        )
    return checked


def _asked(check: Check, launch: Launch) -> Answer:
    """A check that itself fails is a warning: it must not keep a job from starting."""
    try:
        return check.run(launch)
    except Exception as error:
        return Answer(warnings=(f"check of {check.name} skipped: {type(error).__name__}: {error}",))


def _say(line: str) -> None:
    sys.stderr.write(f"ddp-run: {line}\n")
    sys.stderr.flush()
