"""Whether this node agrees with others, and where they meet: beside the rendezvous of node 0."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

from ddp_run.plan import net, node_facts
from ddp_run.plan.launch_plan import LaunchPlan
from ddp_run.record.events import Noted
from ddp_run.record.journal import now
from ddp_run.record.run_folder import RunFolder
from ddp_run.settings import schedulers
from ddp_run.settings.options import Options
from ddp_run.supervise.nodes.agreement import Agreement, Ears, Place, job_key
from ddp_run.supervise.nodes.hub import Hub
from ddp_run.supervise.nodes.member import Member
from ddp_run.supervise.nodes.rival import Rival
from ddp_run.values.node_fact import Fact

_RESOLVE_S = 5.0


def join(plan: LaunchPlan, environ: Mapping[str, str], folder: RunFolder, ears: Ears) -> Agreement | None:
    """This node's side of the agreement; null where it judges alone, which is noted."""
    options = plan.options
    if not options.has_fixed_nodes or options.master is None:
        return None
    host, port = options.master
    try:
        address = plan.master or net.resolve(host, 0, _RESOLVE_S, several_nodes=True).ip
        key, is_secret = job_key(environ, f"{port} {options.max_nodes}")
        place = Place(
            node_rank=options.node_rank,
            nodes=options.max_nodes,
            host=socket.gethostname(),
            folder=str(folder.path),
            address=address,
            port=options.control_port or _beside(port or 0),
            job_key=key,
            grace_s=options.grace_s,
            agent_restarts=options.restarts > 0,
            master_port=port or 0,
            join_s=options.rendezvous_s,
            facts=_facts(options, environ, address, ears),
            strict=options.preflight == "strict",
            host_names=schedulers.host_names(options, environ),
        )
        agreement = side(place, ears)
    except (OSError, net.Unresolvable) as error:
        ears.emit(Noted(now(), f"each node judges for itself: {error}"))
        return None
    if not is_secret:
        ears.emit(Noted(now(), "messages between nodes are not authenticated: DDP_RUN_SECRET is not set"))
    return agreement


def side(place: Place, ears: Ears) -> Agreement:
    """This node's, by its rank. Raises OSError where node 0 cannot listen, unless another one may do so there."""
    if place.node_rank > 0:
        return Member(place, ears)
    try:
        return Hub(place, ears)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        ears.emit(Noted(now(), f"each node judges for itself: {error}"))
        return Rival(place, ears)


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
    """The port after the rendezvous' own: where one is open between the nodes, the next one often is."""
    return port + 1 if port < 65535 else port - 1
