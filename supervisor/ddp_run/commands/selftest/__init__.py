"""`ddp-run selftest`: whether this installation starts jobs, and names who fails in them."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(as_json: bool) -> int:
    """Run two small jobs to test this installation.

    Two ranks meet over gloo, without a GPU; then one of two ranks fails and must be named. The exit code is 0 if all of
    it worked, else 1.
    """
    import shutil
    import tempfile
    from dataclasses import asdict
    from pathlib import Path

    from ddp_run.commands.selftest import trial

    folder = Path(tempfile.mkdtemp(prefix="ddp-run-selftest-"))
    versions, checks = trial.versions(), []
    if not as_json:
        click.echo(", ".join(f"{name} {version}" for name, version in versions.items()))
    for check in trial.checks(folder):
        checks.append(check)
        if not as_json:
            click.echo(f"{'ok    ' if check.ok else 'FAILED'} {check.said} ({check.seconds:.1f} s)")
    ok = all(check.ok for check in checks)
    if ok:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        kept = None if ok else str(folder)
        click.echo(json.dumps({"ok": ok, **versions, "checks": list(map(asdict, checks)), "folder": kept}, indent=2))
    elif not ok:
        click.echo(f"files of these jobs: {folder}")
    return 0 if ok else 1
