"""Whether the values of a launch's options make sense: each alone, then together. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from ddp_run.settings import values
from ddp_run.settings.options import Options, Setting, Source
from ddp_run.settings.table import Row
from ddp_run.values.problem import Problem, nearest

_CHECKS: Mapping[str, Callable[..., object]] = {
    "nnodes": values.read_nnodes,
    "nproc_per_node": values.read_nproc,
    "master_addr": values.read_host,
    "master_port": values.read_port,
    "control_port": values.read_port,
    "rdzv_endpoint": values.read_endpoint,
    "rdzv_conf": values.read_rdzv_conf,
    "redirects": values.read_streams,
    "tee": values.read_streams,
    "local_ranks_filter": values.read_ranks,
    "max_restarts": values.read_count,
    "max_retries": values.read_count,
    "spare_nodes": values.read_count,
    "shutdown_timeout": values.read_count,
    "monitor_interval": values.read_interval,
    "hang_timeout": values.read_deadline,
    "log_size_cap": values.read_size,
}

_HELPS = {
    "nnodes": "--nnodes=2 for two nodes, --nnodes=1:4 for an elastic job",
    "nproc_per_node": "--nproc-per-node=2 for two ranks on this node, --nproc-per-node=gpu for one per GPU",
    "rdzv_conf": "--rdzv-conf=timeout=900,join_timeout=600",
    "redirects": "--redirects=3 for both streams of all ranks, --redirects=0:1,1:3 by local rank",
    "tee": "--tee=3 for both streams of all ranks, --tee=0:1,1:3 by local rank",
    "local_ranks_filter": "--local-ranks-filter=0,1",
    "log_size_cap": "--log-size-cap=100M, or 2G; at least 8M",
}

# ------------------------------------------------------------------------------------------- one value


def check_one(dest: str, value: object) -> None:
    """Raise `ValueError` for a value that torchrun would reject later."""
    check = _CHECKS.get(dest)
    nothing_given = value is None or (dest == "rdzv_endpoint" and value == "")
    if check is not None and not nothing_given:
        check(value)


def check_values(options: Options) -> Iterator[Problem]:
    """Problems of the values, each by itself."""
    for row in options.rows:
        setting = options.settings[row.dest]
        if setting.source is Source.DEFAULT or not _counts(options, row.dest):
            continue
        try:
            check_one(row.dest, setting.value)
        except ValueError as error:
            yield bad_value(row, setting, str(error))


def _counts(options: Options, dest: str) -> bool:
    """Whether torchrun would look at a value; parts of a rendezvous that it ignores may be anything."""
    match dest:
        case "master_addr" | "master_port" | "rdzv_endpoint" if options.standalone:
            return False
        case "rdzv_endpoint":
            return options.rdzv_backend in ("static", "c10d")
        case "master_port":
            return options.rdzv_backend == "static" and not options.rdzv_endpoint
        case "master_addr":
            try:
                return options.is_static and not options.rdzv_endpoint
            except ValueError:  # --nnodes is wrong, and reported
                return False
        case _:
            return True


def bad_value(row: Row, setting: Setting, reason: str) -> Problem:
    """The problem of an option whose value cannot be used."""
    shown = row.name if setting.source is Source.OPTION else setting.origin.rpartition("/")[2]
    help = _HELPS.get(row.dest)
    helps: tuple[str, ...] = (help,) if help else ()
    notes: tuple[str, ...] = ()
    text = setting.text or ""
    slip = slip_in(text)
    if row.choices and text:
        helps = tuple(f"{row.name}={name}" for name in nearest(text, row.choices, 1))
    elif setting.text is not None and not text.strip():
        reason = "the value is empty"
        notes = ("is a variable unset? scheduler variables (SLURM_NNODES, …) are set only inside a job",)
    elif slip is not None:
        notes, helps = (f"{text!r} has {slip[0]}",), (slip[1],)
    elif row.dest in ("master_addr", "rdzv_endpoint"):
        helps = (_address_help(row, text),)
    if setting.source is Source.CONFIG:
        named = repr(text) in reason or reason.startswith(text)
        shown = row.key if named else f"{row.key} = {text}"
    elif setting.word is None and text.startswith("tcp://"):
        notes = ("this is probably Kubernetes' variable for a service called master, not meant for this job",)
    label = "" if setting.word is None else "this value"
    return Problem("DDP101", f"{shown}: {reason}", setting.word, label, setting.place, notes, helps)


def _address_help(row: Row, text: str) -> str:
    """The option with the host, and the port, found in a URL or the like."""
    found = re.fullmatch(r"\s*(?:\w+://)?(?P<host>\[[^\]]*\]|[^/:\s\[\]]*)(?::(?P<port>\d*))?(?:/.*)?\s*", text)
    host, port = (found["host"], found["port"]) if found else ("", None)
    try:
        values.read_host(host)
    except ValueError:
        host = "10.0.0.1"
    if row.dest == "rdzv_endpoint":
        return f"{row.name}={host}:{port or 29500}"
    return f"{row.name}={host}" + (f" --master-port={port}" if port else "")


# ------------------------------------------------------ what a shell, an editor or a web page has changed

_DASHES = {"\N{EN DASH}": "an en dash", "\N{EM DASH}": "an em dash", "\N{MINUS SIGN}": "a minus sign"}
_DASHES |= dict.fromkeys("\N{HYPHEN}\N{NON-BREAKING HYPHEN}", "a typographic hyphen")
_QUOTES = str.maketrans("", "", "\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb")
_INVISIBLE = {
    "\u00a0": "a no-break space",
    "\u200b": "a zero-width space",
    "\ufeff": "a byte order mark",
    "\u2028": "a line separator",
}


def slip_in(word: str) -> tuple[str, str] | None:
    """What is odd about a word, to follow "has", and what to do; None if nothing is."""
    if "\r" in word:
        return "a carriage return: the file has Windows line endings", r"sed -i 's/\r$//' job.sh   # your file"
    if word[:1] in (" ", "\t", "\n"):
        odd = "a leading blank: something follows the backslash at the end of the previous line"
        return odd, "end that line with the backslash, with no blank after it"
    if word[:1] in _DASHES:
        bare = word.lstrip("-" + "".join(_DASHES))
        dashes = "-" if len(bare.partition("=")[0]) == 1 else "--"
        return f"{_DASHES[word[0]]} (U+{ord(word[0]):04X}) at the start", f"type {dashes}{bare}"
    plain = word.translate(_QUOTES)
    if plain != word:
        return "typographic quotes", f"type {plain}, or put plain quotes around it"
    for char, name in _INVISIBLE.items():
        if char in word:
            return f"{name} (U+{ord(char):04X})", "retype the line by hand"
    if word.startswith("~") or "$" in word:
        odd = "a ~ or $ that the shell did not expand: it is in single quotes, or ~ does not start the word"
        return odd, 'use double quotes for variables: "${NAME}/train.py"; leave ~ unquoted'
    return None


# ---------------------------------------------------------------------------------------- values together


def check_together(options: Options) -> Iterator[Problem]:
    """Problems of values that are each right; for options in which `check_values` found none."""
    if options.module and options.no_python and not options.run_path:  # --run-path takes precedence over both
        helps = ("-m is for Python modules, --no-python for other programs: use only one of them",)
        yield options.problem("module", "-m and --no-python cannot be used together", helps=helps)
    if options.standalone and options.min_nodes > 1:
        title = f"--standalone is for one node, but {options.min_nodes} nodes were requested"
        yield options.problem("nnodes", title, helps=("remove --standalone and add --master-addr",))
    if options.is_static and not 0 <= options.node_rank < options.max_nodes:
        nodes = options.max_nodes
        title = f"node rank {options.node_rank} is out of range for {nodes} nodes: 0 to {nodes - 1}"
        yield options.problem("node_rank", title)
    if options.is_static and options.rdzv_endpoint and (options.master or ("", None))[1] is None:
        helps = (f"--rdzv-endpoint={options.rdzv_endpoint}:29500",)
        yield options.problem("rdzv_endpoint", "a static rendezvous needs a port in its endpoint", helps=helps)
    if retries_without_fixed_nodes(options):
        title = "--max-retries needs a fixed number of nodes that meet at one endpoint"
        notes = ("only such nodes can agree on a retry and its port: a static rendezvous, or c10d with an endpoint",)
        helps = ("--max-retries=0 --max-restarts=N: torch's own restarts, on the same port",)
        yield options.problem("max_retries", title, notes=notes, helps=helps)
    if options.spare_nodes and not (options.has_fixed_nodes and options.meets_at_c10d):
        title = "--spare-nodes needs a fixed number of nodes that meet at a c10d endpoint"
        notes = ("there torch numbers the nodes at each start, so any of them can take another's place",)
        helps = ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400",)
        yield options.problem("spare_nodes", title, notes=notes, helps=helps)
    elif options.spare_nodes and not options.max_retries:
        title = "--spare-nodes needs --max-retries: a spare node takes part from the next attempt on"
        yield options.problem("spare_nodes", title, helps=("--max-retries=1",))
    method = options.settings.get("start_method", Setting("spawn")).value
    if options.run_path and method not in ("spawn", "fork", "forkserver"):
        title = f"unknown start method {method}: expected spawn, fork or forkserver"
        yield options.problem("start_method", title)


def retries_without_fixed_nodes(options: Options) -> bool:
    """Whether the nodes can't agree on the wanted retries: their number or rendezvous isn't fixed."""
    return (
        options.max_retries > 0 and options.max_nodes > 1 and options.retry != "never" and not options.has_fixed_nodes
    )
