"""Messages about incompatible versions: general phrases, and those of widely used libraries. Pure.

Only in exceptions: as warnings, the same words appear in successful runs.
"""

from __future__ import annotations

import re

from ddp_run.judge.signs import Sign, like, meaning

_RAISED = frozenset(
    {
        *("ImportError", "RuntimeError", "AssertionError", "ValueError", "OSError", "NotImplementedError"),
        *("VersionError", "Fail", "InternalError"),
    }
)
_WHOSE = (
    r"package|[Ll]ibrary|[Rr]untime|CUDA|cuDNN|ROCm|HIP|CANN|ABI|NumPy|[Pp]y[Tt]orch|[Tt]orch|[Tt]ransformers|[Pp]ython"
)

OLDER_NUMPY = ("python -m pip install 'numpy<2'   # or newer releases of the packages that were built for NumPy 1",)
PARTS_MISSING = meaning(
    like(r"Could not run '(?!aten::|prims::)\w{1,60}::[\w.]{1,100}' with arguments from the 'CUDA' backend", _RAISED),
    like(r"\w{1,60}: implementation for device cuda:\d{1,4} not found"),
    like(r"No such operator (?!aten::|prim)\w{1,60}::\w{1,100}", _RAISED),
    Sign("CUDA Setup failed despite GPU being available", types=_RAISED),  # bitsandbytes
    likely=True,
)
"""A package has no code for the GPU: built for CPUs, or not loaded because it does not fit the installed torch."""
SIGNS: tuple[Sign, ...] = (
    *(
        # not the driver's `Driver/library version mismatch`
        Sign(words, rf"(?<![/\w])(?:{_WHOSE}) {said}", _RAISED)
        for words, said in (
            ("ersion mismatch", "version mismatch"),
            ("ersion incompatibility", "version incompatibility"),
            ("VERSION MISMATCH", "VERSION MISMATCH"),
        )
    ),
    Sign("but source was compiled with", types=_RAISED),  # TensorFlow, about cuDNN
    like(r"\bversion [\w.+]{1,40} is [^\n]{0,40}?incompatible with (?=\w)", _RAISED),  # jaxlib, and below
    like(r"but this version of \w{1,40} requires version", _RAISED),
    Sign("not compatible with the installed", r"version \S{1,40} is[^\n]{0,60} not compatible with the inst"),
    *meaning(like(r"needs NumPy [\d.]{1,9} or (?:less|greater)", _RAISED), advice=OLDER_NUMPY),  # numba
    Sign("Gencode/Runtime versions", types=_RAISED),  # protobuf
    Sign("max supported IR version", types=_RAISED),  # ONNX Runtime
    like(r"not supported on Python 3\.\d{1,3}\b", _RAISED),  # torch.compile
    like(r"(?:max|min)imum required version by CUDA [\d.]{1,9}", _RAISED),
    Sign("of Cuda that does", r"a version of Cuda that does\s+not match the version used to", _RAISED),  # apex
    like(r"\w{1,60}==\S{1,40} is used but incompatible", _RAISED),  # OpenMMLab
    like(r"only supported on CUDA [\d.]{2,6} and (?:above|newer|later)", _RAISED),
    like(r"requires? [^\n]{1,100}?[<>=!~]=? ?\d[^\n]{0,60}? but found version [\w.+]{1,30}", _RAISED),
    *PARTS_MISSING,
)
_PYDANTICS = frozenset({"PydanticUserError", "PydanticImportError"})
OLDER = (
    Sign("Configured CUDA binary not found"),  # bitsandbytes has none for this torch
    Sign("Your currently installed version of Keras is Keras 3"),
    Sign("Dataset scripts are no longer supported"),
    Sign("' not found. Available feature types: "),
    Sign("did not match any variant of untagged enum", r"any variant of untagged enum (?:ModelWrapper|Py\w+Wrapper)"),
    Sign("does not exist or is not currently imported", r"Tokenizer class \w+ does not exist or is not currently"),
    like(r"rope_scaling`? must be a dictionary with two fields"),
    Sign(
        "`",
        r"` (?:is removed|has been moved to|is deprecated and should be replaced)|has been removed in V2",
        _PYDANTICS,
    ),
)
"""Messages of a library that is older or newer than its input; a wrong file or name may cause the same."""
KEYWORD = like(
    r"(?:(?P<whose>\w{1,100})\.)?(?P<called>\w{1,100})\(\) got an unexpected keyword argument '", ("TypeError",)
)
ARCHITECTURE = like(r"^KeyError: '[a-z][\w\-]{1,60}'$", ("KeyError",))
AUTO = re.compile(
    r'transformers/models/auto/configuration_auto\.py", line \d+, in (?:__getitem__|from_pretrained)\n[^\n]*\n?$'
)
REMOVED_FROM_NUMPY = re.compile(  # in 1.24 and in 2.0
    r"object0?|float_?|int0?|bool8?|complex_?|str0?|long|unicode_?|string_|typeDict|uint0|bytes0|void0|Inf|Infinity|NaN|NA"
    r"N"
    r"|PINF|NINF|PZERO|NZERO|infty|cast|asfarray|row_stack|in1d|trapz|product|cumproduct|alltrue|sometrue|round_"
    r"|find_common_type|issctype|maximum_sctype|obj2sctype|sctype2char|issubclass_|set_string_function|lookfor|safe_eva"
    r"l"
    r"|msort|mat|disp|byte_bounds|source|who|compat|recfromcsv|recfromtxt|DataSource|sctypes|nbytes|geterrobj|seterrobj"
    r"|asscalar|rank|longfloat|singlecomplex|clongfloat|longcomplex|cfloat|deprecate"
)
LIBRARIES = (
    r"torch|torchvision|torchtext|torchaudio|pytorch_lightning|lightning|lightning_fabric|transformers|numpy|scipy|sklearn"
    r"|keras|tensorflow|huggingface_hub|datasets|diffusers|peft|accelerate|timm|mmcv|mmengine|detectron2|triton|pandas"
)
OF_PROJECTS_TOO = frozenset({"datasets"})
"""Of these, names that many projects also give to a folder in their own code."""
_DROPPED = "{who} found no module {dropped}{where}: not in the installed version of "
DROPPED = tuple(
    Sign(
        "No module named '",
        # Python names the first missing part: for a dotted name, the package itself is there
        rf"No module named '(?P<dropped>{parts})'(?!; '[\w.]+' is not a package)",
        ("ModuleNotFoundError",),
        f"{_DROPPED}{whose}",
    )
    for parts, whose in (
        (rf"(?P<whose>{LIBRARIES})\.[\w.]+", "{whose}"),
        ("distutils|imp|asyncore|asynchat|cgi|pipes", "Python"),
    )
)
