"""The course of an examination: read the launch's options, check this host, start ranks, check what they reported.

The ranks are started by a launch of ddp-run with the same node options, as `ddp_run.launch` does.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ddp_run.api import child
from ddp_run.api.child import LaunchRefused, Said
from ddp_run.doctor.check import Check, Level, Surroundings, all_checks, asked
from ddp_run.doctor.findings import Finding, Grade, skipped
from ddp_run.doctor.reports import Launched, Reports, read_lines
from ddp_run.judge.verdict import ANSWER
from ddp_run.observe.memory import host_memory
from ddp_run.plan import node_facts
from ddp_run.plan.checks.devices import visible_gpus
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.launch_plan import log_dir
from ddp_run.plan.read_options import read_options
from ddp_run.record import file_names
from ddp_run.record.events import NodesCompared
from ddp_run.record.journal import read
from ddp_run.record.run_folder import read_object
from ddp_run.settings.grammar import UNKNOWN_OPTION, HelpWanted
from ddp_run.settings.options import Options
from ddp_run.settings.table import Row
from ddp_run.values.problem import Problem, Refused, nearest

RANK_PROGRAM = Path(__file__).parents[1] / "doctor_ranks" / "__main__.py"
_UNSET = ("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "DDP_RUN_VERDICT_LINE")
_FOLDER = "DDP_RUN_DOCTOR"
"""Not an argument: nodes are compared by arguments, and each node has its own folder."""
_MOST_SILENT_S = 180.0
"""A rank that reports no step for this long hangs: each collective has a timeout of 60 s."""
_HUNG = 124
_COMPARED = "nodes differ in "
"""The launch's messages about nodes start with this; the doctor shows them as findings."""
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
        around.reports = _run_ranks(around, bad)
    except (OSError, LaunchRefused) as error:
        around.reports = Reports(Launched(70, refused=f"cannot start ranks: {error}"))


class Terminated(BaseException):
    """SIGTERM or SIGHUP came: end what was started, as after Ctrl-C."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def _terminated(signum: int, _frame: object) -> NoReturn:
    raise Terminated(signum)


# ------------------------------------------------------------------------------------------ the ranks


def _run_ranks(around: Surroundings, bad: Sequence[str]) -> Reports:
    """Run the ranks and return what they reported. `bad`: what failed on this node already.

    The run's folder lies in --log-dir. Without --log-dir it lies in a temporary folder, which is kept if the launch
    failed. Raises OSError or LaunchRefused if nothing can be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="ddp-run-doctor-"))
    has_place = "log_dir" in around.options.given
    logs = around.log_dir if has_place else folder / "ddp-run-logs"
    keep = False
    try:
        (folder / "order.json").write_text(json.dumps(_order(around, bad)), encoding="utf-8")
        options = ["--log-format=json", "--console=none", "--retry=never", f"--log-dir={logs}"]
        words = [*options, *around.words, *_without_hooks(around.options), str(RANK_PROGRAM)]
        environ = {name: value for name, value in around.environ.items() if name not in _UNSET}
        began = time.monotonic()
        ranks = _Ranks(around, folder)
        try:
            said = child.run(words, {**environ, _FOLDER: str(folder)}, None, streams=(None, ranks), look=ranks.look)
            verdict = read_object(said.folder, file_names.VERDICT) if said.folder is not None else None
        except _Hung:
            said, verdict = Said(logs / file_names.LATEST, exit_code=_HUNG), None
        run = said.folder if said.folder is not None and said.folder.exists() else None
        keep = said.exit_code != 0 and not has_place and run is not None
        launched = Launched(
            exit_code=1 if said.exit_code is None else said.exit_code,
            seconds=time.monotonic() - began,
            verdict=verdict,
            folder=str(run) if run is not None and (keep or has_place) else "",
            said=tuple(ranks.warnings),
            compared=_compared(run / file_names.EVENTS) if run is not None else None,
            refused=said.refused or "\n".join(ranks.plain),
        )
        return Reports(launched, _reported(folder))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _without_hooks(options: Options) -> list[str]:
    """Override the user's hooks: what follows a training (perhaps the end of a rented machine) must not run here.

    Nor must the metrics of a training be overwritten.
    """
    hooks = {"on-success": options.on_success, "on-failure": options.on_failure, "on-end": options.on_end}
    metrics = ["--metrics="] if options.metrics else []
    return [*(f"--{name}=:" for name, command in hooks.items() if command), *metrics]  # ":" does nothing in a shell


def _compared(journal: Path) -> NodesCompared | None:
    try:
        return next((event for event in read(journal) if isinstance(event, NodesCompared)), None)
    except OSError:
        return None


def _order(around: Surroundings, bad: Sequence[str]) -> dict[str, Any]:
    master = around.known_master()
    facts = node_facts.collect(around.options, around.environ, master.ip if master is not None else "127.0.0.1").facts
    return {
        "full": around.level is Level.FULL,
        "host": around.host,
        "facts": [[fact.name, fact.value] for fact in facts],
        "failed": list(bad),
        "data_paths": [str(path) for path in around.data_paths],
        "free_memory": host_memory()[0] or 0,
    }


class _Hung(Exception):
    """The ranks have stopped reporting steps."""


class _Ranks(io.StringIO):
    """Takes what the launch writes to stderr, and follows the ranks' steps."""

    def __init__(self, around: Surroundings, folder: Path) -> None:
        super().__init__()
        self.warnings: list[str] = []
        self.plain: list[str] = []
        """Lines that aren't log messages, as of an internal error."""
        self._around, self._folder = around, folder
        self._begun_line = ""
        self._reports, self._reported_at = 0, time.monotonic()

    def write(self, text: str, /) -> int:
        """Takes all of it."""
        *lines, self._begun_line = (self._begun_line + text).split("\n")
        for line in lines:
            self._hear(line)
        return len(text)

    def _hear(self, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            if not line.startswith(ANSWER):
                self.plain.append(line)
            return
        if message.get("event") == "verdict" or "outcome" in message:
            return
        text = str(message.get("event", line))
        if message.get("level") == "warning":
            self.warnings.append(text)
        if not text.startswith(_COMPARED):
            self._around.say(text)

    def look(self) -> None:
        """Show what the ranks are doing. Raises _Hung."""
        by_rank = _reported(self._folder)
        reports = sum(map(len, by_rank.values()))
        if reports != self._reports or not reports:
            self._reports, self._reported_at = reports, time.monotonic()
        if step := Reports(by_rank=by_rank).one("doing"):
            self._around.doing(f"ranks: {step['what']}")
        if time.monotonic() - self._reported_at > _MOST_SILENT_S:
            self._reported_at = time.monotonic()  # the launch gets as long to end
            raise _Hung


def _reported(folder: Path) -> dict[int, list[Mapping[str, Any]]]:
    found = {}
    for path in folder.glob("rank_*.jsonl"):
        rank = int(path.stem.partition("_")[2])
        found[rank] = read_lines(path.read_text(encoding="utf-8", errors="replace"), rank)
    return found
