"""README.txt of a bundle: what is in it, what is not and why, and what was removed. Names and kinds, never values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_run.commands.bundle.packing import Contents, Packed
from ddp_run.values.lines import neutral_text
from ddp_run.values.words import size_in_words

_MOST_LINES = 1000
LOOK = "Look through it before you post it: ddp-run removes secrets that it knows by name or by form, and nothing else."


def readme(title: str, state: Sequence[str], contents: Contents) -> str:
    """The text; `state`: sentences on the run."""
    lines = [title, "=" * len(title), "", *state, LOOK, ""]
    lines += ["Files", "-----", *map(_file, contents.files), ""]
    lines += ["Left out", "--------", *(f"{each.name}: {each.why}" for each in contents.left_out), ""]
    lines += [
        "Removed secrets",
        "---------------",
        "Each is replaced by [redacted]; plan.json, events.jsonl and verdict.json were written without any.",
        *(f"{kind}: {count} {'line' if count == 1 else 'lines'}" for kind, count in contents.removed.items()),
        *([] if contents.removed else ["None was found."]),
        "",
        *_places(contents.files),
        "What only you can add",
        "---------------------",
        "- what changed since it last worked",
        "- the size of the dataset, and what one step does",
        "- what the same job does with one process, with two ranks, on one node",
    ]
    return neutral_text("\n".join(lines) + "\n")


def _file(packed: Packed) -> str:
    part = f": {packed.left_out}" if packed.left_out else ""
    return f"{packed.name} ({size_in_words(packed.size)}){part}"


def _places(files: Sequence[Packed]) -> Iterator[str]:
    """`file:lines kind` of the copies here; neighbouring lines of one kind as one."""
    told = 0
    for packed in files:
        for first, last, kind in _spans(packed.removed.lines):
            if told == _MOST_LINES:
                yield "and further ones"
                yield ""
                return
            told += 1
            yield f"{packed.name}:{first if first == last else f'{first}-{last}'} {kind}"
    if told:
        yield ""


def _spans(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, int, str]]:
    held: tuple[int, int, str] | None = None
    for line, kind in lines:
        if held is not None and held[2] == kind and line <= held[1] + 1:
            held = held[0], line, kind
            continue
        if held is not None:
            yield held
        held = line, line, kind
    if held is not None:
        yield held
