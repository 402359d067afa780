"""Whether the script, module or program exists and can be run. Nothing of it is run or imported."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from ddp_run.plan.preflight import Answer, Check, Launch
from ddp_run.settings.checks import slip_in
from ddp_run.settings.options import Options
from ddp_run.settings.other_launchers import (
    OTHERS,
    PER_NODE,
    PYTHON,
    SAME_WORDS,
    TORCHRUN_MODULES,
    translate_launcher,
    without_python,
)
from ddp_run.values.problem import Problem, nearest

_EXPECTED = "expected the training script here"
_NEAR = 0.8
"""The least similarity of a suggested file name. It is high: short names are similar by their `.py` alone."""
_SHELLS = re.compile(rb"#!\s{0,9}[^\s#]{0,200}/(?:env\s{1,9})?(?:ba|z|k|da|a)?sh\b")


def _check(launch: Launch) -> Answer:
    options, environ, cwd = launch.options, launch.environ, launch.cwd
    if options.no_python and not options.run_path:
        found = _program_problem(options, environ, cwd)
    elif options.module and not options.run_path:
        found = _module_problem(options, environ, cwd)
    else:
        found = _script_problem(options, environ, cwd)
    return Answer(options, problems=(found,) if found else ())


# ---------------------------------------------------------------------------------------------- scripts


def _script_problem(options: Options, environ: Mapping[str, str], cwd: Path) -> Problem | None:
    script = options.script
    path = cwd / script
    if _is_interpreter(script, path) or (not path.exists() and Path(script).name in (*SAME_WORDS, *OTHERS, *PER_NODE)):
        return _launcher_misused(options)
    if script == "-":
        return None
    if not script or not path.exists():
        return _script_missing(options, environ, cwd)
    if path.is_dir() and not (path / "__main__.py").exists() and not (path / "__main__.pyc").exists():
        title = f"{script} is a folder without __main__.py"
        return Problem("DDP102", title, options.script_word, "python cannot run it")
    if not os.access(path, os.R_OK):
        title = f"{script} is not readable"
        return Problem(
            "DDP904", title, options.script_word, "no permission", helps=(f"chmod u+r {shlex.quote(script)}",)
        )
    return _shell_script(options, path) if path.is_file() else None


def _shell_script(options: Options, path: Path) -> Problem | None:
    """Refuse a shell script, unless Python can compile it too: some files are both."""
    try:
        with path.open("rb") as file:
            text = file.read(1 << 20) if path.suffix == ".sh" or _SHELLS.match(file.peek(100)) else None
        if text is None:
            return None
        compile(text, path, "exec")
    except (SyntaxError, ValueError):
        program = options.script if "/" in options.script else f"./{options.script}"
        how = [program] if os.access(path, os.X_OK) else ["bash", options.script]
        helps = (_with_script(options, "--no-python", *how),)
        notes = ("every rank would run it; if the script calls ddp-run itself, start it without ddp-run",)
        title = f"{options.script} is a shell script"
        return Problem("DDP102", title, options.script_word, "python cannot run it", notes=notes, helps=helps)
    except OSError:
        pass
    return None


def _is_interpreter(script: str, path: Path) -> bool:
    if not PYTHON.fullmatch(Path(script).name):
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return not path.exists()


def _launcher_misused(options: Options) -> Problem:
    word = options.script_word
    words = [options.script, *options.script_args]
    name = Path(options.script).name
    if name in (*OTHERS, *PER_NODE):
        found = translate_launcher([name, *options.script_args], options.argv[:word], options.rows)
        title = f"{name} is a launcher itself"
        place = "it starts ddp-run, once per node" if name in PER_NODE else "ddp-run replaces it"
        return Problem("DDP101", title, word, _EXPECTED, notes=(place, *found.notes), helps=(found.command,))
    return Problem(
        "DDP101",
        f"{options.script} is not a training script",
        word,
        _EXPECTED,
        notes=("ddp-run starts Python by itself, once per rank",),
        helps=(_command(options.argv[:word], *without_python(words)),),
    )


def _script_missing(options: Options, environ: Mapping[str, str], cwd: Path) -> Problem:
    script, word = options.script, options.script_word
    path = cwd / script
    slip = slip_in(script)
    if not script:
        empty = ("is a variable unset?",)
        return Problem("DDP102", "the script name is empty", word, _EXPECTED, notes=empty)
    if slip is not None:
        title = f"script {script!r} does not exist"
        cure = _expanded(script, environ, cwd) or slip[1]
        return Problem("DDP102", title, word, "no such file", notes=(f"it has {slip[0]}",), helps=(cure,))
    notes: tuple[str, ...] = ()
    helps = tuple(_with_script(options, name) + f"   # did you mean {name}?" for name in _similar_files(script, path))
    if not path.parent.is_dir():
        notes = (f"folder {path.parent} does not exist",)
    elif not helps and "/" not in script and _which(script, environ):
        notes = (f"{script} is a program, not a Python script",)
        helps = (_with_script(options, "--no-python", script),)
    elif not helps and "/" not in script and not script.endswith(".py") and _missing_part(script, cwd) is None:
        notes = (f"{script} is a module",)
        helps = (_with_script(options, "-m", script),)
    return Problem(
        "DDP102",
        f"script {script} does not exist",
        word,
        f"no such file in {path.parent}" if path.parent.is_dir() else "no such file",
        notes=notes,
        helps=helps,
    )


def _expanded(script: str, environ: Mapping[str, str], cwd: Path) -> str | None:
    """Expand `~` and variables in the script's path. Returns None if the result doesn't exist."""
    text = re.sub(r"\$\{?(\w+)\}?", lambda found: environ.get(found[1], found[0]), script)
    home = environ.get("HOME", "")
    text = home + text[1:] if text.startswith("~/") and home else text
    return f"type {shlex.quote(text)}" if text != script and (cwd / text).exists() else None


def _similar_files(script: str, path: Path) -> list[str]:
    """Return similar names, with the script's folder as it was written."""
    try:
        names = [each.name for each in path.parent.iterdir() if each.suffix == ".py" or each.is_file()][:2000]
    except OSError:
        return []
    exact = [name for name in names if name == f"{path.name}.py"]
    folder = script[: len(script) - len(path.name)] if script.endswith(path.name) else ""
    return [folder + name for name in exact or nearest(path.name, names, cutoff=_NEAR)]


# ---------------------------------------------------------------------------------------------- modules


def _module_problem(options: Options, environ: Mapping[str, str], cwd: Path) -> Problem | None:
    name, word = options.script, options.script_word
    if environ.get("PYTHON_EXEC", sys.executable) != sys.executable:
        # Another interpreter has other modules.
        return None
    if name in TORCHRUN_MODULES:
        command = _command(_without_module_flag(options), *options.script_args)
        title = f"{name} is a launcher itself"
        return Problem("DDP101", title, word, _EXPECTED, notes=("ddp-run replaces it",), helps=(command,))
    missing = _missing_part(name, cwd)
    if missing is None:
        return None
    if (cwd / name).is_file():
        helps = [_command(_without_module_flag(options), name, *options.script_args)]
        if name.endswith(".py") and "/" not in name:
            helps.append(_with_script(options, name[:-3]))
        return Problem("DDP102", f"-m takes a module, but {name} is a file", word, "a file name", helps=tuple(helps))
    if name.endswith(".py") and _missing_part(name[:-3], cwd) is None:
        helps = [_with_script(options, name[:-3])]
        return Problem("DDP102", f"module {name} does not exist", word, "module names have no .py", helps=tuple(helps))
    title = f"module {name} does not exist"
    if "without __main__" in missing:
        title = f"package {name} has no __main__.py"
    return Problem("DDP102", title, word, missing, helps=_similar_modules(options, cwd))


def _without_module_flag(options: Options) -> list[str]:
    setting = options.settings["module"]
    words = list(options.argv[: options.script_word])
    if setting.word is not None and words[setting.word] in ("-m", "--module"):
        del words[setting.word]
    return words


def _missing_part(name: str, cwd: Path) -> str | None:
    """Say why `python -m name` would fail; None if it would not, or if only an import could tell."""
    parts = name.split(".")
    if not all(parts):
        return "not a module name"
    spec = _find_module(parts[0], cwd)
    for index in range(1, len(parts) + 1):
        known = ".".join(parts[:index])
        if spec is None:
            return f"no module {known} here or on sys.path"
        locations = spec.submodule_search_locations
        is_last = index == len(parts)
        if locations is None:
            return None if is_last else f"{known} is not a package"
        # By its last name alone: a package without `__init__.py` would need its parent in `sys.modules`.
        following = PathFinder.find_spec("__main__" if is_last else parts[index], list(locations))
        if following is None and _changes_its_path(spec):
            return None
        if following is None and is_last:
            return f"{known} is a package without __main__"
        spec = following
    return None


def _find_module(name: str, cwd: Path) -> ModuleSpec | None:
    """Find a top-level module as `python -m` in `cwd` would, without importing it."""
    try:
        return PathFinder.find_spec(name, [str(cwd), *sys.path]) or find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _changes_its_path(spec: ModuleSpec) -> bool:
    """Whether the package's code may change where its submodules are found."""
    if spec.loader is None:  # a folder without __init__.py has no code
        return False
    if spec.origin is None or not spec.origin.endswith(".py"):
        return True
    try:
        return b"__path__" in Path(spec.origin).read_bytes()
    except OSError:
        return True


def _similar_modules(options: Options, cwd: Path) -> tuple[str, ...]:
    """Suggest similar names in the same folder; for a package without `__main__`, its modules, likely ones first."""
    inside = cwd.joinpath(*options.script.split("."))
    if inside.is_dir():
        names = sorted(_runnable_in(inside), key=lambda name: (name not in ("train", "main", "run", "cli"), name))
        return tuple(_with_script(options, f"{options.script}.{name}") for name in names[:3])
    stem = options.script.rpartition(".")[2]
    prefix = options.script[: len(options.script) - len(stem)]
    names = _runnable_in(cwd.joinpath(*options.script.split(".")[:-1]))
    return tuple(_with_script(options, prefix + name) for name in nearest(stem, names))


def _runnable_in(folder: Path) -> list[str]:
    try:
        found = [each for each in folder.iterdir() if each.suffix == ".py" or (each / "__main__.py").exists()]
    except OSError:
        return []
    return [each.stem for each in found if not each.stem.startswith("__")]


# --------------------------------------------------------------------------------------------- programs


def _program_problem(options: Options, environ: Mapping[str, str], cwd: Path) -> Problem | None:
    program, word = options.script, options.script_word
    path = cwd / program
    if "/" not in program:
        if _which(program, environ):
            return None
        helps = (_with_script(options, f"./{program}"),) if path.is_file() else ()
        return Problem("DDP102", f"program {program} is not on PATH", word, "no such program", helps=helps)
    if not path.exists():
        similar = tuple(_with_script(options, name) for name in _similar_files(program, path))
        return Problem("DDP102", f"program {program} does not exist", word, "no such file", helps=similar)
    if path.is_dir() or not os.access(path, os.X_OK):
        cures = (f"chmod u+x {shlex.quote(program)}",) if path.is_file() else ()
        return Problem("DDP904", f"{program} is not executable", word, "no permission to execute", helps=cures)
    return None


def _which(program: str, environ: Mapping[str, str]) -> str | None:
    import shutil

    return shutil.which(program, path=environ.get("PATH", os.defpath))


def _with_script(options: Options, *words: str) -> str:
    """The launch with other words in the script's place."""
    return _command(options.argv[: options.script_word], *words, *options.script_args)


def _command(before: Sequence[str], *after: str) -> str:
    return shlex.join(["ddp-run", *before, *after])


CHECK = Check("the script", _check, needed=True)
