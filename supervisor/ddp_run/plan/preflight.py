"""Checks before the start. Each `Check` in a file of `checks/` is one, found by being there. None needs torch."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_run.plan import checks as folder_of_checks
from ddp_run.settings.options import Options
from ddp_run.values.problem import Problem


@dataclass(frozen=True, slots=True)
class Launch:
    """What to check."""

    options: Options
    environ: Mapping[str, str]
    cwd: Path


@dataclass(frozen=True, slots=True)
class Answer:
    """What a check, or all of them, found: a problem refuses the launch, a warning does not."""

    options: Options
    """What to launch: without variables that this machine contradicts."""
    problems: tuple[Problem, ...] = ()
    suspicions: tuple[Problem, ...] = ()
    """Problems with `--preflight strict`; else a warning each, by title and label."""
    warnings: tuple[str, ...] = ()
    master: str | None = None
    """IP address of the rendezvous' host; None if none was given or torch uses its default."""
    interface: str | None = None
    """The interface that leads there, with several nodes; None if unknown, or this host's loopback."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `name` completes "check of …"."""

    name: str
    run: Callable[[Launch], Answer]
    waits: bool = False
    """Whether it may wait for others, up to two minutes: it runs last, and only if there is no problem yet."""
    needed: bool = False
    """Whether it also runs with `--preflight off`: nothing can start with such a problem, or an option does nothing."""


def all_checks() -> list[Check]:
    """The checks, in the order in which they run."""
    names = [found.name for found in pkgutil.iter_modules(folder_of_checks.__path__)]
    files = [importlib.import_module(f"{folder_of_checks.__name__}.{name}") for name in names]
    found = [each for file in files for each in vars(file).values() if isinstance(each, Check)]
    return sorted(found, key=lambda check: check.waits)


def check(options: Options, environ: Mapping[str, str], cwd: Path, *, checks: Iterable[Check] | None = None) -> Answer:
    """Run the checks (default: all) on this machine. One that waits for a name says so on stderr."""
    found = Answer(options)
    for each in all_checks() if checks is None else checks:
        if (options.preflight == "off" and not each.needed) or (each.waits and found.problems):
            continue
        answer = _run(each, Launch(found.options, environ, cwd))
        strict = options.preflight == "strict"
        suspicions = [f"{problem.title}: {problem.label}" for problem in answer.suspicions if not strict]
        found = Answer(
            answer.options,
            (*found.problems, *answer.problems, *(answer.suspicions if strict else ())),
            (),
            (*found.warnings, *answer.warnings, *suspicions),
            answer.master or found.master,
            answer.interface or found.interface,
        )
    return found


def _run(check: Check, launch: Launch) -> Answer:
    """Run a check. If it fails itself, that is a warning: it must not keep a job from starting."""
    try:
        return check.run(launch)
    except Exception as error:
        return Answer(launch.options, warnings=(f"check of {check.name} skipped: {type(error).__name__}: {error}",))
