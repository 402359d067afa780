"""`ddp-run rules`: the catalogue of causes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ddp_run.values.lines import neutral_text
from ddp_run.values.terminal import columns

if TYPE_CHECKING:
    from ddp_run.judge.verdict import Rule


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD…]")
@click.option("--json", "as_json", is_flag=True, help="Print the causes as JSON.")
def command(words: tuple[str, ...], as_json: bool) -> int:
    """Print causes of failures: all, one, or those that match a word.

    Without WORD, all causes. With a name or a code, everything about that cause. With other words, the causes whose
    names, titles or pages contain them.
    """
    from ddp_run.judge import catalogue
    from ddp_run.tell import catalogue_text

    causes = catalogue.catalogue()
    one = next((each for each in causes if words[:1] and words[0].lower() in _names(each.rule)), None)
    if one is not None and len(words) == 1:
        text = json.dumps(catalogue_text.as_json(one), indent=2) + "\n" if as_json else ""
        click.echo(text or catalogue_text.plain_page(one, columns()), nl=False)
        return 0
    found = catalogue_text.search(causes, words)
    if not found:
        raise click.UsageError(_no_cause(words, [name for each in causes for name in _names(each.rule)]))
    if len(found) == 1 and not as_json:
        text = neutral_text(" ".join(words))
        click.echo(f"ddp-run: no cause is called {text!r}; found in the page of {found[0].rule.name}:", err=True)
    if as_json:
        click.echo(json.dumps([catalogue_text.as_json(each) for each in found], indent=2))
    elif len(found) == 1:
        click.echo(catalogue_text.plain_page(found[0], columns()), nl=False)
    else:
        click.echo(catalogue_text.listing(found), nl=False)
    return 0


def _names(rule: Rule) -> tuple[str, str]:
    return rule.name, rule.code.lower()


def _no_cause(words: tuple[str, ...], names: list[str]) -> str:
    from difflib import get_close_matches

    text = " ".join(words)
    near = get_close_matches(text.lower(), names, n=1)
    return f"no cause {text!r}" + (f"; did you mean {near[0]!r}?" if near else "; ddp-run rules lists all")
