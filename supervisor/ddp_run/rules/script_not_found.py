"""The script or module does not exist.

## What happened
Python was told to run a file or a module that is not there.
## How to recognise it
`can't open file '…': [Errno 2] No such file or directory` with exit code 2, or, with `-m`, `No module named …` and
`Error while finding module specification`; on all ranks, before the first line of the program.
## What to do
Check the path against the working directory. With `-m`, name the module with dots and start from the folder above the
package.
"""

from __future__ import annotations

import re

from ddp_run.verdict import Area, Death, Evidence, Finding, Quote, Retry, Rule

RULE = Rule(
    code="DDP102",
    name="script-not-found",
    title="The script or module does not exist",
    area=Area.LAUNCH,
    retry=Retry(helps=False, reason="a missing file is missing on the next attempt too"),
    since="0.1",
    beats=("import-error", "bad-arguments"),
)
_FILE = re.compile(r"can't open file '(?P<path>[^']*)': \[Errno 2\]")
_MODULE = re.compile(
    r"(?:^|[/ ])python[\d.]*: (?:Error while finding module specification for '(?P<spec>[^']+)'"
    r"|No module named (?P<module>[\w.]+))"
)
_NOT_EXECUTABLE = re.compile(r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^']*)'")


def match(death: Death, run: Evidence) -> Finding | None:
    """What Python says before a program begins."""
    hit = death.stderr.last(_FILE)
    if hit is not None:
        return _no_file(death, hit[0], hit[1]["path"])
    hit = death.stderr.last(_MODULE)
    if hit is None:
        return None
    module = hit[1]["spec"] or hit[1]["module"]
    return Finding(
        RULE,
        death.rank,
        f"there is no module {module} to run",
        (hit[0],),
        (f"python -c 'import importlib.util as u; print(u.find_spec(\"{module}\"))'   # None: not in this folder",),
    )


def match_launch(run: Evidence) -> Finding | None:
    """With `--no-python` the agent itself cannot start the program."""
    hit = run.agent.log.last(_NOT_EXECUTABLE)
    if hit is None or run.started or run.deaths:
        return None
    return Finding(
        RULE, None, f"there is no program {hit[1]['path']} to start", (hit[0],), (f"ls -l {hit[1]['path']}",)
    )


def _no_file(death: Death, quote: Quote, path: str) -> Finding:
    return Finding(RULE, death.rank, f"there is no script {path}", (quote,), (f"ls -l {path}",))
