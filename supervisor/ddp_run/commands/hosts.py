"""`ddp-run hosts`: which hosts made runs fail."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddp_run.values.lines import neutral_text

if TYPE_CHECKING:
    from ddp_run.judge.bad_hosts import HostRecord

_DAY_S = 86400.0


@click.command()
@click.argument("folder", required=False, metavar="[FOLDER]")
@click.option("--days", type=click.IntRange(1, 3650), default=30, show_default=True, help="How far to look back.")
@click.option("--json", "as_json", is_flag=True, help="Print the hosts as JSON.")
def command(folder: str | None, days: int, as_json: bool) -> int:
    """List hosts suspected of making runs fail.

    FOLDER is where ddp-run records them. It defaults to $DDP_RUN_HOSTS_DIR or $XDG_STATE_HOME/ddp-run/hosts. After a
    hardware error, or two failed runs, a host is proposed for `sbatch --exclude`.
    """
    from ddp_run.judge import bad_hosts
    from ddp_run.record import host_failures

    where = Path(folder) if folder else host_failures.folder(os.environ)
    if where is None:
        raise click.ClickException("neither DDP_RUN_HOSTS_DIR nor HOME is set: name a folder")
    if folder and not where.is_dir():
        raise click.ClickException(f"{folder} is not a folder")
    found = bad_hosts.records(host_failures.read(where), time.time() - days * _DAY_S)
    if where.is_dir() and not os.access(where, os.W_OK):
        click.echo(f"ddp-run: your failed runs are not recorded: {neutral_text(str(where))} is not writable", err=True)
    exclude = ",".join(record.host for record in found if record.exclude)
    if as_json:
        hosts = list(map(_as_json, found))
        click.echo(json.dumps({"folder": str(where), "days": days, "hosts": hosts, "exclude": exclude}, indent=2))
        return 0
    click.echo("\n".join(map(_line, found)) or f"no host-related failures in {days} days ({where})")
    if exclude:
        click.echo(f"sbatch --exclude={exclude} …")
    return 0


def _as_json(record: HostRecord) -> dict[str, object]:
    return {
        "host": record.host,
        "runs": record.runs,
        "causes": dict(record.causes),
        "last": datetime.fromtimestamp(record.last_s).astimezone().isoformat(timespec="seconds"),
        "last_title": record.last_title,
        "exclude": record.exclude,
    }


def _line(record: HostRecord) -> str:
    causes = ", ".join(f"{cause} {count}x" for cause, count in record.causes.most_common())
    last = datetime.fromtimestamp(record.last_s).astimezone().strftime("%Y-%m-%d %H:%M")
    return neutral_text(f"{record.host}  {causes}  last {last}: {record.last_title}")
