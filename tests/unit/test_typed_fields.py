"""JSON of anybody becomes a value of the right types, or none."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unchanged import slow_if_unchanged

from ddp_run.evidence.model import Quote
from ddp_run.judge.verdict import Collateral, FirstFailure, Retry, Verdict
from ddp_run.record.events import ExceptionInfo, MonotonicNs, Rank
from ddp_run.values import typed_fields

RAISED = ExceptionInfo("ValueError", "bad", "/train.py", 7, "main", "Traceback\nValueError: bad")
VERDICT = Verdict(
    "failed",
    1,
    "python-exception",
    "DDP600",
    "rank 1 raised ValueError",
    "certain",
    phase="training",
    step=3,
    first_failure=FirstFailure(Rank(1), host="b", node_rank=1, at=MonotonicNs(5), exception=RAISED),
    evidence=(Quote("attempt_0/rank_1/stderr.log", 7, "ValueError: bad"),),
    collateral=(Collateral(Rank(0), 1, None, "lost its peer"),),
    retry=Retry(False, "the same"),
)


def test_a_verdict_comes_back_as_it_was() -> None:
    assert typed_fields.read(Verdict, json.loads(json.dumps(asdict(VERDICT)))) == VERDICT


def test_what_a_newer_version_adds_is_passed_over_and_defaults_may_be_missing() -> None:
    given = json.loads(json.dumps(asdict(Verdict(None, None)))) | {"mood": "bad"}
    del given["notes"]
    assert typed_fields.read(Verdict, given) == Verdict(None, None)


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "exploded"},
        {"confidence": None},
        {"exit_code": "1"},
        {"exit_code": True},
        {"exit_code": 1 << 70},
        {"evidence": "text"},
        {"evidence": [{"source": 1, "line": None, "text": ""}]},
        {"first_failure": []},
        {"retry": {"helps": 1, "reason": ""}},
        {"title": 3},
    ],
    ids=str,
)
def test_another_type_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        typed_fields.read(Verdict, {**asdict(VERDICT), **change})


def test_a_missing_field_is_refused() -> None:
    with pytest.raises(ValueError, match="exit_code is missing"):
        typed_fields.read(Verdict, {"outcome": "failed"})


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@slow_if_unchanged(__file__)
@given(JSON)
def test_whatever_is_given_is_read_or_refused(given_value: object) -> None:
    for value in (given_value, {**asdict(VERDICT), "evidence": given_value}, {**asdict(VERDICT), "retry": given_value}):
        try:
            assert isinstance(typed_fields.read(Verdict, value), Verdict)
        except ValueError:
            pass
