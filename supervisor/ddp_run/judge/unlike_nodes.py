"""Compares a job's nodes before it starts and finds differences that break jobs. Pure.

A fact that a node does not know is not compared for it. Comparing a thousand nodes takes about 50 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ddp_run.record.events import MonotonicNs, NodesCompared
from ddp_run.values.node_fact import Fact, Known
from ddp_run.values.redaction import redact_value
from ddp_run.values.typed_fields import frozen
from ddp_run.values.words import named_nodes, node_name, size_in_words

_MUST_AGREE = frozenset(
    {Known.TORCH, Known.CUDA, Known.NCCL, Known.SCRIPT}
    # Each rank reads these for itself: the algorithm, protocol, transport or buffer size may differ from its peer's
    | {"NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_IB_DISABLE"}
    | {"NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"}
    # DETAIL adds collectives before each of the program's own
    | {"TORCH_DISTRIBUTED_DEBUG"}
)
_MAY_DIFFER = frozenset({Known.RANKS, Known.INTERFACE, Known.VARIABLES})
_SIZES = frozenset({Known.SHM, Known.LOCKED_MEMORY})
_SIZES_ALIKE = 1.1
"""The kernel derives both from the memory size, which varies slightly between identical hosts."""
_CLOCKS_ALIKE_S = 1.0
"""If clocks differ by more, logs of the nodes cannot be compared side by side."""
_CLOCKS_USABLE_S = 120.0
"""If clocks differ by more, certificates and tokens may be refused: print a warning, not just a note."""
_CLOCK_ERROR_NS = 250_000_000
"""A clock with a larger error is not compared."""
_NOT_SET = "not set"
_MEANS_NOT_SET = {"NCCL_IB_DISABLE": "0", "TORCH_DISTRIBUTED_DEBUG": "OFF"}
_MOST_ROWS = 400
_MOST_LINES = 8
_MOST_VALUES = 4
_LONGEST_VALUE = 60
_LONGEST_NODES = 40


Names = Callable[[Sequence[int]], str]
"""What to call some nodes: `by_number` or `by_host`, for the hosts of a job."""


@frozen
class Row:
    """One fact and its values, each with its nodes, sorted by the lowest node."""

    name: str
    values: tuple[tuple[str, tuple[int, ...]], ...]
    differs: bool
    breaks: bool
    """Jobs on such nodes often fail."""
    noted: bool = False
    """The difference is recorded as a note and not printed to the console."""


def clock(offset_ns: int, error_ns: int) -> tuple[Fact, ...]:
    """Return a node's wall clock as a fact: how far it is ahead of node 0's, 0.0 if that may be the error alone.

    Nothing if the error is too large.
    """
    if error_ns > _CLOCK_ERROR_NS:
        return ()
    ahead_ns = offset_ns if abs(offset_ns) > error_ns else 0
    return (Fact(Known.CLOCK, f"{round(ahead_ns / 1e9, 1) + 0:.1f}"),)  # + 0: not "-0.0"


def compare(facts: Mapping[int, Sequence[Fact]]) -> tuple[Row, ...]:
    """Return the table for the facts of each node: differences that break jobs first, then other differences."""
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
    apart_s = _apart_s(list(column)) if name == Known.CLOCK else None
    if apart_s is not None:
        differs = apart_s > _CLOCKS_ALIKE_S
    breaks = name in _MUST_AGREE or (name == Known.PYTHON and len({_minor(value) for value in column}) > 1)
    values = sorted(((value, tuple(nodes)) for value, nodes in column.items()), key=lambda each: each[1])
    noted = apart_s is not None and differs and apart_s <= _CLOCKS_USABLE_S
    return Row(name, tuple(values), differs, differs and breaks, noted)


def _is_variable(name: str) -> bool:
    return "_" in name and name.isupper()


def _minor(version: str) -> str:
    """Return `3.12` for `3.12.1`: files compiled or pickled for one minor version do not fit another."""
    return ".".join(version.split(".")[:2])


def _near(sizes: Sequence[str]) -> bool:
    numbers = [number for size in sizes if (number := _size(size)) is not None]
    return len(numbers) == len(sizes) and max(numbers) <= _SIZES_ALIKE * min(numbers)


def _apart_s(clocks: Sequence[str]) -> float | None:
    """Return the difference between the earliest and the latest; None if one is not a number."""
    try:
        numbers = [float(each) for each in clocks]
    except ValueError:
        return None
    return max(numbers) - min(numbers)


def _size(value: str) -> int | None:
    return int(value) if value.isdecimal() and len(value) < 20 else None


# ------------------------------------------------------------------------------------------------ in words


def warnings(rows: Sequence[Row], names: Names, more_in: str) -> tuple[str, ...]:
    """Return a line for each difference, one for the rest if there are too many, and the file with all: `more_in`."""
    told = [row for row in rows if row.differs and not row.noted]
    if not told:
        return ()
    lines = [f"nodes differ in {_in_words(row, names)}{_consequence(row)}" for row in told[:_MOST_LINES]]
    more = f"nodes differ in {len(told) - len(lines)} more; " if len(told) > len(lines) else ""
    return (*lines, f"{more}full comparison: {more_in}")


def _consequence(row: Row) -> str:
    if row.name == Known.CLOCK:
        return "; certificates and tokens may be refused"
    return "; jobs on such nodes often fail" if row.breaks else ""


def compared(at: MonotonicNs, rows: Sequence[Row], names: Names, *, strict: bool) -> NodesCompared:
    """Return the whole comparison for the journal. `strict`: a difference that breaks jobs ends this one."""
    breaking = tuple(_in_words(row, names) for row in rows if row.breaks)
    differing = tuple(_in_words(row, names) for row in rows if row.differs and not row.breaks)
    alike = tuple(_in_words(row, names) for row in rows if not row.differs)
    return redact_value(NodesCompared(at, breaking, differing, alike, strict and bool(breaking)))


def _in_words(row: Row, names: Names) -> str:
    """`torch: 2.13.0 on nodes 0,2, 2.12.1 on node 1 (gpu-07)`."""
    first = row.values[:_MOST_VALUES]
    shown = [f"{shown_value(row.name, value)} on {names(nodes)}" for value, nodes in first]
    if rest := row.values[_MOST_VALUES:]:
        shown.append(f"{len(rest)} other values on {sum(len(nodes) for _value, nodes in rest)} nodes")
    return f"{row.name}: {', '.join(shown)}"


def shown_value(name: str, value: str) -> str:
    """Return a fact's value for display, cut to fit a line."""
    size = _size(value) if name in _SIZES else None
    if size is not None:
        value = size_in_words(size)
    elif name == Known.CLOCK:
        value = f"{value} s"
    value = value or "empty"
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"


def by_number(nodes: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Return `node 1 (gpu-07)`, `nodes 0-6`, or the beginning of a long list."""
    if len(nodes) == 1:
        return node_name(nodes[0], hosts.get(nodes[0]))
    named = named_nodes(nodes)
    return named if len(named) <= _LONGEST_NODES else f"{len(nodes)} nodes ({named[6:_LONGEST_NODES]}…)"


def by_host(nodes: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Return `gpu-07`, `gpu-07, gpu-08`, or the beginning of a long list: of nodes without numbers."""
    named = ", ".join(sorted(hosts[node] for node in nodes))
    return (
        named if len(nodes) == 1 or len(named) <= _LONGEST_NODES else f"{len(nodes)} nodes ({named[:_LONGEST_NODES]}…)"
    )
