"""Messages of schedulers, Kubernetes and clouds that end a job or lose its node. Pure.

A platform may restart the job, which then logs more below. So only the last lines of a log count. Sources: SLURM
(slurmstepd, srun, sacct, seff, scontrol, its mails), submitit, Grid Engine, OAR, HTCondor's event log, Torque, Flux,
kubelet's and the node controllers' conditions and events, Kueue, SageMaker, Databricks, Azure ML, Modal, providers of
spot instances.
"""

from __future__ import annotations

from ddp_run.evidence.model import Death
from ddp_run.evidence.windows import LEAVING
from ddp_run.judge.signs import Hit, Sign, in_last_words, like

_PREEMPTED = (
    r"(?P<what>\b(?i:job|instance|node|pod|vm|cluster|container|trial|allocation|machine)\b[^\n]{0,40}"
    r" (?:was|is|being|been|after being) preempted\b"
    r"|\bPreempted (?:by pod|in order to admit|to accommodate)[^\n]{0,80})"
)
ENDED: tuple[Sign, ...] = (
    Sign("this job is ", r"Caught signal \w{1,20} on \S{1,255}: (?P<what>this job is (?:preempted|timed-out))"),
    *(
        Sign(state, rf"(?:^State: |\bJobState=|Run time [\d:\-]{{1,20}}, )(?P<what>{state})\b")
        for state in ("TIMEOUT", "PREEMPTED", "CANCELLED", "DEADLINE")  # of seff, scontrol, and SLURM's mails
    ),
    like(r"^\d\S{0,60} [^\n]{0,200}(?<!\S)(?P<what>TIMEOUT)\s{1,20}\d{1,3}:\d{1,3}\b"),  # sacct's
    like(r"(?P<what>exceeds job hard limit \"[hs]_(?:rt|cpu)\")"),  # Grid Engine
    like(r"## OAR \[[^\]\n]{1,40}\] (?P<what>Job \d{1,12} KILLED)"),
    like(r"^\d{3} \([\d.]{1,30}\) [\d/: \-]{1,30}(?P<what>Job was evicted\.)"),  # HTCondor
    like(r"(?P<what>via condor_rm [^\n]{0,80})"),
    like(r"(?P<what>job exceeded allowed (?:execute|job) duration[^\n]{0,40})"),
    like(r"job\.exception type=(?P<what>(?:timeout|cancel|preempt) [^\n]{0,80})"),  # Flux
    Sign("reempted", _PREEMPTED),
    like(r"(?P<what>preempting to accommodate [^\n]{0,80})"),
    like(r"(?P<what>interrupted due to worker preemption)"),  # Modal
    like(r"reason: (?P<what>DeletionByTaintManager)"),
    like(r"(?P<what>Pod was terminated in response to imminent node shutdown)"),
    like(r"(?P<what>Pod was rejected as the node is shutting down)"),
    like(r"\b(?P<what>(?:Pod|Job) was active [^\n]{0,20}longer than (?:the )?specified deadline)"),
    like(r"(?P<what>MaxRuntimeExceeded)"),  # SageMaker
    like(r"(?P<what>Interrupted - Training job interrupted[^\n]{0,80})"),
    like(r"Cluster \S{1,100} (?P<what>was terminated\. Reason: [A-Z_]{1,60})"),  # Databricks
    *(Sign(words, rf"(?P<what>(?i:spot {words}))") for words in ("instance interruption", "Instance Interruption")),
    Sign(
        "time limit",
        r"\b(?P<what>(?i:job|process|container|pod|run|task)\b[^\n]{0,60} (?:terminated|killed|cancelled|stopped)\b"
        r"[^\n]{0,60}\b(?:wall|time|walltime)[ -](?:clock )?(?:time )?limit\b)",
    ),
    like(r"(?P<what>\bJobPreempted\b)"),
)
"""Messages of other platforms that end a job. A restarted job logs more below."""
STATES: tuple[Sign, ...] = (
    Sign(
        "not produced any output (state: ",  # submitit's
        r"\(state: (?P<what>TIMEOUT|PREEMPTED|CANCELLED[^)\n]{0,40}|DEADLINE)\)",
        ("UncompletedJobError",),
    ),
    like(r"(?P<what>MaxRuntimeExceeded)", ("UnexpectedStatusException",)),
)
"""About a job, in the exception of the program that waited for it."""
LOST: tuple[Sign, ...] = (
    like(r"(?P<what>\bNodeNotReady\b[^\n]{0,120})"),
    Sign(
        "requested job terminate, 'EOF'", r"(?P<what>node \d{1,9} \((?P<node>[\w.\-]{1,255})\) requested job terminate)"
    ),
    like(
        r"(?P<what>Task launch for \S{1,60} failed on node (?P<node>[\w.\-]{1,255}): (?:Communication connection"
        r" failure|Job prolog failed|Socket timed out[^\n]{0,60}))"
    ),
    like(r"(?P<what>(?:^|State[:=] ?|\s)NODE_FAIL\b(?=[\s,]|$))"),
    Sign("has lost communication with a remote daemon", r"(?P<what>lost communication with a remote daemon)"),
    like(r"(?P<what>\bJobNodeLost\b[^\n]{0,120})"),
    like(r"(?P<what>Can not reconnect to (?P<node>\S{1,255}), rescheduling job)"),
    like(r"job\.exception type=(?P<what>node-failure [^\n]{0,120})"),
)
"""Torque, srun, sacct, Azure ML, HTCondor and Flux, about an attempt that another one may have followed."""
LOST_STATE = like(r"\(state: (?P<what>NODE_FAIL)\)", ("UncompletedJobError",))
"""submitit's message, in the program that waited for the job."""


def told_lately(death: Death, signs: tuple[Sign, ...]) -> Hit | None:
    """Return the sign in the last lines of a rank that did not end with an exception."""
    return None if death.exception is not None else in_last_words(death, signs, LEAVING)
