"""The catalogue of causes: discovers every file in `rules/`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from re import Pattern
from types import ModuleType

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge import rules
from ddp_run.judge.signs import Sign
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule
from ddp_run.record.events import ExceptionInfo

NAMELESS = Rule(
    code="DDP000",
    name="unknown",
    title="Unknown cause",
    layer=Layer.UNEXPLAINED,
    retry=Retry(helps=True, reason="the cause is unknown"),
)
"""Used when no rule matches."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One rule of the catalogue and its matchers: for a rank's death, for a launch, for a request to stop."""

    rule: Rule
    match: Callable[[Death, Evidence], Finding | None] | None = None
    match_launch: Callable[[Evidence], Finding | None] | None = None
    match_stop: Callable[[Evidence], Finding | None] | None = None
    signs: tuple[Sign, ...] = ()
    """The words that it searches logs for, if any."""
    symptoms: tuple[Sign, ...] = ()
    """What a piece of a log may show of it, and nothing else; searched for in the piece's last lines."""
    frames: Pattern[str] | None = None
    """What matches `file function` of a frame in which this cause is the most common failure."""
    text: str = ""
    """Its documentation: what happened, how to recognise it, what to do."""


def rule_modules() -> Iterator[str]:
    """Load the rule modules one by one and yield the name of each. `load` reports broken ones."""
    for name in _names():
        with suppress(Exception):
            _module(name)
        yield name


@cache
def _names() -> list[str]:
    return [found.name for found in pkgutil.iter_modules(rules.__path__)]


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{rules.__name__}.{name}")


def _cause(file_name: str) -> Cause:
    module = _module(file_name)
    asked = {name: getattr(module, name, None) for name in rules.QUESTIONS}
    signs, symptoms = getattr(module, "SIGNS", ()), getattr(module, "SYMPTOMS", ())
    frames, text = getattr(module, "FRAMES", None), module.__doc__ or ""
    return Cause(module.RULE, **asked, signs=signs, symptoms=symptoms, frames=frames, text=text)


@cache
def load() -> tuple[tuple[Cause, ...], tuple[str, ...]]:
    """Return the catalogue, sorted by code, and a note for each file in `rules/` that failed to load."""
    causes: list[Cause] = []
    notes: list[str] = []
    for file_name in _names():
        try:
            causes.append(_cause(file_name))
        except Exception as error:
            notes.append(f"rule {file_name} failed to load: {type(error).__name__}: {error}")
    return tuple(sorted(causes, key=lambda cause: cause.rule.code)), tuple(notes)


def catalogue() -> tuple[Cause, ...]:
    """Return all causes, sorted by code."""
    return load()[0]


def cause_named(name: str | None) -> Cause | None:
    """Return the cause with that name, without loading the others; None if there's none, or its file is broken."""
    file_name = (name or "").replace("-", "_")
    with suppress(Exception):
        if file_name in _names() and (cause := _cause(file_name)).rule.name == name:
            return cause
    return None


def rule_named(name: str | None, causes: Iterable[Cause] | None = None) -> Rule | None:
    """Return the rule of the cause with that name; None if the catalogue (or `causes`) does not have it."""
    if causes is None:
        cause = cause_named(name)
        return None if cause is None else cause.rule
    return next((cause.rule for cause in causes if cause.rule.name == name), None)


@cache
def sign_words() -> tuple[str, ...]:
    """Return all signs that rules search logs for."""
    return tuple(sorted({sign.words for cause in catalogue() for sign in cause.signs}))


def follows_another(exception: ExceptionInfo) -> bool:
    """Whether the catalogue treats this exception as a consequence of another rank's failure."""
    death = Death(rank=None, code=1, exception=exception)
    return any(
        cause.match(death, Evidence(deaths=(death,))) is not None
        for cause in catalogue()
        if cause.rule.consequence and cause.match is not None
    )
