"""What was asked for and has no effect: it needs the hooks in torch, where a rank is a program of its own."""

from __future__ import annotations

from ddp_run.plan.check import Answer, Check, Launch
from ddp_run.plan.launch_plan import dist_timeout_s


def _check(launch: Launch) -> Answer:
    options = launch.options
    if not options.no_python:
        return Answer()
    asked = {
        "--backend": options.backend is not None,
        "--fallback-backend": options.fallback_backend is not None,
        "--ddp-debug": options.ddp_debug,
        "TORCH_DIST_TIMEOUT": dist_timeout_s(launch.environ) is not None,
    }
    named = [name for name, given in asked.items() if given]
    have = "has" if len(named) == 1 else "have"
    why = "ddp-run does not look into the program"
    return Answer(warnings=(f"{', '.join(named)} {have} no effect with --no-python: {why}",) if named else ())


CHECK = Check("options without effect", _check, needed=True)
