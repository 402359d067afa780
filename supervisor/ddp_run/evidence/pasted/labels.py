"""What the labels before lines say: which number is a rank, and which program is the job. Pure.

`line_prefixes` finds the labels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddp_run.evidence.pasted.line_prefixes import TORCH_INSIDE, Writer
from ddp_run.record.events import Rank

_NUMBERED_LABEL = re.compile(
    r"(?:\[[a-zA-Z_\-]{0,20}|[\w.\-]{1,80}\[|[a-zA-Z_\-]{1,20}[ =]?)(?P<number>\d{1,6})\]?[:|]? {1,4}"
)
"""What programs and launchers put before their lines: `[w3] `, `host[3]: `, `Worker 3: `; maybe the rank."""
_NUMBERED_PLACE = re.compile(r"(?<=[\-_])(\d{1,6})$")
_ITSELF = re.compile(r"\bRank (?P<ranks>\d{1,6}) successfully reached monitoredBarrier")
"""By gloo, about the rank that writes it."""
_PROGRAMS_NAME = re.compile(r"\[(?P<name>[a-z_\-]{1,30}?) *\]$|(?P<service>[a-z][\w.\-]{0,100}?)[-_]\d{1,9}$")
_TRAINS = re.compile(r"\bloss(?:_\w{1,20})?\b[ :=]{1,3}[\d.n]")
_NUMBERS = re.compile(r"\d+")


def ranked(texts: Sequence[str], by: Sequence[Writer]) -> list[Writer]:
    """Return the writers; lines with a numbered label have its rank if torch names just these ranks behind others of
    its kind, at least two."""
    labels = [_label(text, each) for text, each in zip(texts, by, strict=True)]
    named: dict[str, set[tuple[int, int]]] = {}
    for text, (kind, number, end) in zip(texts, labels, strict=True):
        hit = None if number is None else TORCH_INSIDE.search(text, max(0, end - 1)) or _ITSELF.search(text, end)
        if hit is not None and number is not None and hit["ranks"].isdigit():
            named.setdefault(kind, set()).add((number, int(hit["ranks"])))
    sure = {k for k, both in named.items() if len(both) > 1 and all(number == rank for number, rank in both)}
    return [
        each._replace(ranks=(Rank(number),), start=end)
        if number is not None and kind in sure and not (each.ranks or each.agent)
        else each
        for (kind, number, end), each in zip(labels, by, strict=True)
    ]


def _label(text: str, by: Writer) -> tuple[str, int | None, int]:
    """Return the kind of a line's label, its number, and where the line's own text begins. A place may be one."""
    hit = _NUMBERED_LABEL.match(text)
    if hit is not None:
        return _NUMBERS.sub("0", hit[0]), int(hit["number"]), hit.end()
    of_place = _NUMBERED_PLACE.search(by.place) if by.place is not None else None
    if of_place is None:
        return "", None, 0
    return f"{of_place.string[: of_place.start()]} |", int(of_place[1]), 0


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
