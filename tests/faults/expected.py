"""What must be said of each faulty job, written down before its first run. See `tests/faults/run.py`.

A phase or a cause that people could name in two ways has both. Corrected after it: the line of engine-body (the
innermost of the user's frames), a rule for SIGHUP that is newer, a signal that the agent hears only after its ranks'
start, no line for workers that die (torch raises wherever SIGCHLD finds the main thread), and who is first of ranks
that end together: what they were told to do is not what two cores let them do.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

BEFORE, AFTER, TRAINING, SHUTDOWN = "before-init", "after-init", "training", "shutdown"
FIRST = -1000
LOOP = (AFTER, TRAINING)
"""Within a loop that has collectives and no optimizer."""


@dataclass(frozen=True)
class Job:
    """One faulty job. `marker` names the line `# <- marker` of its program, `-` means that no line is expected."""

    name: str
    words: tuple[str, ...]
    code: int
    cause: tuple[str | None, ...]
    rank: tuple[int | None, ...] = (1,)
    marker: str = "-"
    phase: tuple[str | None, ...] = (TRAINING,)
    followers: frozenset[int] | None = frozenset({0})
    outcome: str = "failed"
    options: tuple[str, ...] = ()
    ranks: int = 2
    stop: signal.Signals | None = None
    """Sent to ddp-run when `until` was printed by every rank, or a line of the journal matched `until`."""
    until: str = ""
    within: tuple[str, ...] = ()
    """Words before ddp-run."""
    repeat: int = 1
    lost: bool = False
    """The rank's GPU context is lost: it may be aborted for that before Python ends it."""


def _script(name: str, fault: str, code: int, *cause: str, **more: object) -> Job:
    words = ("argparse_main.py", "--fault", fault)
    return Job(name, words, code, cause, **{"marker": fault} | more)  # type: ignore[arg-type]


def _of(program: str, name: str, fault: str, code: int, *cause: str, **more: object) -> Job:
    return Job(f"{program}-{name}", (f"{program}.py", fault, "1"), code, cause, **more)  # type: ignore[arg-type]


RAISED = ("python-exception",)

ARGPARSE = [
    _script("raise", "raise", 1, *RAISED),
    _script("raise-early", "raise-early", 1, *RAISED, phase=(BEFORE,)),
    _script("raise-late", "raise-late", 1, *RAISED, phase=(SHUTDOWN,), followers=None),
    _script("missing-file", "missing-file", 1, "file-not-found", phase=(BEFORE,)),
    _script("import", "import", 1, "import-error", phase=(BEFORE,)),
    _script("unset-variable", "unset-variable", 1, *RAISED, phase=(BEFORE,)),
    _script("cuda", "cuda", 1, "cuda-unavailable", phase=(BEFORE,)),
    _script("set-device", "set-device", 1, "cuda-unavailable", phase=(BEFORE,)),
    _script("no-group", "no-group", 1, "process-group-misuse", phase=(BEFORE,)),
    Job("nccl", ("argparse_main.py", "--fault", "nccl"), 1, ("cuda-unavailable", "nccl-init"), (0, 1), "nccl",
        ("init", BEFORE, AFTER), None),
    _script("other-shape", "other-shape", 1, "checkpoint-mismatch", phase=LOOP),
    _script("torn-checkpoint", "torn-checkpoint", 1, "checkpoint-corrupt", phase=LOOP),
    _script("exit-7", "exit-7", 7, *RAISED),
    _script("exit-words", "exit-words", 1, *RAISED),
    _script("os-exit-9", "os-exit-9", 9, "unknown", "peer-died", marker="-"),
    _script("kill", "kill", 137, "unknown", marker="-"),
    _script("segv", "segv", 139, "segfault"),
    _script("abort", "abort", 134, "native-abort"),
    _script("group", "group", 1, *RAISED),
    _script("recursion", "recursion", 1, *RAISED),
    _script("nan", "nan", 1, "nan-divergence"),
    _script("assert", "assert", 1, *RAISED),
    _script("chained", "chained", 1, *RAISED, marker="chained"),
    _script("memory", "memory", 1, "host-oom", *RAISED),
    _script("descriptors", "descriptors", 1, "too-many-open-files"),
    _script("permission", "permission", 1, "permission-denied"),
    _script("shapes", "shapes", 1, *RAISED),
    _script("leave", "leave", 1, "peer-died", marker="-", phase=(None, TRAINING, SHUTDOWN)),
    _script("interrupt", "interrupt", 130, "user-interrupt", *RAISED, marker="-"),
    Job("bad-argument", ("argparse_main.py", "--learning-rate", "1"), 2, ("bad-arguments",), (0, 1), "-",
        (BEFORE,), None),
    Job("no-script", ("argparse_main_2.py",), 2, ("script-not-found",), (None,), "-", ("launch", None), None,
        outcome="refused"),
    Job("full-disk", ("argparse_main.py", "--fault", "full-disk", "--path", "{small}"), 1, ("disk-full",), (1,),
        "full-disk"),
]  # fmt: skip

LOGGING = [
    _of("with_logging", "stderr", "logged-stderr", 3, *RAISED, marker="logged", phase=LOOP),
    _of("with_logging", "stdout", "logged-stdout", 3, *RAISED, marker="logged", phase=LOOP),
    _of("with_logging", "survived", "survived", 3, *RAISED, marker="survived", phase=LOOP),
    _of("with_logging", "silent", "silent", 11, "unknown", "peer-died", phase=LOOP),
    _of("with_logging", "critical", "critical", 4, *RAISED, marker="critical", phase=LOOP),
    _of("with_logging", "warned", "warned", 3, *RAISED, marker="warned", phase=LOOP),
    Job("with_logging-rank-0", ("with_logging.py", "logged-stderr", "0"), 3, RAISED, (0,), "logged", LOOP,
        frozenset({1})),
]  # fmt: skip

TRAINER = [
    _of("trainer", "setup", "setup", 1, *RAISED, marker="setup", phase=(AFTER,)),
    _of("trainer", "step-end", "step-end", 1, *RAISED, marker="step-end"),
    _of("trainer", "epoch-end", "epoch-end", 1, "file-not-found", *RAISED, marker="epoch-end"),
    _of("trainer", "train-end", "train-end", 1, *RAISED, marker="train-end", followers=None,
        phase=(TRAINING, SHUTDOWN)),
    _of("trainer", "early-stop", "early-stop", 1, "peer-died", phase=(None, TRAINING, SHUTDOWN)),
    _of("trainer", "model-differs", "model-differs", 1, "ddp-shape-mismatch", phase=LOOP, followers=None, rank=(0, 1)),
    _of("trainer", "wrong-dtype", "wrong-dtype", 1, *RAISED, marker="wrong-dtype"),
]  # fmt: skip

LOADER = [
    _of("loader_and_bar", "sample", "sample", 1, *RAISED, marker="sample"),
    _of("loader_and_bar", "worker-killed", "worker-killed", 1, "dataloader-worker-died"),
    _of("loader_and_bar", "worker-exits", "worker-exits", 1, "dataloader-worker-died"),
    _of("loader_and_bar", "ragged", "ragged", 1, *RAISED, marker="loader"),
    _of("loader_and_bar", "missing-sample", "missing-sample", 1, "file-not-found", marker="missing-sample"),
    _of("loader_and_bar", "in-the-bar", "in-the-bar", 1, *RAISED, marker="in-the-bar"),
    _of("loader_and_bar", "killed", "killed-in-the-bar", 137, "unknown"),
]

ENGINE = [
    _of("engine", "construct", "construct", 1, *RAISED, marker="construct", phase=(BEFORE,)),
    _of("engine", "enter", "enter", 1, *RAISED, marker="enter", phase=(AFTER,)),
    _of("engine", "body", "body", 1, *RAISED, marker="body"),
    _of("engine", "code", "code", 42, *RAISED, marker="code"),
    _of("engine", "exit", "exit", 1, *RAISED, marker="exit", followers=None),
    _of("engine", "generator", "generator", 1, *RAISED, marker="generator"),
    _of("engine", "suppressed", "suppressed", 1, *RAISED, marker="suppressed"),
]

THREADS = [
    _of("threads", "future", "future", 1, *RAISED, marker="future", phase=LOOP),
    _of("threads", "thread", "thread", 1, *RAISED, marker="thread", phase=LOOP),
    _of("threads", "stays", "stays", 1, *RAISED, marker="stays", phase=LOOP, options=("--shutdown-timeout", "4")),
    _of("threads", "stays-hang-timeout", "stays", 1, *RAISED, marker="stays", phase=LOOP,
        options=("--hang-timeout", "4")),
    _of("threads", "stays-at-exit", "stays-at-exit", 1, *RAISED, marker="stays-at-exit", phase=LOOP,
        options=("--shutdown-timeout", "4")),
    _of("threads", "stays-at-exit-hang-timeout", "stays-at-exit", 1, *RAISED, marker="stays-at-exit", phase=LOOP,
        options=("--hang-timeout", "4")),
    _of("threads", "awaited", "awaited", 1, *RAISED, marker="awaited", phase=LOOP),
    _of("threads", "at-exit-code", "at-exit-code", 17, "unknown", phase=(SHUTDOWN,), followers=None),
]  # fmt: skip
NOTHING: tuple[None] = (None,)

REPORTS_ITSELF = [
    *(
        _of("reports_itself", how, how, code, *RAISED, marker=marker, phase=(phase,), ranks=3,
            followers=frozenset({0, 2}))
        for how, code, marker, phase in (
            ("same", 1, "same", AFTER),
            *((how, 1, "schedule", AFTER) for how in ("named", "quoted", "the-exception")),
            *((how, 1, "schedule", None) for how in ("store", "waits")),
            *((how, 1, "schedule", AFTER) for how in ("cleans-up", "cleans-up-0", "cleans-up-stdout")),
            ("all-leave", 14, "schedule", None),
            ("late", 17, "schedule", AFTER),
        )
    ),
    _of("reports_itself", "hangs", "hangs", 1, "gloo-timeout-hang", phase=(AFTER,), ranks=3, followers=None),
]  # fmt: skip
"""The phase of what a rank had only logged is unknown, unless it destroyed its process group in the handler."""
HEALTHY = [
    Job(name, words, 0, NOTHING, NOTHING, "-", NOTHING, None, "succeeded")
    for name, words in (
        ("healthy", ("argparse_main.py",)),
        ("threads-at-exit", ("threads.py", "at-exit", "1")),
        ("threads-thread-ignored", ("threads.py", "thread-ignored", "1")),
    )
]

TOGETHER = [
    Job(f"together-{kind}", ("together.py", kind, "{folder}/start"), FIRST, cause, (FIRST,), "-", (BEFORE,),
        ranks=4, repeat=20)
    for kind, cause in (("exit", ("unknown",)), ("raise", RAISED), ("signal", ("segfault",)))
]  # fmt: skip
"""Who ended first is written down by the ranks themselves; `run.py` puts it in the place of FIRST."""
STOPPED = (None, "preempted-sigterm", "user-interrupt", "terminal-closed")


def _stopped(name: str, signum: signal.Signals, fault: str, until: str, *phase: str | None, **more: object) -> Job:
    words = ("argparse_main.py", "--fault", fault, "--rank", "-1", "--steps", "1000" if fault == "slow-steps" else "6")
    return Job(
        f"stop-{signum.name}-{name}", words, 128 + signum, STOPPED,
        NOTHING, "-", phase, None, "interrupted", stop=signum, until=until, **more,  # type: ignore[arg-type]
    )  # fmt: skip


STOPS = [
    *(_stopped("training", each, "slow-steps", "step 2", TRAINING)
      for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)),
    _stopped("early", signal.SIGTERM, "sleep-early", "sleeping", BEFORE),
    _stopped("early", signal.SIGINT, "sleep-early", "sleeping", BEFORE),
    _stopped("late", signal.SIGTERM, "sleep-late", "sleeping", SHUTDOWN),
    _stopped("starting", signal.SIGTERM, "none", "AgentStarted", None, BEFORE),
    *(Job(f"stop-{each.name}-between-attempts", ("argparse_main.py", "--fault", "kill"), 128 + each, ("unknown",),
          (1,), "-", (TRAINING,), frozenset({0}), "interrupted", ("--max-retries", "9"), stop=each,
          until='AttemptEnded.*"attempt": ?1')
      for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)),
]  # fmt: skip


def _gpu(fault: str, *cause: str, code: int = 1, **more: object) -> Job:
    return Job(f"gpu-{fault}", ("gpu.py", fault), code, cause, **more)  # type: ignore[arg-type]


OOM, ASSERTED, ILLEGAL = ("cuda-oom",), ("device-side-assert",), ("illegal-memory-access",)
GPU = [
    *(_gpu(fault, *OOM, marker=fault) for fault in
      ("oom", "oom-activation", "oom-backward", "oom-reraised", "oom-jax", "oom-cupy")),
    _gpu("oom-logged", *OOM, code=3, marker="oom-logged"),
    _gpu("oom-pinned", "host-oom", *OOM, marker="oom-pinned"),
    _gpu("oom-then-raise", *RAISED, marker="oom-then-raise"),
    Job("gpu-oom-survived", ("gpu.py", "oom-survived"), 0, NOTHING, NOTHING, "-", NOTHING, None, "succeeded"),
    *(_gpu(fault, *ASSERTED, lost=True) for fault in
      ("assert-index", "assert-label", "assert-gather", "assert-bce", "assert-async", "assert-then-save",
       "assert-then-own")),
    _gpu("assert-multinomial", "nan-divergence", *ASSERTED, lost=True),
    _gpu("blocking-index", *ASSERTED, lost=True, marker="blocking-index"),
    *(_gpu(fault, *ILLEGAL, lost=True) for fault in
      ("illegal", "misaligned", "trap", "illegal-in-ddp", "illegal-cupy", "triton_wild")),
    _gpu("illegal-numba", *ILLEGAL, "version-mismatch", lost=True),  # numba may be too old for the installed NumPy
    _gpu("triton_large", "triton-resources"),
    _gpu("triton_wrong", "compile-failure", *RAISED),
    _gpu("nvrtc", "compile-failure", marker="nvrtc"),
    _gpu("compile-break", "compile-failure", *RAISED, marker="compile-break"),
    _gpu("compile-no-cc", "compile-failure", marker="compile-no-cc"),
    _gpu("capture", "cuda-library-error", *RAISED, marker="capture"),
    *(_gpu(fault, *RAISED, marker=fault) for fault in
      ("two-devices", "two-dtypes", "flash", "deterministic", "cholesky", "fork", "raise")),
    *(_gpu(fault, "cuda-library-error", *RAISED, marker=fault) for fault in ("conv-integers", "half-fft")),
    *(_gpu(fault, "nan-divergence", marker=fault) for fault in ("anomaly", "loss-check")),
    *(_gpu(fault, "process-group-misuse", *RAISED, marker=fault) for fault in ("cpu-tensor", "strided")),
    _gpu("wrong-state", "checkpoint-mismatch", marker="wrong-state"),
    _gpu("kill", "unknown", code=137),
    _gpu("exit-7", *RAISED, code=7, marker="exit-7"),
    *(_gpu(fault, "invalid-device", marker=fault, phase=(BEFORE,)) for fault in ("ordinal", "load-elsewhere")),
    _gpu("hidden", "cuda-unavailable", marker="hidden", phase=(BEFORE,)),
]  # fmt: skip
"""These need a GPU; one is enough. After an error that no handler cures, NCCL's watchdog may abort the rank first."""

JOBS = (*ARGPARSE, *LOGGING, *TRAINER, *LOADER, *ENGINE, *THREADS, *REPORTS_ITSELF, *HEALTHY, *TOGETHER, *STOPS)
