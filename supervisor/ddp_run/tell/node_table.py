"""The comparison of a job's nodes as a table: a row for each fact, a column for nodes that are alike. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ddp_run.judge.unlike_nodes import Names, Row, shown_value

_MOST_COLUMNS = 8
"""If there are more kinds of nodes, each value is listed with the nodes that have it."""
_MOST_VALUES = 20
"""Values of one fact in such a list."""
_LEGEND = "What the nodes reported about themselves before the start.  ! differs, and often breaks jobs   * differs"
_NOT_KNOWN = "-"


def render(rows: Sequence[Row], names: Names) -> str:
    """The whole text, with a final newline."""
    nodes = sorted({node for row in rows for _value, having in row.values for node in having})
    kinds = _kinds(rows, nodes)
    body = _columns(rows, kinds, names) if len(kinds) <= _MOST_COLUMNS else _lists(rows, names)
    return "\n".join([_LEGEND, "", *body]) + "\n"


def _kinds(rows: Sequence[Row], nodes: Sequence[int]) -> dict[tuple[str, ...], list[int]]:
    """Nodes by everything that they reported, as it is shown."""
    shown = [{node: shown_value(row.name, value) for value, having in row.values for node in having} for row in rows]
    kinds: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for node in nodes:
        kinds[tuple(each.get(node, _NOT_KNOWN) for each in shown)].append(node)
    return kinds


def _columns(rows: Sequence[Row], kinds: Mapping[tuple[str, ...], Sequence[int]], names: Names) -> list[str]:
    table = [["", *(names(nodes) for nodes in kinds.values())]]
    table += [[_marked(row), *(said[index] for said in kinds)] for index, row in enumerate(rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]


def _lists(rows: Sequence[Row], names: Names) -> list[str]:
    lines: list[str] = []
    for row in rows:
        lines.append(_marked(row))
        by_shown: dict[str, list[int]] = defaultdict(list)
        for value, nodes in row.values:
            by_shown[shown_value(row.name, value)] += nodes
        first = list(by_shown.items())[:_MOST_VALUES]
        width = max(len(shown) for shown, _nodes in first)
        lines += [f"      {shown.ljust(width)}  {names(sorted(nodes))}" for shown, nodes in first]
        if len(by_shown) > len(first):
            lines.append(f"      and {len(by_shown) - len(first)} other values")
    return lines


def _marked(row: Row) -> str:
    return f"{'!' if row.breaks else '*' if row.differs else ' '} {row.name}"
