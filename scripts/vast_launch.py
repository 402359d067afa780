#!/usr/bin/env python3
"""Rents one instance at Vast.ai, runs one training in it with ddp-run, and exits with the training's own exit code.

    vast_launch.py launch --config launch.toml --num-gpus 2 --dry-run     # show what would be sent; nothing is sent
    vast_launch.py launch --config launch.toml --num-gpus 2 --auto-shutdown
    vast_launch.py follow INSTANCE                                        # again, after Ctrl-C

Needs Python 3.11 and the vendor's client (pip install vastai; vastai set api-key ...). See docs/vast.md.

Exit codes: the training's own; 2 wrong options or configuration; 69 no offer fits, or Vast.ai refused; 75 the instance
did not start, is gone, or its result is not known; 127 there is no vastai; 128+N told to stop by signal N.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "supervisor")]

from vast_launcher import launching, saying  # noqa: E402
from vast_launcher.client import Client, ClientError  # noqa: E402
from vast_launcher.config import ENDS  # noqa: E402
from vast_launcher.ending import conclude, goes_on, never_ran  # noqa: E402
from vast_launcher.saying import Failed, Stopped, tell  # noqa: E402
from vast_launcher.watching import Watch  # noqa: E402


def launch(arguments: argparse.Namespace) -> int:
    planned = launching.plan(
        arguments.config,
        arguments.num_gpus,
        on_end=arguments.on_end,
        auto_shutdown=arguments.auto_shutdown,
        destroy_on_failure=arguments.destroy_on_failure,
    )
    if arguments.dry_run:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader may leave: nothing is rented
        launching.show_plan(planned)
        return 0
    client = make_client()
    offers = launching.choose(client, planned)
    with saying.stops_put_off() as stops:
        id, offer = launching.rent(client, planned, offers)
    began = time.monotonic()
    tell(f"rented instance {id}, ${offer.price:.3f}/h; label {planned.label}")
    watch = Watch(client, id, planned.launch_id, arguments.poll, tell, saying.show)
    try:
        for signum in stops:
            raise Stopped(signum)
        never = watch.until_running(planned.config.start_within_s)
        if never is not None:
            return never_ran(watch, never, keep=planned.on_end == "keep", price=offer.price)
        return conclude(watch, watch.until_finished(), offer.price, began)
    except BaseException as end:
        tell(f"{ending_by(end)}; {goes_on(id, offer.price, time.monotonic() - began)}")
        raise


def follow(arguments: argparse.Namespace) -> int:
    client = make_client()
    try:
        here = client.show(arguments.instance)
    except ClientError as error:
        raise Failed(saying.LOST, str(error)) from None
    if here is None:
        raise Failed(saying.LOST, f"there is no instance {arguments.instance}")
    if not here.label.startswith(launching.LABEL):
        raise Failed(saying.USAGE, f"instance {here.id} was not rented by this script: its label is {here.label!r}")
    began = time.monotonic()
    launch_id = here.label.removeprefix(launching.LABEL)
    watch = Watch(client, here.id, launch_id, arguments.poll, tell, saying.show)
    try:
        return conclude(watch, watch.until_finished(), here.price, began)
    except BaseException as end:
        tell(f"{ending_by(end)}; {goes_on(here.id, here.price)}")
        raise


def ending_by(end: BaseException) -> str:
    return "told to stop" if isinstance(end, Stopped) else f"internal error ({type(end).__name__})"


def make_client() -> Client:
    if shutil.which("vastai") is None:
        raise Failed(saying.NO_CLIENT, "there is no vastai on PATH: pip install vastai; vastai set api-key YOUR_KEY")
    return Client(os.environ)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, above 0 and below 3600")
    return number


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("launch", help="rent an instance, run the training, exit with its code")
    one.add_argument("--config", required=True, metavar="FILE", help="what to rent and run, TOML; see docs/vast.md")
    one.add_argument("--num-gpus", required=True, type=positive, metavar="N", help="GPUs of the instance")
    one.add_argument("--on-end", choices=ENDS, help="what becomes of the instance after the run; default: keep")
    one.add_argument("--auto-shutdown", action="store_true", help="stop it, where no on_end says otherwise")
    one.add_argument(
        "--destroy-on-failure",
        action="store_true",
        help="with on_end destroy: even if the logs of a failed run were not uploaded; otherwise it is stopped then",
    )
    one.add_argument("--dry-run", action="store_true", help="show what would be sent, secrets hidden; send nothing")
    one.set_defaults(run=launch)
    again = commands.add_parser("follow", help="follow an instance that launch has rented; exit with its code")
    again.add_argument("instance", type=positive, metavar="INSTANCE")
    again.set_defaults(run=follow)
    for each in (one, again):
        each.add_argument("--poll", type=seconds, default=10.0, metavar="SECONDS", help="between two looks (10)")
    return whole


def main() -> int:
    arguments = parser().parse_args()
    for signum in saying.STOPS:
        signal.signal(signum, saying.on_stop)
    try:
        return int(arguments.run(arguments))
    except Failed as failed:
        for line in failed.lines:
            tell(line)
        return failed.code
    except Stopped as stopped:
        return 128 + stopped.signum


if __name__ == "__main__":
    sys.exit(main())
