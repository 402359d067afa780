"""Secrets of a failing job: in no file that ddp-run writes itself, in none of its words; the ranks' are theirs."""

from __future__ import annotations

import html
import json
import tarfile
from pathlib import Path
from typing import IO, cast

import pytest

from tests.loaded_process import COMMAND
from tests.planted_secrets import AS_WORDS, BY_FORM, IN_TEXT, KEY_LINES, PRIVATE_KEY

from .conftest import DDP_RUN, Launcher, cases

# What it prints before it raises is what rules quote, whole or cut.
FAILING = """
import json, os, subprocess, sys, time
lines = json.load(open(sys.argv[1]))
if os.environ["RANK"] == "1":
    assert any(os.environ[f"PLANTED_{i}_TOKEN"] in line for i in range(3) for line in lines)
    print(*lines, sep="\\n", file=sys.stderr, flush=True)
    print(*lines, sep="\\n", flush=True)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", *sys.argv[2:]], start_new_session=True)
    if lines[0] == "exit":
        sys.exit(3)
    raise ValueError(lines[1] + "\\n" + "\\n".join(lines)) if "IN THE CODE" else None
time.sleep(300)
""".replace("IN THE CODE", BY_FORM["Hugging Face"])


def planted() -> tuple[list[str], list[str], list[str]]:
    """Secrets, lines that hold them all, and words of a command line that hold many of them."""
    secrets = [*BY_FORM.values(), *(secret for _text, secret in [*IN_TEXT.values(), *AS_WORDS.values()]), *KEY_LINES]
    lines = [f"refused: {secret}" for secret in BY_FORM.values()]
    lines += [text for text, _secret in IN_TEXT.values()]
    lines += [" ".join(words) for words, _secret in AS_WORDS.values() if words[0] not in ("-p", "--key", "--dsn")]
    lines += [f"-p=1 {words[0].strip('-')}" for words, _secret in AS_WORDS.values()]
    words = [*BY_FORM.values(), *(text for text, _secret in IN_TEXT.values()), PRIVATE_KEY]
    words += [word for words, _secret in AS_WORDS.values() for word in words]
    return secrets, [*lines, *PRIVATE_KEY.split("\n")], words


def found(secrets: list[str], text: str) -> list[str]:
    """Those that the text holds, also as JSON writes them, and their parts; a few letters prove nothing."""
    parts = [part for secret in secrets for part in secret.split() if len(part) > 4]
    return [part for part in parts if part in text or json.dumps(part)[1:-1] in text]


@pytest.mark.parametrize("kind", cases(("raise", "exit"), ("raise",)))
def test_secrets_stay_out_of_ddp_runs_own_files(ddp: Launcher, tmp_path: Path, kind: str) -> None:
    secrets, lines, words = planted()
    assert len(secrets) - len(KEY_LINES) > 190
    (tmp_path / "lines.json").write_text(json.dumps([kind, *lines]))
    env = {f"PLANTED_{i}_TOKEN": list(BY_FORM.values())[i] for i in range(3)}
    rendezvous = ["--rdzv-conf", f"timeout=90,password={IN_TEXT['rendezvous'][1]}"]
    program = [ddp.script(FAILING), tmp_path / "lines.json", *words]
    outcome = ddp("--nproc-per-node", 2, "--console", "none", *rendezvous, *program, env=env)
    assert outcome.code == (1 if kind == "raise" else 3)
    assert outcome.folder is not None
    theirs = (outcome.folder / "attempt_0" / "rank_1" / "stderr.log").read_text()
    assert all(line in theirs for line in lines), "the ranks' own files are untouched"
    assert found(secrets, outcome.stderr) == []
    assert kind == "exit" or "raise ValueError(lines[1]" in outcome.stderr, "the block quotes the user's line"
    for name in ("plan.json", "events.jsonl", "verdict.json"):
        assert found(secrets, (outcome.folder / name).read_text()) == [], name
    assert "left behind" in (outcome.folder / "events.jsonl").read_text()

    def shown(*command: object, given: str = "") -> str:
        done = COMMAND.run(DDP_RUN, *map(str, command), given=given, cwd=tmp_path, env=ddp.environ(env))
        return done.stdout + done.stderr

    planned = shown("--dry-run", "--nproc-per-node", 2, *rendezvous, *program)
    assert "password=[redacted]" in planned
    for text in (
        planned,
        shown("--nproc-per-node", 2, "--no-such-option", *program),
        shown("--nproc-per-node", 2, "no-such-script.py", *program[1:]),
        shown("explain", outcome.folder),
        html.unescape(shown("report", outcome.folder, "-o", "-")),
        shown("explain", "--json", outcome.folder),
        shown("explain", "-", given=theirs),
        shown("explain", "--json", "-", given=theirs),
    ):
        assert text
        assert found(secrets, text) == []
    said = shown("bundle", outcome.folder, "--output", tmp_path / "bundle.tar.gz")
    assert found(secrets, said) == []
    assert "token: Hugging Face" in said
    kept = unpacked(tmp_path / "bundle.tar.gz")
    assert {"README.txt", "command.txt", "environment.txt", "stderr.log", "stdout.log"} <= {Path(n).name for n in kept}
    assert {name: some for name, text in kept.items() if (some := found(secrets, text))} == {}
    assert theirs == (outcome.folder / "attempt_0" / "rank_1" / "stderr.log").read_text()


def unpacked(archive: Path) -> dict[str, str]:
    """The files of a bundle; none is packed once more, where nobody would see what it holds."""
    with tarfile.open(archive) as tar:
        kept = {entry.name: cast(IO[bytes], tar.extractfile(entry)).read() for entry in tar}
    packed = (b"\x1f\x8b", b"PK", b"BZh", b"\xfd7zXZ", b"(\xb5/\xfd")
    assert [name for name, data in kept.items() if data.startswith(packed)] == []
    return {name: data.decode() for name, data in kept.items()}
