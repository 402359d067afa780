"""What each rank reads at the paths of `--data-path`: the same everywhere?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_run.doctor.check import Check, Group, Level
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, failed, skipped, warned
from ddp_run.values.words import named_ranks, size_in_words


def _look(around: Surroundings) -> Iterator[Finding]:
    reports = around.reports
    if reports is None or not around.data_paths:
        return
    lowest = min(reports.by_rank, default=0)
    told = [each for each in reports.of("data") if each["rank"] == lowest]
    for each in told:
        yield judged(each["path"], each["ranks"])
    for path in around.data_paths[len(told) :]:
        yield skipped(f"content of {path}", reports.why_not())


def judged(path: str, ranks: Sequence[Mapping[str, Any]]) -> Finding:
    """`ranks`: by rank, the sample's hash or an error."""
    name = f"content of {path}"
    errors = {rank: str(told["error"]) for rank, told in enumerate(ranks) if "error" in told}
    if errors:
        rank, error = next(iter(errors.items()))
        return failed(
            name, f"{named_ranks(errors)} cannot read it", error, f"ls -l {path}   # on the node of rank {rank}"
        )
    by_hash = Counter(str(told["hash"]) for told in ranks)
    usual, count = by_hash.most_common(1)[0]
    files = ranks[0]["files"]
    sample = f"{files} file{'s' if files != 1 else ''}, {size_in_words(ranks[0]['bytes'])} sampled"
    if len(by_hash) == 1:
        return Finding(
            name, f"the same on {'all ' if len(ranks) > 1 else ''}{named_ranks(range(len(ranks)))} ({sample})"
        )
    against = "equal names, sizes and sampled blocks, so that ranks train on the same data"
    helps = f"ls -lR {path} | head; findmnt -T {path}   # on both nodes: another version, or a copy that is not whole"
    if 2 * count <= len(ranks):  # nobody is odd
        of_hash = [[rank for rank, told in enumerate(ranks) if told["hash"] == each] for each in by_hash]
        groups = [f"{each} on {named_ranks(of)}" for each, of in zip(by_hash, of_hash, strict=True)]
        return warned(name, f"differs: {', '.join(groups)}", against, helps)
    odd = [rank for rank, told in enumerate(ranks) if told["hash"] != usual]
    value = f"{named_ranks(odd)} {'read' if len(odd) > 1 else 'reads'} something else than the others"
    return warned(name, value, against, helps)


CHECK = Check(
    "data_on_ranks",
    Group.DATA,
    "Names, sizes and sampled blocks of the first files of each `--data-path`, compared between ranks; warns of ranks"
    " that read something else, fails if one cannot read it.",
    _look,
    Level.DEFAULT,
    of_ranks=True,
)
