"""`ddp-run stacks`: where every rank of a running job is now."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ddp_run.commands import log_dir_option
from ddp_run.values.lines import neutral

if TYPE_CHECKING:
    from ddp_run.observe.close_look import CloseLook
    from ddp_run.observe.from_outside import StackGroup
    from ddp_run.record.job_state import JobState


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--native", is_flag=True, help="Also show native frames, of one rank per stack, which py-spy pauses.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@log_dir_option
def command(run: str | None, native: bool, as_json: bool, log_dir: str | None) -> int:
    """Show where each rank of a running job is: its Python stack, equal ones as one.

    RUN is a run's folder, or its name in the folder of runs; without RUN, the newest that is running. Each rank's own
    thread of ddp-run writes the stacks, so no rank is stopped. They are of the main threads; live_stacks.txt in a
    rank's folder has all threads. Of a run that is over, this shows the last stacks that were recorded. --native needs
    py-spy, and the right to trace the ranks (root, or kernel.yama.ptrace_scope=0).
    """
    from ddp_run.observe.from_outside import look_now, recorded
    from ddp_run.plan.checks.log_folder import runs_folder
    from ddp_run.record import file_names, journal, own_process
    from ddp_run.record.job_state import JobState
    from ddp_run.record.runs_meant import run_to_look_at

    state, chosen = JobState(), run_to_look_at(run, runs_folder(log_dir))
    for event in journal.Follower(chosen.folder / file_names.EVENTS).more():
        state.take(event)
    name = neutral(chosen.folder.name)
    if chosen.alive and not own_process.is_mine(chosen.process):
        raise click.ClickException(f"{name} belongs to another user: run ddp-run stacks as that user")
    if chosen.alive and chosen.started is not None:
        at, groups = time.time_ns(), _grouped(look_now(chosen.started, chosen.folder, state.alive))
        groups = [_with_native(each, state) for each in groups] if native else groups
        ended = [f"rank {rank}: {each.phase}" for rank, each in sorted(state.ranks.items()) if each.ended]
    else:
        at, groups = recorded(chosen.folder, (each.started for each in state.ranks.values()))
        ended = []
    if as_json:
        shown = [_as_json(each) for each in groups]
        head = {"run": name, "running": chosen.alive, "attempt": state.attempt, "time": journal.iso(at) if at else None}
        sys.stdout.write(json.dumps({**head, "groups": shown}, indent=2) + "\n")
        return 0
    if not chosen.alive:
        click.echo(f"ddp-run: {name} {chosen.why_not_running('stacks')}", err=True)
        if not groups:
            raise click.ClickException("no stacks of it were recorded")
        click.echo(f"ddp-run: the last stacks that were recorded, {journal.iso(at)}:", err=True)
    elif not groups:
        click.echo(f"ddp-run: no rank of {name} is running now", err=True)
    sys.stdout.write("\n".join("".join(f"{line}\n" for line in _text(each)) for each in groups))
    sys.stdout.write("".join(f"{line}\n" for line in ended))
    return 0


def _grouped(looks: Sequence[CloseLook]) -> list[StackGroup]:
    """The fewest first, as in the report of a hang: they are mostly the ones that matter."""
    from ddp_run.observe.from_outside import StackGroup, frames
    from ddp_run.observe.stall_quotes import alike, groups, ranks_of, what

    found = alike(looks, lambda look: what(look) if look.stack is None else "\n".join(frames(look.stack)))
    members = sorted(found.values(), key=lambda each: (len(each), each[0].rank))
    return [StackGroup(ranks_of(each), groups(each), each[0].stack) for each in members]


def _with_native(group: StackGroup, state: JobState) -> StackGroup:
    """With the native frames of its first rank, or why there are none."""
    from ddp_run.observe.native_stack import native_now

    rank = group.ranks[0]
    return replace(group, notes=(f"rank {rank}, native frames:", *native_now(state.ranks[rank].started.pid)))


def _text(group: StackGroup) -> Iterator[str]:
    from ddp_run.observe.from_outside import shown_frames

    yield neutral(group.said)
    yield from shown_frames(group.stack) if group.stack is not None else ()
    yield from (f"  {neutral(note)}" for note in group.notes)


def _as_json(group: StackGroup) -> dict[str, object]:
    frames = group.stack.frames if group.stack is not None else ()
    return {
        "ranks": group.ranks,
        "said": neutral(group.said),
        "frames": [
            {"file": neutral(frame.file), "line": frame.line, "function": neutral(frame.function)} for frame in frames
        ],
        "native": [neutral(note) for note in group.notes[1:]],
    }
