"""The doctor's course: options, checks of this host, a launch of ranks, checks of what they reported."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from ddp_run.doctor.check import Check, Group, Level, all_checks, asked
from ddp_run.doctor.launch import RANK_PROGRAM, run_ranks
from ddp_run.doctor.reports import Launched, Reports
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.plan.checks.devices import visible_gpus
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.launch_plan import log_dir
from ddp_run.plan.project_files import project_files
from ddp_run.settings.grammar import UNKNOWN_OPTION, HelpWanted
from ddp_run.settings.options import Options
from ddp_run.settings.parse import parse
from ddp_run.settings.table import Row
from ddp_run.values.finding import Finding, Grade, skipped
from ddp_run.values.problem import Problem, Refused
from ddp_run.values.typed_fields import frozen

_RANKS_WITHOUT_GPUS = 2


@frozen
class Wanted:
    """What was asked for. `words`: the options of a launch."""

    words: tuple[str, ...]
    quick: bool = False
    full: bool = False
    data_paths: tuple[str, ...] = ()

    @property
    def level(self) -> Level:
        """How much is looked at."""
        return Level.QUICK if self.quick else Level.FULL if self.full else Level.DEFAULT


class Page(Protocol):
    """Where findings go."""

    def add(self, check: str, group: str, findings: Sequence[Finding]) -> None:
        """What a check found."""

    def say(self, line: str) -> None:
        """A line for the user that stays."""

    def doing(self, what: str) -> None:
        """What takes its time now."""

    def end(self, about: Mapping[str, Any], seconds: float) -> None:
        """All has been looked at."""


def prepared(wanted: Wanted) -> tuple[Surroundings, tuple[str, ...]]:
    """What checks look at, and the words of the launch with the number of ranks. Raises Refused."""
    environ = dict(os.environ)
    try:
        rows = torch_rows()
    except Refused:  # told by torch_build; what the words mean, only torch's own options could tell
        options, words = _options((), environ, ()), wanted.words
    else:
        options, words = _options(wanted.words, environ, rows), wanted.words
    environ.update((each.name, each.value) for each in options.rank_variables)
    if "nproc_per_node" in options.given:
        ranks = _ranks_of(options, visible_gpus(environ))
    else:
        ranks = visible_gpus(environ) or _RANKS_WITHOUT_GPUS
        words = (*words, f"--nproc-per-node={ranks}")
    around = Surroundings(
        options=options,
        environ=environ,
        ranks=ranks,
        log_dir=log_dir(options),
        full=wanted.full,
        waits=not wanted.quick,
        data_paths=tuple(Path(path).absolute() for path in wanted.data_paths),
    )
    return around, words


def _ranks_of(options: Options, gpus: int | None) -> int:
    """As torchrun counts them for a word (torch 2.13, run.py: determine_local_world_size); what is no GPU of NVIDIA is
    not counted here."""
    if options.nproc_count is not None:
        return options.nproc_count
    if options.nproc == "cpu" or (options.nproc == "auto" and not gpus):
        return len(os.sched_getaffinity(0))
    return gpus or _RANKS_WITHOUT_GPUS


def _options(words: tuple[str, ...], environ: Mapping[str, str], rows: Sequence[Row]) -> Options:
    try:
        options = parse(
            (*words, str(RANK_PROGRAM)), environ, torch_rows=rows, read_file=_read_file, projects=project_files
        )
    except HelpWanted:
        helps = ("ddp-run doctor --help   # of the doctor, in front of a launch's options",)
        raise Refused((Problem("DDP101", "this is the place for a launch's options", helps=helps),), words) from None
    except Refused as refused:
        raise Refused(tuple(_without_script(each, len(words)) for each in refused.problems), words) from None
    if options.module or options.no_python or options.run_path or options.dry_run:
        title = "the doctor has a program of its own: without --module, --no-python, --run-path and --dry-run"
        raise Refused((Problem("DDP101", title),), words)
    if options.script != str(RANK_PROGRAM):
        notes = ("it starts a program of its own with the same options",)
        title = "the doctor takes no script"
        raise Refused((Problem("DDP101", title, options.script_word, "remove it", notes=notes),), words)
    return options


def _without_script(problem: Problem, words: int) -> Problem:
    """Here no option is the script's, and no message shows the program that stands for it behind the words."""
    if problem.word == words:  # it was taken for the last option's value
        name = problem.title.partition(" ")[0]
        return Problem(problem.code, f"{name} needs a value", words - 1, "expected a value after it")
    helps = tuple(text for text in problem.helps if str(RANK_PROGRAM) not in text)
    if problem.title.startswith(UNKNOWN_OPTION):
        return replace(problem, label="not an option of the doctor or of a launch", notes=(), helps=helps)
    return replace(problem, helps=helps)


def _read_file(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def examine(wanted: Wanted, around: Surroundings, words: tuple[str, ...], page: Page) -> bool:
    """Look, show, and say whether a job can work here. An interrupt raises KeyboardInterrupt, with nothing left."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _terminated)
    around.say = page.say
    began = time.monotonic()
    grades: list[Grade] = []
    bad: list[str] = []
    hindrances: list[str] = []

    def ask(check: Check) -> None:
        page.doing(f"looking at {check.group}: {check.name}")
        found = asked(check, around)
        grades.extend(finding.grade for finding in found)
        failures = [f"{finding.looked_at}: {finding.value}" for finding in found if finding.grade is Grade.FAIL]
        bad.extend(failures)
        if failures and check.ranks_need_it and around.options.max_nodes == 1:
            hindrances.extend(failures)
        page.add(check.name, check.group, found)

    checks = [check for check in all_checks() if check.level <= wanted.level]
    for check in checks:
        if not check.of_ranks:
            ask(check)
    if hindrances and wanted.level > Level.QUICK:
        page.add("launch", Group.RANKS, [skipped("launch", f"no ranks were started: {hindrances[0]}")])
    elif wanted.level > Level.QUICK:
        around.reports = _reports(words, around, bad, page)
        for check in checks:
            if check.of_ranks:
                ask(check)
    seconds = time.monotonic() - began
    page.end(_about(wanted, around, seconds), seconds)
    return Grade.FAIL not in grades


def _reports(words: tuple[str, ...], around: Surroundings, bad: Sequence[str], page: Page) -> Reports:
    page.doing(f"starting {around.ranks} ranks")
    try:
        return run_ranks(words, around, bad, page)
    except OSError as error:
        return Reports(Launched(70, 0.0, None, "", refused=f"cannot be started: {error}"), {})


def _about(wanted: Wanted, around: Surroundings, seconds: float) -> dict[str, Any]:
    options = around.options
    return {
        "level": wanted.level.name.lower(),
        "host": around.host,
        "python": sys.executable,
        "nodes": options.max_nodes,
        "node_rank": options.node_rank,
        "ranks_per_node": around.ranks,
        "folder": (around.reports.launched.folder or None) if around.reports is not None else None,
        "seconds": round(seconds, 3),
    }


class Terminated(BaseException):
    """SIGTERM, or SIGHUP: ends what was started, as Ctrl-C does."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def _terminated(signum: int, _frame: object) -> NoReturn:
    raise Terminated(signum)
