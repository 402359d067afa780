"""The table of options: torchrun's, read from the installed torch's source, and ddp-run's own. Pure.

A row gives the command line, the environment variables, the key of a TOML preset, the help and the README table.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

POSITIONALS = ("training_script", "training_script_args")
"""The two words of torchrun's grammar that are not options."""

_PLAIN_VARIABLES = ("nnodes", "node_rank", "nproc_per_node", "master_addr", "master_port")
"""Options of torchrun that ddp-run also reads from a variable of their name, as NNODES."""

_PRINTERS = ("_PrintCompletionAction",)
"""Torch's actions that take one word, print something and exit (torch 2.15)."""
_KINDS = ("env", "check_env", "store", "store_true", *_PRINTERS)


class TableUnreadable(Exception):
    """The installed torch's parser is not built the way this module reads it; ask the real parser instead."""


@dataclass(frozen=True, slots=True)
class Row:
    """One option. `type` is "str", "int", "float" or the name of one of torch's converters."""

    flags: tuple[str, ...]
    dest: str
    help: str = ""
    takes_value: bool = True
    type: str = "str"
    default: object = None
    choices: tuple[str, ...] | None = None
    pet: str | None = None
    """The variable from which torchrun itself reads the default."""
    variable: str | None = None
    """The variable that ddp-run reads."""
    is_ours: bool = False
    """Whether the option is ddp-run's: torchrun does not understand it."""
    metavar: str = ""
    prints_and_exits: bool = False
    """Whether torchrun answers it and starts nothing, as with `--print-completion`."""

    @property
    def name(self) -> str:
        """The spelling to show and to hand on: long, with dashes if torch has that spelling."""
        long = [flag for flag in self.flags if flag.startswith("--")]
        dashed = [flag for flag in long if "_" not in flag]
        return (dashed or long or list(self.flags))[0]

    @property
    def key(self) -> str:
        """The name in a TOML preset: the option without its dashes."""
        return self.name.lstrip("-")

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it, the strongest first."""
        return tuple(name for name in (self.pet, self.variable) if name)


def _own(name: str, help: str, *, variable: str | None = "", **fields: Any) -> Row:
    """An option of ddp-run, read from DDP_RUN_NAME unless `variable` names another (None: from no variable)."""
    dest = name.replace("-", "_")
    flags = tuple(dict.fromkeys((f"--{name}", f"--{dest}")))
    variable = f"DDP_RUN_{dest.upper()}" if variable == "" else variable
    return Row(flags, dest, help, variable=variable, is_ours=True, **fields)


OWN_ROWS: tuple[Row, ...] = (
    _own(
        "max-retries",
        "Retry up to N times if another attempt can fix the failure.",
        variable="MAX_RETRIES",
        type="int",
        default=0,
        metavar="N",
    ),
    _own(
        "retry",
        "Choose which failures to retry; by-cause retries those that another attempt can fix.",
        choices=("by-cause", "always", "never"),
        default="by-cause",
    ),
    _own(
        "spare-nodes",
        "Let K more nodes wait. With a retry, one takes the place of a node that is lost or at fault.",
        type="int",
        default=0,
        metavar="K",
    ),
    _own(
        "nccl-debug",
        "Set NCCL's debug variables and write its messages to one file per rank; variables you set win.",
        choices=("off", "warn", "info", "trace"),
        default="warn",
    ),
    _own(
        "hang-timeout",
        "End a job that makes no progress for SECONDS, with exit code 124 (default: never); hangs are reported anyway.",
        type="float",
        metavar="SECONDS",
    ),
    _own(
        "checkpoint-dir",
        "The folder of the job's checkpoints: tells how much work a failure lost (default: ranks' open files show it).",
        metavar="DIR",
    ),
    _own(
        "ddp-debug",
        "Print [DDP-DEBUG] lines at each step of process-group initialization, and on failure.",
        variable="DDP_DEBUG",
        takes_value=False,
        default=False,
    ),
    _own(
        "warm",
        "Start all ranks as forks of one process that has imported torch; launches that this doesn't suit run as ever.",
        takes_value=False,
        default=False,
    ),
    _own("backend", "Use this process-group backend, not the script's.", variable="DDP_BACKEND", metavar="NAME"),
    _own(
        "fallback-backend",
        "Rerun all ranks once with this backend if theirs fails to initialize.",
        variable="DDP_FALLBACK_BACKEND",
        metavar="NAME",
    ),
    _own(
        "preflight",
        "Check the launch before it starts; off runs only essential checks, strict also refuses suspicious launches and"
        " nodes that differ.",
        choices=("auto", "off", "strict"),
        default="auto",
    ),
    _own(
        "console",
        "Choose which ranks' lines to print; failed prints a failed rank's last lines, raw prints all lines unchanged,"
        " without a prefix. The files always have everything.",
        choices=("all", "rank0", "failed", "none", "raw"),
        default="all",
    ),
    _own(
        "config",
        "Read options from a TOML preset (default: [tool.ddp-run] of the nearest pyproject.toml); none reads neither.",
        metavar="FILE",
    ),
    _own(
        "on-success",
        "Run CMD in a shell after a successful run; DDP_RUN_OUTCOME, DDP_RUN_FOLDER and more hold the verdict.",
        metavar="CMD",
    ),
    _own("on-failure", "Run CMD after a run that did not succeed.", metavar="CMD"),
    _own("on-end", "Run CMD after every run, after --on-success/--on-failure.", metavar="CMD"),
    _own(
        "metrics",
        "Write Prometheus metrics of this node to FILE (*.prom) every 15 s and at the end, for node_exporter's textfile"
        " collector.",
        metavar="FILE",
    ),
    _own(
        "log-size-cap",
        "Keep each rank's stdout and stderr files within SIZE (such as 100M or 2G) by dropping their middle (default:"
        " keep everything).",
        metavar="SIZE",
    ),
    _own(
        "status",
        "On a terminal, keep one line below the ranks' output that says how the job gets on: step, rate, slowest rank.",
        takes_value=False,
        default=False,
    ),
    _own(
        "report",
        "Write report.html, a page about the run, into its folder at the end: after a run that did not succeed, always,"
        " or never; ddp-run report writes it later.",
        choices=("off", "failed", "always"),
        default="failed",
    ),
    _own("log-format", "Format of ddp-run's own messages on stderr.", choices=("console", "json"), default="console"),
    _own(
        "dry-run",
        "Print the launch plan, with the source of each value, and exit.",
        variable=None,
        takes_value=False,
        default=False,
    ),
    _own(
        "control-port",
        "Port on node 0 where the nodes of a job agree on one verdict (default: the master port plus 1).",
        type="int",
        metavar="N",
    ),
    # torch 2.13 brought this option; with an older torch, ddp-run keeps the deadline itself.
    _own(
        "shutdown-timeout",
        "Seconds between the stop signal and SIGKILL (default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30).",
        variable=None,
        pet="PET_SHUTDOWN_TIMEOUT",
        type="int",
        metavar="SECONDS",
    ),
)


def all_rows(torch_rows: Sequence[Row]) -> tuple[Row, ...]:
    """Torch's rows and ours. If torch has an option of the same name, torch's row counts."""
    taken = {row.dest for row in torch_rows}
    return (*torch_rows, *(row for row in OWN_ROWS if row.dest not in taken))


# ------------------------------------------------------------------------------------- reading torch's


def read_torch_table(source: str) -> tuple[Row, ...]:
    """Return every option of `get_args_parser` in the text of torch/distributed/run.py, in its order.

    Written for the form that torch 2.4 to 2.15 have. Raises `TableUnreadable` for any other form.
    """
    rows: list[Row] = []
    positionals: list[str] = []
    for statement in _parser_function(source).body:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="parser"), attr="add_argument")) as call):
                names = tuple(str(_literal(name)) for name in call.args)
                if len(names) == 1 and not names[0].startswith("-"):
                    positionals.append(names[0])
                else:
                    rows.append(_row(flags=names, **_keywords(call)))
            case _:
                _refuse_other_ways(statement)
    if tuple(positionals) != POSITIONALS or not rows:
        raise TableUnreadable(f"positional arguments {positionals}, {len(rows)} options")
    return tuple(rows)


def _parser_function(source: str) -> ast.FunctionDef:
    # Parsing this function alone takes 1 ms, the whole file 4 ms.
    start = source.find("\ndef get_args_parser")
    end = source.find("\ndef ", start + 1)
    try:
        tree = ast.parse(source[start:end] if start >= 0 else "")
    except SyntaxError as error:
        raise TableUnreadable(str(error)) from error
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        raise TableUnreadable("no function get_args_parser")
    return tree.body[0]


def _refuse_other_ways(statement: ast.stmt) -> None:
    """Raise `TableUnreadable` if a statement adds an option in a way that is not known here."""
    for node in () if isinstance(statement, ast.FunctionDef) else ast.walk(statement):
        if isinstance(node, ast.Attribute) and node.attr.startswith("add_"):
            raise TableUnreadable(f"an option is added in an unknown way in line {node.lineno}")


def _keywords(call: ast.Call) -> dict[str, Any]:
    """The keywords of an `add_argument` call, as `_row` takes them."""
    given: dict[str, Any] = {}
    for word in call.keywords:
        match word.arg, word.value:
            case "action" | "type", ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                given[word.arg] = name
            case "choices" | "help" as name, value:  # if computed (choices from an enum), torch alone checks it
                with suppress(TableUnreadable):
                    given[name] = _literal(value)
            case "default" | "dest" as name, value:
                given[name] = _literal(value)
            case "metavar" | "nargs", _:  # each of torch's options takes one value, or none
                pass
            case _:
                raise TableUnreadable(f"unknown form in line {call.lineno}: {ast.unparse(word.value)}")
    return given


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise TableUnreadable(f"not a literal: {ast.unparse(node)}") from error


def rows_of_actions(actions: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Rows from the actions of the real parser, as JSON: the fallback of `read_torch_table`.

    An action of an unknown kind is handed on as it was written.
    """
    rows = []
    for action in actions:
        words = {name: value for name, value in action.items() if name != "nargs"}
        if action["action"] not in _KINDS:
            words["action"] = "store_true" if action["nargs"] == 0 else "store"
        if action["action"] != "help":
            rows.append(_row(**words))
    return tuple(rows)


def _row(
    *,
    flags: Sequence[str],
    dest: str | None = None,
    action: str = "store",
    type: str = "str",
    default: object = None,
    choices: Sequence[str] | None = None,
    help: str | None = None,
) -> Row:
    if action not in _KINDS:
        raise TableUnreadable(f"unknown action {action} of {flags}")
    long = [flag for flag in flags if flag.startswith("--")]
    name = dest or (long or list(flags))[0].lstrip("-").replace("-", "_")
    takes_value = action in ("env", "store", *_PRINTERS)
    return Row(
        flags=tuple(flags),
        dest=name,
        help=help or "",
        takes_value=takes_value,
        type=type,
        default=default if takes_value else bool(default),
        choices=None if choices is None else tuple(str(choice) for choice in choices),
        pet=f"PET_{name.upper()}" if action in ("env", "check_env") else None,
        variable=name.upper() if name in _PLAIN_VARIABLES else None,
        prints_and_exits=action in _PRINTERS,
    )
