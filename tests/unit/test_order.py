"""The one order of findings: deeper layers first, then the surer, then the earlier; `wins_over` for the rest."""

from __future__ import annotations

from ddp_run.evidence.model import Quote
from ddp_run.judge.catalogue import catalogue
from ddp_run.judge.order import explains, strongest
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule


def rule(name: str, layer: Layer, *over: str) -> Rule:
    wins = tuple((each, "said so") for each in over)
    return Rule(name, name, f"DDP-{name}", layer, Retry(helps=False, reason=""), "0.1", wins)


def found(rule: Rule, confidence: Confidence = "certain", line: int | None = None) -> Finding:
    quote = (Quote("stderr.log", line, "words"),) if line is not None else ()
    return Finding(rule, rule.name, quote, confidence=confidence)


def name_of(*findings: Finding) -> str | None:
    """The strongest, which must not depend on the order in which rules were asked."""
    one, other = strongest(findings), strongest(reversed(findings))
    assert one is other
    return None if one is None else one.rule.name


def test_nothing_found_is_no_cause() -> None:
    assert strongest([]) is None


def test_a_deeper_layer_explains_what_is_above_it() -> None:
    abort, full = rule("abort", Layer.ENDED), rule("full", Layer.CHANGEABLE)
    assert name_of(found(abort), found(full, "likely")) == "full"
    assert explains(full, abort)
    assert not explains(abort, full)


def test_within_a_layer_the_surer_wins_then_the_earlier() -> None:
    a, b = rule("a", Layer.REPORTED), rule("b", Layer.REPORTED)
    assert name_of(found(a, "likely", 1), found(b, "certain", 9)) == "b"
    assert name_of(found(a, "certain", 9), found(b, "certain", 1)) == "b"
    assert name_of(found(a, "certain"), found(b, "certain", 9)) == "b"
    assert not explains(a, b)
    assert not explains(b, a)


def test_what_a_cause_wins_over_wins_neither_by_layer_nor_by_certainty() -> None:
    gone, abort = rule("gone", Layer.FOLLOWED, "abort"), rule("abort", Layer.ENDED)
    assert name_of(found(gone, "likely", 9), found(abort, "certain", 1)) == "gone"
    assert explains(gone, abort)
    assert not explains(abort, gone)


def test_a_cause_that_lost_wins_over_nothing() -> None:
    gone, abort = rule("gone", Layer.FOLLOWED, "abort"), rule("abort", Layer.ENDED)
    full = rule("full", Layer.CHANGEABLE)
    assert name_of(found(gone), found(abort), found(full)) == "full"


def test_causes_that_win_over_each_other_in_a_circle_still_have_an_order() -> None:
    a, b, c = rule("a", Layer.ENDED, "c"), rule("b", Layer.ENDED, "a"), rule("c", Layer.ENDED, "b")
    assert name_of(found(a, "certain", 1), found(b, "certain", 2), found(c, "certain", 3)) in ("a", "b", "c")


def test_the_catalogue_has_few_exceptions_and_each_says_why() -> None:
    rules = {cause.rule.name: cause.rule for cause in catalogue()}
    edges = [(each, rules[other], why) for each in rules.values() for other, why in each.wins_over]
    assert len(edges) <= 30
    assert all(why and not why.endswith(".") for _, _, why in edges)
    said_by_layers = [(one.name, other.name) for one, other, _ in edges if one.layer > other.layer]
    assert said_by_layers == []
    mutual = [(one.name, other.name) for one, other, _ in edges if one.name in dict(other.wins_over)]
    assert mutual == []
