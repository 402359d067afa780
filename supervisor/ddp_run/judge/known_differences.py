"""What was known of the nodes before they failed, as a note: a difference that may be the reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_run.judge.catalogue import rule_named
from ddp_run.judge.verdict import Area, Rule, Verdict
from ddp_run.record.events import Event, NodesCompared
from ddp_run.values.node_fact import Known

_MOST = 2
_TOGETHER = frozenset(
    {"rendezvous-timeout", "store-lost", "peer-died", "process-group-misuse", "hang", "ddp-shape-mismatch"}
    | {"collective-mismatch", "nccl-init", "nccl-network", "nccl-timeout-hang", "gloo-network", "gloo-timeout-hang"}
)
"""How ranks fail that do not do the same."""
_LOADING = frozenset({"version-mismatch", "import-error", "native-abort", "segfault", "checkpoint-mismatch"})
"""What other versions of libraries do to a rank alone."""


def noted(verdict: Verdict, events: Sequence[Event]) -> Verdict:
    """With a note for each known difference between nodes that may be the reason; never more than a possibility."""
    compared = next((event for event in reversed(events) if isinstance(event, NodesCompared)), None)
    rule = rule_named(verdict.cause) if verdict.cause is not None else None
    if compared is None or rule is None or verdict.outcome not in ("failed", "hung"):
        return verdict
    found = [said for said in compared.breaking if _may_explain(said.partition(": ")[0], rule)]
    notes = tuple(f"a possible reason: nodes differ in {said}" for said in found[:_MOST])
    return replace(verdict, notes=(*verdict.notes, *notes)).without_secrets()


def _may_explain(name: str, rule: Rule) -> bool:
    together = rule.name in _TOGETHER
    match name:
        case Known.SCRIPT:
            return together or rule.area is Area.USER_CODE or rule.name == "checkpoint-mismatch"
        case Known.PYTHON | Known.TORCH | Known.CUDA:
            return together or rule.name in _LOADING
        case "TORCH_DISTRIBUTED_DEBUG":
            return together
        case _:  # NCCL's, which gloo does not read
            return together and not rule.name.startswith("gloo-")
