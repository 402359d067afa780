"""The labelled failures again, as other launchers, collectors and people hand them over.

What stands before each line, between the lines or after them changes nothing of what happened: the same cause, rank and
exit code must come out as for the log as it was written, wherever the change takes nothing of that away.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.unchanged import slow_if_unchanged

from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted.line_prefixes import assign
from ddp_run.evidence.pasted.spoken_text import Log
from ddp_run.judge.pasted_logs import explain_logs
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import Rank

CORPUS = Path(__file__).parent / "corpus" / "failures.jsonl"
Lines = Sequence[str]
_HEADER = "Traceback (most recent call last)"
_END = re.compile(r"closing signal|failed \(exitcode|Failures:|Root Cause|srun: error|exits with return code")
_FEW = 10


@dataclass(frozen=True)
class Answer:
    cause: str | None
    rank: int | None
    code: int | None

    @classmethod
    def of(cls, verdict: Verdict) -> Answer:
        first = verdict.first_failure
        if first is None:
            return cls(verdict.cause, None, verdict.exit_code)
        return cls(verdict.cause, first.rank, verdict.exit_code if first.exit_code is None else first.exit_code)


@dataclass(frozen=True)
class Record:
    id: str
    lines: tuple[str, ...]
    label: dict[str, Any]

    @property
    def has_agent(self) -> bool:
        return any(each.agent for each in assign(self.lines)[1]) or self.first_end is not None

    @property
    def names_ranks(self) -> bool:
        return any(each.ranks for each in assign(self.lines)[1])

    @property
    def first_end(self) -> int | None:
        """The line with which a launcher begins to tell of the end, if tracebacks stand before it."""
        told = [index for index, line in enumerate(self.lines) if _HEADER in line]
        ends = [index for index, line in enumerate(self.lines) if _END.search(line)]
        return ends[0] if ends and told and told[0] < ends[0] else None


@cache
def records() -> tuple[Record, ...]:
    found = map(json.loads, CORPUS.read_text(encoding="utf-8").splitlines())
    return tuple(Record(each["id"], tuple(each["log"].splitlines()), each["label"]) for each in found)


@cache
def plain(record_id: str) -> Answer:
    return explained(next(record.lines for record in records() if record.id == record_id))


def explained(*files: Lines) -> Answer:
    logs = [Log(LogText(f"log{number}", tuple(lines))) for number, lines in enumerate(files)]
    return Answer.of(explain_logs(logs))


# --------------------------------------------------------------------------------------------- how logs are handed over


def each_line(form: str) -> Callable[[Record], Lines]:
    """A prefix, with `{n}` for the line's number in three digits."""
    return lambda record: [form.format(n=f"{index % 1000:03}") + line for index, line in enumerate(record.lines)]


def tee(record: Record) -> Lines:
    """torchrun's `--tee 3`: the agent's own lines stay as they are."""
    rank = record.label["first_failing_rank"] or 0
    tagged = []
    for text, each in zip(*assign(record.lines), strict=True):
        ranks = each.ranks or (rank,)
        tagged.append(text if each.agent else f"[default{ranks[0]}]:{text}")
    return tagged


def one_speaker(record: Record) -> bool:
    """Whether what names nobody can be said to be from the rank that failed first, since no other says anything."""
    said = sum(1 for line in record.lines if _HEADER in line)
    return record.label["first_failing_rank"] is not None and not record.names_ranks and said == 1


def coloured(record: Record) -> Lines:
    return [f"\x1b[31m{line}\x1b[0m\x1b[K" for line in record.lines]


def steps(count: int, rank: int | None = None) -> list[str]:
    prefix = "" if rank is None else f"[rank{rank}]: "
    return [f"{prefix}step {100 + index}/9000 loss {2 - index / 999:.4f} lr 1.0e-04" for index in range(count)]


def after_much_output(record: Record) -> Lines:
    return [*steps(300), *record.lines]


def much_between(record: Record) -> Lines:
    """The other ranks go on for a while before the launcher ends them."""
    end = record.first_end or 0
    return [*record.lines[:end], *steps(500), *record.lines[end:]]


def head_cut(record: Record) -> Lines:
    first = next((index for index, line in enumerate(record.lines) if _HEADER in line or '  File "' in line), 0)
    return record.lines[first // 2 :]


def as_html_shows(record: Record) -> Lines:
    """Spaces collapse, and `<module>` is taken for a tag."""
    return [re.sub(r"<\w+>", "", re.sub(r"[ \t]+", " ", line)).strip() for line in record.lines]


def numbered(record: Record) -> Lines:
    return [f"{number}:{line}" for number, line in enumerate(record.lines, 1)]


def always(_record: Record) -> bool:
    return True


def several_lines(record: Record) -> bool:
    """A prefix of no known form shows by being before each of several lines."""
    return len(record.lines) >= _FEW


def own_tags(form: str) -> Callable[[Record], Lines]:
    """A prefix that srun and mpirun put before others' lines, and not before their own."""
    return lambda record: [
        line if line.startswith(("srun: ", "slurmstepd: ")) else form + line for line in record.lines
    ]


def has_traceback(record: Record) -> bool:
    return any(line.startswith("Traceback (most recent call last)") for line in record.lines)


def names_nobody(record: Record) -> bool:
    return not record.has_agent and not record.names_ranks


@dataclass(frozen=True)
class Form:
    """A way to hand a log over. `rank`: whom it names where no launcher tells of ranks."""

    rewrite: Callable[[Record], Lines]
    fits: Callable[[Record], bool] = always
    rank: int | None = None


FORMS = {
    "srun -l": Form(own_tags("0: "), lambda record: len(record.lines) > 1, 0),
    "srun -l of many tasks": Form(own_tags(" 12: "), lambda record: len(record.lines) > 1, 12),
    "mpirun -prepend-rank": Form(own_tags("[12] "), has_traceback, 12),
    "kubectl --prefix": Form(each_line("[pod/trainer-worker-0/pytorch] ")),
    "kubectl --timestamps": Form(each_line("2026-11-21T08:15:07.{n}456789Z ")),
    "stern": Form(each_line("trainer-worker-0 pytorch "), several_lines),
    "docker compose": Form(each_line("worker-1  | ")),
    "CRI": Form(each_line("2026-11-21T08:15:07.{n}456789Z stderr F ")),
    "mpirun --tag-output": Form(own_tags("[1,0]<stderr>:"), always, 0),
    "mpirun --tag-output of Open MPI 5": Form(own_tags("[prterun-a-1@1,12]<stderr>: "), always, 12),
    "torchrun --tee": Form(tee, lambda record: record.names_ranks or one_speaker(record)),
    "ddp-run": Form(each_line("[rank0-1]: "), names_nobody, 0),
    "pdsh": Form(each_line("node-a: "), several_lines),
    "journalctl": Form(each_line("Nov 21 08:15:07 node-a trainer[4711]: "), several_lines),
    "GitHub Actions": Form(each_line("2026-11-21T08:15:07.0{n}456Z ")),
    "logging": Form(each_line("2026-11-21 08:15:07,{n} | ERROR | stderr - "), several_lines),
    "two collectors": Form(
        each_line("[pod/trainer-worker-0/pytorch] 2026-11-21T08:15:07.{n}456789Z node-7: "), several_lines
    ),
    "grep -n": Form(numbered, lambda record: has_traceback(record) and several_lines(record)),
    "a page without its code block": Form(as_html_shows),
    "a page that puts each line apart": Form(
        lambda record: [part for line in as_html_shows(record) for part in (line, "")]
    ),
    "a word processor": Form(lambda record: [re.sub('"([^"]*)"', "\u201c\\1\u201d", line) for line in record.lines]),
    "a JSON text": Form(lambda record: [json.dumps("\n".join(record.lines))], has_traceback),
    "Python's repr": Form(lambda record: [repr("\n".join(record.lines))], has_traceback),
    "tabs": Form(lambda record: [re.sub("^ {4}", "\t", line) for line in record.lines]),
    "CRLF": Form(lambda record: [line + "\r" for line in record.lines]),
    "colours": Form(coloured),
    "indented": Form(each_line("    ")),
    "quoted": Form(each_line("> "), several_lines),
    "fenced": Form(lambda record: ["```", *record.lines, "```", "", "Any idea what this can be?"]),
    "head cut off": Form(head_cut),
    "much before": Form(after_much_output),
    "much between": Form(much_between, lambda record: record.first_end is not None),
}

QUICK = ("ddp-run", "pdsh", "torchrun --tee")
slow = slow_if_unchanged(__file__)
_EACH = 4
"""Every so manyth record goes through a form, another part of them through each form: all would take a minute."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else [slow]) for name in FORMS])
def test_the_same_answer(name: str) -> None:
    form = FORMS[name]
    fitting = [record for record in records() if form.fits(record)]
    chosen = [record for record in fitting if crc32(f"{name} {record.id}".encode()) % _EACH == 0]
    assert len(chosen) >= 6
    wrong = [
        (record.id, plain(record.id), got) for record in chosen if not same(record, form, got := answer(form, record))
    ]
    assert not wrong


def answer(form: Form, record: Record) -> Answer:
    return explained(form.rewrite(record))


def same(record: Record, form: Form, got: Answer) -> bool:
    """A prefix with a rank names it where nothing else does."""
    before = plain(record.id)
    ranks = {before.rank, form.rank} if form.rank is not None and names_nobody(record) else {before.rank}
    return (got.cause, got.code) == (before.cause, before.code) and got.rank in ranks


def in_files(record: Record) -> list[Log]:
    """One file for each rank, and the launcher's own."""
    files: dict[Rank | None, list[str]] = {}
    for text, each in zip(*assign(record.lines), strict=True):
        files.setdefault(each.ranks[0] if each.ranks else None, []).append(text)
    return [
        Log(LogText("launcher.log" if rank is None else f"rank_{rank}.log", tuple(lines)), rank)
        for rank, lines in files.items()
    ]


@slow
def test_files_of_ranks() -> None:
    chosen = [record for record in records() if record.names_ranks]
    assert len(chosen) > 30
    found = [(record.id, plain(record.id), Answer.of(explain_logs(in_files(record)))) for record in chosen]
    assert not [each for each in found if each[1] != each[2]]


def test_a_prefix_is_taken_off_as_a_whole() -> None:
    """What makes the others pass must not be that the records have no prefixes: quotes are without them."""
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "KeyError: 'x'"]
    for name in ("pdsh", "GitHub Actions", "logging", "two collectors", "quoted"):
        rewritten = FORMS[name].rewrite(Record("made", tuple(lines), {}))
        assert assign(rewritten)[0] == lines, name


@pytest.mark.parametrize(
    ("form", "apart"),
    [
        pytest.param("trainer/{0} ", True, id="torchx"),
        pytest.param("[node-{0}] ", True, id="in brackets"),
        pytest.param("train-job-worker-{0} ", True, id="pods"),
        pytest.param("[worker-{0}] 2026-02-10T04:31:0{0}Z ", True, id="with a time"),
        pytest.param("2026-02-1{0} ", False, id="dates"),
        pytest.param("04:31:{0}7 ", False, id="times"),
    ],
)
def test_writers_that_take_turns_are_told_apart_by_a_number_before_each_line(form: str, apart: bool) -> None:
    frames = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    main()"]
    lost = [*frames, "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.8.0.4]:22"]
    both = zip(lost, [*frames, "KeyError: 'x'"], strict=True)
    lines = [f"{form.format(k)}{line}" for pair in both for k, line in enumerate(pair)]
    texts, by = assign(lines)
    assert len({each.place for each in by}) == (2 if apart else 1)
    if apart:
        assert explain_logs([Log(LogText("log", tuple(lines)))]).cause == "python-exception", texts
