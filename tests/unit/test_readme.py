"""What the documents say must exist: generated parts, options, codes, files, keys, links."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from ddp_run import commands
from ddp_run.evidence.model import Quote
from ddp_run.judge import catalogue, diagnose, hung
from ddp_run.judge.verdict import Collateral, FirstFailure, Verdict
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.record.events import ExceptionInfo, LocalRank, MonotonicNs, Rank
from ddp_run.record.time_spent import Lost, RankSeconds, TimeSpent
from ddp_run.settings.table import Row, all_rows
from ddp_run.supervise import job
from ddp_run.supervise.nodes import messages
from ddp_run.tell import verdict_file
from ddp_run.values import problem

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
DOCUMENTS = (
    *("README.md", "CHANGELOG.md", "docs/architecture.md", "docs/events.md", "docs/decisions.md"),
    "docs/doctor.md",
    "docs/reference.md",
)

COMMANDS_OPTIONS = {"--help"} | {
    flag for command in commands.all_commands().values() for each in command.params for flag in each.opts
}


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return torch_rows()


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gen_docs"), "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_generated_parts_are_checked(tmp_path: Path) -> None:
    """The check itself notices a changed line."""
    for name in ("CHANGELOG.md", "supervisor", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "gen_docs").write_text((ROOT / "scripts" / "gen_docs").read_text())
    changed = REFERENCE.replace("| `--max-retries N` |", "| `--max-retries M` |")
    (tmp_path / "docs" / "reference.md").write_text(changed)
    script = str(tmp_path / "scripts" / "gen_docs")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "docs/reference.md is out of date: run scripts/gen_docs\n")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_options_exist(rows: tuple[Row, ...], document: str) -> None:
    known = {flag for row in all_rows(rows) for flag in row.flags} | COMMANDS_OPTIONS
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z_-]+[a-z]", text))
    assert named or document != "README.md"
    # Options of the script in the examples, of pip, of srun and of vast_launch.py.
    assert named - known <= {"--fail-at", "--epochs", "--no-deps", "--ntasks-per-node", "--num-gpus"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_variables_exist(document: str) -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "supervisor").rglob("*.py"))
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:DDP_RUN|TORCH|TORCHELASTIC|NCCL|MASTER|NNODES|NODE|NPROC|MAX)_[A-Z_]+[A-Z]\b", text))
    options = {row.variable for row in all_rows(torch_rows())}
    assert {name for name in named - options if name not in sources} == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_codes_exist(document: str) -> None:
    causes, notes = catalogue.load()
    assert not notes
    known = dict(problem.CODES) | {cause.rule.code: cause.rule.name for cause in causes}
    text = (ROOT / document).read_text(encoding="utf-8")
    assert set(re.findall(r"DDP\d\d\d", text)) <= set(known)
    for code, name in re.findall(r"(DDP\d\d\d) ([a-z]+(?:-[a-z]+)+|unknown|segfault)", text):
        assert known[code] == name


def test_every_code_is_in_the_change_log() -> None:
    causes, _notes = catalogue.load()
    known = set(problem.CODES) | {cause.rule.code for cause in causes}
    assert known <= set(re.findall(r"DDP\d\d\d", (ROOT / "CHANGELOG.md").read_text()))


def test_exit_codes_are_those_of_the_code() -> None:
    table = REFERENCE.partition("## Exit codes\n")[2].partition("##")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert listed == {0, 1, diagnose.USAGE, diagnose.LOST, hung.CODE, job._INTERNAL_ERROR, diagnose.UNFIT}


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
            path = (ROOT / document).parent / target if target else ROOT / document
            assert path.exists(), f"{document}: {target}"
            assert not anchor or anchor in _anchors(path), f"{document}: {target}#{anchor}"


def _anchors(path: Path) -> set[str]:
    """Of a document's headings, as GitHub makes them: small letters, blanks as dashes, no other signs."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_way_of_several_nodes_names_every_message_and_file() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Several nodes\n")[2]
    named = set(re.findall(r"`(\w+)", section.partition("\n## ")[0]))
    assert {kind.__name__ for kind in get_args(messages.Message)} <= named
    files = (ROOT / "supervisor" / "ddp_run" / "supervise" / "nodes").glob("[a-z]*.py")
    assert {path.stem for path in files} <= named


def test_the_readme_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 220


# --------------------------------------------------------------------------------- verdict and last line


def _full_verdict() -> Verdict:
    raised = ExceptionInfo("ValueError", "text", "train.py", 1)
    rank = FirstFailure(Rank(0), LocalRank(0), 0, "host", 1, 1, None, MonotonicNs(1), raised, "log")
    return Verdict(
        "failed",
        1,
        first_failure=rank,
        evidence=(Quote("log", 1, "text"),),
        collateral=(Collateral(Rank(1), 1, None, "reason"),),
        advice=("advice",),
        time=TimeSpent(2, RankSeconds(), Lost(1.0, 2.0, 1, "step_5.pt")),
    )


def _shape(value: Any) -> Any:
    """Keys all the way down, in order; of a list, its first element's."""
    match value:
        case Mapping():
            return [(key, _shape(each)) for key, each in value.items()]
        case list():
            return [_shape(each) for each in value[:1]]
        case _:
            return None


def test_the_example_of_verdict_json_has_its_keys() -> None:
    (example,) = _blocks("json")
    document = verdict_file.as_json(
        _full_verdict(),
        run_id="id",
        attempts=1,
        folder="folder",
        decision="stop",
        decision_reason="reason",
        wall_at=lambda _at: "date",
    )
    assert _shape(json.loads(example)) == _shape(document)


def test_the_example_of_the_last_line_has_its_keys() -> None:
    examples = re.findall(r"^ddp-run: verdict (.*)$", README + REFERENCE, re.MULTILINE)
    assert len(examples) > 1
    line = verdict_file.verdict_line(_full_verdict(), attempts=1, folder=Path("/folder"))
    keys = re.findall(r"(\w+)=", line)
    assert all(re.findall(r"(\w+)=", example) == keys for example in examples)
