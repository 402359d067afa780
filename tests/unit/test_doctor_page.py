"""What the doctor prints: on a terminal, in a log, as JSON."""

from __future__ import annotations

import json

from ddp_run.doctor import findings
from ddp_run.doctor.findings import Finding, Grade, Row, failed, skipped, warned

PASS = Row("cpus", "host", Finding("CPUs", "64", against="up to 7 workers for each rank"))
WARN = Row("limits", "memory", warned("open files (ulimit -n)", "1024", "4096: too few", "ulimit -n 65536", "or ask"))
FAIL = Row("ports", "network", failed("port 29500", "taken", "pid 7 listens there", "--master-port: another one"))
SKIP = Row("gpus", "GPUs", skipped("GPUs", "no driver"))
TABLE = Row(
    "bandwidth", "ranks", Finding("bandwidth", "1 GB/s", detail=("size  time", "1 KiB  3 µs"), data=({"a": 1},))
)


def table(*rows: Row, colour: bool = False) -> str:
    return "".join(findings.table_rows(row, width=100, colour=colour) for row in rows)


def test_the_table() -> None:
    assert table(PASS, WARN, FAIL, SKIP, TABLE) == (
        "  pass   CPUs                      64 (up to 7 workers for each rank)\n"
        "  warn   open files (ulimit -n)    1024\n"
        "                                   4096: too few\n"
        "         help: ulimit -n 65536\n"
        "               or ask\n"
        "  fail   port 29500                taken\n"
        "                                   pid 7 listens there\n"
        "         help: --master-port: another one\n"
        "  skip   GPUs                      no driver\n"
        "  pass   bandwidth                 1 GB/s\n"
        "           size  time\n"
        "           1 KiB  3 µs\n"
    )


def test_colour_changes_no_column() -> None:
    coloured = table(WARN, colour=True)
    assert "\033[33;1mwarn   \033[0mopen files" in coloured
    assert table(WARN).splitlines()[1:] == coloured.splitlines()[1:]


def test_a_long_name_has_a_line_of_its_own() -> None:
    shown = table(Row("data_paths", "data", Finding("data /a/very/long/path/to/the/dataset", "readable")))
    assert shown == f"  pass   data /a/very/long/path/to/the/dataset\n{' ' * 35}readable\n"


def test_a_log_has_a_line_for_each_finding() -> None:
    shown = "".join(map(findings.plain_lines, (PASS, WARN, SKIP, TABLE)))
    assert shown == (
        "ddp-run doctor: pass: CPUs: 64 (up to 7 workers for each rank)\n"
        "ddp-run doctor: warn: open files (ulimit -n): 1024 (4096: too few); help: ulimit -n 65536; or ask\n"
        "ddp-run doctor: skipped: GPUs: no driver\n"
        "ddp-run doctor: pass: bandwidth: 1 GB/s\n"
        "ddp-run doctor:   size  time\n"
        "ddp-run doctor:   1 KiB  3 µs\n"
    )


def test_a_log_of_several_nodes_tells_whose_line_it_is() -> None:
    assert findings.plain_lines(FAIL, "node 1") == (
        "ddp-run doctor: node 1: fail: port 29500: taken (pid 7 listens there); help: --master-port: another one\n"
    )
    assert findings.plain_lines(TABLE, "node 1").splitlines()[1] == "ddp-run doctor: node 1:   size  time"
    assert findings.summary([Grade.PASS], 1.0, "node 1").startswith("ddp-run doctor: node 1: fit: ")


def test_the_last_line() -> None:
    grades = [Grade.PASS, Grade.WARN, Grade.PASS, Grade.SKIPPED]
    assert findings.summary(grades, 1.23) == "ddp-run doctor: fit: 1 warning, 2 passed, 1 skipped in 1.2 s\n"
    assert findings.summary([*grades, Grade.FAIL], 1.0).startswith("ddp-run doctor: unfit: 1 failed, 1 warning, ")


def test_no_text_moves_the_cursor() -> None:
    hostile = Row(
        "data_paths", "data", failed("data \x1b[2J", "a\x1b]0;x\x07b", "c\nd", "e\x1b[1A", detail=["\x1b[31mf"])
    )
    for shown in (table(hostile), findings.plain_lines(hostile), json.dumps(findings.as_json([hostile], {}))):
        assert "\x1b" not in shown
        assert "\\u001b" not in shown


def test_json() -> None:
    document = findings.as_json([PASS, FAIL, TABLE], {"level": "quick"})
    assert (document["schema"], document["level"], document["fit"]) == (1, "quick", False)
    assert document["findings"][1] == {
        "check": "ports",
        "group": "network",
        "looked_at": "port 29500",
        "value": "taken",
        "grade": "fail",
        "against": "pid 7 listens there",
        "advice": ["--master-port: another one"],
        "data": [],
    }
    assert document["findings"][2]["data"] == [{"a": 1}]
    assert findings.as_json([PASS, WARN], {})["fit"] is True
