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
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "supervisor")]

from vast_launcher.client import Client, ClientError  # noqa: E402
from vast_launcher.config import ENDS, ConfigError, LaunchConfig, read_config  # noqa: E402
from vast_launcher.offers import Offer, fitting, read_offers, search_words, why_none  # noqa: E402
from vast_launcher.onstart import OnStart, create_words, on_start  # noqa: E402
from vast_launcher.remote_log import Finished  # noqa: E402
from vast_launcher.watching import LOST, Watch  # noqa: E402

from ddp_run.values.lines import neutral  # noqa: E402
from ddp_run.values.redaction import redact  # noqa: E402

USAGE, UNAVAILABLE, NO_CLIENT = 2, 69, 127
LABEL = "ddp-run-"
MOST_OFFERS = 3
"""Offers that are tried: the first may be taken by somebody else meanwhile."""


class Failed(Exception):
    """The end, with a message and an exit code."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__(lines[0])
        self.code = code
        self.lines = lines


class Stopped(BaseException):
    """A signal to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def tell(text: str) -> None:
    """A line of ours, on stderr: stdout has what the training's log says."""
    for line in text.splitlines():
        print(f"vast_launch: {neutral(redact(line))}", file=sys.stderr, flush=True)


def show(line: str) -> None:
    print(neutral(line), flush=True)


# ---------------------------------------------------------------------------------------------- launch


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be rented and run, and what then becomes of the instance."""

    config: LaunchConfig
    gpus: int
    on_start: OnStart
    on_end: str

    @property
    def launch_id(self) -> str:
        return self.on_start.settings["LAUNCH_ID"]

    @property
    def label(self) -> str:
        return LABEL + self.launch_id


def plan(arguments: argparse.Namespace) -> Launch:
    """The launch as asked for. Raises `Failed`."""
    try:
        text = Path(arguments.config).read_text(encoding="utf-8")
        config = read_config(arguments.config, text, os.environ)
    except ConfigError as error:
        raise Failed(USAGE, *error.problems) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(USAGE, f"cannot read {arguments.config}: {error}") from None
    on_end = arguments.on_end or config.on_end
    if arguments.auto_shutdown and on_end == "keep":
        on_end = "stop"
    hook = Path(__file__).with_name("vast_onstart.sh").read_text(encoding="utf-8")
    started = on_start(
        config,
        os.environ,
        hook,
        launch_id=secrets.token_hex(4),
        on_end=on_end,
        destroy_on_failure=arguments.destroy_on_failure,
    )
    try:
        started.packed()
    except ValueError as error:
        raise Failed(USAGE, f"{arguments.config}: {error}") from None
    return Launch(config, arguments.num_gpus, started, on_end)


def dry_run(launch: Launch) -> int:
    search = shlex.join(("vastai", *search_words(launch.config, launch.gpus)))
    create = shlex.join(("vastai", *create_words(launch.config, "OFFER", launch.label, "FILE")))
    size = len(launch.on_start.packed())
    print("Nothing is sent. A launch would search:")
    print(f"    {redact(search)}")
    print("rent the cheapest that fits, by its number for OFFER:")
    print(f"    {redact(create)}")
    print(f"with this on-start script as FILE, packed by gzip and base64 to {size} characters:")
    for line in launch.on_start.shown().splitlines():
        print(f"    {redact(line)}")
    print(f"follow its log until the run ends, and then {launch.on_end} the instance.")
    return 0


def choose(client: Client, launch: Launch) -> list[Offer]:
    """What to rent, the best first. Raises `Failed`."""
    offers = read_offers(client.ask(search_words(launch.config, launch.gpus)))
    fit = fitting(offers, launch.config, launch.gpus)
    if not fit:
        every = read_offers(client.ask(search_words(launch.config, launch.gpus, relaxed=True)))
        raise Failed(UNAVAILABLE, "no offer fits", *why_none(every, launch.config, launch.gpus))
    tell(f"{len(fit)} offers fit; the cheapest is {fit[0]}")
    return fit


def rent(client: Client, launch: Launch, offers: Sequence[Offer]) -> tuple[int, Offer]:
    """The instance and the offer that it came from. Raises `Failed`."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as file:  # readable by its owner only
        file.write(launch.on_start.packed())
        file.flush()
        for offer in offers[:MOST_OFFERS]:
            try:
                return client.create(create_words(launch.config, str(offer.id), launch.label, file.name)), offer
            except ClientError as error:
                tell(f"offer {offer.id} was not rented: {error}")
                if error.refused:
                    continue
                found = after_no_answer(client, launch)
                if found is not None:
                    return found, offer
    raise Failed(UNAVAILABLE, "nothing was rented")


def after_no_answer(client: Client, launch: Launch) -> int | None:
    """Whether the rental was made all the same. Raises `Failed` where not even that can be told."""
    try:
        found = client.labelled(launch.label)
    except ClientError as error:
        raise Failed(
            LOST,
            f"whether an instance was rented is not known: {error}",
            f"look for the label {launch.label}: vastai show instances",
        ) from None
    return found.id if found is not None else None


def launch(arguments: argparse.Namespace) -> int:
    planned = plan(arguments)
    if arguments.dry_run:
        return dry_run(planned)
    client = make_client()
    try:
        offers = choose(client, planned)
    except (ClientError, ValueError) as error:
        raise Failed(UNAVAILABLE, f"cannot search offers: {error}") from None
    with stops_put_off():
        id, offer = rent(client, planned, offers)
    began = time.monotonic()
    tell(f"rented instance {id}, ${offer.price:.3f}/h; label {planned.label}")
    watch = Watch(client, id, planned.launch_id, arguments.poll, tell, show)
    try:
        why = watch.until_running(planned.config.start_within_s)
        if why is not None:
            return never_ran(watch, planned, why, offer.price)
        return conclude(watch, watch.until_finished(), offer.price, began)
    except Stopped:
        tell(f"told to stop; {goes_on(id, offer.price, time.monotonic() - began)}")
        raise


def never_ran(watch: Watch, planned: Launch, why: str, price: float) -> int:
    """There is nothing in it to lose."""
    tell(f"instance {watch.id} did not start: {why}")
    if planned.on_end == "keep":
        tell(goes_on(watch.id, price))
    elif watch.end("destroy"):
        tell(f"instance {watch.id} destroyed: nothing ran in it")
    else:
        tell(f"instance {watch.id} could not be destroyed; {goes_on(watch.id, price)}")
    return LOST


def conclude(watch: Watch, end: Finished | str, price: float | None, began: float) -> int:
    """The exit code, and the end of the instance where that was decided."""
    if isinstance(end, str):
        tell(f"the result of instance {watch.id} is not known: {end}")
        tell(goes_on(watch.id, price))
        return LOST
    spent_s = time.monotonic() - began
    cost = f", about ${price * spent_s / 3600:.2f}" if price is not None else ""
    saved = {"yes": "uploaded", "failed": "upload failed"}.get(end.uploaded, "not uploaded")
    tell(f"the training ended with exit code {end.code} after {spent_s:.0f} s{cost}; run folder {end.folder}: {saved}")
    if end.next == "keep":
        tell(goes_on(watch.id, price))
    elif watch.end(end.next):
        left = " (its disk is kept, and costs; vastai destroy instance ends that)" if end.next == "stop" else ""
        tell(f"instance {watch.id}: {'stopped' if end.next == 'stop' else 'destroyed'}{left}")
    else:
        tell(f"instance {watch.id}: cannot {end.next} it; {goes_on(watch.id, price)}")
    return end.code


def goes_on(id: int, price: float | None, after_s: float | None = None) -> str:
    """What is left, what it costs and what can be done."""
    cost = f" and costs ${price:.3f}/h" if price is not None else " and costs money"
    spent = f" (so far about ${price * after_s / 3600:.2f})" if price is not None and after_s is not None else ""
    return (
        f"instance {id} goes on{cost}{spent}\n"
        f"  follow it:           {shlex.quote(sys.argv[0])} follow {id}\n"
        f"  stop, keep the disk: vastai stop instance {id}\n"
        f"  end, delete all:     vastai destroy instance {id}"
    )


# ---------------------------------------------------------------------------------------------- follow


def follow(arguments: argparse.Namespace) -> int:
    client = make_client()
    try:
        here = client.show(arguments.instance)
    except ClientError as error:
        raise Failed(LOST, str(error)) from None
    if here is None:
        raise Failed(LOST, f"there is no instance {arguments.instance}")
    if not here.label.startswith(LABEL):
        raise Failed(USAGE, f"instance {here.id} has the label {here.label!r}: it is not one of vast_launch.py's")
    began = time.monotonic()
    watch = Watch(client, here.id, here.label.removeprefix(LABEL), arguments.poll, tell, show)
    try:
        return conclude(watch, watch.until_finished(), here.price, began)
    except Stopped:
        tell(f"told to stop; {goes_on(here.id, here.price)}")
        raise


# ------------------------------------------------------------------------------------------- the command


def make_client() -> Client:
    if shutil.which("vastai") is None:
        raise Failed(NO_CLIENT, "there is no vastai on PATH: pip install vastai, then vastai set api-key YOUR_KEY")
    return Client(os.environ)


def on_stop(signum: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped(signum)


STOPS = (signal.SIGINT, signal.SIGTERM)


class stops_put_off:
    """Signals to stop wait until the end of this: a rental that is being made must be known."""

    def __enter__(self) -> None:
        self._came: list[int] = []
        for signum in STOPS:
            signal.signal(signum, lambda number, _frame: self._came.append(number))

    def __exit__(self, *_exc: object) -> None:
        for signum in STOPS:
            signal.signal(signum, on_stop)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 3600:
        raise ValueError
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
    for signum in STOPS:
        signal.signal(signum, on_stop)
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
