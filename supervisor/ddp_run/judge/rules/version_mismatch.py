"""Incompatible versions.

## What happened
A package was built for, or requires, a different version of torch, CUDA, NumPy, Python or the C library than the
installed one.
## How to recognise it
`… requires torch>=2.5, but found torch==2.4.0`, `VersionConflict`, `undefined symbol: _ZN3c10…` in a compiled
extension, `operator torchvision::nms does not exist`, `A module that was compiled using NumPy 1.x cannot be run in
NumPy 2`, `numpy.dtype size changed, may indicate binary incompatibility`, `module 'numpy' has no attribute 'float'`,
`version 'GLIBCXX_3.4.29' not found`, `were compiled with different CUDA`. `Weights only load failed … Unsupported
global` is torch 2.6 and later, which no longer unpickles every class by default. `No module named 'torch._six'`: the
package is installed, but its version lacks that module. pip, uv and conda find no versions that fit: `No matching
distribution found for`, `ResolutionImpossible`, `No solution found when resolving dependencies`. A missing package is
`import-error`.
## What to do
Install matching versions (torch and torchvision are released in pairs), or rebuild the extension for the installed
torch: `pip install --no-build-isolation --force-reinstall --no-binary :all: PACKAGE`. All nodes must have the same
environment.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.package_text import wrong_version
from ddp_run.judge.signs import Hit, Sign, ended_by, in_itself, like, meaning, said_last
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP602",
    layer=Layer.REPORTED,
    retry=Retry(helps=False, reason="the same versions will be installed"),
    wins_over=(
        ("import-error", "the module is there, in another version"),
        ("compile-failure", "the compiler is there, in another version"),
    ),
    unlike="loading",
)
_IMPORT = frozenset({"ImportError", "ModuleNotFoundError", "RuntimeError", "AssertionError", "ValueError", "OSError"})
_CHECK = "python -m pip check   # which installed versions are incompatible?"
_UNSAFE = "torch.load(path, weights_only=False)   # only for files you trust: it can run any code"
_RAISED = frozenset(
    {
        *("ImportError", "RuntimeError", "AssertionError", "ValueError", "OSError", "NotImplementedError"),
        *("VersionError", "Fail", "InternalError"),
    }
)
_WHOSE = (
    r"package|[Ll]ibrary|[Rr]untime|CUDA|cuDNN|ROCm|HIP|CANN|ABI|NumPy|[Pp]y[Tt]orch|[Tt]orch|[Tt]ransformers|[Pp]ython"
)

_OLDER_NUMPY = ("python -m pip install 'numpy<2'   # or newer releases of the packages that were built for NumPy 1",)
_GONE = "{who} found no numpy.{numpy}{where}: newer NumPy versions removed it"
_OR_NEWER = "# or a newer release of the package that uses the old name"
_PARTS_MISSING = meaning(
    like(r"Could not run '(?!aten::|prims::)\w{1,60}::[\w.]{1,100}' with arguments from the 'CUDA' backend", _RAISED),
    like(r"No such operator (?!aten::|prim)\w{1,60}::\w{1,100}", _RAISED),
    like(r"\w{1,60}: implementation for device cuda:\d{1,4} not found"),
    Sign("CUDA Setup failed despite GPU being available", types=_RAISED),  # bitsandbytes
    likely=True,
)
"""A package has no code for the GPU: built for CPUs, or not loaded because it does not fit the installed torch."""
_IN_WORDS: tuple[Sign, ...] = (
    # not the driver's `Driver/library version mismatch`
    *(like(rf"(?<![/\w])(?:{_WHOSE}) [vV]ersion {differs}", _RAISED) for differs in ("mismatch", "incompatibility")),
    like(rf"(?<![/\w])(?:{_WHOSE}) VERSION MISMATCH", _RAISED),  # bitsandbytes
    Sign("but source was compiled with", types=_RAISED),  # TensorFlow, about cuDNN
    Sign("Gencode/Runtime versions", types=_RAISED),  # protobuf
    Sign("max supported IR version", types=_RAISED),  # ONNX Runtime
    like(r"a version of Cuda that does\s+not match the version used to", _RAISED),  # apex
    like(r"\w{1,60}==\S{1,40} is used but incompatible", _RAISED),  # OpenMMLab
    like(r"only supported on CUDA [\d.]{2,6} and (?:above|newer|later)", _RAISED),
    like(r"but this version of \w{1,40} requires version", _RAISED),
    like(r"\bversion [\w.+]{1,40} is [^\n]{0,40}?incompatible with (?=\w)", _RAISED),  # jaxlib, and below
    *meaning(like(r"needs NumPy [\d.]{1,9} or (?:less|greater)", _RAISED), advice=_OLDER_NUMPY),  # numba
    like(r"not supported on Python 3\.\d{1,3}\b", _RAISED),  # torch.compile
    like(r"(?:max|min)imum required version by CUDA [\d.]{1,9}", _RAISED),
    like(r"requires? [^\n]{1,100}?[<>=!~]=? ?\d[^\n]{0,60}? but found version [\w.+]{1,30}", _RAISED),
    *_PARTS_MISSING,
)
_PYDANTICS = frozenset({"PydanticUserError", "PydanticImportError"})
_OLDER = (
    Sign("Configured CUDA binary not found"),  # bitsandbytes has none for this torch
    Sign("Your currently installed version of Keras is Keras 3"),
    Sign("Dataset scripts are no longer supported"),
    Sign("' not found. Available feature types: "),
    like(r"did not match any variant of untagged enum (?:ModelWrapper|Py\w+Wrapper)"),
    like(r"Tokenizer class \w+ does not exist or is not currently imported"),
    like(r"rope_scaling`? must be a dictionary with two fields"),
    Sign(
        "`",
        r"` (?:is removed|has been moved to|is deprecated and should be replaced)|has been removed in V2",
        _PYDANTICS,
    ),
)
"""Messages of a library that is older or newer than its input; a wrong file or name may cause the same."""
_KEYWORD = like(
    r"(?:(?P<whose>\w{1,100})\.)?(?P<called>\w{1,100})\(\) got an unexpected keyword argument '", ("TypeError",)
)
_ARCHITECTURE = like(r"^KeyError: '[a-z][\w\-]{1,60}'$", ("KeyError",))
_AUTO = re.compile(
    r'transformers/models/auto/configuration_auto\.py", line \d+, in (?:__getitem__|from_pretrained)\n[^\n]*\n?$'
)
_LIBRARIES = (
    r"torch|torchvision|torchtext|torchaudio|pytorch_lightning|lightning|lightning_fabric|transformers|numpy|scipy|sklearn"
    r"|keras|tensorflow|huggingface_hub|datasets|diffusers|peft|accelerate|timm|mmcv|mmengine|detectron2|triton|pandas"
)
_OF_PROJECTS_TOO = frozenset({"datasets"})
"""Of these, names that many projects also give to a folder in their own code."""
_DROPPED = "{who} found no module {dropped}{where}: not in the installed version of "
_DROPPED_BY = tuple(
    Sign(
        "No module named '",
        # Python names the first missing part: for a dotted name, the package itself is there
        rf"No module named '(?P<dropped>{parts})'(?!; '[\w.]+' is not a package)",
        ("ModuleNotFoundError",),
        f"{_DROPPED}{whose}",
    )
    for parts, whose in (
        (rf"(?P<whose>{_LIBRARIES})\.[\w.]+", "{whose}"),
        ("distutils|imp|asyncore|asynchat|cgi|pipes", "Python"),
    )
)
_SAID = meaning(
    *meaning(
        like(r"(?<!\S)(?P<need>\S+) is required for a normal functioning[^\n]{0,40}, but found (?P<have>\S*[^\s.])"),
        *(
            like(
                r"requires? (?P<need>[\w\-.\[\]]{1,100} ?(?:version )?[<>=!~]=?[^\n]{0,200}?),? but "
                rf"{have} (?P<have>\S*[^\s.])",
                _IMPORT,
            )
            for have in ("found", "you have")
        ),
        like(r"Requires (?P<need>Flash-Attention version [^\n]{0,100}?) but got (?P<have>\S*[^\s.])"),
        like(r"Loaded runtime CuDNN library: (?P<have>[\d.]+) but source was compiled with: (?P<need>[\d.]*\d)"),
        like(r"VersionConflict: \((?P<have>[^\n]{1,200}?), Requirement\.parse\('(?P<need>[^']+)'\)"),
        like(r"(?P<need>[\w\-]{1,40} version \S{1,40}) is required, but found (?P<have>\S*[^\s.])", _IMPORT),
        like(
            r"(?P<have>\S{1,80} is installed with version \S{1,40}), which is less than the minimum required version "
            r"(?P<need>\S{1,40}[^\s.])"
        ),
        cause="{who} needs {need} but has {have}{where}",
    ),
    *(  # conda, and its solver
        Sign(name, types=(name,))
        for name in ("UnsatisfiableError", "LibMambaUnsatisfiableError", "PackagesNotFoundError")
    ),
    Sign("VersionConflict", types=("VersionConflict", "ContextualVersionConflict")),
    *meaning(
        like(r"The '(?P<need>[^']+)' distribution was not found and is required by (?P<by>[^\n]*)"),
        like(
            r"version [`'](?P<need>(?:GLIBCXX|GLIBC|CXXABI|GOMP|GCC)_[\d.]+)' not found \(required by"
            r" (?:[^)]{0,400}/)?(?P<by>[^)/]{1,400})\)",
            advice=(
                "strings $(ldconfig -p | awk '/libstdc\\+\\+.so.6/ {print $NF; exit}') | grep {need}",
                "conda install -c conda-forge libstdcxx-ng   # a newer libstdc++ inside the environment",
            ),
        ),
        cause="{who} has no {need}, required by {by}{where}",
    ),
    like(
        r"(?<![^\s:])(?:[^\s:]{0,300}/)?(?P<library>[^\s:/]{1,200}\.so[\w.]{0,40}): undefined symbol: (?P<symbol>\w+)",
        cause="{who} cannot load {library}{where}: most likely built for a different torch version",
        advice=(
            "c++filt {symbol}   # shows which library the symbol belongs to",
            "python -c 'import torch; print(torch.__version__, torch.version.cuda)'   # rebuild it for this version",
        ),
        likely=True,
    ),
    *meaning(
        like(
            r"operator (?P<operator>torchvision::\w+) does not exist",
            cause="{who} found no {operator}{where}: torch and torchvision are incompatible",
        ),
        like(r"PyTorch and \w+ were compiled with different CUDA[^\n]*"),
        Sign("Couldn't load custom C++ ops"),
        Sign("partially initialized module 'torchvision' has no attribute"),
        advice=("python -m pip install --force-reinstall torch torchvision   # matching releases, from one index",),
    ),
    *meaning(  # registered nothing: torch/csrc/jit/python/python_custom_class.cpp, torch/_ops.py
        like(
            r"Tried to instantiate class '(?P<extension>\w+)\.(?P<wanted>\w+)', but it does not exist",
            ("RuntimeError",),
        ),
        like(r"'_OpNamespace' '(?P<extension>\w+)' object has no attribute '(?P<wanted>\w+)'", ("AttributeError",)),
        cause="{who}: the compiled extension {extension} has no {wanted}{where}: not loaded, or built for a different "
        "torch version",
        likely=True,
    ),
    *_DROPPED_BY,
    like(
        r"The detected CUDA version \((?P<have>[\d.]+)\) mismatches the version that was used to compile\s+"
        r"PyTorch \((?P<cuda>[\d.]+)\)",
        cause="{who} builds an extension with CUDA {have}, but torch uses CUDA {cuda}{where}",
        advice=("export CUDA_HOME=/usr/local/cuda-{cuda}   # the toolkit torch was built with, if installed",),
    ),
    *meaning(
        Sign("compiled using NumPy 1.x cannot be run in", types=("ImportError", "AttributeError", "RuntimeError")),
        Sign("numpy.core.multiarray failed to import", types=("ImportError",), likely=True),
        Sign("Numpy is not available", types=("RuntimeError",), likely=True),
        Sign("may indicate binary incompatibility", types=("ValueError",)),
        like(r"module compiled against (?:API|ABI) version [^\n]{0,100}", _IMPORT),
        advice=_OLDER_NUMPY,
    ),
    like(r"has model type [`'](?P<model>[^`']{1,200})[`'] but Transformers does not recognize this architecture"),
    Sign("Trying to load an engine created with incompatible serialization version"),  # TensorRT
    # a function pickled by another minor version of Python
    like(r"\bcode\(\) (?:argument \d{1,2} must be|takes at most \d{1,2} arguments)", ("TypeError", "RaySystemError")),
    Sign("Version mismatch: The cluster was started with:"),  # Ray
    Sign("VersionMismatch", types=("VersionMismatch",)),  # Dask
    Sign("Version tag does not match. Note: Current Version"),  # TensorRT
    Sign("NIXL compatibility hash mismatch"),
    *("is newer than and incompatible with jax version", "but this version of jax requires version"),
    like(r"ptxas fatal +: Unsupported \.version [\d.]+; current version is"),
    *meaning(
        like(r"'numpy' has no attribute '(?P<numpy>(?:bool|complex|float|int|long|object|str|string|unicode)[_08]?)'"),
        cause=_GONE,
        advice=(f"python -m pip install 'numpy<1.24'   {_OR_NEWER}",),
    ),
    *meaning(
        like(
            r"'numpy' has no attribute '(?P<numpy>Inf|NaN|NAN|infty|in1d|msort|product|cumproduct|row_stack|trapz"
            r"|find_common_type|obj2sctype)'"
        ),
        like(r"`np\.(?P<numpy>\w+)` was removed in the NumPy"),
        cause=_GONE,
        advice=(f"python -m pip install 'numpy<2'   {_OR_NEWER}",),
    ),
    *meaning(
        like(r"'numpy' has no attribute '(?P<numpy>asscalar)'"),
        cause=_GONE,
        advice=("array.item()   # in place of numpy.asscalar(array)",),
    ),
    Sign(
        "Loading a dataset cached in a ",
        cause="{who} could not read the datasets cache{where}: datasets and fsspec are incompatible",
        advice=("python -m pip install -U datasets fsspec",),
    ),
    Sign(
        "Descriptors cannot",
        advice=("python -m pip install 'protobuf<=3.20.3'   # or newer releases of the packages with _pb2.py files",),
    ),
    Sign("Attempted to read a PyTorch file with version "),
    like(
        r"Unsupported global: GLOBAL (?P<global>(?:(?P<package>[\w.]{1,200})\.)?(?P<short>\w{1,100}))",
        cause="{who} loaded a checkpoint with {global} in it{where}: torch 2.6 and later reject it",
        advice=(
            "from {package} import {short}; torch.serialization.add_safe_globals([{short}])   # before torch.load",
            _UNSAFE,
        ),
    ),
    Sign(
        "Weights only load failed",
        cause="{who} loaded a checkpoint that weights_only=True, the default since torch 2.6, rejects{where}",
        advice=(_UNSAFE,),
        likely=True,
    ),
    like(
        r"module '(?P<module>(?:torch|torchvision|transformers|accelerate|datasets|triton|huggingface_hub|jax|peft"
        r"|trl|deepspeed)\b[\w.]*)' has no attribute '(?P<name>\w+)'",
        ("AttributeError",),
        cause="{who} found no {module}.{name}{where}: a package expects a different version of it",
        likely=True,
    ),
    *_IN_WORDS,
)
_INSTALLERS = (
    Sign("ERROR: No matching distribution found for "),
    Sign("ERROR: ResolutionImpossible"),
    Sign("is not a supported wheel on this platform"),
    like(r"ERROR: Package '[^'\n]{1,200}' requires a different Python"),
    Sign("No solution found when resolving dependencies"),
)
"""From installers: pip and uv."""
SIGNS = (*_SAID, *_INSTALLERS)
_LAST_FILE = re.compile(r'  File "(?P<file>[^"]+)", line \d+')


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match messages of loaders and packages about incompatible versions."""
    if death.killed_without_exception:
        return None  # a signal ended it, so earlier output was not the end
    hit = ended_by(death, _SAID) or said_last(death, _INSTALLERS)
    of_projects_too = hit is not None and (hit["module"] or hit["whose"] in _OF_PROJECTS_TOO)
    if hit is None or (of_projects_too and not _raised_in_package(hit)):
        return _wanted(death)
    said = hit.text.partition(": ")[2][:140] or hit.text[:140]
    cause = hit.says(death) or f"{death.who} has incompatible versions{hit.where(death)}: {said}"
    return hit.finding(RULE, death, cause, _advice(hit))


def _wanted(death: Death) -> Finding | None:
    """Match a library's own exception that says which version it needs."""
    hit = wrong_version(death) or _older(death)
    if hit is None or hit.exception is None:
        return None
    said = hit.exception.message.partition("\n")[0][:160]
    cause = f"{death.who} has an incompatible version{hit.exception.where}: {said}"
    return hit.finding(RULE, death, cause, (_CHECK,), confidence="likely")


def _older(death: Death) -> Hit | None:
    """Match a package that was given an argument or name that its version does not know."""
    hit = in_itself(death, (*_OLDER, _KEYWORD, _ARCHITECTURE))
    if hit is None:
        return None
    if hit.sign is _KEYWORD:
        return hit if _raised_in_package(hit) and _calls_by_name(hit) else None
    if hit.sign is _ARCHITECTURE:
        return hit if _AUTO.search(hit.traceback.rpartition("KeyError")[0]) else None
    return hit


def _calls_by_name(hit: Hit) -> bool:
    """Whether the line that raised it passes explicit arguments to the named function: `**` passes on a program's."""
    name = hit["whose"] if hit["called"] == "__init__" else hit["called"]
    return name is not None and f"{name}(" in hit.statement and "**" not in hit.statement


def _raised_in_package(hit: Hit) -> bool:
    """Whether an installed package asked for the name: a program's own misspelling is not about versions."""
    files = _LAST_FILE.findall(hit.traceback)
    return bool(files) and ("/site-packages/" in files[-1] or "/dist-packages/" in files[-1])


def _advice(hit: Hit) -> tuple[str, ...]:
    need = hit["need"] or ""
    if re.match(r"[\w\-.\[\]]+ ?[<>=!~]", need):
        return f"python -m pip install '{need.replace(' ', '')}'", "python -m pip check"
    return (_CHECK,)
