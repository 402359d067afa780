"""What is to be rented and run: a TOML file, checked as a whole before anything is sent. Pure."""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ENDS = ("keep", "stop", "destroy")
"""What can become of the instance after the run."""


@dataclass(frozen=True, slots=True)
class OfferFilter:
    """What an offer must have. Prices in $/hour for the whole instance with its disk, speeds in Mbit/s."""

    gpu_name: str | None = None
    max_price: float | None = None
    min_reliability: float | None = 0.98
    min_cuda: float | None = None
    min_inet_down: float | None = None
    verified: bool = True
    query: str = ""
    """Further conditions, as `vastai search offers` reads them."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """One training in one instance."""

    image: str
    command: str
    """As in a shell."""
    install: str
    """What pip installs where the image has no ddp-run; empty: the image has it."""
    disk_gb: float = 40.0
    work_dir: str = "/workspace"
    setup: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    """Names of variables that the instance gets from here."""
    upload: str | None = None
    on_end: str = "keep"
    resume: bool = False
    start_within_s: float = 1200.0
    """From the rental until the container runs."""
    offer: OfferFilter = OfferFilter()

    @property
    def installs_nothing(self) -> bool:
        """Whether the image must have ddp-run: an instance without it ends with 127, when it has been paid for."""
        named = re.compile(r"ddp[-_]run")
        return not self.install and bool(named.search(self.command)) and not any(map(named.search, self.setup))


class ConfigError(Exception):
    """All mistakes of a file: "launch.toml:3: disk_gb = "x": expected a number above 0"."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


# --------------------------------------------------------------------------------------------------- kinds


def _text(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError("expected a text that is not empty")


def _any_text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("expected a text")


def _command(value: object) -> str:
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    text = _text(value)
    try:
        shlex.split(text)
    except ValueError as error:
        raise ValueError(f"not a command line: {error}") from None
    return text


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ValueError("expected a list of texts")


def _names(value: object) -> tuple[str, ...]:
    names = _texts(value)
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is not the name of a variable (its value comes from your environment)")
    return names


def _positive(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
        return float(value)
    raise ValueError("expected a number above 0")


def _share(value: object) -> float:
    number = _positive(value)
    if number > 1:
        raise ValueError("expected a number from 0 to 1")
    return number


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("expected true or false")


def _end(value: object) -> str:
    if isinstance(value, str) and value in ENDS:
        return value
    raise ValueError(f"expected {', '.join(ENDS[:-1])} or {ENDS[-1]}")


_Kinds = Mapping[str, Callable[[object], object]]
_KINDS: _Kinds = {
    "image": _text,
    "command": _command,
    "install": _any_text,
    "disk_gb": _positive,
    "work_dir": _text,
    "setup": _texts,
    "pass_env": _names,
    "upload": _text,
    "on_end": _end,
    "resume": _flag,
    "start_within_s": _positive,
}
_OFFER_KINDS: _Kinds = {
    "gpu_name": _text,
    "max_price": _positive,
    "min_reliability": _share,
    "min_cuda": _positive,
    "min_inet_down": _positive,
    "verified": _flag,
    "query": _any_text,
}
_REQUIRED = {
    "image": 'the Docker image, e.g. image = "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime"',
    "command": 'what to run, e.g. command = "ddp-run --max-retries 2 --nproc-per-node gpu train.py"',
    "install": 'what pip installs to get ddp-run, e.g. install = "git+https://…"; "" if the image has it',
}


# ------------------------------------------------------------------------------------------------ reading


def read_config(path: str, text: str, environ: Mapping[str, str]) -> LaunchConfig:
    """The configuration in this text; `environ` must have what `pass_env` names. Raises `ConfigError`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: not valid TOML: {error}"]) from None
    if "image" not in table and "command" not in table and any("-" in key for key in table):
        raise ConfigError(
            [
                f"{path}: this is a preset of ddp-run; what to rent is another file: scripts/examples/vast-launch.toml",
                f'{path}: a preset that the instance has belongs into its command = "ddp-run --config {path} train.py"',
            ]
        )
    problems: list[str] = []
    offer_table = table.pop("offer", {})
    if not isinstance(offer_table, dict):
        problems.append(f"{path}:{_line(text, 'offer')}: offer: expected a table, [offer]")
        offer_table = {}
    values = _checked(path, text, table, _KINDS, problems)
    offer = _checked(path, text, offer_table, _OFFER_KINDS, problems)
    problems += [f"{path}: {name} is missing: {what}" for name, what in _REQUIRED.items() if name not in table]
    for name in values.get("pass_env", ()):
        if name not in environ:
            where = f"{path}:{_line(text, 'pass_env')}"
            problems.append(f"{where}: pass_env: {name} is not set in your environment")
    if problems:
        raise ConfigError(problems)
    return LaunchConfig(**values, offer=OfferFilter(**offer))


def _checked(path: str, text: str, table: Mapping[str, object], kinds: _Kinds, problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        where = f"{path}:{_line(text, key)}"
        if key not in kinds:
            close = difflib.get_close_matches(key, kinds, 1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(kinds)}"
            problems.append(f"{where}: unknown key {key}: {hint}")
            continue
        try:
            values[key] = kinds[key](value)
        except ValueError as error:
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            problems.append(f"{where}: {key} = {shown[:60]}: {error}")
    return values


def _line(text: str, key: str) -> int:
    """The line where a key stands; tomllib does not tell."""
    found = re.search(rf"""^[ \t]*\[*[ \t]*["']?{re.escape(key)}["']?[ \t]*[=\].]""", text, re.MULTILINE)
    return text.count("\n", 0, found.start()) + 1 if found else 1
