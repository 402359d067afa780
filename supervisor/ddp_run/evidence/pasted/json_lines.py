"""Converts records to the programs' lines: records of container runtimes and collectors, fields of loggers. Pure.

Forms: docker's `{"log": …, "stream": …}`; a collector's record of each line (`message`, `textPayload`); a logger's
record whose field contains a traceback; SageMaker's report of a job, which quotes the program's exception in a line.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ddp_run.evidence.traceback_text import HEADER

_QUOTES = 'ErrorMessage "'
_KEYS = ("log", "message", "msg", "textPayload", "line", "text", "data", "body", "event")
"""Fields in which collectors and loggers put the text."""
_LEVELS = ("level", "levelname", "severity", "lvl")
"""A logger's record has one of them. A collector's holds a line that is complete."""
_DEEPEST = 4
"""Nested records."""
_MOSTLY = 0.9
_FEW = 5
_SAMPLE = 200
_RANK = re.compile(r"[0-9]{1,9}")
_DOCKERS = re.compile(r'\{"log": ?"(?P<text>(?:[^"\\\n]|\\.){1,100000})\\?')
_A_TIME = 1_000_000_000
"""In seconds since 1970: later than 2001."""
_TELLS = ("rror", "xception", HEADER)
"""Words in a field that adds information to the line itself."""


def key_of(lines: Sequence[str]) -> str | None:
    """Return the field with the text, if nearly all lines are records with one; else None."""
    said = [line for line in lines if line and not line.isspace()][-_SAMPLE:]
    if len(said) < _FEW or sum(1 for line in said if line.startswith("{")) < _MOSTLY * len(said):
        return None
    records = [record for line in said if (record := _record(line)) is not None]
    held = Counter(key for record in records for key in _KEYS if isinstance(record.get(key), str))
    return next((key for key in _KEYS if held[key] >= _MOSTLY * len(said)), None)


def unfolded(line: str, key: str | None = None) -> list[str]:
    """Return the lines in a JSON line: the text of `key` or docker's `log`; a field's traceback follows its record."""
    if _QUOTES in line:
        before, _, quoted = line.partition(_QUOTES)
        message, _, command = quoted.partition('" Command "')
        return [before, message.removesuffix('"'), *([command] if command else [])]
    if not line.startswith("{") or (key is None and '"log":' not in line and HEADER not in line):
        return [line]
    record = _record(line) or _cut_off(line)
    if record is None:
        return [line]
    own = key if key is not None else "log" if "stream" in record else None
    text = record.get(own) if own is not None else None
    if not isinstance(text, str):
        return [line, *_within(record, (HEADER,))]
    others = {name: value for name, value in record.items() if name != own}
    first, *rest = text.removesuffix("\n").split("\n")
    counts = _counts(others) if any(name in record for name in _LEVELS) else ()
    said = [" ".join([first, *counts]), *rest, *_within(others, _TELLS)]
    rank = None if first.startswith("[") else _rank(record)
    return said if rank is None else [f"[rank{rank}]: {each}" for each in said]


def _rank(record: dict[str, object]) -> str | None:
    """Return the rank that a record names, or its labels: collectors write them as texts."""
    named = [record, *(value for value in record.values() if isinstance(value, dict))]
    ranks = [str(each["rank"]) for each in named if type(each.get("rank")) in (int, str)]
    return next((rank for rank in ranks if _RANK.fullmatch(rank)), None)


def _counts(fields: dict[str, object]) -> Iterator[str]:
    """Yield the numbers that a logger writes beside its text, such as `step=400`: no times, and nobody's rank."""
    for name, value in fields.items():
        counts = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _A_TIME
        if counts and name != "rank":
            yield f"{name}={value}"


def _record(line: str) -> dict[str, object] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _cut_off(line: str) -> dict[str, object] | None:
    """Return docker's record of a line that is cut off within its text."""
    hit = _DOCKERS.fullmatch(line)
    return None if hit is None else _record(f'{{"log": "{hit["text"]}", "stream": ""}}')


def _within(record: object, words: Sequence[str]) -> list[str]:
    """Yield the lines of the record's texts that contain one of the words."""
    texts = (text for text in _texts(record, _DEEPEST) if any(word in text for word in words))
    return [part for text in texts for part in text.splitlines()]


def _texts(record: object, deepest: int) -> Iterator[str]:
    if isinstance(record, str):
        yield record
    elif isinstance(record, dict | list) and deepest:
        for each in record.values() if isinstance(record, dict) else record:
            yield from _texts(each, deepest - 1)
