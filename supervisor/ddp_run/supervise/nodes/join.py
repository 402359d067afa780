"""Whether this node agrees with others, on which side, and where they meet: on the port beside the rendezvous' own."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

from ddp_run.plan import net, node_facts
from ddp_run.plan.installed_torch import torch_versions
from ddp_run.record.events import Event, Noted
from ddp_run.record.journal import now
from ddp_run.settings import schedulers
from ddp_run.settings.options import Options
from ddp_run.supervise.nodes.agreement import Side
from ddp_run.supervise.nodes.hub import Hub
from ddp_run.supervise.nodes.member import Member
from ddp_run.supervise.nodes.place import SECRET, Ears, Munge, Place, job_key
from ddp_run.supervise.nodes.reach import Endpoint, Question, Rival
from ddp_run.values.addresses import is_local, is_this_host
from ddp_run.values.node_fact import Fact

if TYPE_CHECKING:
    from ddp_run.supervise.run import Run

_RESOLVE_S = 5.0
_C10D_PORT = 29400
"""torch's own default (elastic/rendezvous/c10d_rendezvous_backend.py)."""
_ANY = ("0.0.0.0", "::")  # noqa: S104
"""All addresses of a host, IPv4 and IPv6."""


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
    host, port = options.master
    if port is None:
        port = _C10D_PORT
    side, rival = None, None
    if options.meets_others:
        try:
            place = _place(run, host, port, ears)
            side, rival = meet(place, ears)
            if isinstance(side, Hub) and not run.environ.get(SECRET):
                _warn_of_strangers(place, ears)
        except Exception as error:
            has_words = isinstance(error, OSError | net.Unresolvable)
            ears.emit(_alone(error if has_words else f"{type(error).__name__}: {error}"))
    for each in (side, rival):
        if each is not None:
            _keep(run, each)
    if options.meets_at_c10d and port != 0 and _store_answers_pings():
        # a side says itself what it waits for
        _keep(run, Endpoint(host, port, ears if side is None else replace(ears, say=lambda _line: None)))
    return side


def _warn_of_strangers(place: Place, ears: Ears) -> None:
    """Say that the port isn't protected, unless MUNGE does it or other hosts don't reach it."""
    if place.munge.credential is not None:
        return
    ears.emit(Noted(now(), f"messages between nodes are not authenticated: no {SECRET}, no MUNGE"))
    if ip_address(place.address.partition("%")[0]).is_loopback:
        return
    ears.say(
        f"anybody who reaches port {place.port} can end the job: set {SECRET} to the same value on all nodes. "
        f"Try: export {SECRET}=VALUE   # from: openssl rand -hex 16"
    )


def _keep(run: Run, each: Side | Question) -> None:
    run.stack.callback(each.close)
    run.sinks.append(each.hear)


def _store_answers_pings() -> bool:
    """Whether the installed torch has a store that does."""
    version = re.match(r"(\d+)\.(\d+)", torch_versions()[0] or "")
    return version is not None and (int(version[1]), int(version[2])) >= (2, 5)


def meet(place: Place, ears: Ears) -> tuple[Side | None, Rival | None]:
    """This node's side, and what looks for another node 0. A node 0 that can't listen has no side, which is noted.

    Without numbers, the hub is where the endpoint is: at the first node of that host, as torch's store.
    """
    if place.node_rank or (place.node_rank is None and not place.has_endpoint):
        return Member(place, ears), None
    hub = None
    try:
        hub = Hub(place, ears)
    except OSError as error:
        if place.node_rank is None and error.errno == errno.EADDRINUSE:
            return Member(place, ears), None
        ears.emit(_alone(error))
    is_master = place.node_rank is None or (hub is not None and is_local(place.address))
    return hub, None if is_master else Rival(place, ears)


def _alone(why: object) -> Noted:
    return Noted(now(), f"each node judges for itself: {why}")


def _place(run: Run, host: str, port: int, ears: Ears) -> Place:
    """`host` and `port`: of the rendezvous. Raises OSError or Unresolvable if the host has no address."""
    options, environ = run.plan.options, run.environ
    numbered = options.own_node_rank is not None
    address = run.plan.master
    if address is None:
        address = net.resolve(host, 0, _RESOLVE_S, several_nodes=True, loopback_allowed=not numbered).ip
    is_here = is_this_host(host, address) if options.hosts_store is None else options.hosts_store
    if is_here and not numbered and net.leads_only_here(host, address):  # others know another address of that name
        address = _ANY[":" in address]
    return Place(
        node_rank=options.own_node_rank,
        nodes=options.max_nodes,
        host=socket.gethostname(),
        folder=str(run.folder.path),
        address=address,
        port=options.control_port or _beside(port),
        job_key=job_key(environ, f"{port} {options.max_nodes}" + ("" if numbered else f" {options.rdzv_id}")),
        grace_s=options.grace_s,
        agent_restarts=options.restarts > 0 or options.is_elastic,
        least=options.min_nodes if options.is_elastic else None,
        spares=options.spare_nodes,
        master_port=port,
        join_s=options.rendezvous_s + (0 if is_here else options.store_s),
        munge=Munge(is_wanted=not environ.get(SECRET)),
        facts=_facts(options, environ, address if address not in _ANY else "", ears),
        strict=options.preflight == "strict",
        host_names=schedulers.host_names(options, environ),
        has_endpoint=is_here,
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
