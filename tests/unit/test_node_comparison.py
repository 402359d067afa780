"""How nodes differ, by values."""

from __future__ import annotations

import time

import pytest
from tests.waiting import limit

from ddp_run.judge.unlike_nodes import compare, refusal, table, warnings
from ddp_run.values.node_fact import Fact, Known

Facts = dict[int, list[Fact]]
HOSTS = {number: f"gpu-{number}" for number in range(1000)}


def of(*values: dict[str, str]) -> Facts:
    """Facts of node 0, 1, …, all with their variables."""
    return {
        node: [Fact(str(name), value) for name, value in ({Known.VARIABLES: "?"} | given).items()]
        for node, given in enumerate(values)
    }


def said(*values: dict[str, str]) -> tuple[str, ...]:
    return warnings(compare(of(*values)), HOSTS)


def test_alike_nodes_are_not_spoken_of() -> None:
    assert said(*[{Known.TORCH: "2.13.0", "NCCL_ALGO": "Ring"}] * 3) == ()
    assert compare({}) == ()
    assert table((), HOSTS) == ""


def test_what_breaks_jobs_comes_first() -> None:
    rows = compare(of({Known.MTU: "9000", Known.TORCH: "2.13.0"}, {Known.MTU: "1500", Known.TORCH: "2.12.1"}))
    torch = "torch: 2.13.0 on node 0 (gpu-0), 2.12.1 on node 1 (gpu-1)"
    mtu = "MTU towards node 0: 9000 on node 0 (gpu-0), 1500 on node 1 (gpu-1)"
    assert warnings(rows, HOSTS) == (
        f"nodes differ in {torch}; a job of such nodes often fails",
        f"nodes differ in {mtu}",
    )
    assert table(rows, HOSTS).startswith(f"nodes compared: {torch}; {mtu}; ")
    verdict = refusal(rows, HOSTS)
    assert verdict is not None
    assert (verdict.outcome, verdict.exit_code, verdict.cause) == ("refused", 78, "version-mismatch")
    assert verdict.title == f"nodes differ in {torch} (--preflight strict)"


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
    assert (refusal([row], HOSTS) is not None) == breaks


def test_a_variable_that_one_node_lacks_is_a_difference() -> None:
    assert said({"NCCL_ALGO": "Ring"}, {}, {}) == (
        "nodes differ in NCCL_ALGO: Ring on node 0 (gpu-0), not set on nodes 1-2; a job of such nodes often fails",
    )
    assert said({"NCCL_IB_DISABLE": "0"}, {}) == ()


def test_who_does_not_know_is_not_compared() -> None:
    facts = of({Known.DRIVER: "570.1", "NCCL_ALGO": "Ring"}, {Known.DRIVER: "570.1", "NCCL_ALGO": "Ring"}) | {2: []}
    assert warnings(compare(facts), HOSTS) == ()


def test_sizes_are_for_people() -> None:
    (line,) = said({Known.SHM: "67108864"}, {Known.SHM: "540000000000"})
    assert line == "nodes differ in size of /dev/shm: 64.0 MiB on node 0 (gpu-0), 503 GiB on node 1 (gpu-1)"


def test_few_lines_and_short_ones() -> None:
    lines = said(*[{f"NCCL_{number}": str(node) * 100 for number in range(20)} for node in range(9)])
    assert len(lines) == 9
    assert lines[-1] == "nodes differ in 12 more: see events.jsonl"
    assert all(len(line) < 420 for line in lines)
    assert "5 other values on 5 nodes" in lines[0]


def test_a_thousand_nodes_take_no_time() -> None:
    values = [{f"NCCL_{number}": str(number) for number in range(40)} | {Known.TORCH: "2.13.0"} for _ in range(1000)]
    for node in range(0, 1000, 2):
        values[node]["NCCL_7"] = "8"
    values[500][Known.TORCH] = "2.12.1"
    facts = of(*values)
    began = time.monotonic()
    lines = warnings(compare(facts), HOSTS)
    assert time.monotonic() - began < limit(0.5)
    torch, variable = lines
    assert torch.startswith("nodes differ in torch: 2.13.0 on nodes 0-499,501-999, 2.12.1 on node 500 (gpu-500);")
    assert variable.startswith("nodes differ in NCCL_7: 8 on 500 nodes (0,2,4")
    assert len(variable) < 200


def test_what_nodes_make_up_harms_nothing() -> None:
    facts = {node: [Fact(f"X_{node}_{number}", "9" * 400) for number in range(200)] for node in range(100)}
    facts[0].append(Fact(Known.SHM, "9" * 400))
    facts[1].append(Fact(Known.SHM, "\N{SUPERSCRIPT TWO}"))
    assert len(compare(facts)) <= 400
