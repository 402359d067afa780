"""What the labels before lines say: which number is a rank, and which program is the job. Pure.

`line_prefixes` finds the labels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import NamedTuple

from ddp_run.evidence.pasted.line_prefixes import TORCH_INSIDE, Writer
from ddp_run.record.events import Rank

_NUMBERED_LABEL = re.compile(
    r"(?:\[(?:[a-zA-Z_\-]{0,20}|[\w.\-]{1,60}:)|[\w.\-]{1,80}\[|[a-zA-Z_\-]{1,20}[ =]?)"
    r"(?P<number>\d{1,6})\]?[:|]? {1,4}"
)
"""What programs and launchers put before their lines: `[w3] `, `[host:3] `, `host[3]: `, `Worker 3: `. The number may
be the rank."""
_NUMBERED_PLACE = re.compile(r"(?<=[\-_])(?P<number>\d{1,6})$")
_NAMED_PLACE = re.compile(r"\b[Rr]ank[ =:_]?(?P<rank>\d{1,6})\b(?!-)")
_ITSELF = re.compile(r"\bRank (?P<ranks>\d{1,6}) successfully reached monitoredBarrier")
"""By gloo, about the rank that writes it."""
_PROGRAMS_NAME = re.compile(r"\[(?P<name>[a-z_\-]{1,30}?) *\]$|(?P<service>[a-z][\w.\-]{0,100}?)[-_]\d{1,9}$")
_TRAINS = re.compile(r"\bloss(?:_\w{1,20})?\b[ :=]{1,3}[\d.n]")
_NUMBERS = re.compile(r"\d+")


class _Label(NamedTuple):
    """A numbered label. `kind`: without its numbers; `end`: where the line's own text begins."""

    text: str
    kind: str
    number: int
    end: int


def ranked(texts: Sequence[str], by: Sequence[Writer]) -> list[Writer]:
    """Return the writers; lines have the rank that their label says, or that it must mean.

    A number in labels is the rank if torch names just that rank behind labels of this kind: behind two of them, or
    behind one that begins with a host, if no number comes with two hosts.
    """
    labels = [_label(text, each.place or "") for text, each in zip(texts, by, strict=True)]
    named: dict[str, set[tuple[int, int]]] = {}
    spelt: dict[str, set[tuple[int, str]]] = {}
    for text, label in zip(texts, labels, strict=True):
        if label is not None:
            spelt.setdefault(label.kind, set()).add((label.number, label.text))
            hit = TORCH_INSIDE.search(text, max(0, label.end - 1)) or _ITSELF.search(text, label.end)
            if hit is not None and hit["ranks"].isdigit():
                named.setdefault(label.kind, set()).add((label.number, int(hit["ranks"])))
    sure = {kind for kind, both in named.items() if all(number == rank for number, rank in both)}
    sure = {kind for kind in sure if len(named[kind]) > 1 or (":" in kind and _differ(spelt[kind]))}
    return [
        each if each.ranks or each.agent else _given(each, label, known=label is not None and label.kind in sure)
        for label, each in zip(labels, by, strict=True)
    ]


def _given(each: Writer, label: _Label | None, *, known: bool) -> Writer:
    """Return the writer with the rank that its place says, or its label if these are `known` to say it."""
    said = _NAMED_PLACE.search(each.place or "")
    if said is not None:
        return each._replace(ranks=(Rank(int(said["rank"])),))
    return each._replace(ranks=(Rank(label.number),), start=label.end) if label is not None and known else each


def _differ(spelt: Set[tuple[int, str]]) -> bool:
    return len({number for number, _text in spelt}) == len(spelt)


def _label(text: str, place: str) -> _Label | None:
    """Return a line's label, or the place that it comes from if that has a number."""
    hit = _NUMBERED_LABEL.match(text)
    if hit is not None:
        return _Label(hit[0], _NUMBERS.sub("0", hit[0]), int(hit["number"]), hit.end())
    hit = _NUMBERED_PLACE.search(place) or _NUMBERED_LABEL.match(f"{place} ")
    return None if hit is None else _Label(place, _NUMBERS.sub("0", place), int(hit["number"]), 0)


def of_the_job(texts: Sequence[str], by: Sequence[Writer]) -> list[Writer]:
    """Return the writers; of several programs that one script or compose file runs, if one trains, and fails or goes on
    training, what the others write doesn't speak for it."""
    hits = [_PROGRAMS_NAME.match(each.place or "") for each in by]
    programs = ["" if hit is None else hit["name"] or hit["service"] for hit in hits]
    if len({*programs} - {""}) < 2:
        return list(by)
    trains = {index for index, text in enumerate(texts) if _TRAINS.search(text)}
    of_job = {index for index, each in enumerate(by) if each.ranks or each.agent} | trains
    jobs = {programs[index] for index in of_job} - {""}
    wrong = [index for index, text in enumerate(texts) if "Error" in text]
    last = max((index for index in wrong if programs[index] not in jobs), default=-1)
    fails = any(programs[index] in jobs for index in wrong)
    if len(jobs) != 1 or not (fails or sum(index > last for index in trains) > 1):
        return list(by)
    beside = {index for index, program in enumerate(programs) if program and program not in jobs}
    return [each._replace(agent=True) if index in beside else each for index, each in enumerate(by)]
