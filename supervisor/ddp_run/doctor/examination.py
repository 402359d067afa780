"""The course of an examination: read the launch's options, check this host, start ranks, check what they reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ddp_run.api.result import LaunchRefused
from ddp_run.doctor.check import Check, Level, Surroundings, all_checks, asked
from ddp_run.doctor.launch import RANK_PROGRAM, run_ranks
from ddp_run.doctor.reports import Launched, Reports
from ddp_run.plan.checks.devices import visible_gpus
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.launch_plan import log_dir
from ddp_run.plan.read_options import read_options
from ddp_run.settings.grammar import UNKNOWN_OPTION, HelpWanted
from ddp_run.settings.options import Options
from ddp_run.settings.table import Row
from ddp_run.values.finding import Finding, Grade, skipped
from ddp_run.values.problem import Problem, Refused, nearest

_RANKS_WITHOUT_GPUS = 2


# ----------------------------------------------------------------------------------- the launch's options


def prepared(
    words: tuple[str, ...], level: Level, data_paths: Sequence[str], own_options: Sequence[str]
) -> Surroundings:
    """Return what checks look at, for a launch with these options. Raises Refused.

    `own_options`: the doctor's. An option that a launch doesn't know may be one of them, misspelled.
    """
    environ = dict(os.environ)
    try:
        rows = torch_rows()
    except Refused:  # the check `torch_build` reports it; only torch's own options could tell what the words mean
        options = _options((), environ, (), own_options)
    else:
        options = _options(words, environ, rows, own_options)
    environ.update((each.name, each.value) for each in options.rank_variables)
    if "nproc_per_node" in options.given:
        ranks = _ranks_of(options, visible_gpus(environ))
    else:
        ranks = visible_gpus(environ) or _RANKS_WITHOUT_GPUS
        words = (*words, f"--nproc-per-node={ranks}")
    return Surroundings(
        options=options,
        environ=environ,
        ranks=ranks,
        log_dir=log_dir(options),
        words=words,
        level=level,
        data_paths=tuple(Path(path).absolute() for path in data_paths),
    )


def _ranks_of(options: Options, gpus: int | None) -> int:
    """Count ranks as torchrun does for a word (torch 2.13, run.py: determine_local_world_size), on NVIDIA's GPUs."""
    if options.nproc_count is not None:
        return options.nproc_count
    if options.nproc == "cpu" or (options.nproc == "auto" and not gpus):
        return len(os.sched_getaffinity(0))
    return gpus or _RANKS_WITHOUT_GPUS


def _options(
    words: tuple[str, ...], environ: Mapping[str, str], rows: Sequence[Row], own_options: Sequence[str]
) -> Options:
    try:
        options = read_options((*words, str(RANK_PROGRAM)), environ, rows)
    except HelpWanted:
        helps = ("ddp-run doctor --help   # put it before the launch's options",)
        raise Refused((Problem("DDP101", "only a launch's options go here", helps=helps),), words) from None
    except Refused as refused:
        raise Refused(tuple(_reworded(each, len(words), own_options) for each in refused.problems), words) from None
    if options.module or options.no_python or options.run_path or options.dry_run:
        title = "the doctor runs its own program: leave out --module, --no-python, --run-path and --dry-run"
        raise Refused((Problem("DDP101", title),), words)
    if options.script != str(RANK_PROGRAM):
        notes = ("it runs its own program with the same options",)
        title = "the doctor takes no script"
        raise Refused((Problem("DDP101", title, options.script_word, "remove it", notes=notes),), words)
    return options


def _reworded(problem: Problem, words: int, own_options: Sequence[str]) -> Problem:
    """Suggest the doctor's own options, and hide its program, which stands behind the words."""
    if problem.word == words:  # the last option took the program for its value
        name = problem.title.partition(" ")[0]
        return Problem(problem.code, f"{name} needs a value", words - 1, "expected a value after it")
    helps = tuple(text for text in problem.helps if str(RANK_PROGRAM) not in text)
    if not problem.title.startswith(UNKNOWN_OPTION):
        return replace(problem, helps=helps)
    if not helps:
        close = nearest(problem.title.removeprefix(UNKNOWN_OPTION).strip(), own_options, count=1)
        helps = tuple(f"did you mean {each}?" for each in close)
    helps = helps or ("ddp-run doctor --help", "ddp-run --help   # a launch's")
    return replace(problem, label="not an option of the doctor or of a launch", notes=(), helps=helps)


# ------------------------------------------------------------------------------------------ the checks


def examine(around: Surroundings) -> Iterator[tuple[Check, tuple[Finding, ...]]]:
    """Run all checks of the level, and yield each with what it found. Leaves nothing behind when it's interrupted.

    SIGTERM and SIGHUP raise Terminated, Ctrl-C raises KeyboardInterrupt.
    """
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _terminated)
    bad: list[str] = []
    hindrance = ""
    started = False
    for each in (check for check in all_checks() if check.level <= around.level):
        if each.of_ranks and hindrance:
            yield each, (skipped(each.name, f"no ranks were started: {hindrance}"),)
            return
        if each.of_ranks and not started:
            _start_ranks(around, bad)
            started = True
        around.doing(f"checking {each.subject}")
        found = asked(each, around)
        failures = [f"{finding.looked_at}: {finding.value}" for finding in found if finding.grade is Grade.FAIL]
        if failures and each.ranks_need_it and around.options.max_nodes == 1:
            hindrance = hindrance or failures[0]
        bad += failures
        yield each, found


def _start_ranks(around: Surroundings, bad: Sequence[str]) -> None:
    around.doing(f"starting {around.ranks} ranks")
    try:
        around.reports = run_ranks(around, bad)
    except (OSError, LaunchRefused) as error:
        around.reports = Reports(Launched(70, refused=f"cannot start ranks: {error}"))


class Terminated(BaseException):
    """SIGTERM or SIGHUP came: end what was started, as after Ctrl-C."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def _terminated(signum: int, _frame: object) -> NoReturn:
    raise Terminated(signum)
