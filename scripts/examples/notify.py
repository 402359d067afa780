#!/usr/bin/env python3
"""Tells people how a run ended. Copy it, and give it to ddp-run as a command at the end:

    export SLACK_WEBHOOK_URL=https://hooks.slack.com/services/…
    ddp-run --on-failure 'python3 notify.py slack' --nproc-per-node 8 train.py

slack, discord, teams   their webhook: SLACK_WEBHOOK_URL, DISCORD_WEBHOOK_URL, TEAMS_WEBHOOK_URL (of a Teams workflow)
email                   MAIL_TO, and MAIL_FROM if it is another; SMTP_HOST (localhost), SMTP_PORT (25; 465 is TLS), and
                        SMTP_USER and SMTP_PASSWORD, for which the server must offer TLS
wandb                   an alert of the training's run: WANDB_API_KEY, WANDB_ENTITY, WANDB_PROJECT, WANDB_RUN_ID, set
                        before the training; WANDB_BASE_URL if it isn't https://api.wandb.ai
github                  in GitHub Actions: an annotation at the failing line, and a part of the job's summary

Needs only Python. Of several nodes, the first one tells. Texts come from the training, so they are escaped. It ends
itself after a minute; whatever happens here, the run's exit code stays as it is.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import signal
import smtplib
import ssl
import sys
import urllib.request
from email.message import EmailMessage
from pathlib import Path

ONE_CALL_S, ALL_S = 15, 60
TOLD = os.environ
FAILED = TOLD.get("DDP_RUN_OUTCOME") != "succeeded"


def said(name: str) -> str:
    """What ddp-run tells in a DDP_RUN_ variable, as one line; empty if it isn't known."""
    text = TOLD.get(f"DDP_RUN_{name}", "").encode("utf-8", "replace").decode()
    return " ".join(text.split())[:500]


def title() -> str:
    cause = f": {said('CAUSE')}" if FAILED and said("CAUSE") else ""
    return f"ddp-run {said('OUTCOME')}{cause}"


def lines() -> list[str]:
    """What happened, then where to look."""
    rank = f"rank {said('RANK')} on {said('NODE') or 'an unknown node'}, " if said("RANK") else ""
    ended = f"{rank}exit code {said('EXIT_CODE')}, attempts: {said('ATTEMPTS')}"
    return [line for line in (said("TITLE") if FAILED else "", ended, said("FOLDER")) if line]


def needed(name: str) -> str:
    return TOLD.get(name) or sys.exit(f"notify.py: {name} is not set")


def post(url: str, body: object, **headers: str) -> bytes:
    headers = {"Content-Type": "application/json", "User-Agent": "ddp-run-notify", **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=ONE_CALL_S) as answer:
        return answer.read(1 << 20)


def slack() -> None:
    text = html.escape("\n".join([title(), *lines()]), quote=False)  # so that nobody is mentioned
    post(needed("SLACK_WEBHOOK_URL"), {"text": text, "mrkdwn": False})


def discord() -> None:
    text = re.sub(r"([\\*_~`|<>#\[\]()-])", r"\\\1", "\n".join([title(), *lines()]))[:2000]
    post(needed("DISCORD_WEBHOOK_URL"), {"content": text, "allowed_mentions": {"parse": []}})


def teams() -> None:
    # Runs of text, since a TextBlock takes Markdown.
    runs = [{"type": "TextRun", "text": text} for text in [title(), *lines()]]
    body = [{"type": "RichTextBlock", "inlines": [run]} for run in runs]
    card = {"$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.2"}
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": {**card, "body": body}}
    post(needed("TEAMS_WEBHOOK_URL"), {"type": "message", "attachments": [content]})


def email() -> None:
    message = EmailMessage()
    message["Subject"] = title()
    message["To"] = needed("MAIL_TO")
    message["From"] = TOLD.get("MAIL_FROM") or TOLD["MAIL_TO"]
    message.set_content("\n".join(lines()) + "\n")
    host, port = TOLD.get("SMTP_HOST", "localhost"), int(TOLD.get("SMTP_PORT", "25"))
    tls, user = ssl.create_default_context(), TOLD.get("SMTP_USER")
    secure = port == smtplib.SMTP_SSL_PORT
    with (
        smtplib.SMTP_SSL(host, port, timeout=ONE_CALL_S, context=tls)
        if secure
        else smtplib.SMTP(host, port, timeout=ONE_CALL_S)
    ) as server:
        if user:
            if not secure:
                server.starttls(context=tls)
            server.login(user, needed("SMTP_PASSWORD"))
        server.send_message(message)


def wandb() -> None:
    """The request of wandb's own client (0.31.0) for `run.alert`. That would also resume the run, and change it."""
    names = {"entityName": "WANDB_ENTITY", "projectName": "WANDB_PROJECT", "runName": "WANDB_RUN_ID"}
    values = {name: needed(variable) for name, variable in names.items()}
    values |= {"title": title()[:64], "text": "\n".join(lines()), "severity": "ERROR" if FAILED else "INFO"}
    types = ", ".join(f"${name}: {'AlertSeverity' if name == 'severity' else 'String!'}" for name in values)
    given = ", ".join(f"{name}: ${name}" for name in values)
    query = f"mutation Alert({types}) {{ notifyScriptableRunAlert(input: {{{given}}}) {{ success }} }}"
    key = base64.b64encode(f"api:{needed('WANDB_API_KEY')}".encode()).decode()
    url = TOLD.get("WANDB_BASE_URL", "https://api.wandb.ai").rstrip("/") + "/graphql"
    answer = json.loads(post(url, {"query": query, "variables": values}, Authorization=f"Basic {key}"))
    if answer.get("errors"):
        raise OSError(str(answer["errors"])[:500])


def github() -> None:
    place = ""
    exception = (json.loads(Path(TOLD["DDP_RUN_VERDICT"]).read_text())["first_failure"] or {}).get("exception")
    if FAILED and exception and exception["file"] and exception["line"]:
        file = os.path.relpath(exception["file"], TOLD.get("GITHUB_WORKSPACE", "."))
        place = f"file={property_of(file)},line={exception['line']},"
    level = "error" if FAILED else "notice"
    print(f"::{level} {place}title={property_of(title())}::{data_of(chr(10).join(lines()))}", flush=True)
    with open(needed("GITHUB_STEP_SUMMARY"), "a", encoding="utf-8") as summary:
        summary.write(f"\n<pre>{html.escape(chr(10).join([title(), *lines()]))}</pre>\n")


def data_of(text: str) -> str:
    """As GitHub's own actions/toolkit does it (packages/core/src/command.ts)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def property_of(text: str) -> str:
    return data_of(text).replace(":", "%3A").replace(",", "%2C")


SERVICES = {each.__name__: each for each in (slack, discord, teams, email, wandb, github)}


def main() -> None:
    signal.alarm(ALL_S)
    if len(sys.argv) != 2 or sys.argv[1] not in SERVICES or "DDP_RUN_OUTCOME" not in TOLD:
        sys.exit(f"notify.py: give it to ddp-run as --on-failure or --on-end, with one of: {', '.join(SERVICES)}")
    if said("NODE_RANK") in ("", "0"):
        try:
            SERVICES[sys.argv[1]]()
        except Exception as error:  # a traceback, or the text of an invalid URL, would show the webhook
            why = f": {error}" if isinstance(error, OSError) else ""
            sys.exit(f"notify.py: {sys.argv[1]} was not told: {type(error).__name__}{why}")


if __name__ == "__main__":
    main()
