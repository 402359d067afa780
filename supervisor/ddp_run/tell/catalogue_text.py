"""The catalogue of causes as text: one cause's page, the list of all. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from ddp_run.judge.catalogue import Cause
from ddp_run.judge.verdict import Retry

_AGAINST_HOST = {
    "once": "Counts against the host: `ddp-run hosts` proposes to exclude it.",
    "repeated": "Counts against the host: `ddp-run hosts` proposes to exclude it after several such runs there.",
}
HEADINGS = ("## What happened", "## How to recognise it", "## What to do")
_LINK = re.compile(r"\[([^\]]{1,200})\]\([^)]{1,300}\)")


def retry_text(retry: Retry) -> str:
    """Whether retrying helps, and why: `retrying won't help: same code, same data`."""
    helps = "can help" if retry.helps else "won't help"
    return f"retrying {helps}: {retry.reason}"


def page(cause: Cause) -> str:
    """One cause's page in Markdown, from its rule and docstring. Raises ValueError if a section is missing."""
    rule = cause.rule
    title, _, body = cause.text.strip().partition("\n")
    missing = [heading for heading in HEADINGS if heading not in body]
    if missing:
        raise ValueError(f"the rule {rule.name} has no section {', '.join(missing)}")
    for heading in HEADINGS:
        body = body.replace(f"\n{heading}\n", f"\n\n{heading}\n\n")
    retry = retry_text(rule.retry)
    facts = [f"Code {rule.code} · name `{rule.name}` · since {rule.since}", "", f"{retry[0].upper()}{retry[1:]}."]
    facts += _facts(cause)
    facts += [f"Wins over [{name}]({name}.md): {reason}." for name, reason in rule.wins_over]
    return "\n".join([f"# {title.removesuffix('.')}", "", *facts, "", body.strip("\n"), ""])


def plain_page(cause: Cause, width: int) -> str:
    """One cause's page for a terminal: without Markdown's links and headings, paragraphs as wide as the terminal."""
    title, _, body = cause.text.strip().partition("\n")
    head = [title.removesuffix("."), f"{cause.rule.code}, {cause.rule.name}; {retry_text(cause.rule.retry)}"]
    head += [fact.replace("`", "") for fact in _facts(cause)]
    return "\n".join([*(textwrap.fill(line, width) for line in head), *_plain(body, width), ""])


def _facts(cause: Cause) -> Iterator[str]:
    if cause.rule.consequence:
        yield "A rank with only this cause is a consequence of another rank's failure."
    if cause.rule.host is not None:
        yield _AGAINST_HOST[cause.rule.host]


def _plain(body: str, width: int) -> Iterator[str]:
    """A page's sections: headings without their marks, links as their text, columns as they are."""
    for section in re.split(r"^## ", _LINK.sub(r"\1", body), flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        yield f"\n{heading}"
        for block in text.strip("\n").split("\n\n"):
            yield from _blocks(block, width)


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


def search(causes: Sequence[Cause], words: Sequence[str]) -> tuple[list[Cause], str]:
    """Find the causes with all the words in their names and titles, or else in their pages. Also says which."""
    wanted = [word.lower() for word in words]

    def contains(text: str) -> bool:
        return all(word in text.lower() for word in wanted)

    titled = [cause for cause in causes if contains(f"{cause.rule.name} {cause.rule.title}")]
    if titled:
        return titled, "names and titles"
    return [cause for cause in causes if contains(cause.text)], "pages"


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
        "layer": rule.layer.name.lower(),
        "wins_over": dict(rule.wins_over),
        "since": rule.since,
        "page": page(cause),
    }
