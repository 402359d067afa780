"""Causes that show in words which do not name them: short writes, modules that a release dropped, garbled sizes."""

from __future__ import annotations

import pytest

from ddp_run import explain

C10D = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
IN_OBJECTS = f"""Traceback (most recent call last):
  File "train.py", line 9, in <module>
    dist.broadcast_object_list(box, 0)
  File "{C10D}", line 4039, in broadcast_object_list
    object_tensor = torch.empty(sum(object_sizes_tensor).item())
{{said}}"""
READING = f"""Traceback (most recent call last):
  File "train.py", line 9, in <module>
    dist.all_gather_object(boxes, box)
  File "{C10D}", line 3435, in _tensor_to_object
    return _unpickler(io.BytesIO(buf)).load()
{{said}}"""
PLAIN = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    save(model)
{said}"""
REFUSED = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
)


@pytest.mark.parametrize(
    ("text", "said", "cause"),
    [
        # all three provoked with gloo and torch 2.13: the other rank was in a broadcast of a tensor
        (IN_OBJECTS, f"{REFUSED} to allocate 4614613358185178726 bytes. Error code 12", "collective-mismatch"),
        (IN_OBJECTS, "RuntimeError: Trying to create tensor with negative dimension -3: [-3]", "collective-mismatch"),
        (READING, "_pickle.UnpicklingError: invalid load key, '\\x00'.", "collective-mismatch"),
        (READING, "EOFError: Ran out of input", "collective-mismatch"),
        (IN_OBJECTS, f"{REFUSED} to allocate 4614613358 bytes. Error code 12 (Cannot allocate memory)", "host-oom"),
        (PLAIN, f"{REFUSED} to allocate 4614613358185178726 bytes. Error code 12", "host-oom"),
        (PLAIN, "_pickle.UnpicklingError: invalid load key, '\\x00'.", "checkpoint-corrupt"),
        # numpy's tofile and save, numpy/core/src/multiarray/convert.c
        (PLAIN, "OSError: 8388608 requested and 2097152 written", "disk-full"),
        (PLAIN, "OSError: Could not write all requested bytes", "disk-full"),
        (PLAIN, "RuntimeError: [enforce fail at inline_container.cc:595] . unexpected pos 640 vs 570", "disk-full"),
        (PLAIN, "ModuleNotFoundError: No module named 'torch._six'", "version-mismatch"),
        (PLAIN, "ModuleNotFoundError: No module named 'pytorch_lightning.metrics'", "version-mismatch"),
        (PLAIN, "ModuleNotFoundError: No module named 'distutils'", "version-mismatch"),
        (PLAIN, "ModuleNotFoundError: No module named 'imp'", "version-mismatch"),
        # an extension that did not load and registered nothing: torch/_ops.py, torch/_classes.py
        (PLAIN, "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'", "version-mismatch"),
        (
            PLAIN,
            "RuntimeError: Tried to instantiate class '_core.Kind', but it does not exist! Ensure that it is "
            "registered via torch::class_",
            "version-mismatch",
        ),
        (
            PLAIN,
            "RuntimeError: Attempted to read a PyTorch file with version 3, but the maximum supported version for "
            "reading is 2.",
            "version-mismatch",
        ),
        (PLAIN, "TypeError: Descriptors cannot not be created directly.", "version-mismatch"),
        (PLAIN, "RuntimeError: CUDA Error: out of memory at /csrc/cumem_allocator.cpp:139", "cuda-oom"),
        (
            PLAIN,
            "RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
            "cuda-oom",
        ),
        (
            PLAIN,
            "accelerate.utils.operations.DistributedOperationException: Cannot apply desired operation due to shape "
            "mismatches. All shapes across devices must be valid.",
            "collective-mismatch",
        ),
        (PLAIN, "ModuleNotFoundError: No module named 'torch'", "import-error"),
        (PLAIN, "ModuleNotFoundError: No module named 'models.unet'", "import-error"),
        (PLAIN, "ModuleNotFoundError: No module named 'torch.nn'; 'torch' is not a package", "import-error"),
    ],
)
def test_cause(text: str, said: str, cause: str) -> None:
    assert explain(text.format(said=said)).cause == cause


def test_an_absurd_size_is_called_so() -> None:
    found = explain(PLAIN.format(said=f"{REFUSED} to allocate 4614613358185178726 bytes. Error code 12"))
    assert "more than any host has" in (found.title or "")
    assert any("shape" in advice for advice in found.advice)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("ValueError: Invalid backend: 'nccll'", "nccl"),
        ("RuntimeError: Distributed package doesn't have MPI built in. MPI is only included if you build", None),
    ],
)
def test_a_backend_that_torch_knows_is_not_proposed_in_its_own_place(said: str, meant: str | None) -> None:
    verdict = explain(IN_OBJECTS.format(said=said))
    assert verdict.cause == "process-group-misuse"
    assert [advice.partition("?")[0] for advice in verdict.advice if "did you mean" in advice] == (
        [f"did you mean {meant}"] if meant else []
    )
