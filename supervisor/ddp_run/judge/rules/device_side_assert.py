"""Device-side assertion failed.

## What happened
A GPU kernel checked its input and the check failed: usually an index (a class label, a token, an embedding row) out of
range.
## How to recognise it
`CUDA error: device-side assert triggered`, and above it the kernel's own lines, one for each thread that failed:

    ../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [5,0,0]
    Assertion `t >= 0 && t < n_classes` failed.

ROCm prints `Device-side assertion … failed`. The first such line is the real cause; the Python line below is only where
the error surfaced. Later cuBLAS and cuDNN errors on the same rank are consequences.
## What to do
- `t < n_classes` (Loss.cu): a label is not in 0 … C-1. Check `labels.min(), labels.max()` against the number of
  outputs.
- `srcIndex < srcSelectDimSize`, `index out of bounds` (Indexing.cu, IndexKernel.cu): an index into an embedding or a
  tensor is too large: a token id beyond the vocabulary, positions longer than the model's maximum.
- `input_val >= zero && input_val <= one` (Loss.cu): `BCELoss` got values outside 0 … 1, or NaN.
- `probability tensor contains either inf, nan` (TensorCompare.cu, MultinomialKernel.cu): the model's output
  is not finite.
- Run the failing batch on the CPU, where the same mistake raises a clear exception; or set `CUDA_LAUNCH_BLOCKING=1`.
"""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.gpu_text import ended_by_gpu, errors_named
from ddp_run.judge.signs import Sign, every, like, quotes
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP306",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the same data will fail the same check again"),
    end="sticky",
)
SYMPTOMS = (
    like(r"[\w./\-]{1,400}\.(?:cuh?|hip):\d{1,6}: [^\n]{0,600}?block: \[[\d, ]{1,60}\], ?thread: \["),
    like(r"[\w./\-]{1,400}\.(?:cuh?|hip):\d{1,6}: [^\n]{0,600}?: Assertion `[^\n]{1,300}' failed"),
)
_PLACE = r"(?<![\w./\-+])(?P<file>[\w./\-+]+):(?P<line>\d+): [^\n]{0,600}?"
_KERNELS = (
    rf"{_PLACE}(?:block|global id): \[[\d, ]{{1,60}}\], ?(?:thread|local id): \[[\d, ]{{1,60}}\]:? "
    r"Assertion [`'](?P<check>[^\n]{0,300}?)[`'] failed"
)
_SAID = (
    Sign("device-side assert triggered"),
    Sign("CUDA device-side assertion failures were found"),
    *errors_named("Assert", "ASSERT"),
)
_KERNEL = (
    Sign("], thread: [", _KERNELS),
    Sign("], local id: [", _KERNELS),
    like(rf"{_PLACE}Device-side assertion [`'](?P<check>[^\n]{{1,300}}?)' failed"),
)
SIGNS = (*_SAID, *_KERNEL)
_FOLLOWS = re.compile(
    r"(?:CUDA|HIP) error: |CUBLAS_STATUS_|HIPBLAS_STATUS_|cuDNN error: |CUDNN_STATUS_|HSA_STATUS_ERROR"
)
_MEANINGS = (
    (r"n_classes", "a class label is outside 0 … C-1"),
    (r"srcIndex < srcSelectDimSize", "an index into an embedding or a selected dimension is too large"),
    (r"index out of bounds|idx_dim|indices?\b.*<|vectorized_gather|ind >=0|ind >= 0", "an index is out of bounds"),
    (r"input_val >= zero|input_val <= one", "a value given to BCELoss is outside 0 … 1, or NaN"),
    (r"inf.*nan|`?nan`?|element < 0", "probabilities are not finite, or negative"),
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match an assertion that ended the rank, or a kernel's message before a GPU error ended it."""
    hit = ended_by_gpu(death, _SAID)
    if hit is None and not _may_follow(death):
        return None
    kernel = next(iter(every(death.stderr, *_KERNEL)), None)  # later ones are from other threads
    told = kernel or hit
    if told is None:
        return None
    check = (kernel["check"] or "").strip() if kernel is not None else None
    shown = hit.exception if hit is not None else None
    why = f"device-side assert, surfaced {f'at {shown.place}' if shown is not None and shown.place else 'later'}"
    if kernel is not None and check is not None:
        place = f"{(kernel['file'] or '').rpartition('/')[2]}:{kernel['line']}"
        why = f"{_meaning(check)} ({f'`{check[:80]}`, {place}' if check else place})"
    cause = f"{death.who}'s GPU kernel rejected its input: {why}"
    alone: Confidence = "likely" if death.exception is None else "certain"
    sure = hit.confidence if hit is not None else alone
    finding = told.finding(RULE, death, cause, _advice(check), confidence=sure, also=quotes(hit))
    return replace(finding, exception=shown)


def _may_follow(death: Death) -> bool:
    """Whether its own GPU ended it, with a message that can follow a failed assertion, or by an abort."""
    raised = death.exception
    if raised is None:
        return death.code == -signal.SIGABRT
    said = f"{raised.type}: {raised.message}"
    return _FOLLOWS.search(said) is not None and "NCCL" not in said


def _meaning(check: str) -> str:
    return next((words for pattern, words in _MEANINGS if re.search(pattern, check)), "a check on the GPU failed")


def _advice(check: str | None) -> tuple[str, ...]:
    first = "export CUDA_LAUNCH_BLOCKING=1   # the traceback then shows the failing launch"
    if check is None:
        return (first, "grep -n 'Assertion' in this rank's log: the kernel prints the failed check")
    if "n_classes" in check:
        return ("assert 0 <= labels.min() and labels.max() < num_classes   # before the loss; -100 is ignored", first)
    if "srcIndex" in check or "bounds" in check or "idx" in check:
        return ("assert ids.max() < embedding.num_embeddings   # token and position ids, before the forward", first)
    return ("run the failing batch on the CPU, where the same check raises a clear exception", first)
