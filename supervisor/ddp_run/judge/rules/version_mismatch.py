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
from collections.abc import Iterable

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge import version_text
from ddp_run.judge.package_text import wrong_version
from ddp_run.judge.signs import Hit, Sign, ended_by, in_exception, said_last
from ddp_run.judge.start_text import VERSIONS
from ddp_run.judge.verdict import Area, Confidence, Finding, Layer, Retry, Rule

RULE = Rule(
    code="DDP602",
    name="version-mismatch",
    title="Incompatible versions",
    area=Area.USER_CODE,
    layer=Layer.REPORTED,
    retry=Retry(helps=False, reason="the same versions will be installed"),
    since="0.1",
    wins_over=(
        ("import-error", "the module is there, in another version"),
        ("compile-failure", "the compiler is there, in another version"),
    ),
    unlike="loading",
)
_IMPORT = frozenset({"ImportError", "ModuleNotFoundError", "RuntimeError", "AssertionError", "ValueError", "OSError"})
_SYMBOL = "undefined symbol: "
_GLOBAL = "Weights only load failed"
_NUMPY_NAME = "module 'numpy' has no attribute"
_PAIR = "were compiled with different CUDA"
_CLASS, _OPERATORS = "Tried to instantiate class '", "'_OpNamespace' '"
"""A compiled extension registered nothing: torch/csrc/jit/python/python_custom_class.cpp, torch/_ops.py."""
_SOLVERS = ("Unsatisfiable", "LibMambaUnsatisfiable", "PackagesNotFound")
"""From conda, for incompatible packages; LibMamba is its solver."""
_LIBRARY_NAME = "' has no attribute '"
_CHECK = "python -m pip check   # which installed versions are incompatible?"
_SAID: tuple[Sign, ...] = (
    Sign(
        "is required for a normal functioning of this module",
        r"(?<!\S)(?P<need>\S+) is required for a normal functioning of this module, but found"
        r" (?P<have>[^\s]*[^\s.])",
    ),
    Sign(
        ", but found ",
        r"requires? (?P<need>[\w\-.\[\]]{1,100} ?(?:version )?[<>=!~]=?[^\n]{0,200}?),? but found"
        r" (?P<have>[^\s]*[^\s.])",
        _IMPORT,
    ),
    Sign(
        ", but you have ",
        r"requires? (?P<need>[\w\-.\[\]]{1,100} ?(?:version )?[<>=!~]=?[^\n]{0,200}?),? but you"
        r" have (?P<have>[^\n]*[^\n.])",
        _IMPORT,
    ),
    Sign(
        "Requires Flash-Attention version ",
        r"Requires (?P<need>Flash-Attention version [^\n]{0,100}?) but got (?P<have>\S*[^\s.])",
    ),
    Sign("VersionConflict", r"VersionConflict: \((?P<have>[^\n]{1,200}?), Requirement\.parse\('(?P<need>[^']+)'\)"),
    *(Sign(f"{name}Error", types=frozenset({f"{name}Error"})) for name in _SOLVERS),
    Sign("VersionConflict", types=frozenset({"VersionConflict", "ContextualVersionConflict"})),
    Sign(
        "distribution was not found and is required by",
        r"The '(?P<need>[^']+)' distribution was not found and is required by (?P<by>[^\n]*)",
    ),
    Sign(_SYMBOL, r"(?<![^\s:])(?P<library>[^\s:]{1,400}\.so[\w.]{0,40}): undefined symbol: (?P<symbol>\w+)"),
    Sign("operator torchvision::", r"operator (?P<operator>torchvision::\w+) does not exist"),
    Sign("Couldn't load custom C++ ops"),
    Sign(
        _CLASS,
        r"Tried to instantiate class '(?P<extension>\w+)\.(?P<wanted>\w+)', but it does not exist",
        frozenset({"RuntimeError"}),
    ),
    Sign(
        _OPERATORS,
        r"'_OpNamespace' '(?P<extension>\w+)' object has no attribute '(?P<wanted>\w+)'",
        frozenset({"AttributeError"}),
    ),
    version_text.DROPPED,
    Sign("partially initialized module 'torchvision' has no attribute"),
    Sign(_PAIR, rf"PyTorch and \w+ {_PAIR}[^\n]*"),
    Sign(
        "mismatches the version that was used to compile",
        r"The detected CUDA version \((?P<have>[\d.]+)\) mismatches the version that was used to compile\s+"
        r"PyTorch \((?P<cuda>[\d.]+)\)",
    ),
    Sign(
        "compiled using NumPy 1.x cannot be run in", types=frozenset({"ImportError", "AttributeError", "RuntimeError"})
    ),
    Sign("numpy.core.multiarray failed to import", types=frozenset({"ImportError"})),
    Sign(
        "incompatible serialization version",  # TensorRT's
        r"Trying to load an engine created with incompatible serialization version",
    ),
    Sign(
        "but Transformers does not recognize this architecture",
        r"has model type [`'](?P<model>[^`']{1,200})[`'] but Transformers does not recognize this architecture",
    ),
    Sign(
        " is required, but found ",
        r"(?P<need>[\w\-]{1,40} version \S{1,40}) is required, but found (?P<have>\S*[^\s.])",
        _IMPORT,
    ),
    Sign(
        "which is less than the minimum required version",
        r"(?P<have>\S{1,80} is installed with version \S{1,40}), which is less than the minimum required version "
        r"(?P<need>\S{1,40}[^\s.])",
    ),
    Sign(  # a function pickled by another minor version of Python
        "code() ",
        r"\bcode\(\) (?:argument \d{1,2} must be|takes at most \d{1,2} arguments)",
        frozenset({"TypeError", "RaySystemError"}),
    ),
    Sign("Version mismatch: The cluster was started with:"),  # Ray
    Sign("VersionMismatch", types=frozenset({"VersionMismatch"})),  # Dask
    Sign("NIXL compatibility hash mismatch"),
    Sign("is newer than and incompatible with jax version"),
    Sign("but this version of jax requires version"),
    Sign("Version tag does not match. Note: Current Version"),  # TensorRT
    Sign(
        "but source was compiled with: ",
        r"Loaded runtime CuDNN library: (?P<have>[\d.]+) but source was compiled with: (?P<need>[\d.]*\d)",
    ),
    Sign("fatal   : Unsupported .version ", r"ptxas fatal +: Unsupported \.version [\d.]+; current version is"),
    Sign("Numpy is not available", types=frozenset({"RuntimeError"})),
    Sign("may indicate binary incompatibility", types=frozenset({"ValueError"})),
    Sign("module compiled against A", r"module compiled against (?:API|ABI) version [^\n]{0,100}", _IMPORT),
    Sign(_NUMPY_NAME, rf"{_NUMPY_NAME} '(?P<name>\w+)'"),
    Sign(
        "' not found (required by ",
        r"version [`'](?P<need>(?:GLIBCXX|GLIBC|CXXABI|GOMP|GCC)_[\d.]+)' not found \(required by"
        r" (?P<by>[^)]{1,400})\)",
    ),
    Sign("Loading a dataset cached in a", r"Loading a dataset cached in a \w+ is not supported"),
    Sign("Descriptors cannot ", r"Descriptors cannot (?:not )?be create"),  # both are from protobuf
    Sign(
        "maximum supported version for reading is",
        r"Attempted to read a PyTorch file with version \d{1,9}, but the maximum supported version[^\n]{0,80}",
    ),
    Sign(_GLOBAL, r"Weights only load failed(?:[\s\S]*?Unsupported global: GLOBAL (?P<global>[\w.]+))?"),
    Sign("Unsupported global: GLOBAL", r"Unsupported global: GLOBAL (?P<global>[\w.]+)"),
    Sign(
        _LIBRARY_NAME,
        r"module '(?P<module>(?:torch|torchvision|transformers|accelerate|datasets|triton|huggingface_hub|jax|peft"
        r"|trl|deepspeed)\b[\w.]*)' has no attribute '(?P<name>\w+)'",
        frozenset({"AttributeError"}),
    ),
    *version_text.SIGNS,
)
SIGNS = (*_SAID, *VERSIONS)
_LAST_FILE = re.compile(r'  File "(?P<file>[^"]+)", line \d+')


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match messages of loaders and packages about incompatible versions."""
    if death.killed_without_exception:
        return None  # a signal ended it, so earlier output was not the end
    hit = ended_by(death, _SAID) or said_last(death, VERSIONS)
    if hit is None or not _is_meant(hit):
        return _wanted(death)
    return hit.finding(RULE, death, _cause(death, hit), tuple(_advice(hit)), confidence=_sure(hit))


def _is_meant(hit: Hit) -> bool:
    """Common words count only if they are about versions."""
    match hit.sign.words:
        case words if words == _LIBRARY_NAME:
            return _raised_in_package(hit)
        case words if words == version_text.DROPPED.words:
            package = (hit["dropped"] or "").partition(".")[0]
            return package not in version_text.OF_PROJECTS_TOO or _raised_in_package(hit)
        case words if words == _NUMPY_NAME:
            return version_text.REMOVED_FROM_NUMPY.fullmatch(hit["name"] or "") is not None
        case _:
            return True


def _wanted(death: Death) -> Finding | None:
    """Match a library's own exception that says which version it needs."""
    hit = wrong_version(death) or _older(death)
    if hit is None or hit.exception is None or hit.exception is not death.exception:
        return None
    said = hit.exception.message.partition("\n")[0][:160]
    cause = f"{death.who} has an incompatible version{hit.exception.where}: {said}"
    return hit.finding(RULE, death, cause, (_CHECK,), confidence="likely")


def _older(death: Death) -> Hit | None:
    """Match a package that was given an argument or name that its version does not know."""
    hit = in_exception(death, (*version_text.OLDER, version_text.KEYWORD, version_text.ARCHITECTURE))
    if hit is None or hit.exception is None:
        return None
    shown = hit.exception.traceback
    if hit.sign is version_text.KEYWORD:
        return hit if _raised_in_package(hit) and _calls_by_name(hit, shown) else None
    if hit.sign is version_text.ARCHITECTURE:
        frames = shown[: shown.rfind("KeyError")]
        return hit if version_text.AUTO.search(frames) else None
    return hit


def _calls_by_name(hit: Hit, shown: str) -> bool:
    """Whether the line that raised it passes explicit arguments to the named function: `**` passes on a program's."""
    source = next((line for line in reversed(shown.splitlines()) if line.startswith("    ") and line.strip(" ~^")), "")
    name = hit["whose"] if hit["called"] == "__init__" else hit["called"]
    return name is not None and f"{name}(" in source and "**" not in source


def _raised_in_package(hit: Hit) -> bool:
    """Whether an installed package asked for the name: a program's own misspelling is not about versions."""
    files = _LAST_FILE.findall(hit.exception.traceback) if hit.exception is not None else []
    return bool(files) and ("/site-packages/" in files[-1] or "/dist-packages/" in files[-1])


def _sure(hit: Hit) -> Confidence:
    guessed = (
        *((_GLOBAL,) if hit["global"] is None else ()),
        _SYMBOL,
        _LIBRARY_NAME,
        _CLASS,
        _OPERATORS,
        "numpy.core.multiarray failed to import",
        "Numpy is not available",
    )
    return "likely" if hit.sign.words in guessed or hit.sign in version_text.PARTS_MISSING else hit.confidence


def _cause(death: Death, hit: Hit) -> str:
    where = hit.exception.where if hit.exception is not None else ""
    words = hit.sign.words
    if hit["cuda"]:
        return f"{death.who} builds an extension with CUDA {hit['have']}, but torch uses CUDA {hit['cuda']}{where}"
    if hit["by"]:
        return f"{death.who} has no {hit['need']}, required by {hit['by'].rpartition('/')[2].strip()}{where}"
    if hit["need"]:
        return f"{death.who} needs {hit['need'].strip()} but has {hit['have']}{where}"
    if hit["library"]:
        library = hit["library"].rpartition("/")[2]
        return f"{death.who} cannot load {library}{where}: most likely built for a different torch version"
    if hit["dropped"]:
        whose, _, part = hit["dropped"].partition(".")
        whose = whose if part else "Python"
        return f"{death.who} found no module {hit['dropped']}{where}: not in the installed version of {whose}"
    if hit["extension"]:
        what = f"the compiled extension {hit['extension']} has no {hit['wanted']}"
        return f"{death.who}: {what}{where}: not loaded, or built for a different torch version"
    if hit["operator"]:
        return f"{death.who} found no {hit['operator']}{where}: torch and torchvision are incompatible"
    if hit["global"]:
        return f"{death.who} loaded a checkpoint with {hit['global']} in it{where}: torch 2.6 and later reject it"
    if words == _GLOBAL:
        return f"{death.who} loaded a checkpoint that weights_only=True, the default since torch 2.6, rejects{where}"
    if words == _NUMPY_NAME:
        return f"{death.who} used numpy.{hit['name']}{where}, which newer NumPy versions removed"
    if hit["module"]:
        return f"{death.who} found no {hit['module']}.{hit['name']}{where}: a package expects a different version of it"
    if words.startswith("Loading a dataset"):
        return f"{death.who} could not read the datasets cache{where}: datasets and fsspec are incompatible"
    return f"{death.who} has incompatible versions{where}: {hit.text.partition(': ')[2][:140] or hit.text[:140]}"


def _advice(hit: Hit) -> Iterable[str]:
    words = hit.sign.words
    if hit["cuda"]:
        yield f"export CUDA_HOME=/usr/local/cuda-{hit['cuda']}   # the toolkit torch was built with, if installed"
    elif hit["global"] or words == _GLOBAL:
        name = hit["global"]
        if name:
            module, _, short = name.rpartition(".")
            yield f"from {module} import {short}; torch.serialization.add_safe_globals([{short}])   # before torch.load"
        yield "torch.load(path, weights_only=False)   # only for files you trust: it can run any code"
    elif hit["by"] and "_" in (hit["need"] or ""):
        yield f"strings $(ldconfig -p | awk '/libstdc\\+\\+.so.6/ {{print $NF; exit}}') | grep {hit['need']}"
        yield "conda install -c conda-forge libstdcxx-ng   # a newer libstdc++ inside the environment"
    elif hit["library"]:
        yield f"c++filt {hit['symbol']}   # shows which library the symbol belongs to"
        yield "python -c 'import torch; print(torch.__version__, torch.version.cuda)'   # rebuild it for this version"
    elif hit["operator"] or words == _PAIR or "torchvision" in words or "C++ ops" in words:
        yield "python -m pip install --force-reinstall torch torchvision   # matching releases, from one index"
    elif words == _NUMPY_NAME:
        yield "python -m pip install 'numpy<1.24'   # or a newer release of the package that uses the old name"
    elif (
        "umpy" in words
        or "NumPy" in words
        or "multiarray" in words
        or "binary incompat" in words
        or "compiled against" in words
    ):
        yield "python -m pip install 'numpy<2'   # or newer releases of the packages that were built for NumPy 1"
    elif words.startswith("Loading a dataset"):
        yield "python -m pip install -U datasets fsspec"
    elif words.startswith("Descriptors"):
        yield "python -m pip install 'protobuf<=3.20.3'   # or newer releases of the packages with _pb2.py files"
    elif hit["need"] and re.match(r"[\w\-.\[\]]+ ?[<>=!~]", hit["need"]):
        yield f"python -m pip install '{hit['need'].replace(' ', '')}'"
        yield "python -m pip check"
    else:
        yield _CHECK
