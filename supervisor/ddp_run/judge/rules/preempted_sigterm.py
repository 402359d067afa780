"""Terminated from outside (SIGTERM).

## What happened
A scheduler, a container runtime, a cloud preemption or a person told the job, or one rank, to stop.
## How to recognise it
SIGTERM (or SIGQUIT) sent by neither ddp-run nor torch's agent: 143 in a shell for SIGTERM. SLURM says why: `CANCELLED
AT … DUE TO TIME LIMIT`, `DUE TO PREEMPTION`; so do LSF (`TERM_RUNLIMIT`, `TERM_OWNER`) and PBS (`walltime … exceeded
limit`), Kubernetes (`DeadlineExceeded`, `Preempted by pod`), HTCondor, Flux and clouds. Older torch raises
`SignalException: Process … got signal: 15` in its agent. SIGHUP without such a message is
[terminal-closed](terminal-closed.md).
## What to do
Check the scheduler's log for a time limit or preemption (`scontrol show job`, `kubectl describe pod`), and save a
checkpoint on SIGTERM. A preempted job can be resubmitted unchanged.
"""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from ddp_run.evidence.model import TORCHS_AGENT, Death, Evidence
from ddp_run.evidence.windows import LEAVING
from ddp_run.judge.signs import Hit, Sign, in_exception, in_last_words, in_whole_log, like, quotes, started_again
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.values.signals import in_words

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP901",
    layer=Layer.ENDED,
    retry=Retry(helps=True, reason="the job itself did not fail: it was ended from outside"),
    end="told",
)
# srun cancels a step without a reason when one of its tasks has failed. ddp-run's own
# agent prints none of these.
_SCHEDULER = (
    Sign(
        "CANCELLED AT ",
        r"(?P<what>JOB \S+ (?:ON \S+ )?CANCELLED AT \S+(?: DUE TO [A-Z ]*[A-Z]| DUE to SIGNAL \w+)?"
        r"|STEP \S+ (?:ON \S+ )?CANCELLED AT \S+ DUE (?:TO (?!TASK FAILURE)[A-Z ]*[A-Z]|to SIGNAL \w+))",
    ),
    like(
        r"\b(?P<what>TERM_(?:RUNLIMIT|CPULIMIT|DEADLINE|WINDOW|LOAD|PREEMPT|RC_PREEMPT|OWNER|ADMIN"
        r"|FORCE_OWNER|FORCE_ADMIN|REQUEUE_OWNER|REQUEUE_ADMIN|BUCKET_KILL"
        r"|REMOVE_HUNG_JOB|ORPHAN_SYSTEM): [^\n.]*)"
    ),
    like(r"=>> (?P<what>PBS: job killed: (?!v?mem |node \d)[^\n]*)"),
)
_SRUN = (Sign("srun: forcing job termination"),)
"""srun's response to a signal that tells it to stop; for a failed task it prints `Terminating StepId=`."""
_OF_SLURM = re.compile(r"(?:\d{1,6}: )?(?:srun|slurmstepd): ")
_TROUBLE = re.compile(r"\b(?:FATAL|ERROR)\b|\b[\w.]{1,80}(?:Error|Exception)\b")
_HANDLED = like(r"^KeyboardInterrupt: terminated$", ("KeyboardInterrupt",))
"""vLLM's server prints this for SIGTERM."""
_RAISED = Sign("SIGTERMException", types=("SIGTERMException",))
"""Lightning's."""
_WORKER = like(r"DataLoader worker \([^)\n]{1,200}\) is killed by signal: Terminated", ("RuntimeError",))
TOLD = (Sign("eceived SIGTERM"),)
"""Messages of Lightning and many handlers."""
BY_AGENT = (Sign("closing signal SIGTERM"),)
_ENDED = (
    like(r"Caught signal \w{1,20} on \S{1,255}: (?P<what>this job is (?:preempted|timed-out))"),
    *(
        Sign(state, rf"(?:^State: |\bJobState=|Run time [\d:\-]{{1,20}}, )(?P<what>{state})\b")
        for state in ("TIMEOUT", "PREEMPTED", "CANCELLED", "DEADLINE")  # of seff, scontrol, and SLURM's mails
    ),
    like(r"^\d\S{0,60} [^\n]{0,200}(?<!\S)(?P<what>TIMEOUT)\s{1,20}\d{1,3}:\d{1,3}\b"),  # sacct's
    like(r"^\d\S{0,60} [^\n]{0,200}(?<!\S)(?P<what>CANCELLED by \d{1,9})\b"),  # sacct's, with who did it
    like(r"(?P<what>exceeds job hard limit \"[hs]_(?:rt|cpu)\")"),  # Grid Engine
    like(r"^\d{3} \([\d.]{1,30}\) [\d/: \-]{1,30}(?P<what>Job was evicted\.)"),  # HTCondor
    like(r"job\.exception type=(?P<what>(?:timeout|cancel|preempt) [^\n]{0,80})"),  # Flux
    Sign(
        "reempted",
        r"(?P<what>\b(?i:job|instance|node|pod|vm|cluster|container|trial|allocation|machine)\b[^\n]{0,40}"
        r" (?:(?:was|is|being|been|after being) )?preempted\b"
        r"|\bPreempted (?:by pod|in order to admit|to accommodate)[^\n]{0,80})",
    ),
    like(r"(?P<what>Pod was terminated in response to imminent node shutdown)"),
    like(r"(?P<what>preempting to accommodate [^\n]{0,80})"),
    like(r"(?P<what>Pod was rejected as the node is shutting down)"),
    like(r"reason: (?P<what>DeletionByTaintManager)"),
    like(r"(?P<what>interrupted due to worker preemption)"),  # Modal
    like(r"(?P<what>MaxRuntimeExceeded)"),  # SageMaker
    like(r"(?P<what>Interrupted - Training job interrupted[^\n]{0,80})"),
    like(r"Cluster \S{1,100} (?P<what>was terminated\. Reason: [A-Z_]{1,60})"),  # Databricks
    like(r"(?P<what>\bJobPreempted\b)"),
    like(r"## OAR \[[^\]\n]{1,40}\] (?P<what>Job \d{1,12} KILLED)"),
    like(r"(?P<what>via condor_rm [^\n]{0,80})"),
    like(r"(?P<what>job exceeded allowed (?:execute|job) duration[^\n]{0,40})"),  # HTCondor
    like(r"\b(?P<what>(?:Pod|Job) was active [^\n]{0,20}longer than (?:the )?specified deadline)"),
    like(r"(?P<what>[Ss]pot [Ii]nstance [Ii]nterruption)"),
    Sign(
        "time limit",
        r"\b(?P<what>(?i:job|process|container|pod|run|task)\b[^\n]{0,60} (?:terminated|killed|cancelled|stopped)\b"
        r"[^\n]{0,60}\b(?:wall|time|walltime)[ -](?:clock )?(?:time )?limit\b)",
    ),
)
"""Messages of other platforms that end a job. A restarted job logs more below."""
_STATE = Sign(
    "not produced any output (state: ",
    r"\(state: (?P<what>TIMEOUT|PREEMPTED|CANCELLED[^)\n]{0,40}|DEADLINE)\)",
    ("UncompletedJobError",),
)
"""submitit's, about a job, in the exception of the program that waited for it."""
SIGNS: tuple[Sign, ...] = (
    _HANDLED,
    _RAISED,
    _WORKER,
    *_SCHEDULER,
    *_ENDED,
    _STATE,
    Sign("SignalException: Process "),
    Sign("death signal, shutting down workers"),
)
_OF_LSF = (signal.SIGUSR2, signal.SIGXCPU)
"""What it sends at a limit."""
_KILLED = (-signal.SIGTERM, -signal.SIGKILL)
_TELLING = (None, *_KILLED, *(-number for number in (signal.SIGHUP, signal.SIGQUIT, *_OF_LSF)))
_SHELLS = (137, 143)
"""The same if another launcher passes on a shell's exit code."""
_ENDING = (signal.SIGTERM, signal.SIGQUIT)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a rank ended by such a signal that neither ddp-run nor the agent sent."""
    told = in_whole_log(attempt, _SCHEDULER)
    again = told is not None and death.code is None and started_again(attempt.agent.log, told)
    if told is not None and death.exception is None and death.code in _TELLING and not again:
        all_of_them = attempt.logs_only and len(attempt.deaths) > 1 and _all_killed(attempt)
        cause = f"{'the job' if all_of_them else death.who} was killed by the scheduler: {told['what']}"
        return replace(told.finding(RULE, death, cause, _look(told)), of_the_job=all_of_them)
    if _was_told_by_srun(death, attempt):
        hit = in_whole_log(attempt, _SRUN)
        cause = "srun was told to end the job; the log does not show by whom"
        return None if hit is None else hit.finding(RULE, death, cause, _look(hit), confidence="likely")
    hit = in_exception(death, (_STATE,)) or (
        in_last_words(death, _ENDED, LEAVING)
        if death.exception is None and death.code in (*_TELLING, *_SHELLS)
        else None
    )
    if hit is not None:
        return hit.finding(RULE, death, f"the job was ended from outside: {hit['what']}", confidence="likely")
    hit = in_exception(death, (_HANDLED, _RAISED)) or _worker_was_told(death, attempt)
    if hit is not None and in_whole_log(attempt, BY_AGENT) is None:
        return hit.finding(RULE, death, f"{death.who} was stopped by SIGTERM", confidence="likely")
    if death.code is None or -death.code not in _ENDING or -death.code in death.signals_sent:
        return None
    cause = f"{death.who} was terminated from outside by {in_words(death.code)}"
    return Finding(RULE, cause)


def _was_told_by_srun(death: Death, attempt: Evidence) -> bool:
    """Whether all ranks that ended were killed, without a message, by an srun that had received a signal."""
    if not attempt.logs_only or death.code is None or in_whole_log(attempt, _SRUN) is None:
        return False
    said = (line for line in attempt.agent.log.ending(LEAVING).lines if not _OF_SLURM.match(line))
    return _all_killed(attempt) and not any(_TROUBLE.search(line) for line in said)


def _all_killed(attempt: Evidence) -> bool:
    return all(each.code in _KILLED and each.exception is None for each in attempt.deaths)


def _worker_was_told(death: Death, attempt: Evidence) -> Hit | None:
    """Return the line which shows that the rank itself received the SIGTERM that ended its DataLoader worker."""
    if not attempt.logs_only or in_exception(death, (_WORKER,)) is None:
        return None
    return in_whole_log(attempt, TOLD)


def match_stop(attempt: Evidence) -> Finding | None:
    """Match a job that was told to stop."""
    told = in_whole_log(attempt, _SCHEDULER)
    if attempt.stop_signal not in _ENDING and (told is None or attempt.stop_signal != signal.SIGHUP):
        return None
    why = f": {told['what']}" if told is not None else ""
    cause = f"the job was stopped by {in_words(-attempt.stop_signal)}{why}"
    advice = _look(told) if told is not None else ()
    return Finding(RULE, cause, quotes(told), advice, retry=Retry(helps=False, reason="the job was stopped"))


def match_launch(attempt: Evidence) -> Finding | None:
    """Match a log in which only the scheduler reports an end."""
    told = in_whole_log(attempt, _SCHEDULER)
    if told is None or attempt.deaths or started_again(attempt.agent.log, told):
        return None
    return told.finding(RULE, TORCHS_AGENT, f"the scheduler killed the job: {told['what']}", _look(told))


def _look(told: Hit) -> tuple[str, ...]:
    if "CANCELLED" not in told.text:
        return ()
    return ("sacct -j $SLURM_JOB_ID -o JobID,State,Elapsed,Timelimit,NodeList   # its limits and what it used",)
