"""A verdict's exception is the one that shows the cause, and its line is the program's, not a handler's or Cython's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddp_run import explain
from ddp_run.evidence.model import Death, Evidence, LogText
from ddp_run.evidence.traceback_text import from_text
from ddp_run.judge.diagnose import judge
from ddp_run.rank.failure import is_users
from ddp_run.record.events import MonotonicNs, Rank

AFTER = "\nDuring handling of the above exception, another exception occurred:\n\n"
FROM = "\nThe above exception was the direct cause of the following exception:\n\n"
ASSERTED = "torch.AcceleratorError: CUDA error: device-side assert triggered\n"
ASKED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 GiB. GPU 0 has a total capacity of 10 GiB.\n"
)
PACKAGES = "/opt/venv/lib/python3.12/site-packages"


def raised(line: int, function: str, words: str, *below: str) -> str:
    frames = "".join(
        f'  File "{file}", line 9, in {name}\n    pass\n' for file, name in (each.split() for each in below)
    )
    place = f'  File "/home/me/fit.py", line {line}, in {function}\n    step()\n'
    return f"Traceback (most recent call last):\n{place}{frames}{words}"


TOO_LARGE = raised(76, "step", ASKED) + FROM + raised(78, "step", "RuntimeError: a batch of 64 is too large\n")
SAVED = f"{PACKAGES}/torch/serialization.py save"
ASSERTED_TWICE = raised(117, "step", ASSERTED) + AFTER + raised(119, "step", ASSERTED, SAVED)
DUMPED = (
    raised(9, "step", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n")
    + AFTER
    + raised(11, "dump", "FileNotFoundError: [Errno 2] No such file or directory: '/dumps/step-3.pt'\n")
)
LEFT = f"{PACKAGES}/torch/cuda/graphs.py __exit__"
CAPTURED = (
    raised(182, "step", "torch.AcceleratorError: CUDA error: operation not permitted when stream is capturing\n")
    + AFTER
    + raised(181, "step", "torch.AcceleratorError: CUDA error: operation failed due to a previous error\n", LEFT)
)
BY_CYTHON = raised(
    93,
    "step",
    "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,398,046,511,104 bytes.\n",
    f"{PACKAGES}/cupy/_creation/basic.py ones",
    "cupy/cuda/memory.pyx cupy.cuda.memory.alloc",
)


@pytest.mark.parametrize(
    ("text", "cause", "line", "kind"),
    [
        (TOO_LARGE, "cuda-oom", 76, "OutOfMemoryError"),
        (ASSERTED_TWICE, "device-side-assert", 117, "AcceleratorError"),
        (DUMPED, "illegal-memory-access", 9, "AcceleratorError"),
        (CAPTURED, "python-exception", 182, "AcceleratorError"),
        (BY_CYTHON, "cuda-oom", 93, "OutOfMemoryError"),
    ],
    ids=["raised-from", "repeated", "handled", "on-the-way-out", "cython"],
)
def test_the_exception_that_shows_the_cause(text: str, cause: str, line: int, kind: str) -> None:
    exception = from_text(text)
    live = judge(Evidence(deaths=(Death(Rank(1), code=1, failed_at=MonotonicNs(5), exception=exception),)))
    for found in (explain(text), live):
        first = found.first_failure
        assert found.cause == cause
        assert first is not None
        assert first.exception is not None
        assert (first.exception.line, first.exception.type.rpartition(".")[2]) == (line, kind)
        assert f":{line}" in (found.title or "") or cause == "cuda-oom"


def test_the_whole_chain_is_kept() -> None:
    found = explain(TOO_LARGE)
    assert found.first_failure is not None
    assert found.first_failure.exception is not None
    assert "a batch of 64 is too large" in found.first_failure.exception.traceback


@pytest.mark.parametrize(
    ("before", "after", "cause", "sure"),
    [
        # a lost peer and a clean-up that fails are no causes, whatever handles them
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.1.0.7]:2044\n",
         "ValueError: no learning rate\n", "python-exception", "likely"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/a'\n",
         "PermissionError: [Errno 13] Permission denied: '/b'\n", "permission-denied", "certain"),
        ("PermissionError: [Errno 13] Permission denied: '/b'\n",
         "OSError: [Errno 28] No space left on device: '/c'\n", "disk-full", "likely"),
    ],
)  # fmt: skip
def test_what_a_handler_raises(before: str, after: str, cause: str, sure: str) -> None:
    found = explain(raised(3, "load", before) + AFTER + raised(5, "load", after, f"{PACKAGES}/x/y.py save"))
    assert (found.cause, found.confidence) == (cause, sure), found.title


def test_what_fails_as_a_with_block_is_left_is_not_the_reason() -> None:
    """What the block raised is, whatever programs may expect; but for what a block makes of it on purpose."""
    within = raised(3, "step", "KeyError: 'uid'\n") + AFTER
    saved = 'Traceback (most recent call last):\n  File "/home/me/fit.py", line 9, in __exit__\n    {}\n{}\n'
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/logs/t.json'"
    found = explain(within + saved.format("open(self.path)", missing))
    assert (found.cause, found.confidence) == ("python-exception", "likely")
    assert "KeyError in fit.py:3" in (found.title or "")
    found = explain(within + saved.format("raise FileNotFoundError(2, self.path)", missing))
    assert found.cause == "file-not-found"
    assert explain(within + saved.replace("__exit__", "save").format("open(path)", missing)).cause == "file-not-found"


def test_of_two_with_one_cause_the_last_tells_more() -> None:
    part = raised(
        9, "step", "RuntimeError: basic_ios::clear: iostream error\n", f"{PACKAGES}/torch/serialization.py save"
    )
    left = f"{PACKAGES}/torch/serialization.py __exit__"
    full = raised(9, "step", "OSError: [Errno 28] No space left on device: '/c'\n", left)
    found = explain(part + AFTER + full)
    assert (found.cause, found.confidence) == ("disk-full", "certain")
    assert "no space left" in (found.title or "")


def test_an_exception_that_a_library_handled_has_the_programs_line() -> None:
    caught = f'  File "{PACKAGES}/torch/_inductor/runtime/triton_heuristics.py", line 431, in _precompile\n    pass\n'
    large = "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 9, Hardware limit: 8.\n"
    chain = f"Traceback (most recent call last):\n{caught}{large}{AFTER}" + "{0}"
    compiled = raised(124, "step", "RuntimeError: No valid triton configs.\n", caught.split('"')[1] + " _precompile")
    found = explain(chain.format(compiled))
    assert found.cause == "triton-resources"
    assert "(fit.py:124)" in (found.title or "")
    elsewhere = raised(18, "notify", "RuntimeError: no valid address.\n", f"{PACKAGES}/smtplib.py send")
    found = explain(chain.format(elsewhere))
    assert found.cause == "triton-resources"
    assert "(triton_heuristics.py:431)" in (found.title or "")


def test_memory_that_ran_out_before_a_checkpoint_was_saved() -> None:
    saved = raised(75, "save", "RuntimeError: File /e.pt cannot be opened.\n", SAVED)
    found = explain(raised(140, "step", ASKED, f"{PACKAGES}/torch/autograd/__init__.py backward") + AFTER + saved)
    assert "during backward" in (found.title or "")


def test_how_much_others_asked_for() -> None:
    assert "allocating 4,398,046,511,104 bytes" in (explain(BY_CYTHON).title or "")
    told = "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4.00TiB{}.\n"
    found = explain(raised(9, "step", told.format(" with allocator GPU_0_bfc on device 0")))
    assert (found.title, found.confidence) == ("a rank ran out of GPU memory allocating 4.00TiB", "certain")
    assert explain(raised(9, "step", told.format(""))).confidence == "likely"  # perhaps the CPU's


def test_what_a_program_raises_in_a_plain_handler_stays_the_cause() -> None:
    own = raised(3, "load", "KeyError: 'lr'\n") + AFTER + raised(5, "load", "ValueError: no learning rate\n")
    found = explain(own)
    assert found.first_failure is not None
    assert found.first_failure.exception is not None
    assert found.first_failure.exception.line == 5


def test_cythons_sources_are_nobodys_lines() -> None:
    assert not is_users("pandas/_libs/index.pyx")
    assert not is_users("pandas/_libs/hashtable_class_helper.pxi")
    assert is_users("/home/me/pyx/fit.py")


def test_a_workers_exception_is_told_in_its_own_words() -> None:
    worker = raised(45, "__getitem__", "RuntimeError: Cannot re-initialize CUDA in forked subprocess.\n")
    said = "RuntimeError: Caught RuntimeError in DataLoader worker process 0.\nOriginal " + worker
    found = explain(raised(206, "step", said, f"{PACKAGES}/torch/_utils.py reraise"))
    assert found.title == (
        "a rank raised RuntimeError in fit.py:45: Cannot re-initialize CUDA in forked subprocess. "
        "(in DataLoader worker process 0)"
    )


def test_a_compilers_reason_is_told_once() -> None:
    at = "/tmp/k.cubin.cu(1): error: expected an expression"
    found = explain(raised(151, "step", f"cupy.cuda.compiler.CompileException: {at}\n  int x = ;\n"))
    assert found.title == f"a rank could not compile: CompileException: {at} (fit.py:151)"
    below = "def _wrong(out):\n    tl.store(out, tl.arange(0, 3))\n                  ^\n"
    words = f"triton.compiler.errors.CompilationError: at 2:18:\n{below}arange's range must be a power of 2\n"
    found = explain(raised(35, "step", words))
    assert found.title == (
        "a rank could not compile: CompilationError: at 2:18: arange's range must be a power of 2 (fit.py:35)"
    )
    missing = (
        "torch._inductor.exc.InductorError: FileNotFoundError: [Errno 2] No such file or directory: '/usr/bin/{}'\n"
    )
    assert "no C compiler" in (explain(raised(7, "step", missing.format("x86_64-linux-gnu-gcc"))).title or "")
    assert "no C compiler" not in (explain(raised(7, "step", missing.format("data.cc.txt"))).title or "")


def test_who_removed_what_of_numpy() -> None:
    inside = f"{PACKAGES}/numba_cuda/numba/cuda/api.py refresh", f"{PACKAGES}/numpy/__init__.py __getattr__"
    for name, help in (("row_stack", "'numpy<2'"), ("bool", "'numpy<1.24'"), ("asscalar", "array.item()")):
        found = explain(raised(160, "step", f"AttributeError: module 'numpy' has no attribute '{name}'\n", *inside))
        assert found.title == f"a rank found no numpy.{name} (fit.py:160): newer NumPy versions removed it"
        assert help in found.advice[0]


def test_the_drivers_report_about_another_process_is_no_evidence() -> None:
    lines = tuple(
        f"[ 104.5] NVRM: Xid (PCI:0000:00:06): {number}, pid={pid}, name=python3, channel 0x46" for number, pid in
        ((31, 1335), (13, 1342))
    )  # fmt: skip
    exception = from_text(raised(9, "step", "torch.AcceleratorError: CUDA error: unspecified launch failure\n"))
    kernel = LogText("kernel", lines, None)
    for pid, shown in ((1335, ["31, pid=1335"]), (1342, ["13, pid=1342"]), (7, [])):
        death = Death(Rank(1), pid=pid, code=1, failed_at=MonotonicNs(5), exception=exception)
        quotes = judge(Evidence(deaths=(death,), kernel=kernel, kernel_pids=True)).evidence
        assert [quote.text[37:49] for quote in quotes if quote.source == "kernel"] == shown
        quotes = judge(Evidence(deaths=(death,), kernel=kernel)).evidence  # of another pid namespace
        assert [quote.text[37:49] for quote in quotes if quote.source == "kernel"] == ["13, pid=1342"]


def test_the_rank_is_named_whose_process_the_drivers_report_names() -> None:
    """Its peers wait for it, and end first."""
    xid = "[ 7.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=52, name=python, GPU has fallen off the bus."
    lost = from_text(raised(9, "step", "torch.AcceleratorError: CUDA error: unspecified launch failure\n"))
    waited = [Death(Rank(r), pid=50 + r, code=1, failed_at=MonotonicNs(5), exception=lost) for r in (0, 1)]
    ends = (*waited, Death(Rank(2), pid=52, code=-9, died_at=MonotonicNs(9), signals_sent=(9,)))
    run = Evidence(deaths=ends, kernel=LogText("kernel", (xid,), None), kernel_pids=True)
    found = judge(run)
    assert found.first_failure is not None
    assert (found.cause, found.first_failure.rank) == ("gpu-hardware", 2)
    assert "rank 2" in (found.title or "")
    other = replace(run, kernel_pids=False)  # of another pid namespace
    assert judge(other).first_failure.rank == 0  # type: ignore[union-attr]


def test_a_failed_check_without_words() -> None:
    kernel = "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:109: _assert_async_cuda_kernel: block: [0,0,0], "
    found = explain(f"{kernel}thread: [0,0,0] Assertion `` failed.\n{raised(9, 'step', ASSERTED)}")
    assert (found.title or "").endswith("a check on the GPU failed (TensorCompare.cu:109)")
    assert (explain(raised(9, "step", ASSERTED)).title or "").endswith("surfaced at fit.py:9")


def test_this_file_is_the_users() -> None:
    assert is_users(str(Path(__file__)))
