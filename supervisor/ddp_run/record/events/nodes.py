"""Several nodes: what they say to each other."""

from __future__ import annotations

from ddp_run.record.events.attempts import Event, MonotonicNs, Rank
from ddp_run.values.typed_fields import frozen


@frozen
class RanksEnded(Event):
    """All ranks of this node have ended with 0; those of other nodes may go on."""


@frozen
class AllRanksEnded(Event):
    """The ranks of all nodes have ended: no agent is needed anymore. `well`: with 0, and nobody failed."""

    well: bool = True


@frozen
class PeerFailed(Event):
    """Another node of the job fails or is lost, so this node's ranks must end too. `said` is a line for people."""

    node_rank: int | None
    """None: torch has not numbered the nodes yet."""
    host: str
    said: str


@frozen
class NodesCompared(Event):
    """How the nodes of the job differ before its ranks start, on node 0: a line for each fact.

    `breaking`: differences that often break jobs; `refused`: they end this job (--preflight strict).
    """

    breaking: tuple[str, ...]
    differing: tuple[str, ...]
    """Other differences."""
    alike: tuple[str, ...]
    refused: bool


@frozen
class WaitsAsSpare(Event):
    """This node waits (--spare-nodes): for a retry that needs it, or, after it was left out, for the job's end."""


@frozen
class NodesReplaced(Event):
    """Nodes are left out from this attempt on, and as many spare ones take part, on node 0."""

    attempt: int
    left_out: tuple[str, ...]
    """Their names, each with the reason."""
    spares: tuple[str, ...]

    @property
    def said(self) -> str:
        """What happens, in a line."""
        return f"{', '.join(self.spares)} in place of {'; '.join(self.left_out)}"


@frozen
class NodeRankTaken(Event):
    """Two nodes claim this rank, so the job cannot start: `host` had it first."""

    node_rank: int
    host: str
    other: str

    @property
    def said(self) -> str:
        """What is wrong, in a line."""
        who = f"two launches on {self.host}" if self.host == self.other else f"{self.host} and {self.other}"
        return f"{who} both say that they are node {self.node_rank}: give each node its own --node-rank"


@frozen
class EndpointTaken(Event):
    """Another program has the rendezvous' endpoint, so nodes can't meet there. `heard`: what it answered."""

    endpoint: str
    heard: str

    @property
    def said(self) -> str:
        """What is wrong, in a line."""
        return f"the program at {self.endpoint} is not torch's rendezvous: it answered `{self.heard}`"


@frozen
class NodeReported(Event):
    """What another node reported about its attempt, on node 0: its verdict (JSON), or why there is none.

    Its stamps are from its own clock, which is `offset_ns` before ours, give or take `error_ns`.
    """

    node_rank: int | None
    host: str
    folder: str
    verdict: str | None
    lost: str | None
    offset_ns: int
    error_ns: int
    finished: tuple[Rank, ...]
    """Ranks that ended with 0, and when."""
    finished_at: tuple[MonotonicNs, ...]
    failed_at: MonotonicNs | None
    """When the first of its ranks failed, for whatever reason."""
    first: bool
    """It was the first node to report a failure."""


@frozen
class VerdictAgreed(Event):
    """The job's verdict (JSON), as node 0 gives it. `host` and `folder` have the complete one."""

    host: str
    folder: str
    verdict: str
