"""What NCCL's RAS says, in its own wordings: NVIDIA's examples (user guide), and texts after its format strings."""

from __future__ import annotations

import pytest

from ddp_run.observe.ras_text import Missing, Process, is_of, missing, read
from ddp_run.record.events import Rank

HEAD = """\
NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          2            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
WORLD = "    0         1         2         2         4         4   RUNNING  {}\n"
PAIRS = "    1         2         1         2         2         4   RUNNING  {}\n"
HERE = frozenset({"10.0.0.1"})
PIDS = {4242: Rank(0), 4243: Rank(1)}
"""Ranks 0 and 1 run here, ranks 2 and 3 on 10.0.0.2."""


def answer(*warnings: str, errors: str = "", table: str = WORLD.format("MISMATCH")) -> str:
    return HEAD + table + f"\nErrors\n======\n\n{errors}Warnings\n========\n\n" + "".join(warnings)


def differ(*lines: str, kind: str = "AllReduce", number: str = "0-0") -> str:
    head = f"#{number} (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different {kind} operation counts\n"
    return head + "".join(f"  {line}\n" for line in lines) + "\n"


def one(rank: int, count: int, pid: int, node: str) -> str:
    done = f"launched up to operation {count}" if count else "not launched any operations"
    return f"Rank {rank} has {done} -- GPU {rank % 2} managed by process {pid} on node {node}"


def told(text: str, world_size: int = 4) -> Missing | None:
    return missing(read(text), PIDS, HERE, world_size)


AHEAD = "3 ranks have launched up to operation 12"


def test_a_healthy_job_is_missing_nobody() -> None:
    report = read(answer(table=WORLD.format("OK")))
    assert (report.communicators, report.processes, report.quotes, report.in_all) == ((), (), (), 4)
    assert told(answer()) is None


def test_a_rank_of_another_node_that_is_behind() -> None:
    found = told(answer(differ(AHEAD, one(3, 11, 977, "10.0.0.2"))))
    assert found is not None
    assert (found.ranks, found.gone) == ((3,), False)
    assert found.said == (
        "rank 3 (process 977 on 10.0.0.2) launched 11 AllReduce where others launched 12, according to NCCL RAS"
    )


def test_one_of_two_ranks_has_launched_nothing() -> None:
    text = answer(differ(one(0, 2, 4242, "10.0.0.1"), one(1, 0, 4243, "10.0.0.1")), table=WORLD.replace(" 4 ", " 2 "))
    found = told(text, 2)
    assert found is not None
    assert found.ranks == (1,)


def test_several_ranks_behind_are_named_where_all_of_them_are() -> None:
    member = "Rank {} -- GPU 0 managed by process {} on node 10.0.0.2"
    few = ["2 ranks have launched up to operation 11", member.format(2, 976), member.format(3, 977)]
    found = told(answer(differ("6 ranks have launched up to operation 12", *few)))
    assert found is not None
    assert found.ranks == (2, 3)
    assert told(answer(differ("2 ranks have launched up to operation 12", few[0]))) is None  # half and half: no names


def test_2_24_counts_all_operations_together() -> None:
    found = told(answer(differ(AHEAD, one(3, 11, 977, "10.0.0.2"), kind="collective")))
    assert found is not None
    assert "launched 11 operations where others launched 12" in found.said


def test_different_operations_name_nobody() -> None:
    other = "3 ranks have launched up to operation 4"
    swapped = (
        differ(AHEAD, one(3, 11, 977, "10.0.0.2"))
        + differ(one(3, 5, 977, "10.0.0.2"), other, kind="Broadcast").partition("\n")[2]
    )
    assert len(read(answer(swapped)).communicators[0].counts) == 2
    assert told(answer(swapped)) is None


def test_communicators_that_disagree_name_nobody() -> None:
    table = WORLD.format("MISMATCH") + PAIRS.format("MISMATCH")
    pair = differ(one(0, 7, 4242, "10.0.0.1"), one(1, 8, 4243, "10.0.0.1"), number="1-0")
    assert told(answer(differ(AHEAD, one(3, 11, 977, "10.0.0.2")), pair, table=table)) is None
    found = told(answer(pair, table=table))
    assert found is not None
    assert found.ranks == (0,)


def test_numbers_in_a_smaller_communicator_are_not_those_of_the_job() -> None:
    table = PAIRS.format("MISMATCH").replace("    1 ", "    0 ", 1)
    far = differ(one(0, 8, 976, "10.0.0.2"), one(1, 7, 977, "10.0.0.2"))
    assert told(answer(far, table=table)) is None
    near = differ(one(1, 8, 4242, "10.0.0.1"), one(0, 7, 4243, "10.0.0.1"))  # its own order
    found = told(answer(near, table=table))
    assert found is not None
    assert found.ranks == (1,)


@pytest.mark.parametrize("line", [one(1, 11, 977, "10.0.0.2"), one(3, 11, 4243, "10.0.0.1"), one(3, 11, 1, "10.0.0.1")])
def test_numbers_that_do_not_fit_our_own_ranks_name_nobody(line: str) -> None:
    assert told(answer(differ(AHEAD, line))) is None


LOST = """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 977 on node 10.0.0.2 managing GPU 1

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  {}

"""
LOST_NOW = "Rank 3 -- GPU 1 managed by process 977 on node 10.0.0.2"


@pytest.mark.parametrize("line", [LOST_NOW, "The missing rank: 3"])
def test_a_process_that_does_not_answer(line: str) -> None:
    text = answer(
        "TIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data\n\n",
        errors=LOST.format(line),
        table=WORLD.format("INCOMPLETE"),
    )
    found = told(text)
    assert found == Missing((Rank(3),), "rank 3 (process 977 on 10.0.0.2) does not respond, according to NCCL RAS")
    assert "  Encountered 2 communication timeouts while gathering communicator data" in read(text).quotes


@pytest.mark.parametrize("line", [LOST_NOW, "The missing rank: 3"])
def test_a_dead_process(line: str) -> None:
    dead = LOST.replace(
        "INCOMPLETE\n  Missing communicator data from 1 job process",
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)",
        1,
    )
    found = told(answer(errors=dead.format(line), table=WORLD.format("INCOMPLETE")))
    assert found is not None
    assert (found.ranks, found.gone) == ((3,), True)
    assert found.said == "rank 3 (process 977 on 10.0.0.2) can no longer be reached, according to NCCL RAS"


def test_ranks_that_are_missing_without_names_are_not_guessed() -> None:
    many = LOST.format("").replace("from 1 rank", "from 40 ranks")
    assert told(answer(errors=many)) is None


def test_the_answer_of_another_job_is_known_by_its_processes() -> None:
    other = read(answer(differ(AHEAD, one(3, 11, 1, "10.0.0.1"))))
    assert not is_of(other, PIDS, HERE, 4)
    assert is_of(read(answer(differ(AHEAD, one(1, 11, 4243, "10.0.0.1")))), PIDS, HERE, 4)
    far = read(answer(differ(AHEAD, one(3, 11, 977, "10.0.0.2"))))
    assert is_of(far, PIDS, HERE, 4)
    assert not is_of(far, PIDS, HERE, 8)


def test_the_number_of_processes_where_nodes_differ() -> None:
    text = answer().replace(
        "  Nodes  Processes         GPUs  Processes     GPUs\n"
        "(total)   per node  per process    (total)  (total)\n"
        "      2          2            1          4        4\n",
        "  Nodes  Processes         GPUs\n          per node  per process\n      1          2            1\n"
        "      1          1            1\n\n"
        "  Nodes  Processes         GPUs\n(total)    (total)      (total)\n      2          3            3\n",
    )
    assert read(text).in_all == 3


NVIDIAS = """\
Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
  Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210
  Rank 4 -- GPU 4 managed by process 483076 on node 172.16.64.210
  Rank 5 -- GPU 5 managed by process 483077 on node 172.16.64.210
  Rank 7 -- GPU 7 managed by process 483079 on node 172.16.64.210
"""


def test_nvidias_own_example() -> None:
    table = "    0         1         4         8        32        32   RUNNING  MISMATCH\n"
    report = read(HEAD + table + "\n" + NVIDIAS)
    pids = {483072 + rank: Rank(rank) for rank in range(8)}
    found = missing(report, pids, frozenset({"172.16.64.210"}), 32)
    assert found is not None
    assert found.ranks == (0, 2, 3, 4, 5, 7)
    assert Process(483079, "172.16.64.210") in report.processes


def test_different_states_are_quoted_and_name_nobody() -> None:
    text = answer(
        "#0-0 (9e17999afaa87dbb) MISMATCH\n  Communicator ranks have different status\n  3 ranks have status RUNNING\n"
        "  Rank 3 has status FINALIZE -- GPU 1 managed by process 977 on node 10.0.0.2\n"
    )
    assert told(text) is None
    assert len(read(text).quotes) == 4


@pytest.mark.parametrize("cut", range(0, 900, 37))
def test_a_part_of_an_answer_names_nobody_wrongly(cut: int) -> None:
    text = answer(differ(AHEAD, one(3, 11, 977, "10.0.0.2")))
    found = told(text[:cut])
    assert found is None or found.ranks == (3,)


def test_quotes_are_few() -> None:
    assert len(read(answer(*[differ(AHEAD)] * 40)).quotes) == 13


@pytest.mark.parametrize("text", ["", "HTTP/1.0 400 Bad Request\r\n", "\0\xff" * 99, "Errors\n#\n  Rank\n#0-0 (\n"])
def test_what_is_no_answer_says_nothing(text: str) -> None:
    assert told(text) is None
