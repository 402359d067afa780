"""Whether this node agrees with others, on which side, and where they meet: beside the rendezvous of node 0."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ddp_run.plan import net, node_facts
from ddp_run.plan.installed_torch import torch_versions
from ddp_run.record.events import Event, Noted
from ddp_run.record.journal import now
from ddp_run.settings import schedulers
from ddp_run.settings.options import Options
from ddp_run.supervise.nodes.agreement import Ears, Place, Side
from ddp_run.supervise.nodes.endpoint import Endpoint
from ddp_run.supervise.nodes.hub import Hub
from ddp_run.supervise.nodes.member import Member
from ddp_run.supervise.nodes.rival import Rival
from ddp_run.values.addresses import is_local
from ddp_run.values.node_fact import Fact

if TYPE_CHECKING:
    from ddp_run.supervise.run import Run

_RESOLVE_S = 5.0
_C10D_PORT = 29400
"""torch's own default (elastic/rendezvous/c10d_rendezvous_backend.py)."""
_SECRET = "DDP_RUN_SECRET"  # noqa: S105  # the name of a variable


def join(run: Run, end_ranks: Callable[[int, Event], None]) -> Side | None:
    """Meet the other nodes, until the run ends; `end_ranks` as in `Ears`. None if this node judges alone."""
    options = run.plan.options
    if options.master is None:
        return None
    ears = Ears(
        loop=run.loop,
        emit=run.emit,
        events=run.journal.events,
        say=partial(run.output.say, level="warning"),
        end_ranks=end_ranks,
        serve=run.serve,
        stops=lambda: run.stops,
        helpers=run.helpers,
    )
    if options.meets_at_c10d and _store_answers_pings():
        host, port = options.master
        if port != 0:
            _keep(run, Endpoint(host, _C10D_PORT if port is None else port, ears))
    if not options.has_fixed_nodes:
        return None
    try:
        side, rival = meet(_place(run, options.master, ears), ears)
    except Exception as error:
        has_words = isinstance(error, OSError | net.Unresolvable)
        ears.emit(_alone(error if has_words else f"{type(error).__name__}: {error}"))
        return None
    for each in (side, rival):
        if each is not None:
            _keep(run, each)
    if side is not None and not run.environ.get(_SECRET):
        ears.emit(Noted(now(), f"messages between nodes are not authenticated: {_SECRET} is not set"))
    return side


def _keep(run: Run, each: Side | Rival | Endpoint) -> None:
    run.stack.callback(each.close)
    run.sinks.append(each.hear)


def _store_answers_pings() -> bool:
    """Whether the installed torch has a store that does."""
    version = re.match(r"(\d+)\.(\d+)", torch_versions()[0] or "")
    return version is not None and (int(version[1]), int(version[2])) >= (2, 5)


def meet(place: Place, ears: Ears) -> tuple[Side | None, Rival | None]:
    """This node's side, and what looks for another node 0. A node 0 that can't listen has no side, which is noted."""
    if place.node_rank > 0:
        return Member(place, ears), None
    hub = None
    try:
        hub = Hub(place, ears)
    except OSError as error:
        ears.emit(_alone(error))
    is_master = hub is not None and is_local(place.address)
    return hub, None if is_master else Rival(place, ears)


def _alone(why: object) -> Noted:
    return Noted(now(), f"each node judges for itself: {why}")


def job_key(environ: Mapping[str, str], job: str) -> bytes:
    """The key of a job's messages: with DDP_RUN_SECRET a secret, without it only what tells jobs apart."""
    return f"{environ.get(_SECRET, '')}\n{job}".encode()


def _place(run: Run, master: tuple[str, int | None], ears: Ears) -> Place:
    """Raises OSError or Unresolvable if node 0 has no address."""
    options, environ, (host, port) = run.plan.options, run.environ, master
    address = run.plan.master or net.resolve(host, 0, _RESOLVE_S, several_nodes=True).ip
    return Place(
        node_rank=options.node_rank,
        nodes=options.max_nodes,
        host=socket.gethostname(),
        folder=str(run.folder.path),
        address=address,
        port=options.control_port or _beside(port or 0),
        job_key=job_key(environ, f"{port} {options.max_nodes}"),
        grace_s=options.grace_s,
        agent_restarts=options.restarts > 0,
        master_port=port or 0,
        join_s=options.rendezvous_s,
        facts=_facts(options, environ, address, ears),
        strict=options.preflight == "strict",
        host_names=schedulers.host_names(options, environ),
    )


def _facts(options: Options, environ: Mapping[str, str], address: str, ears: Ears) -> tuple[Fact, ...]:
    """What this node is like; a failure there is noted and harms nothing."""
    if options.preflight == "off":
        return ()
    try:
        return node_facts.collect(options, environ, address).facts
    except Exception as error:
        ears.emit(Noted(now(), f"this node is not compared with others: {type(error).__name__}: {error}"))
        return ()


def _beside(port: int) -> int:
    """The port after the rendezvous' own: if one is open between the nodes, the next one often is too."""
    return port + 1 if port < 65535 else port - 1
