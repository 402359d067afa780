"""Every sample, judged by all rules, must give the verdict in its expect.toml.

A sample is what a real run left (see provoke.py), or `log.txt`: a log of any launcher, where the fault cannot be had
here.
"""

from __future__ import annotations

import shutil
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ddp_run.evidence.gather import gather
from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted.spoken_text import Log
from ddp_run.judge import cut_log
from ddp_run.judge.catalogue import catalogue
from ddp_run.judge.diagnose import judge
from ddp_run.judge.pasted_logs import explain_logs
from ddp_run.judge.verdict import Verdict
from ddp_run.record import journal
from ddp_run.record.events import Event
from ddp_run.tell.verdict_text import verdict_block

SAMPLES = Path(__file__).parent / "samples"
NAMES = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())


def verdict_of(folder: Path) -> Verdict:
    pasted = folder / "log.txt"
    if pasted.exists():
        log = LogText("log.txt", tuple(pasted.read_text().split("\n")))
        return explain_logs([Log(log)])
    recorded = folder / "events.jsonl"
    events: list[Event] = list(journal.read(recorded)) if recorded.exists() else []
    return judge(gather(folder, events, 0))


@cache
def verdict(name: str) -> Verdict:
    return verdict_of(SAMPLES / name)


def expected(name: str) -> dict[str, Any]:
    return tomllib.loads((SAMPLES / name / "expect.toml").read_text())


def test_confusion() -> None:
    table = [(name, expected(name)["cause"], verdict(name).cause) for name in NAMES]
    wrong = [f"{name}: {cause} was taken for {found}" for name, cause, found in table if cause != found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_verdict(name: str) -> None:
    wanted, found = expected(name), verdict(name)
    first = found.first_failure
    assert (found.cause, found.exit_code, found.confidence, first and first.rank) == (
        wanted["cause"],
        wanted.get("exit_code"),
        wanted["confidence"],
        wanted.get("rank"),
    )
    with_notes = ("peer-died", "store-lost", "python-exception", "hang")
    assert found.notes in ((), (cut_log.NOTE,)) or wanted["cause"] in with_notes
    for quote in found.evidence:
        if (SAMPLES / name / quote.source).exists() and quote.line is not None:
            lines = (SAMPLES / name / quote.source).read_text().split("\n")
            assert lines[quote.line - 1] == quote.text
    if "evidence" in wanted:
        assert any(wanted["evidence"] in quote.text for quote in found.evidence)


@pytest.mark.parametrize("name", NAMES)
def test_the_block_is_short(name: str) -> None:
    """What happened and where, the proof, what to do: on a screen beside what came before."""
    block = verdict_block(verdict(name), folder=SAMPLES / name, attempts=1, width=120)
    assert len(block.splitlines()) <= 16


@pytest.mark.parametrize("name", NAMES)
def test_without_its_key_words_the_cause_is_not_found(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(SAMPLES / name, folder)
    (folder / "expect.toml").unlink()
    words = expected(name).get("without") or dict.fromkeys(words_of(expected(name)["cause"]), "…")
    for path in folder.rglob("*"):
        if path.is_file():
            text = path.read_text()
            for word, other in words.items():
                text = text.replace(word, other)
            path.write_text(text)
    assert verdict_of(folder).cause != expected(name)["cause"]


def words_of(name: str) -> list[str]:
    """The literals of a cause's signs and symptoms, the longest first."""
    signs = next((*cause.signs, *cause.symptoms) for cause in catalogue() if cause.rule.name == name)
    return sorted({sign.words for sign in signs}, key=len, reverse=True)


def test_every_cause_has_a_sample() -> None:
    assert {cause.rule.name for cause in catalogue()} == {expected(name)["cause"] for name in NAMES}
