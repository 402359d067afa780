"""How the nodes of a job differ before it starts, and which differences break jobs. Pure.

A node that does not know a fact is not compared in it. A thousand nodes are compared in about 50 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddp_run.judge.catalogue import rule_named
from ddp_run.judge.verdict import Finding, Verdict
from ddp_run.values.frozen import frozen
from ddp_run.values.node_fact import Fact, Known
from ddp_run.values.words import named_nodes, node_name, size_in_words

UNFIT = 78
"""sysexits.h EX_CONFIG: the nodes are not fit for the job."""
_VERSIONS = frozenset({Known.PYTHON, Known.TORCH, Known.CUDA, Known.NCCL})
_MUST_AGREE = frozenset(
    {Known.TORCH, Known.CUDA, Known.NCCL, Known.SCRIPT}
    # Each rank takes these for itself: another algorithm, protocol, transport or buffer size than its peer's
    | {"NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_IB_DISABLE"}
    | {"NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"}
    # DETAIL adds collectives before each of the program's
    | {"TORCH_DISTRIBUTED_DEBUG"}
)
_MAY_DIFFER = frozenset({Known.RANKS, Known.INTERFACE, Known.VARIABLES})
_SIZES = frozenset({Known.SHM, Known.LOCKED_MEMORY})
_SIZES_ALIKE = 1.1
"""The kernel makes both of the size of memory, which is not quite the same on two hosts of one kind."""
_NOT_SET = "not set"
_MEANS_NOT_SET = {"NCCL_IB_DISABLE": "0", "TORCH_DISTRIBUTED_DEBUG": "OFF"}
_MOST_ROWS = 400
_MOST_LINES = 8
_MOST_VALUES = 4
_LONGEST_VALUE = 60
_LONGEST_NODES = 40


@frozen
class Row:
    """One fact, and which nodes have which value of it: by the lowest node. `breaks`: jobs of such nodes often fail."""

    name: str
    values: tuple[tuple[str, tuple[int, ...]], ...]
    differs: bool
    breaks: bool


def compare(facts: Mapping[int, Sequence[Fact]]) -> tuple[Row, ...]:
    """The table: from facts by node. What breaks jobs comes first, then other differences."""
    columns: dict[str, dict[str, list[int]]] = {}
    with_variables: set[int] = set()
    for node in sorted(facts):
        for fact in {fact.name: fact for fact in facts[node]}.values():
            if fact.name == Known.VARIABLES:
                with_variables.add(node)
            if fact.name in columns or len(columns) < _MOST_ROWS:
                value = _NOT_SET if _MEANS_NOT_SET.get(fact.name) == fact.value else fact.value
                columns.setdefault(fact.name, {}).setdefault(value, []).append(node)
    for name, column in columns.items():
        if _is_variable(name) and sum(map(len, column.values())) < len(with_variables):
            absent = with_variables.difference(*column.values())
            column[_NOT_SET] = sorted([*column.get(_NOT_SET, ()), *absent])
    rows = [_row(name, column) for name, column in columns.items()]
    return tuple(sorted(rows, key=lambda row: (not row.breaks, not row.differs)))


def _row(name: str, column: Mapping[str, Sequence[int]]) -> Row:
    differs = len(column) > 1 and name not in _MAY_DIFFER and not (name in _SIZES and _near(list(column)))
    breaks = name in _MUST_AGREE or (name == Known.PYTHON and len({_minor(value) for value in column}) > 1)
    values = sorted(((value, tuple(nodes)) for value, nodes in column.items()), key=lambda each: each[1])
    return Row(name, tuple(values), differs, differs and breaks)


def _is_variable(name: str) -> bool:
    return "_" in name and name.isupper()


def _minor(version: str) -> str:
    """`3.12` of `3.12.1`: what is compiled or pickled for one does not fit another."""
    return ".".join(version.split(".")[:2])


def _near(sizes: Sequence[str]) -> bool:
    numbers = [number for size in sizes if (number := _size(size)) is not None]
    return len(numbers) == len(sizes) and max(numbers) <= _SIZES_ALIKE * min(numbers)


def _size(value: str) -> int | None:
    return int(value) if value.isdecimal() and len(value) < 20 else None


# ------------------------------------------------------------------------------------------------ in words


def warnings(rows: Sequence[Row], hosts: Mapping[int, str]) -> tuple[str, ...]:
    """A line for each difference, and one for those that are too many."""
    differing = [row for row in rows if row.differs]
    lines = [
        f"nodes differ in {_in_words(row, hosts)}" + ("; a job of such nodes often fails" if row.breaks else "")
        for row in differing[:_MOST_LINES]
    ]
    more = len(differing) - len(lines)
    return (*lines, f"nodes differ in {more} more: see events.jsonl") if more else tuple(lines)


def table(rows: Sequence[Row], hosts: Mapping[int, str]) -> str:
    """The whole comparison, for the journal; empty where there was nothing to compare."""
    return f"nodes compared: {'; '.join(_in_words(row, hosts) for row in rows)}" if rows else ""


def refusal(rows: Sequence[Row], hosts: Mapping[int, str]) -> Verdict | None:
    """The job's verdict with `--preflight strict`; null where no difference breaks jobs."""
    breaking = [row for row in rows if row.breaks]
    if not breaking:
        return None
    first = breaking[0]
    more = f", and in {len(breaking) - 1} more" if len(breaking) > 1 else ""
    title = f"nodes differ in {_in_words(first, hosts)}{more} (--preflight strict)"
    advice = ("make the nodes alike, or use --preflight auto, which only warns",)
    verdict = Verdict("refused", UNFIT, title=title, confidence="certain", phase="launch", advice=advice)
    rule = rule_named("version-mismatch") if first.name in _VERSIONS else None
    if rule is not None:
        verdict = verdict.with_finding(Finding(rule, None, title, (), advice))
    return verdict.without_secrets()


def _in_words(row: Row, hosts: Mapping[int, str]) -> str:
    """`torch: 2.13.0 on nodes 0,2, 2.12.1 on node 1 (gpu-07)`."""
    shown = [f"{_value(row.name, value)} on {_nodes(nodes, hosts)}" for value, nodes in row.values[:_MOST_VALUES]]
    if rest := row.values[_MOST_VALUES:]:
        shown.append(f"{len(rest)} other values on {sum(len(nodes) for _value, nodes in rest)} nodes")
    return f"{row.name}: {', '.join(shown)}"


def _value(name: str, value: str) -> str:
    size = _size(value) if name in _SIZES else None
    value = size_in_words(size) if size is not None else value
    value = value or "empty"
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"


def _nodes(nodes: Sequence[int], hosts: Mapping[int, str]) -> str:
    if len(nodes) == 1:
        return node_name(nodes[0], hosts.get(nodes[0]))
    named = named_nodes(nodes)
    return named if len(named) <= _LONGEST_NODES else f"{len(nodes)} nodes ({named[6:_LONGEST_NODES]}…)"
