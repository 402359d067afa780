"""The paths of `--data-path`: what this host sees there, and whether all ranks read the same."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_run.doctor.check import Group, Surroundings, check
from ddp_run.doctor.findings import Finding, failed, skipped, warned
from ddp_run.values.helper_process import answer_of, fork
from ddp_run.values.words import named_ranks, size_in_words

_LIMIT_S = 1.0


@check(Group.DATA, "data paths")
def data_paths(around: Surroundings) -> Iterator[Finding]:
    """Each `--data-path`: exists, is readable, is not empty; fails if it cannot be read."""
    for path in around.data_paths:
        said = answer_of(fork(lambda fd, path=path: _open(path, fd), _LIMIT_S))  # type: ignore[misc]
        yield opened(path, json.loads(said) if said else None)


def _open(path: Path, fd: int) -> None:
    """Write how opening it ended. Runs in its own process: the server of a mount may be gone."""
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            with os.scandir(path) as entries:
                said = "" if next(entries, None) is not None else "empty"
        else:
            with open(path, "rb") as file:
                said = "" if file.read(1) else "empty"
    except OSError as error:
        said = error.strerror or str(error)
    os.write(fd, json.dumps(said).encode())


def opened(path: Path, said: str | None) -> Finding:
    """Judge how opening a path ended. `said`: `empty`, an error, "" if it's readable, None without an answer."""
    name = f"data {path}"
    if said is None:
        helps = f"timeout 5 ls {path}; mount | grep -E 'nfs|lustre|fuse'"
        return failed(name, "no answer", f"its file system didn't answer in {_LIMIT_S:.0f} s", helps)
    if said == "empty":
        return warned(name, "empty", "is it mounted here?", f"findmnt -T {path}")
    if said:
        return failed(name, said, "the ranks couldn't read it", f"ls -ld {path}; findmnt -T {path}; id")
    return Finding(name, "readable")


@check(Group.DATA, "what each rank reads", of_ranks=True)
def data_on_ranks(around: Surroundings) -> Iterator[Finding]:
    """Names, sizes and sampled blocks of the first files of each `--data-path`, compared between ranks; warns of ranks
    that read different data, fails if one cannot read it."""
    reports = around.reports
    told = [each for each in reports.of("data") if each["rank"] == min(reports.by_rank)]
    for each in told:
        yield compared(each["path"], each["ranks"])
    for path in around.data_paths[len(told) :]:
        yield skipped(f"content of {path}", reports.why_not())


def compared(path: str, ranks: Sequence[Mapping[str, Any]]) -> Finding:
    """Judge what ranks read at a path. `ranks`: a sample's hash, or an error, by rank."""
    name = f"content of {path}"
    errors = {rank: str(told["error"]) for rank, told in enumerate(ranks) if "error" in told}
    if errors:
        rank, error = next(iter(errors.items()))
        helps = f"ls -l {path}   # on the node of rank {rank}"
        return failed(name, f"{named_ranks(errors)} cannot read it", error, helps)
    by_hash = Counter(str(told["hash"]) for told in ranks)
    usual, count = by_hash.most_common(1)[0]
    if len(by_hash) == 1:
        files = f"{ranks[0]['files']} file{'s' if ranks[0]['files'] != 1 else ''}"
        everyone = f"{'all ' if len(ranks) > 1 else ''}{named_ranks(range(len(ranks)))}"
        return Finding(name, f"the same on {everyone} ({files}, {size_in_words(ranks[0]['bytes'])} sampled)")
    on = {each: [rank for rank, told in enumerate(ranks) if told["hash"] == each] for each in by_hash}
    if 2 * count <= len(ranks):  # no majority: no rank is the odd one
        value = f"differs: {', '.join(f'{each} on {named_ranks(of)}' for each, of in on.items())}"
    else:
        odd = [rank for each, of in on.items() if each != usual for rank in of]
        value = f"{named_ranks(odd)} {'read' if len(odd) > 1 else 'reads'} different data from the others"
    against = "names, sizes or sampled blocks differ: ranks would train on different data"
    helps = f"ls -lR {path} | head; findmnt -T {path}   # on both nodes: another version, or an incomplete copy?"
    return warned(name, value, against, helps)
