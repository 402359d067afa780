"""The catalogue of causes as text: one cause's page, the list of all. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ddp_run.diagnose import Cause

HEADINGS = ("## What happened", "## How to recognise it", "## What to do")


def page(cause: Cause) -> str:
    """One cause's page in Markdown, from its rule and its module's docstring. Raises ValueError without a section."""
    rule = cause.rule
    title, _, body = cause.text.strip().partition("\n")
    missing = [heading for heading in HEADINGS if heading not in body]
    if missing:
        raise ValueError(f"the rule {rule.name} has no section {', '.join(missing)}")
    for heading in HEADINGS:
        body = body.replace(f"\n{heading}\n", f"\n\n{heading}\n\n")
    helps = "can help" if rule.retry.helps else "does not help"
    facts = [
        f"Code {rule.code} · name `{rule.name}` · since {rule.since}",
        "",
        f"A retry {helps}: {rule.retry.reason}.",
    ]
    if rule.consequence:
        facts.append("A rank that shows only this followed another's failure.")
    if rule.beats:
        facts.append("Wins over: " + ", ".join(f"[{name}]({name}.md)" for name in rule.beats) + ".")
    return "\n".join([f"# {title.removesuffix('.')}", "", *facts, "", body.strip("\n"), ""])


def index(causes: Iterable[Cause]) -> str:
    """The list of all causes as a Markdown table with links to their pages."""
    rows = [f"| {c.rule.code} | [{c.rule.name}]({c.rule.name}.md) | {c.rule.title} | {_retry(c)} |" for c in causes]
    head = ["| code | name | what happened | can a retry help? |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows, ""])


def listing(causes: Iterable[Cause]) -> str:
    """The list of all causes for a terminal, in columns."""
    rows = [(c.rule.code, c.rule.name, f"retry: {_retry(c)}", c.rule.title) for c in causes]
    width = max((len(name) for _, name, _, _ in rows), default=0)
    return "".join(f"{code}  {name:<{width}}  {retry:<10}  {title}\n" for code, name, retry, title in rows)


def _retry(cause: Cause) -> str:
    return "yes" if cause.rule.retry.helps else "no"


def as_json(cause: Cause) -> dict[str, object]:
    """One cause as data."""
    rule = cause.rule
    return {
        "code": rule.code,
        "name": rule.name,
        "title": rule.title,
        "retry": {"helps": rule.retry.helps, "reason": rule.retry.reason},
        "consequence": rule.consequence,
        "beats": list(rule.beats),
        "since": rule.since,
        "page": page(cause),
    }
