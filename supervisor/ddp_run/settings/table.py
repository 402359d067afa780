"""The table of options: torchrun's, read from the installed torch's source, and ddp-run's own. Pure.

From a row come the command line, the environment variables, the key of a TOML preset, the help and the README table.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

POSITIONALS = ("training_script", "training_script_args")
"""The two words of torchrun's grammar that are not options."""

PLAIN_VARIABLES = {
    "nnodes": "NNODES",
    "node_rank": "NODE_RANK",
    "nproc_per_node": "NPROC_PER_NODE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}
"""Variables that ddp-run reads and torchrun does not, by the option's name."""


_PRINTERS = ("_PrintCompletionAction",)
"""Actions of torch's own that take one word, print something and exit (torch 2.15)."""
_KINDS = ("env", "check_env", "store", "store_true", *_PRINTERS)


class TableUnreadable(Exception):
    """The installed torch's parser is not built the way this module reads it; ask the real parser instead."""


class Owner(StrEnum):
    """Who understands an option."""

    TORCH = "torchrun"
    DDP_RUN = "ddp-run"


@dataclass(frozen=True, slots=True)
class Row:
    """One option. `type` is "str", "int", "float" or the name of a converter of torch's own."""

    flags: tuple[str, ...]
    dest: str
    help: str = ""
    takes_value: bool = True
    type: str = "str"
    default: object = None
    choices: tuple[str, ...] | None = None
    nargs: str | int | None = None
    pet: str | None = None
    """The variable that torchrun itself reads the default from."""
    variable: str | None = None
    """The variable that ddp-run reads."""
    owner: Owner = Owner.TORCH
    metavar: str = ""
    prints_and_exits: bool = False
    """Whether torchrun answers it itself, as `--print-completion`, and starts nothing."""

    @property
    def name(self) -> str:
        """The spelling to show and to hand on: long, with dashes where torch has that spelling."""
        long = [flag for flag in self.flags if flag.startswith("--")]
        dashed = [flag for flag in long if "_" not in flag]
        return (dashed or long or list(self.flags))[0]

    @property
    def key(self) -> str:
        """The name in a TOML preset: the option without its dashes."""
        return self.name.lstrip("-")


def _own(
    name: str,
    help: str,
    *,
    default: object = None,
    type: str = "str",
    takes_value: bool = True,
    choices: tuple[str, ...] | None = None,
    pet: str | None = None,
    variable: str | None = None,
    metavar: str = "",
) -> Row:
    flags = (f"--{name}",) + ((f"--{name.replace('-', '_')}",) if "-" in name else ())
    dest = name.replace("-", "_")
    return Row(flags, dest, help, takes_value, type, default, choices, None, pet, variable, Owner.DDP_RUN, metavar)


OWN_ROWS: tuple[Row, ...] = (
    _own(
        "max-retries",
        "Retry up to N times after a failure that another attempt can fix.",
        type="int",
        default=0,
        variable="MAX_RETRIES",
        metavar="N",
    ),
    _own(
        "retry",
        "Choose which failures to retry; by-cause asks the catalogue of causes whether another attempt can help.",
        choices=("by-cause", "always", "never"),
        default="by-cause",
        variable="DDP_RUN_RETRY",
    ),
    _own(
        "nccl-debug",
        "Set NCCL's debug variables and write its messages to a file per rank; variables that you set win.",
        choices=("off", "warn", "info", "trace"),
        default="warn",
        variable="DDP_RUN_NCCL_DEBUG",
    ),
    _own(
        "hang-timeout",
        "Seconds without progress after which a job whose ranks wait or are stuck ends with exit code 124 (default:"
        " never); hangs are reported either way.",
        type="float",
        variable="DDP_RUN_HANG_TIMEOUT",
        metavar="SECONDS",
    ),
    _own(
        "ddp-debug",
        "Print [DDP-DEBUG] lines on the console at each step of process-group initialisation, and on a failure.",
        takes_value=False,
        default=False,
        variable="DDP_DEBUG",
    ),
    _own(
        "backend",
        "Use this process-group backend instead of the script's own.",
        variable="DDP_BACKEND",
        metavar="NAME",
    ),
    _own(
        "fallback-backend",
        "Rerun all ranks once with this backend if theirs failed to initialise.",
        variable="DDP_FALLBACK_BACKEND",
        metavar="NAME",
    ),
    _own(
        "preflight",
        "Check the launch before it starts; off runs only essential checks, strict also refuses suspicious launches and"
        " nodes that differ.",
        choices=("auto", "off", "strict"),
        default="auto",
        variable="DDP_RUN_PREFLIGHT",
    ),
    _own(
        "console",
        "Choose which ranks' lines reach the console; failed shows a failed rank's last lines, raw shows all lines"
        " unchanged, without a prefix. The files always have everything.",
        choices=("all", "rank0", "failed", "none", "raw"),
        default="all",
        variable="DDP_RUN_CONSOLE",
    ),
    _own(
        "config",
        "Read options from a TOML preset; without one, from [tool.ddp-run] of the nearest pyproject.toml; none: from"
        " neither.",
        variable="DDP_RUN_CONFIG",
        metavar="FILE",
    ),
    _own(
        "on-success",
        "Shell command to run after a run that succeeded; the verdict is in DDP_RUN_OUTCOME, DDP_RUN_FOLDER and more.",
        variable="DDP_RUN_ON_SUCCESS",
        metavar="CMD",
    ),
    _own(
        "on-failure",
        "The same after a run that did not succeed.",
        variable="DDP_RUN_ON_FAILURE",
        metavar="CMD",
    ),
    _own(
        "on-end",
        "The same after every run, behind the other two.",
        variable="DDP_RUN_ON_END",
        metavar="CMD",
    ),
    _own(
        "log-format",
        "Format of ddp-run's own messages on stderr.",
        choices=("console", "json"),
        default="console",
        variable="DDP_RUN_LOG_FORMAT",
    ),
    _own(
        "dry-run",
        "Print the launch plan, with the source of each value, and exit.",
        takes_value=False,
        default=False,
    ),
    _own(
        "control-port",
        "Port on node 0 where the nodes of a job agree on one verdict (default: the master port plus 1).",
        type="int",
        variable="DDP_RUN_CONTROL_PORT",
        metavar="N",
    ),
    # torch 2.13 brought this option; for an older one ddp-run keeps the deadline itself.
    _own(
        "shutdown-timeout",
        "Seconds between the stop signal and SIGKILL (default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30).",
        type="int",
        pet="PET_SHUTDOWN_TIMEOUT",
        metavar="SECONDS",
    ),
)


def all_rows(torch_rows: Sequence[Row]) -> tuple[Row, ...]:
    """Torch's rows and ours; where torch has an option of that name, its row is the one."""
    taken = {row.dest for row in torch_rows}
    return (*torch_rows, *(row for row in OWN_ROWS if row.dest not in taken))


# ------------------------------------------------------------------------------------- reading torch's


def read_torch_table(source: str) -> tuple[Row, ...]:
    """Every option of `get_args_parser` in the text of torch/distributed/run.py, in its order.

    Written for the form that torch 2.4 to 2.15 have. Raises `TableUnreadable` for any other form.
    """
    rows: list[Row] = []
    positionals: list[str] = []
    for statement in _parser_function(source).body:
        call = _add_argument_call(statement)
        if call is None:
            continue
        names = tuple(_literal(name) for name in call.args)
        if len(names) == 1 and not str(names[0]).startswith("-"):
            positionals.append(str(names[0]))
        else:
            rows.append(_row_of_call(names, {word.arg: word.value for word in call.keywords}))
    if tuple(positionals) != POSITIONALS or not rows:
        raise TableUnreadable(f"positional arguments {positionals}, {len(rows)} options")
    return tuple(rows)


def _parser_function(source: str) -> ast.FunctionDef:
    # Parsing this function alone takes 1 ms instead of the 4 ms of the whole file.
    start = source.find("\ndef get_args_parser")
    end = source.find("\ndef ", start + 1)
    try:
        tree = ast.parse(source[start:end] if start >= 0 else "")
    except SyntaxError as error:
        raise TableUnreadable(str(error)) from error
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        raise TableUnreadable("no function get_args_parser")
    return tree.body[0]


def _add_argument_call(statement: ast.stmt) -> ast.Call | None:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="parser"), attr="add_argument")) as call):
            return call
        case _:
            pass
    if isinstance(statement, ast.FunctionDef):
        return None
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and node.attr.startswith("add_"):
            raise TableUnreadable(f"an option is added in an unknown way in line {node.lineno}")
    return None


def _row_of_call(names: tuple[Any, ...], words: Mapping[str | None, ast.expr]) -> Row:
    unknown = set(words) - {"action", "type", "default", "help", "choices", "nargs", "dest", "metavar"}
    if unknown:
        raise TableUnreadable(f"unknown keywords {unknown} of {names}")
    return _row(
        flags=names,
        dest=_literal(words["dest"]) if "dest" in words else None,
        action=_name_or_literal(words.get("action"), "store"),
        type=_name_or_literal(words.get("type"), "str"),
        default=_literal(words["default"]) if "default" in words else None,
        choices=_literal_or_none(words.get("choices")),
        nargs=_literal(words["nargs"]) if "nargs" in words else None,
        help=_literal_or_none(words.get("help")) or "",
    )


def rows_of_actions(actions: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Rows from the actions of the real parser, as JSON: the fallback of `read_torch_table`.

    An action of a kind that is not known here is handed on as it was written.
    """
    return tuple(_row(**{**action, "action": _known(action)}) for action in actions if action["action"] != "help")


def _known(action: Mapping[str, Any]) -> str:
    kind = str(action["action"])
    if kind in _KINDS:
        return kind
    return "store_true" if action["nargs"] == 0 else "store"


def _row(
    *,
    flags: Sequence[str],
    dest: str | None,
    action: str,
    type: str,
    default: object,
    choices: Sequence[str] | None,
    nargs: str | int | None,
    help: str,
) -> Row:
    if action not in _KINDS:
        raise TableUnreadable(f"unknown action {action} of {flags}")
    long = [flag for flag in flags if flag.startswith("--")]
    name = dest or (long or list(flags))[0].lstrip("-").replace("-", "_")
    takes_value = action in ("env", "store", *_PRINTERS)
    return Row(
        flags=tuple(flags),
        dest=name,
        help=help,
        takes_value=takes_value,
        type=type,
        default=default if takes_value else bool(default),
        choices=None if choices is None else tuple(str(choice) for choice in choices),
        nargs=nargs if takes_value else None,
        pet=f"PET_{name.upper()}" if action in ("env", "check_env") else None,
        variable=PLAIN_VARIABLES.get(name),
        prints_and_exits=action in _PRINTERS,
    )


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise TableUnreadable(f"not a literal: {ast.unparse(node)}") from error


def _literal_or_none(node: ast.expr | None) -> Any:
    """The value, or null for one that is computed (choices from an enum): it is then not checked here."""
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _name_or_literal(node: ast.expr | None, default: str) -> str:
    match node:
        case None:
            return default
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
            return name
        case _:
            pass
    raise TableUnreadable(f"neither a name nor a text: {ast.unparse(node)}")
