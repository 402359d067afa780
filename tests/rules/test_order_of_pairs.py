"""Of two causes that hold for one end, the model says which explains it: never the order of the rules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from tests.rules.test_corpus import records
from tests.rules.test_samples import NAMES, SAMPLES

from ddp_run.evidence.gather import gather
from ddp_run.evidence.model import Evidence, LogText
from ddp_run.evidence.pasted import transcript
from ddp_run.evidence.pasted.spoken_text import Log
from ddp_run.judge.catalogue import catalogue, follows_another
from ddp_run.judge.findings import Rules
from ddp_run.judge.order import explains
from ddp_run.judge.verdict import Finding
from ddp_run.record import journal


def attempts() -> Iterator[tuple[str, Evidence]]:
    texts = {name: SAMPLES / name / "log.txt" for name in NAMES}
    pasted = {name: path.read_text() for name, path in texts.items() if path.exists()}
    pasted |= {name: record["log"] for name, record in records().items()}
    for name, text in pasted.items():
        yield name, transcript.read([Log(LogText("log.txt", tuple(text.split("\n"))))], follows_another)
    for name in NAMES:
        if name not in pasted:
            recorded = SAMPLES / name / "events.jsonl"
            yield name, gather(SAMPLES / name, list(journal.read(recorded)) if recorded.exists() else [], 0)


def at_one_end() -> Iterator[tuple[str, list[Finding]]]:
    for name, attempt in attempts():
        rules = Rules(attempt, catalogue(), [])
        for death in attempt.deaths:
            yield name, rules.ask(lambda cause: cause.match, lambda ask, death=death: ask(death, attempt))
        yield name, rules.ask(lambda cause: cause.match_launch, lambda ask: ask(attempt))


def ordered(one: Finding, other: Finding) -> bool:
    lines = [found.evidence[0].line if found.evidence else None for found in (one, other)]
    return (
        explains(one.rule, other.rule)
        or explains(other.rule, one.rule)
        or one.confidence != other.confidence
        or (None not in lines and lines[0] != lines[1])
    )


def test_every_pair_has_an_order() -> None:
    met, chance = set[tuple[str, str]](), set[str]()
    for name, findings in at_one_end():
        for one, other in combinations(findings, 2):
            met.add((one.rule.name, other.rule.name))
            if not ordered(one, other):
                chance.add(f"{one.rule.name} and {other.rule.name} in {name}")
    assert len(met) >= 40
    assert not chance, "\n".join(sorted(chance))
