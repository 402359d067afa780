"""`ddp-run watch`: a running job from another terminal."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ddp_run.commands import log_dir_option

if TYPE_CHECKING:
    from rich.live import Live

    from ddp_run.commands.explain.answer import Answer
    from ddp_run.commands.watch.look import WatchedJob
    from ddp_run.tell.snapshot import Snapshot

_LOOK_S = 1.0
_PLAIN_LOOKS = 10
"""Without a terminal that can be redrawn, every tenth look is printed."""
_ALL_ROWS = 1 << 20


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--once", is_flag=True, help="Print it once.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a second, one per line.")
@log_dir_option
def command(run: str | None, once: bool, as_json: bool, log_dir: str | None) -> int:
    """Watch a running job: each rank's phase, step, rate, memory and last line.

    RUN is a run's folder, or its name in the folder of runs; without RUN, the newest that is running. Ranks that show
    the same share a row. Only reads what is there, so it can't disturb the job. When the run ends, this prints the
    verdict and exits with the run's exit code; q or Ctrl-C leave before (exit code 130). A pipe gets a frame every
    10 s. Other nodes' ranks are shown too if their folders are beside this one; those figures may be a minute old.
    """
    from ddp_run.commands.watch.look import WatchedJob
    from ddp_run.plan.checks.log_folder import runs_folder
    from ddp_run.record.runs_meant import run_to_look_at

    watched = WatchedJob(run_to_look_at(run, runs_folder(log_dir)))
    drawn = os.isatty(1) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown") and not (once or as_json)
    try:
        last = _on_screen(watched) if drawn else _printed(watched, once, as_json)
    finally:
        watched.close()
    return _show_end(last, as_json) if watched.over else 0


def _printed(watched: WatchedJob, once: bool, as_json: bool) -> Snapshot:
    """Objects, or now and then a frame with all rows; returns the last snapshot."""
    from rich.console import Console

    from ddp_run.tell.watch_frame import Frame
    from ddp_run.values.terminal import columns

    console = Console(highlight=False, color_system=None, width=None if os.isatty(1) else columns())
    looks = 0
    while True:
        shown = watched.look()
        if as_json:
            answer = _end(shown)[1] if watched.over else None
            verdict = None if answer is None else answer.document
            sys.stdout.write(json.dumps({**shown.as_json(), "verdict": verdict}) + "\n")
            sys.stdout.flush()
        elif looks % _PLAIN_LOOKS == 0 or watched.over:
            console.print(*([""] if looks else []), Frame(shown, rows=_ALL_ROWS), sep="\n")
        if once or watched.over:
            return shown
        looks += 1
        time.sleep(_LOOK_S)


def _on_screen(watched: WatchedJob) -> Snapshot:
    """One frame that is redrawn, on the terminal's other screen; the last stays. Returns it."""
    from rich.console import Console
    from rich.live import Live

    from ddp_run.tell.watch_frame import Frame

    console, shown = Console(highlight=False), watched.look()
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with _own_terminal(live):
        while not watched.over:
            live.update(Frame(shown), refresh=True)
            typed = select.select([0] if os.isatty(0) else [], [], [], _LOOK_S)[0]
            if typed and os.read(0, 64) in (b"q", b"Q", b""):
                raise KeyboardInterrupt
            shown = watched.look()
    console.print(Frame(shown))
    return shown


@contextmanager
def _own_terminal(live: Live) -> Iterator[None]:
    """What is typed comes at once, and isn't shown; all is as before when a signal ends or stops this process."""
    modes = termios.tcgetattr(0) if os.isatty(0) else None

    def leave(signum: int, _frame: object) -> None:
        live.stop()
        give_back()
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
        signal.signal(signum, leave)  # it was only stopped, and goes on now
        take()
        live.start(refresh=True)

    def take() -> None:
        if modes is not None:
            tty.setcbreak(0)

    def give_back() -> None:
        if modes is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, modes)

    handlers = {signum: signal.signal(signum, leave) for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)}
    take()
    try:
        with live:
            yield
    finally:
        give_back()
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def _show_end(shown: Snapshot, as_json: bool) -> int:
    """Print the verdict; returns the run's exit code."""
    from ddp_run.commands.explain.answer import block_text
    from ddp_run.values.terminal import colour, columns, width_of

    code, answer = _end(shown)
    if answer is None:
        click.echo("ddp-run: it ended before its first attempt", err=True)
    elif not as_json:
        sys.stdout.write("\n" + block_text(answer, width=columns(), colour=colour(sys.stdout), wrap=width_of(1)))
    return code


def _end(shown: Snapshot) -> tuple[int, Answer | None]:
    """The exit code of a run that is over, and its verdict; 1 if neither shows the code."""
    from ddp_run.commands.explain.answer import NotReadable, explain

    try:
        answer = explain((shown.folder,), rank_from_filename=False)
    except NotReadable:
        return (1 if shown.exit_code is None else shown.exit_code), None
    known = (shown.exit_code, answer.verdict.exit_code, 1)
    return next(code for code in known if code is not None), answer
