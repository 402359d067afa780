"""Adds a note about node differences that were known before the failure and may explain it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_run.judge.catalogue import rule_named
from ddp_run.judge.verdict import OF_USER_CODE, Rule, Verdict
from ddp_run.record.events import Event, NodesCompared
from ddp_run.values.node_fact import Known

_MOST = 2


def noted(verdict: Verdict, events: Sequence[Event]) -> Verdict:
    """Add a note for each known difference between nodes that may explain the failure, never as more than a guess."""
    compared = next((event for event in reversed(events) if isinstance(event, NodesCompared)), None)
    rule = rule_named(verdict.cause)
    if compared is None or rule is None or verdict.outcome not in ("failed", "hung"):
        return verdict
    found = [said for said in compared.breaking if _may_explain(said.partition(": ")[0], rule)]
    notes = tuple(f"a possible reason: nodes differ in {said}" for said in found[:_MOST])
    return replace(verdict, notes=(*verdict.notes, *notes)).without_secrets()


def _may_explain(name: str, rule: Rule) -> bool:
    together = rule.unlike == "together"
    match name:
        case Known.SCRIPT:
            return together or rule.code.startswith(OF_USER_CODE) or rule.name == "checkpoint-mismatch"
        case Known.PYTHON | Known.TORCH | Known.CUDA:
            return together or rule.unlike == "loading"
        case "TORCH_DISTRIBUTED_DEBUG":
            return together
        case _:  # NCCL's, which gloo does not read
            return together and not rule.name.startswith("gloo-")
