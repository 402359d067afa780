"""What torchrun's agent makes of each switch, given as an option or as a `PET_` variable, here and under torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.loaded_process import LoadedProcess

from ddp_run.plan import installed_torch
from ddp_run.plan.launch_plan import RANK_PROGRAM, agent_argv, agent_environment, make_plan
from ddp_run.settings.parse import parse

ROWS = installed_torch.torch_rows()
PROGRAM = ["true", "--lr", "1"]

_AS_THE_AGENT = """
import json, logging, os, sys
logging.disable()
from torch.distributed.run import config_from_args, get_args_parser
answers = []
for argv, variables in json.load(sys.stdin):
    os.environ.update(variables)
    args = get_args_parser().parse_args(argv)
    command, words = config_from_args(args)[1:]
    answers.append([vars(args), command if isinstance(command, str) else "run-path", list(words)])
    for name in variables:
        del os.environ[name]
json.dump(answers, sys.stdout)
"""
# Where the ranks' files go, how often the agent looks, and what it starts in the program's place.
OURS = {"log_dir", "redirects", "tee", "local_ranks_filter", "logs_specs", "monitor_interval"}
THE_PROGRAM = {"module", "no_python", "training_script", "training_script_args"}

SWITCHES = [row for row in ROWS if not row.takes_value and row.pet]


def _cases() -> dict[str, tuple[list[str], dict[str, str]]]:
    cases: dict[str, tuple[list[str], dict[str, str]]] = {}
    for row in SWITCHES:
        assert row.pet is not None
        cases[row.name] = ([row.name], {})
        cases[f"{row.name} {row.pet}=0"] = ([row.name], {row.pet: "0"})
        for text in ("0", "1"):
            cases[f"{row.pet}={text}"] = ([], {row.pet: text})
    cases["PET_RUN_PATH=1 PET_NO_PYTHON=1"] = ([], {"PET_RUN_PATH": "1", "PET_NO_PYTHON": "1"})
    cases["--run-path --no-python"] = (["--run-path", "--no-python"], {})
    cases["PET_RUN_PATH=1 -m"] = (["-m"], {"PET_RUN_PATH": "1"})
    return cases


CASES = _cases()


@pytest.fixture(scope="module")
def answers(torch_process: LoadedProcess) -> dict[str, tuple[Any, Any]]:
    """By case: what torchrun's agent makes of the words, and what ddp-run's agent makes of what it gets."""
    asked: list[tuple[list[str], dict[str, str]]] = []
    for options, variables in CASES.values():
        given = parse([*options, *PROGRAM], variables, torch_rows=ROWS)
        plan = make_plan(given, variables, python=sys.executable, master=None)
        words = agent_argv(plan, folder=Path("/run"), port=None)
        ours = words[words.index("torch.distributed.run") + 1 :]
        asked += [([*options, *PROGRAM], variables), (ours, agent_environment(plan, variables, "id"))]
    answer = torch_process.run(_AS_THE_AGENT, given=json.dumps(asked))
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    return {name: (told[2 * index], told[2 * index + 1]) for index, name in enumerate(CASES)}


def _torchruns(command: str, words: list[str]) -> tuple[str, list[str]]:
    if command == "run-path":
        return command, words
    if command != sys.executable:
        return "exec", [command, *words]
    assert words[0] == "-u"
    return ("module", words[2:]) if words[1] == "-m" else ("script", words[1:])


def _ours(command: str, words: list[str]) -> tuple[str, list[str]]:
    before = words[: words.index(str(RANK_PROGRAM))]
    mode, *rest = words[len(before) + 1 :]
    expected = {"run-path": ("run-path", []), "exec": (sys.executable, ["-I", "-S", "-u"])}
    assert (command, before) == expected.get(mode, (sys.executable, ["-u"]))
    return mode, rest


@pytest.mark.parametrize("case", CASES)
def test_a_switch_means_what_it_means_to_torchrun(answers: dict[str, tuple[Any, Any]], case: str) -> None:
    theirs, ours = answers[case]
    assert _ours(*ours[1:]) == _torchruns(*theirs[1:])
    other = set(theirs[0]) - OURS - THE_PROGRAM
    assert {name: ours[0][name] for name in other} == {name: theirs[0][name] for name in other}
