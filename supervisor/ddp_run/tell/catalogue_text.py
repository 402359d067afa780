"""The catalogue of causes as text: one cause's page, the list of all. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from ddp_run.judge.catalogue import Cause

_AGAINST_HOST = {
    "once": "Counts against the host: `ddp-run hosts` proposes to exclude it.",
    "repeated": "Counts against the host: `ddp-run hosts` proposes to exclude it where several runs had this there.",
}
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
        facts.append("A rank with only this cause is a consequence of another rank's failure.")
    if rule.host is not None:
        facts.append(_AGAINST_HOST[rule.host])
    if rule.supersedes:
        facts.append("Supersedes: " + ", ".join(f"[{name}]({name}.md)" for name in rule.supersedes) + ".")
    return "\n".join([f"# {title.removesuffix('.')}", "", *facts, "", body.strip("\n"), ""])


def plain_page(cause: Cause, width: int) -> str:
    """One cause's page for a terminal: no links or headings of Markdown, paragraphs as wide as the terminal."""
    rule = cause.rule
    title, _, body = cause.text.strip().partition("\n")
    helps = "can help" if rule.retry.helps else "does not help"
    lines = [title.removesuffix("."), f"{rule.code}, {rule.name}; a retry {helps}: {rule.retry.reason}"]
    if rule.consequence:
        lines.append("A rank with only this cause is a consequence of another rank's failure.")
    if rule.host is not None:
        lines.append(_AGAINST_HOST[rule.host].replace("`", ""))
    return "\n".join(["\n".join(textwrap.fill(line, width) for line in lines), *_plain(body, width), ""])


def _plain(body: str, width: int) -> Iterator[str]:
    """The blocks of a page: headings without their marks, links as their text, what stands in columns as it is."""
    text = _LINK.sub(r"\1", body)
    for heading, lines in _sections(text):
        yield f"\n{heading}"
        for block in "\n".join(lines).strip("\n").split("\n\n"):
            yield from _blocks(block, width)


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    heading, lines = "", list[str]()
    for line in text.split("\n"):
        if line.startswith("## "):
            if heading:
                yield heading, lines
            heading, lines = line.removeprefix("## "), []
        else:
            lines.append(line)
    yield heading, lines


def _blocks(block: str, width: int) -> Iterator[str]:
    """A paragraph, or the points of a list, each filled; code and tables stay as they are."""
    if block.lstrip().startswith(("|", "```")) or "```" in block or block.startswith("    "):
        yield textwrap.indent(block, "  ")
        return
    for point in re.split(r"\n(?=(?:\d+\.|-) )", block):
        hanging = "     " if re.match(r"\d+\. ", point) else "    " if point.startswith("- ") else "  "
        yield textwrap.fill(
            " ".join(point.split()),
            width,
            initial_indent="  ",
            subsequent_indent=hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )


_LINK = re.compile(r"\[([^\]]{1,200})\]\([^)]{1,300}\)")


def search(causes: Iterable[Cause], words: Sequence[str]) -> list[Cause]:
    """Causes that hold all the words, in their names and titles; where none does so, anywhere in their pages."""
    wanted = [word.lower() for word in words]

    def found(text: Callable[[Cause], str]) -> list[Cause]:
        return [each for each in listed if all(word in text(each).lower() for word in wanted)]

    listed = list(causes)
    return found(lambda each: f"{each.rule.name} {each.rule.title}") or found(lambda each: each.text)


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
        "host": rule.host,
        "supersedes": list(rule.supersedes),
        "since": rule.since,
        "page": page(cause),
    }
