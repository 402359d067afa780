"""What the labels before lines say: which number is a rank, and which program is the job. Pure.

`line_prefixes` finds the labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from ddp_run.evidence.pasted.line_prefixes import OF_PROCESS, TORCH_INSIDE, Writer
from ddp_run.record.events import Rank

_NUMBERED_LABEL = re.compile(
    r"(?:\[(?:[a-zA-Z_\-]{0,20}|[\w.\-]{1,60}:)|[\w.\-]{1,80}\[|[a-zA-Z_\-]{1,20}[ =]?)"
    r"(?P<number>\d{1,6})\]?[:|]? {1,4}"
)
"""What programs and launchers put before their lines: `[w3] `, `[host:3] `, `host[3]: `, `Worker 3: `. The number may
be the rank."""
_HOST_AND_NUMBER = re.compile(r"\[[\w.\-]{1,60}:\d{1,6}\] ")
LOGGERS = re.compile(
    r"(?:\| )?"
    r"(?:\[[\w.:,+\- ]{1,40}\] ?|(?:[a-z]{1,8}=)?\d[\d\-:.,TZ]{3,30} (?:[\d:.,]{5,20} )?|\[(?=\d)[\d\-:.,T]{4,30} "
    r"|[A-Z]{4,8}:? {1,4}|[\w.:\-]{1,60} {0,20}\| |[\w.\-]{1,60}: (?=[Rr]ank \d{1,9}: )"
    r"|[a-z]\w{0,20} (?=r\d{1,6} ?\|)|[\w.:\-]{1,80} - |[A-Z]{4,8}:[\w.\-]{1,60}:(?=\[)){1,4}"
    r"(?:[\[(]?[Rr](?:ank|ANK)[ =:]?(?P<rank>\d{1,9})\b(?!-\d)|[\[(]?r(?P<short>\d{1,6})(?:[\])]| ?\|"
    r"| (?=[A-Z]{4,8} )))"
)
"""A rank that a program's logger names behind its time stamp, behind a host, or in a column."""
_NUMBERED_PLACE = re.compile(r"(?<=[\-_])(?P<number>\d{1,6})$")
_NAMED_PLACE = re.compile(r"\b[Rr]ank[ =:_]?(?P<rank>\d{1,6})\b(?!-)")
_ITSELF = re.compile(r"\bRank (?P<ranks>\d{1,6}) successfully reached monitoredBarrier")
"""By gloo, about the rank that writes it."""
_HEAD = ".cpp:"
"""A message of torch's native code names its place, as in `[rank2]:[E319 09:11:23.0 ProcessGroupNCCL.cpp:552]`."""
_GOES_ON = re.compile(r"nccl\w{1,40}: |Last error:|Exception raised from |frame #\d{1,4}:")
"""Its further lines, which have no label."""
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
    nameless = [index for index, each in enumerate(by) if not (each.ranks or each.agent)]
    places = {by[k].place for k in nameless}
    said = {place: int(hit["rank"]) for place in places if place and (hit := _NAMED_PLACE.search(place))}
    said |= _alone_there(by) if places != {None} else {}
    named = [
        index
        for index, text in enumerate(texts)
        if text.find("[rank") > (0 if by[index].place is None else -1) or "successfully reached" in text
    ]
    if not nameless or not (said or named):
        return list(by)
    found = ((index, _label(texts[index], by[index].place or "")) for index in {*named, *nameless})
    labels = {index: label for index, label in found if label is not None}
    beside = {index: labels[index] for index in named if index in labels}
    sure = _ranks(texts, beside, labels.values())
    alone = _of_one_rank(texts, beside)
    given = list(by)
    for index in nameless:
        there, label = said.get(by[index].place or ""), labels.get(index)
        if there is not None:
            given[index] = by[index]._replace(ranks=(Rank(there),))
        elif label is not None and (label.kind in sure or label.text in alone):
            rank = label.number if label.kind in sure else alone[label.text]
            given[index] = by[index]._replace(ranks=(Rank(rank),), start=label.end)
    return given


def _alone_there(by: Sequence[Writer]) -> dict[str, int]:
    """Return the rank of each process that names only one; and that of each pod or host, if ranks 0 and 1 are at
    different ones: each then has one, as ranks are numbered node by node."""
    ranks: dict[str, set[int]] = {}
    for each in by:
        if each.place is not None:
            ranks.setdefault(each.place, set()).update(each.ranks)
    alone = {place: next(iter(named)) for place, named in ranks.items() if len(named) == 1}
    one_each = {0, 1} <= set(alone.values()) and len(set(alone.values())) == len(alone)
    return {place: rank for place, rank in alone.items() if one_each or place.startswith(OF_PROCESS)}


def _of_one_rank(texts: Sequence[str], named: Mapping[int, _Label]) -> dict[str, int]:
    """Return the ranks of labels with a host and a local rank, `[host:3] `, behind which torch names just one rank."""
    ranks: dict[str, set[int]] = {}
    for index, label in named.items():
        hit = TORCH_INSIDE.search(texts[index], max(0, label.end - 1)) if _HOST_AND_NUMBER.match(label.text) else None
        if hit is not None:
            ranks.setdefault(label.text, set()).add(int(hit["ranks"]))
    return {text: only.pop() for text, only in ranks.items() if len(only) == 1}


def _ranks(texts: Sequence[str], named: Mapping[int, _Label], everywhere: Iterable[_Label]) -> set[str]:
    """Return the kinds of labels whose numbers are ranks. `named`: labels of lines in which torch names a rank, too."""
    both: dict[str, set[tuple[int, int]]] = {}
    for index, label in named.items():
        text = texts[index]
        hit = TORCH_INSIDE.search(text, max(0, label.end - 1)) or _ITSELF.search(text, label.end)
        if hit is not None and hit["ranks"].isdigit():
            both.setdefault(label.kind, set()).add((label.number, int(hit["ranks"])))
    spelt: dict[str, set[tuple[int, str]]] = {}
    for label in everywhere:
        spelt.setdefault(label.kind, set()).add((label.number, label.text))
    sure = {kind for kind, pairs in both.items() if all(number == rank for number, rank in pairs)}
    return {kind for kind in sure if len(both[kind]) > 1 or (":" in kind and _differ(spelt[kind]))}


def _differ(spelt: Set[tuple[int, str]]) -> bool:
    return len({number for number, _text in spelt}) == len(spelt)


def _label(text: str, place: str) -> _Label | None:
    """Return a line's label, or the place that it comes from if that has a number."""
    hit = _NUMBERED_LABEL.match(text)
    if hit is not None:
        return _Label(hit[0], _NUMBERS.sub("0", hit[0]), int(hit["number"]), hit.end())
    hit = _NUMBERED_PLACE.search(place) or _NUMBERED_LABEL.match(f"{place} ")
    return None if hit is None else _Label(place, _NUMBERS.sub("0", place), int(hit["number"]), 0)


def ranks_of(text: str, by: Writer) -> tuple[Rank, ...]:
    """Return the ranks of a line, one that only its logger names, too."""
    hit = None if by.ranks else LOGGERS.match(text)
    return by.ranks if hit is None else (Rank(int(hit[hit.lastgroup or "rank"])),)


def continued(texts: Sequence[str], by: Sequence[Writer]) -> list[Writer]:
    """Return the writers; the further lines of a rank's native message, which have no label, are that rank's."""
    given = list(by)
    if not any(_HEAD in text for text in texts):
        return given
    head: Writer | None = None
    reason = False
    for index, text in enumerate(texts):
        if by[index].ranks or by[index].agent:
            head = by[index] if by[index].ranks and _HEAD in text else None
        elif head is not None:
            head = head if reason or _GOES_ON.match(text) else None
            given[index] = given[index] if head is None else by[index]._replace(ranks=head.ranks)
        reason = text.startswith("Last error:")
    return given


def of_the_job(texts: Sequence[str], by: Sequence[Writer]) -> list[Writer]:
    """Return the writers; of several programs that one script or compose file runs, if one trains, and fails or goes on
    training, what the others write doesn't speak for it."""
    hits = {place: hit for place in {each.place for each in by} if place and (hit := _PROGRAMS_NAME.match(place))}
    names = {place: hit["name"] or hit["service"] for place, hit in hits.items()}
    if len(set(names.values())) < 2:
        return list(by)
    programs = [names.get(each.place or "", "") for each in by]
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
