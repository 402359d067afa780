"""Whether this node agrees with others, on which side, and where they meet: beside the rendezvous of node 0."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

from ddp_run.judge.of_nodes import ends_of
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.plan import net, node_facts
from ddp_run.plan.launch_plan import LaunchPlan
from ddp_run.record.events import Event, Noted
from ddp_run.record.journal import Journal, now
from ddp_run.record.run_folder import RunFolder
from ddp_run.settings import schedulers
from ddp_run.settings.options import Options
from ddp_run.supervise.nodes.agreement import Decide, Ears, Place
from ddp_run.supervise.nodes.hub import Hub
from ddp_run.supervise.nodes.member import Member
from ddp_run.supervise.nodes.rival import Rival
from ddp_run.tell.selection import last_lines
from ddp_run.values.node_fact import Fact

_RESOLVE_S = 5.0
_SECRET = "DDP_RUN_SECRET"  # noqa: S105  # the name of a variable


@final
@dataclass(slots=True)
class JobSide:
    """The agreement as a run uses it: whatever goes wrong there, this node's own verdict stays."""

    side: Hub | Member | Rival
    folder: RunFolder
    journal: Journal

    @classmethod
    def join(
        cls, plan: LaunchPlan, environ: Mapping[str, str], folder: RunFolder, journal: Journal, ears: Ears
    ) -> JobSide | None:
        """Meet the others; None if this node judges alone, which is noted."""
        options = plan.options
        if not options.has_fixed_nodes or options.master is None:
            return None
        try:
            joined = cls(side(_place(plan, options.master, environ, folder, ears), ears), folder, journal)
        except Exception as error:
            why = error if isinstance(error, OSError | net.Unresolvable) else f"{type(error).__name__}: {error}"
            ears.emit(Noted(now(), f"each node judges for itself: {why}"))
            return None
        if not environ.get(_SECRET):
            ears.emit(Noted(now(), f"messages between nodes are not authenticated: {_SECRET} is not set"))
        return joined

    def hear(self, event: Event) -> None:
        """A sink of events."""
        self.side.hear(event)

    def agree(self, verdict: Verdict, attempt: int, decide: Decide) -> tuple[Verdict, Decision]:
        """The verdict of all nodes on an attempt, from this node's own, and what follows."""
        events = self.journal.events
        try:
            lines = last_lines(verdict, events, self.folder.path)
            return self.side.agree(attempt, verdict, ends_of(events, attempt), lines, decide)
        except Exception as error:
            note = f"no agreement with other nodes: {type(error).__name__}: {error}"
            return replace(verdict, notes=(*verdict.notes, note)), Decision(False, note)

    def where(self) -> tuple[str, str] | None:
        """Host and folder of the whole verdict if it is on another node."""
        return self.side.where()

    def close(self) -> None:
        """This node leaves."""
        self.side.close()


def side(place: Place, ears: Ears) -> Hub | Member | Rival:
    """This node's side, by its rank. Raises OSError if node 0 can't listen, unless another node 0 may be the reason."""
    if place.node_rank > 0:
        return Member(place, ears)
    try:
        return Hub(place, ears)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        ears.emit(Noted(now(), f"each node judges for itself: {error}"))
        return Rival(place, ears)


def job_key(environ: Mapping[str, str], job: str) -> bytes:
    """The key of a job's messages: with DDP_RUN_SECRET a secret, without it only what tells jobs apart."""
    return f"{environ.get(_SECRET, '')}\n{job}".encode()


def _place(
    plan: LaunchPlan, master: tuple[str, int | None], environ: Mapping[str, str], folder: RunFolder, ears: Ears
) -> Place:
    """Raises OSError or Unresolvable if node 0 has no address."""
    options, (host, port) = plan.options, master
    address = plan.master or net.resolve(host, 0, _RESOLVE_S, several_nodes=True).ip
    return Place(
        node_rank=options.node_rank,
        nodes=options.max_nodes,
        host=socket.gethostname(),
        folder=str(folder.path),
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
