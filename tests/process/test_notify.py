"""`scripts/examples/notify.py` with what hooks get, against receivers of this host."""

from __future__ import annotations

import base64
import email
import email.policy
import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import limit

from ddp_run.judge.verdict import FirstFailure, Verdict
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.record.events import ExceptionInfo, Rank
from ddp_run.record.run_folder import RunFolder
from ddp_run.settings.parse import parse
from ddp_run.supervise.run_end import hook_environ

NOTIFY = Path(__file__).resolve().parents[2] / "scripts" / "examples" / "notify.py"
HOSTILE = (
    'rank 3 raised E: "<!channel>" @everyone *a* `b` 100%\n::error::x, \\ </pre><img src=x onerror=y> \U0001f525 \udcff'
)
SHOWN = HOSTILE.replace("\n", " ").replace("\udcff", "?")
RAISED = ExceptionInfo("E", "x", "/work/src/train, 2.py", 88)
FAILED = Verdict(
    *("failed", 7, "python-exception", "DDP600"),
    title=HOSTILE,
    first_failure=FirstFailure(Rank(3), host="node-a", exception=RAISED),
)

WANDB_QUERY = """
mutation Alert($entityName: String!, $projectName: String!, $runName: String!, $title: String!, $text: String!,
$severity: AlertSeverity) { notifyScriptableRunAlert(input: {entityName: $entityName, projectName: $projectName,
runName: $runName, title: $title, text: $text, severity: $severity}) { success } }
"""


@dataclass
class Receiver:
    """What has come."""

    answers: int = 200
    text: bytes = b"ok"
    authorization: list[str | None] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)


@contextmanager
def http(receiver: Receiver) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            assert self.headers["Content-Type"] == "application/json"
            receiver.authorization.append(self.headers["Authorization"])
            self.send_response(receiver.answers)
            self.end_headers()
            self.wfile.write(receiver.text)

        def log_message(self, *_said: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/services/secret"
        server.shutdown()


@contextmanager
def smtp(receiver: Receiver) -> Iterator[int]:
    """As much of RFC 5321 as a client without extensions needs."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            for line in map(bytes.upper, self.rfile):
                self.wfile.write({b"DATA": b"354 go on\r\n", b"QUIT": b"221 bye\r\n"}.get(line[:4], b"250 fine\r\n"))
                if line.startswith(b"DATA"):
                    text = b"".join(iter(self.rfile.readline, b".\r\n"))
                    receiver.bodies.append(email.message_from_bytes(text, policy=email.policy.default))
                    self.wfile.write(b"250 taken\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def notify(
    folder: Path, service: str, variables: Mapping[str, str], verdict: Verdict = FAILED, line: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run it as a hook of that run."""
    first = verdict.first_failure
    raised = None if first is None or first.exception is None else first.exception
    said = {"exception": {"file": raised.file, "line": raised.line}} if raised is not None else None
    (folder / "verdict.json").write_text(json.dumps({"first_failure": said}))
    given = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    options = parse([*line.split(), "train.py"], {}, torch_rows=torch_rows())
    environ = hook_environ({**given, **variables}, options, verdict, RunFolder(folder), 2)
    return subprocess.run(
        [sys.executable, str(NOTIFY), service],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=limit(60),
    )


def webhook(folder: Path, service: str, receiver: Receiver, **of_run: Any) -> subprocess.CompletedProcess[str]:
    with http(receiver) as url:
        return notify(folder, service, {f"{service.upper()}_WEBHOOK_URL": url}, **of_run)


def facts(folder: Path) -> list[str]:
    return ["ddp-run failed: python-exception", SHOWN, "rank 3 on node-a, exit code 7, attempts: 2", str(folder)]


def test_slack(tmp_path: Path) -> None:
    done = webhook(tmp_path, "slack", received := Receiver())
    assert (done.returncode, done.stderr) == (0, "")
    (body,) = received.bodies
    text = body["text"].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert text.split("\n") == facts(tmp_path)
    assert "<" not in body["text"], "Slack takes <!channel> for a mention"


def test_discord(tmp_path: Path) -> None:
    done = webhook(tmp_path, "discord", received := Receiver())
    assert (done.returncode, done.stderr) == (0, "")
    (body,) = received.bodies
    assert body["allowed_mentions"] == {"parse": []}
    assert r"\*a\* \`b\`" in body["content"]
    plain = body["content"].replace("\\\\", "\0").replace("\\", "").replace("\0", "\\")
    assert plain.split("\n") == facts(tmp_path)


def test_teams(tmp_path: Path) -> None:
    done = webhook(tmp_path, "teams", received := Receiver())
    assert (done.returncode, done.stderr) == (0, "")
    ((attachment,),) = [body["attachments"] for body in received.bodies]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert [run["text"] for block in attachment["content"]["body"] for run in block["inlines"]] == facts(tmp_path)


def test_email(tmp_path: Path) -> None:
    with smtp(received := Receiver()) as port:
        variables = {"SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(port), "MAIL_TO": "me@example.org"}
        done = notify(tmp_path, "email", variables)
    assert (done.returncode, done.stderr) == (0, "")
    (message,) = received.bodies
    subject, *text = facts(tmp_path)
    assert (message["To"], message["From"], message["Subject"]) == ("me@example.org", "me@example.org", subject)
    assert message.get_content().splitlines() == text


def test_github(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    done = notify(tmp_path, "github", {"GITHUB_WORKSPACE": "/work", "GITHUB_STEP_SUMMARY": str(summary)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("::error file=src/train%2C 2.py,line=88,title=ddp-run failed%3A python-exception::")
    assert done.stdout.count("\n") == 1, "another line may be a command"
    data = done.stdout.rstrip("\n").split("::", 2)[2]
    assert data.replace("%0A", "\n").replace("%25", "%").split("\n") == facts(tmp_path)[1:]
    text = summary.read_text()
    assert text.count("<") == 2, "the summary is HTML too"
    assert "\n<pre>ddp-run failed: python-exception\n" in text


def test_github_has_no_place_for_a_run_that_went_well(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    done = notify(tmp_path, "github", {"GITHUB_STEP_SUMMARY": str(summary)}, Verdict("succeeded", 0))
    assert done.stdout == f"::notice title=ddp-run succeeded::exit code 0, attempts: 2%0A{tmp_path}\n"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (None, "notify.py: SLACK_WEBHOOK_URL is not set\n"),
        ("not a url/secret", "notify.py: slack was not told: ValueError\n"),
        ("http://127.0.0.1:1/secret", "Connection refused"),
        ("404", "notify.py: slack was not told: HTTPError: HTTP Error 404: Not Found\n"),
    ],
)
def test_why_nobody_was_told(tmp_path: Path, url: str | None, said: str) -> None:
    if url == "404":
        done = webhook(tmp_path, "slack", Receiver(404))
    else:
        done = notify(tmp_path, "slack", {"SLACK_WEBHOOK_URL": url} if url else {})
    assert done.returncode == 1
    assert said in done.stderr
    assert "secret" not in done.stderr


def test_one_node_tells(tmp_path: Path) -> None:
    received = Receiver()
    for node in range(2):
        webhook(tmp_path, "slack", received, line=f"--nnodes=2 --node-rank={node} --master-addr=10.0.0.1")
    assert len(received.bodies) == 1


@pytest.mark.parametrize("refused", [False, True])
def test_wandb(tmp_path: Path, refused: bool) -> None:
    """What wandb's own client sent to such a receiver, but for blanks and `waitDuration` (0.31.0)."""
    text = b'{"errors": [{"message": "no such run"}]}' if refused else b'{"data": {}}'
    names = {"WANDB_ENTITY": "me", "WANDB_PROJECT": "p", "WANDB_RUN_ID": "abc", "WANDB_API_KEY": "k" * 40}
    with http(received := Receiver(text=text)) as url:
        done = notify(tmp_path, "wandb", {**names, "WANDB_BASE_URL": url})
    (body,) = received.bodies
    title, *more = facts(tmp_path)
    assert body["query"].split() == WANDB_QUERY.split()
    run = {"entityName": "me", "projectName": "p", "runName": "abc"}
    assert body["variables"] == {**run, "title": title, "text": "\n".join(more), "severity": "ERROR"}
    assert received.authorization == ["Basic " + base64.b64encode(b"api:" + b"k" * 40).decode()]
    assert (done.returncode, "no such run" in done.stderr) == ((1, True) if refused else (0, False))
