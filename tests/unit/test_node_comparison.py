"""How nodes differ, by values."""

from __future__ import annotations

import time
from functools import partial

import pytest
from tests.waiting import limit

from ddp_run.judge.unlike_nodes import Row, by_host, by_number, clock, compare, compared, warnings
from ddp_run.record.events import MonotonicNs, NodesCompared
from ddp_run.tell import node_table
from ddp_run.values.node_fact import Fact, Known

Facts = dict[int, list[Fact]]
NAMES = partial(by_number, hosts={number: f"gpu-{number}" for number in range(1000)})


def of(*values: dict[str, str]) -> Facts:
    """Facts of node 0, 1, …, all with their variables."""
    return {
        node: [Fact(str(name), value) for name, value in ({Known.VARIABLES: "?"} | given).items()]
        for node, given in enumerate(values)
    }


def said(*values: dict[str, str]) -> tuple[str, ...]:
    """Without the line that names the file."""
    lines = warnings(compare(of(*values)), NAMES, "nodes/facts.txt")
    assert not lines or "full comparison: nodes/facts.txt" in lines[-1]
    return lines[:-1]


def kept(rows: tuple[Row, ...], *, strict: bool = False) -> NodesCompared:
    return compared(MonotonicNs(1), rows, NAMES, strict=strict)


def test_alike_nodes_are_not_spoken_of() -> None:
    assert said(*[{Known.TORCH: "2.13.0", "NCCL_ALGO": "Ring"}] * 3) == ()
    assert compare({}) == ()
    assert not kept((), strict=True).refused


def test_nodes_that_torch_has_not_numbered_are_named_by_their_hosts() -> None:
    versions = ("2.13.0", "2.12.1", "2.13.0")
    rows = compare(of(*({str(Known.TORCH): version} for version in versions)))
    hosts = {0: "c", 1: "b", 2: "a"}
    assert kept(rows).breaking == ("torch: 2.13.0 on nodes 0,2, 2.12.1 on node 1 (gpu-1)",)
    named = compared(MonotonicNs(1), rows, partial(by_host, hosts=hosts), strict=False)
    assert named.breaking == ("torch: 2.13.0 on a, c, 2.12.1 on b",)
    many = {number: f"gpu-{number}" for number in range(100)}
    assert by_host(range(100), many).startswith("100 nodes (gpu-0, gpu-1, gpu-10")


def test_what_breaks_jobs_comes_first() -> None:
    rows = compare(of({Known.MTU: "9000", Known.TORCH: "2.13.0"}, {Known.MTU: "1500", Known.TORCH: "2.12.1"}))
    torch = "torch: 2.13.0 on node 0 (gpu-0), 2.12.1 on node 1 (gpu-1)"
    mtu = "MTU towards node 0: 9000 on node 0 (gpu-0), 1500 on node 1 (gpu-1)"
    assert warnings(rows, NAMES, "F") == (
        f"nodes differ in {torch}; jobs on such nodes often fail",
        f"nodes differ in {mtu}",
        "full comparison: F",
    )
    assert kept(rows) == NodesCompared(MonotonicNs(1), (torch,), (mtu,), ("variables: ? on nodes 0-1",), refused=False)
    assert kept(rows, strict=True).refused


@pytest.mark.parametrize(
    ("name", "one", "other", "differs", "breaks"),
    [
        (Known.PYTHON, "3.12.1", "3.12.2", True, False),
        (Known.PYTHON, "3.12.1", "3.11.1", True, True),
        (Known.SCRIPT, "aa", "bb", True, True),
        (Known.ARGUMENTS, "aa", "bb", True, False),
        (Known.GPUS, "8", "4", True, False),
        (Known.RANKS, "8", "4", False, False),
        (Known.INTERFACE, "eth0", "eth1", False, False),
        (Known.SHM, "540000000000", "540700000000", False, False),
        (Known.SHM, "540000000000", "67108864", True, False),
        (Known.LOCKED_MEMORY, "unlimited", "8388608", True, False),
        ("NCCL_ALGO", "Ring", "Tree", True, True),
        ("NCCL_IB_TIMEOUT", "20", "22", True, False),
        ("OMP_NUM_THREADS", "1", "8", True, False),
    ],
)
def test_which_differences_count(name: str, one: str, other: str, differs: bool, breaks: bool) -> None:
    (row,) = [row for row in compare(of({name: one}, {name: other})) if row.name == name]
    assert (row.differs, row.breaks) == (differs, breaks)
    assert kept((row,), strict=True).refused == breaks


def test_a_variable_that_one_node_lacks_is_a_difference() -> None:
    assert said({"NCCL_ALGO": "Ring"}, {}, {}) == (
        "nodes differ in NCCL_ALGO: Ring on node 0 (gpu-0), not set on nodes 1-2; jobs on such nodes often fail",
    )
    assert said({"NCCL_IB_DISABLE": "0"}, {}) == ()


def test_who_does_not_know_is_not_compared() -> None:
    facts = of({Known.DRIVER: "570.1", "NCCL_ALGO": "Ring"}, {Known.DRIVER: "570.1", "NCCL_ALGO": "Ring"}) | {2: []}
    assert warnings(compare(facts), NAMES, "F") == ()


def test_sizes_are_for_people() -> None:
    (line,) = said({Known.SHM: "67108864"}, {Known.SHM: "540000000000"})
    assert line == "nodes differ in size of /dev/shm: 64.0 MiB on node 0 (gpu-0), 503 GiB on node 1 (gpu-1)"


def test_few_lines_and_short_ones() -> None:
    lines = said(*[{f"NCCL_{number}": str(node) * 100 for number in range(20)} for node in range(9)])
    assert len(lines) == 8
    assert all(len(line) < 420 for line in lines)
    assert "5 other values on 5 nodes" in lines[0]


def test_a_thousand_nodes_take_no_time() -> None:
    values = [{f"NCCL_{number}": str(number) for number in range(40)} | {Known.TORCH: "2.13.0"} for _ in range(1000)]
    for node in range(0, 1000, 2):
        values[node]["NCCL_7"] = "8"
    values[500][Known.TORCH] = "2.12.1"
    facts = of(*values)
    began = time.monotonic()
    rows = compare(facts)
    torch, variable, _where = warnings(rows, NAMES, "F")
    text = node_table.render(rows, NAMES)
    assert time.monotonic() - began < limit(0.5)
    header, first = text.splitlines()[2:4]
    assert first.split() == ["!", "torch", "2.13.0", "2.13.0", "2.12.1"]
    assert len(header) < 160
    assert torch.startswith("nodes differ in torch: 2.13.0 on nodes 0-499,501-999, 2.12.1 on node 500 (gpu-500);")
    assert variable.startswith("nodes differ in NCCL_7: 8 on 500 nodes (0,2,4")
    assert len(variable) < 200


def test_what_nodes_make_up_harms_nothing() -> None:
    facts = {node: [Fact(f"X_{node}_{number}", "9" * 400) for number in range(200)] for node in range(100)}
    facts[0].append(Fact(Known.SHM, "9" * 400))
    facts[1].append(Fact(Known.SHM, "\N{SUPERSCRIPT TWO}"))
    assert len(compare(facts)) <= 400


def test_the_table_has_a_column_for_nodes_that_are_alike() -> None:
    alike: dict[str, str] = {Known.TORCH: "2.13.0", Known.SHM: "67108864"}
    rows = compare(of(alike, alike, alike, {Known.TORCH: "2.12.1", Known.MTU: "1500"}))
    header, *lines = node_table.render(rows, NAMES).splitlines()[2:]
    assert header.split("  ", 1)[1].split() == ["nodes", "0-2", "node", "3", "(gpu-3)"]
    column = header.index("nodes 0-2")
    assert {line[:column].strip(): line[column:].split("  ", 1)[0] for line in lines} == {
        "! torch": "2.13.0",
        "variables": "?",
        "size of /dev/shm": "64.0 MiB",
        "MTU towards node 0": "-",
    }
    assert [line.split()[-1] for line in lines] == ["2.12.1", "?", "-", "1500"]


def test_nodes_of_many_kinds_are_listed_by_value() -> None:
    """A thousand columns could not be read."""
    rows = compare(of(*[{Known.TORCH: "2.13.0", "NCCL_X": str(node)} for node in range(1000)]))
    lines = node_table.render(rows, NAMES).splitlines()
    assert len(lines) < 40
    assert lines[2] == "* NCCL_X"
    assert lines[3].split() == ["0", "node", "0", "(gpu-0)"]
    assert lines[23].strip() == "and 980 other values"
    assert any("nodes 0-999" in line for line in lines)


def test_clocks_that_are_nearly_alike_are_no_difference() -> None:
    def clocks(*seconds: float, error: float = 0.001) -> tuple[Row, ...]:
        return compare({node: clock(round(each * 1e9), round(error * 1e9)) for node, each in enumerate(seconds)})

    (near,), (apart,), (far,) = clocks(0, 0.9), clocks(0, 2.44), clocks(0, -0.02, -300)
    assert (near.differs, apart.differs, far.differs) == (False, True, True)
    assert not any(row.breaks for row in (near, apart, far))
    assert warnings([near, apart], NAMES, "F") == ()
    assert warnings([far], NAMES, "F")[0] == (
        "nodes differ in wall clock minus node 0's: 0.0 s on nodes 0-1, -300.0 s on node 2 (gpu-2)"
        "; certificates and tokens may be refused"
    )
    assert kept((apart,)).differing == ("wall clock minus node 0's: 0.0 s on node 0 (gpu-0), 2.4 s on node 1 (gpu-1)",)
    assert clocks(0, 300, error=0.4) == ()


@pytest.mark.parametrize(
    ("ahead_s", "error_s", "said"), [(0.1, 0.11, "0.0"), (-0.1, 0.11, "0.0"), (0.1, 0.02, "0.1"), (-5, 0.2, "-5.0")]
)
def test_what_may_be_the_error_of_a_clock_is_not_its_difference(ahead_s: float, error_s: float, said: str) -> None:
    (fact,) = clock(round(ahead_s * 1e9), round(error_s * 1e9))
    assert fact.value == said
