"""With several nodes: interfaces chosen for NCCL or gloo that don't lead to another node."""

from __future__ import annotations

from ddp_run.plan.preflight import Answer, Check, Launch
from ddp_run.values.problem import Problem

_LIBRARIES = {"NCCL_SOCKET_IFNAME": "nccl", "GLOO_SOCKET_IFNAME": "gloo"}


def _check(launch: Launch) -> Answer:
    """Refuse only if --backend says that the ranks use the library. A script's own choice isn't known here."""
    options = launch.options
    named = {name: launch.environ[name] for name in _LIBRARIES if launch.environ.get(name)}
    if options.max_nodes == 1 or not named:
        return Answer(options)
    from ddp_run.plan import named_interfaces, net

    here = net.interfaces()
    master = options.master[0] if options.master is not None else None
    problems: list[Problem] = []
    suspicions: list[Problem] = []
    for name, value in named.items() if here else ():
        found = named_interfaces.judged(name, value, here, master)
        if found is not None:
            is_used = _LIBRARIES[name] in (options.backend or "").lower()
            (problems if found.certain and is_used else suspicions).append(found.problem)
    return Answer(options, tuple(problems), tuple(suspicions))


CHECK = Check("the interfaces", _check)
