"""`ddp-run rules`: the catalogue of causes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddp_run.values.lines import neutral_text
from ddp_run.values.terminal import columns

if TYPE_CHECKING:
    from ddp_run.judge.catalogue import Cause
    from ddp_run.judge.verdict import Rule


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD…]")
@click.option("--json", "as_json", is_flag=True, help="Print the causes as JSON.")
def command(words: tuple[str, ...], as_json: bool) -> int:
    """Print causes of failures: all, one, or those that match a word.

    Without WORD, all causes. With a name or a code, everything about that cause. Other words are searched for in names
    and titles, then in pages.
    """
    from ddp_run.judge import catalogue
    from ddp_run.tell import catalogue_text

    causes = catalogue.catalogue()
    named = [each for each in causes if len(words) == 1 and words[0].lower() in _names(each.rule)]
    found, where = (named, "name") if named else catalogue_text.search(causes, words)
    if not found:
        raise click.ClickException(_no_cause(words, [name for each in causes for name in _names(each.rule)]))
    if as_json:
        objects = [catalogue_text.as_json(each) for each in found]
        click.echo(json.dumps(objects[0] if named else objects, indent=2))
        return 0
    if words and not named:
        click.echo(neutral_text(_searched(words, found, where)), err=True)
    one = len(found) == 1
    click.echo(catalogue_text.plain_page(found[0], columns()) if one else catalogue_text.listing(found), nl=False)
    return 0


def _names(rule: Rule) -> tuple[str, str]:
    return rule.name, rule.code.lower()


def _searched(words: Sequence[str], found: Sequence[Cause], where: str) -> str:
    """`ddp-run: no cause is named 'nosuch'; a search of pages found 'NoSuchKey' in file-not-found:`."""
    hit = f"{len(found)} causes"
    if len(found) == 1:
        rule, text = found[0].rule, f"{found[0].rule.name} {found[0].rule.title} {found[0].text}"
        hits = (re.search(rf"[\w./-]*{re.escape(word)}[\w./-]*", text, re.IGNORECASE) for word in words)
        hit = f"{' '.join(each[0].strip('.') for each in hits if each)!r} in {rule.name}"
    return f"ddp-run: no cause is named {' '.join(words)!r}; a search of {where} found {hit}:"


def _no_cause(words: Sequence[str], names: list[str]) -> str:
    from difflib import get_close_matches

    text = " ".join(words)
    near = get_close_matches(text.lower(), names, n=1)
    return f"no cause matches {text!r}" + (f"; did you mean {near[0]!r}?" if near else "; ddp-run rules lists all")
