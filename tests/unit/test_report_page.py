"""The page of a run: what it shows, that it is whole, and that whatever a log says stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.made_run import HOSTILE, SECRET, made_run
from tests.unit import test_time_spent as times

from ddp_run.judge.replay import replay
from ddp_run.judge.verdict import Collateral, FirstFailure, Verdict
from ddp_run.record.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    LocalRank,
    MonotonicNs,
    Next,
    NodeReported,
    Rank,
    RankExited,
    RankFailed,
    RankFinished,
    RankPhase,
    RankStarted,
    RunStarted,
    SignalReceived,
    StallEnded,
    StallSeen,
)
from ddp_run.supervise.last_page import write_page
from ddp_run.tell.page import files
from ddp_run.tell.page.drawing import HEIGHT, WIDTH, charts, ticks
from ddp_run.tell.page.failure_order import failures
from ddp_run.tell.page.page import Known, page_of
from ddp_run.tell.page.rendering import rendered
from ddp_run.tell.page.timeline import Span, attempts, journals

_S = 1_000_000_000
VOID = {"meta", "link", "br", "img", "input", "hr"}


def at(seconds: float) -> MonotonicNs:
    return MonotonicNs(50 * _S + round(seconds * _S))


def of_ranks(*later: Event, ranks: int = 2) -> list[Event]:
    begun: list[Event] = [
        RunStarted(at(0), 10**18, "r", "node0", 0, 1, (), 0, "by-cause", 30.0, 0, "0.1.0"),
        AttemptStarted(at(1), 0, (), None),
    ]
    for rank in range(ranks):
        begun.append(RankStarted(at(3), Rank(rank), LocalRank(rank), 0, 10 + rank, ranks, ranks, f"rank_{rank}"))
        begun.append(RankPhase(at(4), Rank(rank), 0, "init"))
    return [*begun, *later, AttemptEnded(at(20), 0, "failed", "x", 1, Next.STOP, "same code")]


FAILED = Verdict(
    "failed", 1, first_failure=FirstFailure(Rank(1)), collateral=(Collateral(Rank(0), 1, None, "lost it"),)
)


class _Reader(HTMLParser):
    """Checks that each element is closed where it belongs, and keeps attributes, styles and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.inlined: dict[str, str] = {"style": "", "script": ""}
        self.text = ""
        self.sections: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.sections += [value or "" for name, value in attrs if tag == "section" and name == "aria-labelledby"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.inlined:
            self.inlined[self.open[-1]] += data
        else:
            self.text += data

    def values(self, tag: str, name: str) -> list[str]:
        return [value for each, known, value in self.attributes if (each, known) == (tag, name)]


def read(text: str) -> _Reader:
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a run with eight ranks, after a good one."""
    runs = tmp_path_factory.mktemp("runs")
    made_run(runs / "20261127-100000-0001", ranks=2, end="success")
    folder = made_run(runs / "20261127-110000-0002", ranks=8, end="failure")
    verdict, events = replay(folder)
    write_page(folder / "report.html", verdict, 1, "not retried: same code", events)
    return (folder / "report.html").read_text()


# -------------------------------------------------------------------------------------------- the view


def test_a_lane_is_what_a_rank_did() -> None:
    events = of_ranks(
        RankPhase(at(6), Rank(1), 0, "training"),
        RankFailed(at(10), Rank(1), 0, 1, None),
        RankExited(at(12), Rank(1), 0, 1),
        RankExited(at(13), Rank(0), 0, -15),
    )
    (whole,) = attempts(journals([events]), FAILED)[0].views
    first, culprit = whole.lanes
    assert (whole.begin, whole.end) == (1, 20)
    assert [(s.begin, s.end, s.kind) for s in culprit.spans] == [
        *((1, 3, "launch"), (3, 4, "before-init"), (4, 6, "init"), (6, 10, "training"), (10, 12, "ending"))
    ]
    assert [(mark.at, mark.first) for mark in culprit.marks] == [(10, True)]
    assert first.spans[-1] == Span(4, 13, "init")
    assert [(mark.said, mark.first) for mark in first.marks] == [("rank 0: SIGTERM", False)]


def test_a_stall_is_drawn_until_it_ended() -> None:
    stall = StallSeen(at(9), "hang", True, "", (Rank(1),), (Rank(0),), at(7), ())
    (whole,) = attempts(journals([of_ranks(stall, StallEnded(at(11), 4.0))]), Verdict("succeeded", 0))[0].views
    assert [lane.over for lane in whole.lanes] == [(Span(7, 11, "waits"),), (Span(7, 11, "stall"),)]


def test_alike_ranks_share_a_lane() -> None:
    late = RankExited(at(15), Rank(3), 0, -9)
    (whole,) = attempts(journals([of_ranks(late, ranks=6)]), FAILED)[0].views
    assert [lane.label for lane in whole.lanes] == ["ranks 0-2,4-5", "rank 3"]


def test_failures_close_together_are_enlarged() -> None:
    ends = (RankExited(at(10 + rank / 10), Rank(rank), 0, 1) for rank in range(2))
    whole, near = attempts(journals([of_ranks(*ends)]), FAILED)[0].views
    assert whole.end - whole.begin == 19
    assert [near.begin, near.end, near.origin] == pytest.approx([9.8, 10.3, 10])
    assert [mark.at for lane in near.lanes for mark in lane.marks] == [10, 10.1]


def test_the_order_says_how_sure_it_is() -> None:
    events = of_ranks(
        RankFailed(at(10), Rank(1), 0, 1, None),
        RankExited(at(10.2), Rank(0), 0, 1),
        RankExited(at(10.3), Rank(2), 0, 1),
        RankExited(at(10.9), Rank(1), 0, 1),
        ranks=3,
    )
    reasons = (Collateral(Rank(0), 1, None, "lost it"), Collateral(Rank(2), 1, None, "lost it"))
    first, others = failures(journals([events]), replace(FAILED, collateral=reasons))
    assert (first.who, first.after_s, first.role, first.first) == ("rank 1", (0, 0), "first failure", True)
    assert first.sure.startswith("exact")
    assert (others.who, others.role) == ("ranks 0,2", "lost it")
    assert [*others.after_s] == pytest.approx([0.2, 0.3])
    assert "milliseconds late" in others.sure


def test_nodes_share_one_time() -> None:
    other: list[Event] = [
        RunStarted(MonotonicNs(7), 10**18 + 2 * _S, "r", "node1", 1, 2, (), 0, "by-cause", 30.0, 0, "0.1.0"),
        AttemptStarted(MonotonicNs(7), 0, (), None),
        RankStarted(MonotonicNs(7 + _S), Rank(2), LocalRank(0), 0, 9, 3, 1, "rank_2"),
    ]
    (both,) = attempts(journals([of_ranks(), other]), FAILED)
    lane = next(lane for lane in both.views[0].lanes if lane.node == "node 1 (node1)")
    assert (lane.ranks, lane.spans[0]) == ((2,), Span(2, 3, "launch"))


def test_a_clock_that_node_0_measured_counts() -> None:
    told = NodeReported(at(19), 1, "node1", "/there", None, None, -50 * _S, 2_000_000, (), (), None, True)
    other: list[Event] = [
        RunStarted(at(-50), 10**18 + 9 * _S, "r", "node1", 1, 2, (), 0, "by-cause", 30.0, 0, "0.1.0"),
        AttemptStarted(at(-49), 0, (), None),
        RankStarted(at(-46), Rank(1), LocalRank(0), 0, 9, 2, 1, "rank_1"),
        RankFailed(at(-41), Rank(1), 0, 1, None),
    ]
    both = journals([[*of_ranks(RankExited(at(9.5), Rank(0), 0, 1), ranks=1), told], other])
    first, second = failures(both, FAILED)
    assert (first.who, first.sure) == ("rank 1", "exact: stamped inside the rank; clocks ± 2.0 ms")
    assert second.who == "rank 0"
    assert [*second.after_s] == pytest.approx([0.5, 0.5])


def test_a_rank_that_left_early_is_the_first() -> None:
    events = of_ranks(
        RankFinished(at(8), Rank(1), 0), RankExited(at(8.5), Rank(1), 0, 0), RankExited(at(9), Rank(0), 0, 1)
    )
    assert [(row.who, row.what, row.role) for row in failures(journals([events]), FAILED)] == [
        ("rank 1", "exit code 0", "first failure"),
        ("rank 0", "exit code 1", "lost it"),
    ]
    whole, *_ = attempts(journals([events]), FAILED)[0].views
    assert [[(mark.at, mark.first) for mark in lane.marks] for lane in whole.lanes] == [[(9, False)], [(8, True)]]


def test_an_axis_has_round_times() -> None:
    assert [(tick.label, tick.x) for tick in ticks(0, 10) if tick.level == 0] == [
        *(("0 s", 0), ("2 s", 20), ("4 s", 40), ("6 s", 60), ("8 s", 80), ("10 s", 100))
    ]
    assert "+0.1 s" in [tick.label for tick in ticks(9.8, 10.3, 10.0)]
    assert "1:00:00" in [tick.label for tick in ticks(0, 7200)]


def test_charts_of_many_ranks_have_a_band(tmp_path: Path) -> None:
    _verdict, events = replay(made_run(tmp_path / "run", ranks=24, end="failure"))
    found = {chart.title.partition(",")[0]: chart for chart in charts(journals([events]), {1})}
    memory = found["Memory of each rank"]
    assert [line.label for line in memory.lines] == ["ranks 0,2-23", "rank 1"]
    assert not memory.band
    gpus = found["GPU memory in use"]
    assert len(gpus.lines) == 8
    places = [tuple(map(float, point.split(","))) for point in memory.lines[1].path.removeprefix("M").split()]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)


def test_each_attempt_has_its_own_line(tmp_path: Path) -> None:
    _verdict, events = replay(made_run(tmp_path / "run", ranks=2, end="failure", attempts=3))
    steps = next(chart for chart in charts(journals([events]), set()) if chart.title.startswith("Optimizer"))
    assert [line.path.count("M") for line in steps.lines] == [3]


# -------------------------------------------------------------------------------------------- the file


def test_the_page_is_whole(page: str) -> None:
    reader = read(page)
    wanted = ["verdict", "advice", "timeline", "order", "time", "stalls", "charts", "logs", "differences", "plan"]
    assert reader.sections == wanted
    assert "rank 1 raised OSError" in reader.text
    assert "from the last good run here, 20261127-100000-0001".casefold() in reader.text.casefold()
    ids = [value for _tag, name, value in reader.attributes if name == "id"]
    assert len(ids) == len({*ids})
    pointed = [value for _tag, name, value in reader.attributes if name == "aria-labelledby"]
    assert {*pointed} <= {*ids}


def test_only_its_own_style_and_script_may_run(page: str) -> None:
    reader = read(page)
    policy = next(value for value in reader.values("meta", "content") if "default-src" in value)
    assert policy.startswith("default-src 'none'; ")
    for kind, text in reader.inlined.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
        assert len(text) > 100
    assert page.count("<script") == page.count("<style") == 1
    names = {name for _tag, name, _value in reader.attributes}
    assert not [name for name in names if name == "style" or name.startswith("on")]
    assert not re.findall(r"(?:src|href|url\()\s*=?\s*[\"']?(?:https?:|//|data:|javascript:)", page)
    links = reader.values("a", "href")
    assert links
    assert all(link.startswith("./attempt_0/rank_") for link in links)


def test_what_a_log_says_stays_text(page: str) -> None:
    reader = read(page)
    assert not [tag for tag, _name, _value in reader.attributes if tag in ("img", "b")]
    said = HOSTILE.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert said in reader.text
    assert "\x1b" not in page
    assert SECRET not in page


def test_a_hostile_folder_stays_text() -> None:
    evil = '"><script>alert(1)</script>'
    verdict = Verdict("failed", 1, title=evil, advice=(evil,), notes=(evil,))
    plan = {"command": [evil], "options": {evil: {"value": evil, "origin": evil}}, "agent": 3, "versions": [evil]}
    known = Known(verdict, 1, None, Path(evil), plan=plan, good_plan={"options": 3}, good_run=evil, facts=evil)
    reader = read(rendered(page_of(known), links=True))
    assert reader.text.count(evil) > 8
    assert "alert" not in reader.inlined["script"]


def test_code_that_has_changed_since_the_last_good_run_is_shown() -> None:
    versions = {"torch": "2.13.0", "script (SHA-256)": "aaaa"}
    plan, good = {"versions": versions}, {"versions": {**versions, "script (SHA-256)": "bbbb"}}
    found = page_of(Known(Verdict("failed", 1), 1, None, None, plan=plan, good_plan=good)).differences
    assert found is not None
    assert [(row.name, row.value, row.other) for row in found] == [("script (SHA-256)", "aaaa", "bbbb")]


def test_a_log_has_a_verdict_only() -> None:
    known = files.known(Verdict(None, None, title="nothing is known"), attempts=None, decision=None)
    reader = read(rendered(page_of(known), links=False))
    assert reader.sections == ["verdict"]


def test_where_the_time_went_is_shown_if_known() -> None:
    assert "time" not in read(rendered(page_of(Known(Verdict("failed", 1), 1, None, None)), links=False)).sections
    stopped = [SignalReceived(times.at(75), 15), times.exits(0, 115, -15), times.exits(1, 115, -15)]
    events = [times.attempt(0, 0), *times.trains(), times.checkpoint("/ckpt/a.pt", 45), *stopped]
    known = Known(Verdict("failed", 1), 1, None, None, parts=(*journals([events]),))
    text = read(rendered(page_of(known), links=False)).text
    for words in (
        "start-up20.0 8.7 %",
        "optimizer steps120.0 52.2 %",
        "after the first failure",
        "lost 30s of 2 ranks",
    ):
        assert words in "".join(text.split("\n")), words
    assert "no progress" not in text.partition("Where the time went")[2][:400]


def test_the_markdown_stays_in_its_fence() -> None:
    known = Known(Verdict("failed", 1, title="bad ```` text"), 1, None, None)
    assert page_of(known).markdown.count("`````") == 2


def test_a_torn_plan_is_left_out(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "20261127-110000-0002", ranks=1, end="failure", torn=True)
    (folder / "plan.json").write_text(json.dumps({"options": 1})[:-1])
    verdict, events = replay(folder)
    write_page(folder / "report.html", verdict, 1, "", events)
    reader = read((folder / "report.html").read_text())
    assert "plan" not in reader.sections
    assert "timeline" in reader.sections


def test_a_key_that_begins_before_the_shown_lines_is_hidden(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", ranks=2, end="failure")
    body = [base64.b64encode(hashlib.sha512(bytes([n])).digest()[:48]).decode() for n in range(30)]
    key = ["-----BEGIN PRIVATE KEY-----", *body]  # its writer was killed
    (folder / "attempt_0/rank_0/stdout.log").write_text("\n".join(["step 1", *key]) + "\n")
    verdict, events = replay(folder)
    write_page(folder / "report.html", verdict, 1, "", events)
    text = read((folder / "report.html").read_text()).text
    assert not [line for line in body if line in text]
