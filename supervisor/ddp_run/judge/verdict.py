"""A rule's answer (`Finding`) and the final answer (`Verdict`). Values only: `ddp_run.judge.diagnose` judges."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import Literal, Self

from ddp_run.evidence.model import Phase, Quote
from ddp_run.record.events import ExceptionInfo, LocalRank, MonotonicNs, Rank
from ddp_run.record.time_spent import TimeSpent
from ddp_run.values.redaction import redact_lines, redact_value
from ddp_run.values.typed_fields import frozen

Outcome = Literal["succeeded", "failed", "hung", "interrupted", "refused"]
Confidence = Literal["certain", "likely", "unknown"]
SUREST_FIRST: tuple[Confidence, ...] = ("certain", "likely", "unknown")


ANSWER = "ddp-run: verdict "
"""How the last line begins that ddp-run prints: a promise to scripts."""
OF_THE_LAUNCH, OF_THE_NETWORK, OF_USER_CODE = "DDP1", "DDP2", "DDP6"
"""How the codes of causes in the launch, in the network, and in the user's code begin."""


class Layer(IntEnum):
    """What a cause is about, from the outside in: at one end, a cause of a deeper layer explains those above it."""

    about: str

    def __new__(cls, depth: int, about: str) -> Self:
        """Return the layer at this depth, with the words for documents."""
        layer = int.__new__(cls, depth)
        layer._value_, layer.about = depth, about
        return layer

    UNEXPLAINED = 0, "an end that no cause of the catalogue explains"
    FOLLOWED = 1, "what a rank shows when another one failed"
    ENDED = 2, "how a process or the job ended: a signal, an abort, an interrupt"
    REPORTED = 3, "what a library, a launcher or a scheduler reports, in words that have a reason"
    REFUSED = 4, "one operation that could not be done"
    CHANGEABLE = 5, "a limit, a device, the launch, the model: what the user can change"


@frozen
class Retry:
    """Whether another attempt can help, and why or why not."""

    helps: bool
    reason: str


@frozen
class Rule:
    """A cause of the catalogue.

    `wins_over`: causes of this or a deeper layer that this one explains if both match, each with the reason.
    `host`: whether this points to the host, independent of the program: after one occurrence, or only after several
    runs. `unlike`: whether differences between nodes may be the reason: `together` if ranks fail like this when they
    don't all do the same, `loading` if other library versions can do this to a single rank. `end`: what this says of
    the rank's end: it `crashed`; it was `told` to end; it `waited` in vain, so another rank is to blame; or this is
    often only what comes `after` a failure, such as a clean-up; or ranks `met` that called different operations, of
    which none failed first; or its error is `sticky`, as CUDA calls those after
    which the process can't use its GPU any more, so that no handler cures them. `backend`: whether the process group's
    backend is at fault: `always`, or in `init_process_group` only.
    """

    name: str
    title: str
    code: str
    layer: Layer
    retry: Retry
    since: str = "0.1"
    wins_over: tuple[tuple[str, str], ...] = ()
    host: Literal["once", "repeated"] | None = None
    unlike: Literal["together", "loading"] | None = None
    end: Literal["crashed", "told", "waited", "after", "met", "sticky"] | None = None
    backend: Literal["always", "init"] | None = None

    @property
    def consequence(self) -> bool:
        """Whether a rank that shows only this followed another's failure."""
        return self.layer is Layer.FOLLOWED

    @property
    def general(self) -> bool:
        """Whether this only says how a rank ended."""
        return self.layer is Layer.UNEXPLAINED


def named(module: str, page: str | None) -> tuple[str, str]:
    """Return a rule's name and title: the name of its file, and the first line of its page."""
    return module.rpartition(".")[2].replace("_", "-"), (page or "").partition("\n")[0].removesuffix(".")


@frozen
class Finding:
    """One rule's finding about one death, the agent or the launch."""

    rule: Rule
    cause: str
    """One self-contained line: names the rank, lower case, no full stop."""
    evidence: tuple[Quote, ...] = ()
    advice: tuple[str, ...] = ()
    confidence: Confidence = "certain"
    retry: Retry | None = None
    """Overrides the rule's own policy for this case."""
    culprit: Rank | None = None
    """The rank that the text names as the cause, if not the rank itself: for example, the one that it waits for."""
    exception: ExceptionInfo | None = None
    """The exception that shows it: the one that ended the rank, or one that led to it."""
    of_the_job: bool = False
    """Whether it ended all ranks alike, so that none failed first."""


@frozen
class FirstFailure:
    """The rank that failed first."""

    rank: Rank | None
    local_rank: LocalRank | None = None
    node_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    at: MonotonicNs | None = None
    exception: ExceptionInfo | None = None
    log: str | None = None


@frozen
class Collateral:
    """A rank that failed because another had failed."""

    rank: Rank | None
    exit_code: int | None
    signal: str | None
    reason: str


@frozen
class Verdict:
    """The answer for one attempt. `verdict.json` is written from the last attempt's.

    `outcome` and `exit_code` are None only for logs that do not show how the job ended.
    """

    outcome: Outcome | None
    exit_code: int | None
    cause: str | None = None
    code: str | None = None
    title: str | None = None
    """One self-contained line: what happened, to which rank."""
    confidence: Confidence = "unknown"
    phase: Phase | None = None
    step: int | None = None
    call: str | None = None
    first_failure: FirstFailure | None = None
    evidence: tuple[Quote, ...] = ()
    collateral: tuple[Collateral, ...] = ()
    advice: tuple[str, ...] = ()
    retry: Retry | None = None
    """The catalogue's view: whether another attempt can help. The decision is in the journal and verdict.json."""
    notes: tuple[str, ...] = ()
    restarts: int | None = None
    """How often the agent restarted the ranks in this attempt (--max-restarts); None if unknown."""
    time: TimeSpent | None = None
    """Of the whole run on this node, once it is over."""

    def with_finding(self, finding: Finding) -> Verdict:
        """Return the verdict with a rule's finding as its cause."""
        return replace(
            self,
            cause=finding.rule.name,
            code=finding.rule.code,
            title=finding.cause,
            confidence=finding.confidence,
            evidence=finding.evidence,
            advice=finding.advice,
            retry=finding.retry or finding.rule.retry,
        )

    def without_secrets(self) -> Verdict:
        """Return a redacted copy. Quotes are redacted as one text, because a private key spans several lines."""
        texts = redact_lines([quote.text for quote in self.evidence])
        quotes = tuple(replace(quote, text=text) for quote, text in zip(self.evidence, texts, strict=True))
        return redact_value(replace(self, evidence=quotes))

    @property
    def status(self) -> int:
        """Return the code to exit with: 1 if no code is known."""
        return 1 if self.exit_code is None else self.exit_code
