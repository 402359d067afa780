"""What `ddp_run.launch` is given becomes the words of a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddp_run.api.options import LaunchOptions, words
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.settings.parse import parse
from ddp_run.settings.table import all_rows


def test_options_become_words() -> None:
    given = {"nproc_per_node": 2, "module": True, "standalone": False, "log_dir": Path("/logs"), "role": None}
    expected = ("--module", "--nproc-per-node=2", "--log-dir=/logs", "pkg.train", "--lr", "0.1", "--steps=3")
    assert words("pkg.train", ["--lr", 0.1, "--steps=3"], given) == expected


def test_they_mean_what_was_given() -> None:
    given = {"rdzv_conf": "timeout=5,a=b c", "role": "--trainer", "max_retries": 3, "hang_timeout": 1.5}
    options = parse(words(Path("train.py"), ["--role", "x"], given), {}, torch_rows=torch_rows())
    assert {name: options.settings[name].value for name in given} == given
    assert (options.script, options.script_args) == ("train.py", ("--role", "x"))


def test_every_option_is_known_to_type_checkers() -> None:
    """Those of the installed torch; an older one has fewer."""
    rows = all_rows(torch_rows())
    launching = {row.dest for row in rows if not row.prints_and_exits} - {"dry_run"}
    assert launching <= LaunchOptions.__annotations__.keys()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"args": "--lr 1"}, "args is a string"),
        ({"options": {"nproc_per_node": [2]}}, "nproc_per_node: list can't be a word"),
        ({"args": [b"x"]}, "args: bytes can't be a word"),
        ({"args": ["a\0b"]}, "null character"),
        ({"options": {"dry_run": True}}, "dry_run doesn't start a job"),
        ({"options": {"nproc_per_nod": 2}}, "nproc_per_nod is not an option: expected nproc_per_node$"),
        ({"options": {"rdzv": "c10d"}}, "rdzv is not an option: expected rdzv_backend or rdzv_endpoint"),
    ],
    ids=str,
)
def test_what_is_no_word(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        words(**{"script": "train.py", "args": (), "options": {}, **given})


def test_an_option_that_needs_a_value_does_not_take_the_script() -> None:
    line = words("train", (), {"log_dir": True, "nproc_per_node": 2})
    assert line == ("--log-dir", "--nproc-per-node=2", "train")
