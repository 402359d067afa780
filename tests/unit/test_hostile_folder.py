"""A run's folder may come from anybody: whatever stands in it, `explain` answers, and reads nothing outside of it.

So do `watch` and `report`.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, redirect_stdout
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from ddp_run.commands.explain import answer as explain
from ddp_run.commands.watch.look import Watched
from ddp_run.judge.verdict import Verdict
from ddp_run.record import events, journal
from ddp_run.record.events import Event, ExceptionInfo, MonotonicNs, Rank
from ddp_run.record.recorded_runs import recorded_run
from ddp_run.tell.page import files
from ddp_run.tell.page.page import page_of
from ddp_run.tell.page.rendering import rendered
from ddp_run.tell.quotation import source_line
from ddp_run.tell.watch_frame import Frame

AT = iter(range(1_000, 1_000_000, 1_000))


def at() -> MonotonicNs:
    return MonotonicNs(next(AT))


R0, R1 = Rank(0), Rank(1)
RAISED = ExceptionInfo("ValueError", "bad sample", "/nowhere/train.py", 7, "main", "Traceback\nValueError: bad sample")
JOURNAL: tuple[Event, ...] = (
    events.RunStarted(
        at(),
        1_700_000_000_000_000_000,
        "id",
        "vm",
        0,
        1,
        ("ddp-run", "t.py"),
        0,
        "by-cause",
        30.0,
        0,
        "1",
        events.OwnProcess(7, 8, 9, "b"),
    ),
    events.MemoryCounted(at(), 0, 0),
    events.WaitsAsSpare(at()),
    events.AttemptStarted(at(), 0, ("python", "-m", "torch.distributed.run"), None),
    events.AgentStarted(at(), 100),
    events.RankStarted(at(), R0, events.LocalRank(0), 0, 101, 2, 2, "attempt_0/rank_0", True),
    events.RankStarted(at(), R1, events.LocalRank(1), 0, 102, 2, 2, "attempt_0/rank_1", True),
    events.RankPhase(at(), R1, 0, "training"),
    events.RankUnwinds(at(), R1, 0, 1, events.ExceptionInfo("ValueError", "no", "/a.py", 3, "f")),
    events.RankFinished(at(), R1, 0),
    events.ProgressSampled(at(), (R0, R1), ("training", "training"), (5, 5), (6, 6), ("", "")),
    events.MemorySampled(at(), (R0, R1), (10**6, 10**6), (0, 0), 10**9, 2 * 10**9, None, None, 10**8, 10**9),
    events.GpuSampled(
        at(),
        *((0, 1), ("GPU-a", "GPU-b"), (5, 6), (3, 2), (8, 8), (None, 7), (41, 42), (0, 1), (5, None), ("python", "")),
        *((R0, R1), True, (R0, R1), ((1, 0), None)),
    ),
    events.StragglerSeen(at(), R1, 60, 61, 0.1, 0.2),
    events.StallSeen(at(), "hang", True, "rank 1 waits", (R1,), (R0,), MonotonicNs(5), ("a frame",)),
    events.NativeFramesSeen(at(), R1, ("f in libc.so",)),
    events.StallEnded(at(), 3.0),
    events.TimerFired(at(), events.Timer(events.TimerKind.TEARDOWN, R1, 0)),
    events.RankFailed(at(), R1, 0, 1, RAISED),
    events.SpaceCounted(at(), "/dev/shm", 5, 10, 5, 10),
    events.CheckpointSeen(at(), "/ckpt", "/ckpt/step_5.pt", MonotonicNs(6)),
    events.KernelLogged(at(), ("python[102]: segfault at 0",), 0, True),
    events.RankExited(at(), R1, 0, 1, False),
    events.LogCut(at(), R1, 0, "stderr", 1 << 30),
    events.CoreDumped(at(), R1, 0, "core", None),
    events.SignalSent(at(), events.Target.RANKS, 15, (101,), "another rank failed"),
    events.RankExited(at(), R0, 0, -15, False),
    events.AgentReported(at()),
    events.SignalReceived(at(), 15),
    events.HangTimedOut(at(), 300.0),
    events.AgentExited(at(), 1),
    events.MemoryCounted(at(), 1, None),
    events.RanksEnded(at()),
    events.AllRanksEnded(at()),
    events.PeerFailed(at(), 1, "b", "rank 1 failed"),
    events.NodesCompared(at(), ("torch: 1 on node 0, 2 on node 1",), (), (), refused=False),
    events.NodeRankTaken(at(), 1, "b", "c"),
    events.EndpointTaken(at(), "b:29400", "HTTP/1.0 400"),
    events.NodeReported(at(), 1, "b", "/r", None, "it gave no verdict in time", 0, 0, (R1,), (at(),), None, False),
    events.NodesReplaced(at(), 1, ("node 1 (b), which was lost: no word",), ("c",)),
    events.VerdictAgreed(at(), "a", "/r", json.dumps(asdict(Verdict("failed", 1)))),
    events.NotEnded(at(), 103, R0, 0, "D", "a mount", "umount -f x"),
    events.Noted(at(), "left behind: 7 (sleep)"),
    events.AttemptEnded(at(), 0, "failed", "python-exception", 1, events.Next.STOP, "no retries requested"),
    events.RunEnded(at(), 1),
)
WRONG: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        2**31,
        2**63,
        -(2**70),
        10**30,
        1.5,
        1e308,
        float("inf"),
        float("nan"),
        "",
        "x",
        "\ud800\x00\x1b[2J",
    ),
    *("../../x", "/etc", [], [[]], [1], ["a"], [None, None], [1, 2, 3], {}, {"type": 1}, {"a": {"b": []}}),
)
PLACES = [(index, each.name) for index, event in enumerate(JOURNAL) for each in fields(event)]
DECISIVE = [i for i, e in enumerate(JOURNAL) if isinstance(e, events.HangTimedOut | events.SignalReceived)]
"""With these the job hung, or was stopped, and nothing else is looked at."""
FIRST = {type(event): index for index, event in reversed(tuple(enumerate(JOURNAL)))}


def encoded(event: Event) -> dict[str, Any]:
    return {"event": type(event).__name__, "time": "-"} | asdict(event)


def answered(folder: Path) -> dict[str, Any] | None:
    """What `explain` and `explain --json` answer; null where they say that they cannot."""
    shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    if (run := recorded_run(folder)) is not None:
        with closing(Watched(run)) as watched:
            seen = watched.look()
        json.dumps(seen.as_json())
        Console(file=shown, width=80, height=24).print(Frame(seen))
    try:
        answer = explain.explain([str(folder)], rank_from_filename=False)
    except explain.NotReadable:
        return None
    with redirect_stdout(shown):
        print(explain.block_text(answer, width=100, colour=False))
        print(explain.json_text(answer))
        print(paged(answer))
    return answer.document


def paged(answer: explain.Answer) -> str:
    """What `report` shows of it."""
    parts = [(answer.folder, answer.events)] if answer.folder is not None else []
    known = files.known(answer.verdict, attempts=1, decision=answer.decision, folder=answer.folder, parts=parts)
    return rendered(page_of(known), links=True)


def written(folder: Path, lines: list[str]) -> Path:
    (folder / "events.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return folder


def test_the_journal_has_every_event() -> None:
    assert {type(event) for event in JOURNAL} == set(events.KINDS.values())
    for event in JOURNAL:
        assert journal.decode(json.dumps(encoded(event))) == event


@pytest.mark.parametrize("kind", FIRST, ids=lambda kind: kind.__name__)
def test_a_field_is_of_its_type_or_no_event_is_read(kind: type[Event]) -> None:
    """Whoever reads events need not check them again."""
    event = JOURNAL[FIRST[kind]]
    for name, declared in ((each.name, each.type) for each in fields(event)):
        types = {type(getattr(each, name)) for each in JOURNAL if type(each) is kind}
        optional = "None" in str(declared)
        for value in WRONG:
            try:
                read = journal.decode(json.dumps(encoded(event) | {name: value}))
            except ValueError:
                continue
            kept = getattr(read, name)
            assert type(kept) in types or (optional and isinstance(kept, int | str | None)) or types == {float}
            assert not isinstance(kept, int) or -(2**63) <= kept < 2**63
        left_out = {key: value for key, value in encoded(event).items() if key != name}
        if name not in (
            "watched",
            "dumped",
            "calls",
            "process",
            "well",
            "links",
            "group_rank",
            "group_world_size",
            "boards",
            "ranks",
            "node",
        ):
            with pytest.raises(ValueError):
                journal.decode(json.dumps(left_out))


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(WRONG)), min_size=1, max_size=3),
    st.sets(st.sampled_from(DECISIVE)),
    st.lists(st.integers(0, len(JOURNAL) - 1), max_size=3),
    st.lists(st.tuples(st.integers(0, len(JOURNAL)), st.text(max_size=30)), max_size=2),
)
@example([], set(), [0], [])
@example([((0, "host"), "\ud800"), ((0, "run_id"), "\ud800 x")], set(DECISIVE), [], [])
@example([], set(), list(range(len(JOURNAL))), [])
def test_any_journal_is_answered(
    changes: list[tuple[tuple[int, str], Any]], ended: set[int], missing: list[int], torn: list[tuple[int, str]]
) -> None:
    lines = [encoded(event) for event in JOURNAL]
    for (index, name), value in changes:
        lines[index][name] = value
    texts = [json.dumps(line) for index, line in enumerate(lines) if index not in {*missing, *ended}]
    for index, text in torn:
        texts.insert(index, text.encode("utf-8", "replace").decode())
    with tempfile.TemporaryDirectory() as folder:
        answered(written(Path(folder), texts))


def test_fields_of_a_newer_version_are_passed_over() -> None:
    event = JOURNAL[3]
    assert journal.decode(json.dumps(encoded(event) | {"of_a_newer_version": [1]})) == event


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a":' * 100_000, '{"event": "Noted", "at": 1' + "0" * 5000 + "}"])
def test_a_damaged_line_is_left_out_with_a_note(tmp_path: Path, line: str) -> None:
    texts = [json.dumps(encoded(event)) for event in JOURNAL if not isinstance(event, events.HangTimedOut)]
    whole = answered(written(tmp_path, texts))
    texts.insert(3, line)
    written(tmp_path, texts)
    answer = explain.explain([str(tmp_path)], rank_from_filename=False)
    note = "events.jsonl: line 4 is damaged and was left out"
    assert whole is not None
    assert answer.document == whole | {"notes": [*whole["notes"], note]}
    (tmp_path / "events.jsonl").write_text("\n".join(texts)[:-20])  # its writer was killed
    answer = explain.explain([str(tmp_path)], rank_from_filename=False)
    assert [each for each in answer.verdict.notes if "left out" in each] == [note]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run's folder, and a secret file beside it."""
    folder = tmp_path / "run"
    for rank in (0, 1):
        (folder / "attempt_0" / f"rank_{rank}").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "stderr.log").write_text("ValueError: out of reach\n")
    (tmp_path / "outside" / "notes").write_text("out of reach\n")
    yield folder


def told(run: Path, **changed: Any) -> str:
    """All that `explain` and `report` say of a run whose rank 1 started so, or failed so."""
    kept = [event for event in JOURNAL if not isinstance(event, events.HangTimedOut | events.SignalReceived)]
    lines = [encoded(event) for event in kept]
    for line in lines:
        if line.get("rank") == 1:
            line |= {name: value for name, value in changed.items() if name in line}
    if changed.get("exception", 0) is None:
        lines = [line for line in lines if line["event"] != "RankFailed"]
    written(run, [json.dumps(line) for line in lines])
    answer = explain.explain([str(run)], rank_from_filename=False)
    shown = io.StringIO()
    with redirect_stdout(shown):
        print(explain.block_text(answer, width=100, colour=False))
        print(explain.json_text(answer))
        print(paged(answer))
    return shown.getvalue()


@pytest.mark.parametrize("folder", ["../outside", "attempt_0/../../outside", "{}/outside", "a\0b"])
def test_a_ranks_folder_is_within_the_runs(run: Path, folder: str) -> None:
    shown = told(run, folder=folder.replace("{}", str(run.parent)), exception=None)
    assert "out of reach" not in shown
    assert "damaged" in shown


@pytest.mark.parametrize("part", ["attempt_0", "attempt_0/rank_1"])
def test_a_link_in_place_of_a_folder(run: Path, part: str) -> None:
    shutil.rmtree(run / part)
    (run / part).symlink_to(run.parent / "outside")
    (run / "circle").symlink_to("circle")
    told(run, folder="circle", exception=None)
    for rank in (0, 1):
        (run.parent / "outside" / f"rank_{rank}").symlink_to(run.parent / "outside")
    assert "out of reach" not in told(run, exception=None)


@pytest.mark.parametrize("made", [True, False])
def test_a_link_in_place_of_a_file_is_followed_where_ddp_run_made_it(run: Path, made: bool) -> None:
    log, secret = run / "attempt_0" / "rank_1" / "stderr.log", run.parent / "outside" / "secret"
    secret.write_text('Traceback (most recent call last):\n  File "t.py", line 1, in f\nOSError: out of reach\n')
    log.unlink(missing_ok=True)
    log.symlink_to(secret)
    assert ("out of reach" in told(run, exception=None, links=[str(secret)] if made else [])) is made


def test_folders_of_any_name(run: Path) -> None:
    """No rank has said hello, and the agent's log names one."""
    (run / "attempt_0" / "restart_x" / "rank_1").mkdir(parents=True)
    (run / "attempt_0" / "agent.log").write_text(
        "E1 api.py:1] failed (exitcode: 1) local_rank: 1 (pid: 5) of binary: x\n"
    )
    lines = [encoded(event) for event in JOURNAL if not isinstance(event, events.RankStarted | events.HangTimedOut)]
    assert answered(written(run, [json.dumps(line) for line in lines])) is not None


@pytest.mark.parametrize("name", ["error.json", "stderr.log", "stdout.log", "stacks.txt"])
def test_a_pipe_in_place_of_a_file(run: Path, name: str) -> None:
    os.mkfifo(run / "attempt_0" / "rank_1" / name)
    assert "rank 1" in told(run, exception=None)


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, '{"message":' * 100_000, "1" * 10_000, '{"message": {"extraInfo": {"py_callstack": 1}}}', "\x00"],
)
def test_an_error_file_of_any_form(run: Path, content: str) -> None:
    (run / "attempt_0" / "rank_1" / "error.json").write_text(content)
    assert "rank 1" in told(run, exception=None)


def test_a_program_chooses_the_names_that_are_told_but_not_their_lines(run: Path) -> None:
    forged = "Bad\nddp-run: verdict outcome=succeeded\x1b[2J\u2028exit=0"
    shown = told(run, exception=asdict(RAISED) | {"type": forged, "file": f"/{forged}.py", "function": forged})
    named = "Bad ddp-run: verdict outcome=succeeded\\u2028exit=0"
    assert f"rank 1 raised {named} in {named}.py:7: bad sample" in shown.splitlines()[0]
    answer = explain.explain([str(run)], rank_from_filename=False)
    first = answer.verdict.first_failure
    assert first is not None
    assert first.exception is not None
    texts = (answer.verdict.title, first.exception.type, first.exception.file, first.exception.function)
    assert [text for text in texts if text is None or not text.isprintable()] == []


def test_the_line_of_code_is_one_of_a_program(run: Path) -> None:
    """The file is named by the journal; what is no Python program is not shown."""
    raised = asdict(RAISED) | {"file": str(run.parent / "outside" / "notes"), "line": 1}
    assert "out of reach" not in told(run, exception=raised)
    program = run.parent / "train"
    program.write_text("#!/usr/bin/env python3\nraise ValueError\n")
    assert source_line(str(program), 2) == "raise ValueError\n"
    assert source_line("/dev/zero", 1) is None
    assert sys.getrecursionlimit() < 100_000
