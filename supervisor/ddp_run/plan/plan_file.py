"""The launch plan as plan.json and as `--dry-run` prints it: each value with its origin, without secrets."""

from __future__ import annotations

import json
import os
import platform
import shlex
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_run import __version__
from ddp_run.plan.installed_torch import torch_versions
from ddp_run.plan.launch_plan import LaunchPlan, agent_argv, log_dir
from ddp_run.plan.node_facts import script_hash
from ddp_run.values.node_fact import Known
from ddp_run.values.private_files import open_private
from ddp_run.values.redaction import redact, redact_lines, redact_mapping, redact_words

if TYPE_CHECKING:
    from ddp_run.plan.node_facts import NodeFacts


def as_data(plan: LaunchPlan, argv: Sequence[str], run_id: str | None, node: NodeFacts | None) -> dict[str, Any]:
    """The plan as values for JSON. `node`: the facts compared with other nodes; None if they aren't compared."""
    options = plan.options
    folder = log_dir(options) / (run_id or "RUN") / "attempt_0"
    settings: dict[str, Any] = {
        row.dest: {"value": _plain(setting.value), "origin": setting.origin}
        for row in options.rows
        if (setting := options.settings.get(row.dest)) is not None
    }
    if plan.master not in (None, options.settings["master_addr"].value):
        settings["rdzv_endpoint" if options.rdzv_endpoint else "master_addr"]["resolved"] = plan.master
    variables = (*plan.environment, *plan.by_torch)
    values = redact_mapping({each.name: each.value for each in variables})
    environment = {each.name: {"value": values[each.name], "origin": each.origin} for each in variables}
    return {
        "run_id": run_id,
        "command": list(redact_words(argv)),
        "script": redact(options.script),
        "script_args": list(redact_words(options.script_args)),
        "options": settings,
        "environment": environment,
        "agent": list(redact_words(agent_argv(plan, folder=folder, port=None))),
        "versions": {
            "ddp-run": __version__,
            "torch": torch_versions()[0],
            "python": platform.python_version(),
            str(Known.SCRIPT): script_hash(options),
        },
        "host": socket.gethostname(),
        "node": None if node is None else _of_node(node),
    }


def _of_node(node: NodeFacts) -> dict[str, Any]:
    route = node.route
    return {
        "facts": {fact.name: fact.value for fact in node.facts},
        "route_to_node_0": None if route is None else {"interface": route.interface, "from": route.ip, "to": node.to},
    }


def _plain(value: object) -> object:
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return list(redact_lines([str(each) for each in value]))
    return redact(str(value))


def write(path: Path, plan: LaunchPlan, argv: Sequence[str], run_id: str, node: NodeFacts | None) -> None:
    """Write plan.json. Errors are ignored here: the journal reports a full disk."""
    try:
        with open(open_private(path, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
            file.write(json.dumps(as_data(plan, argv, run_id, node), indent=2) + "\n")
    except OSError:
        pass


def as_text(plan: LaunchPlan, argv: Sequence[str], node: NodeFacts | None) -> str:
    """What `--dry-run` prints: values that aren't defaults, environment, node, and the agent's command.

    With `--log-format json`, it is the content of plan.json, which includes defaults.
    """
    data = as_data(plan, argv, None, node)
    if plan.options.log_format == "json":
        return json.dumps(data, indent=2) + "\n"
    lines = ["options"]
    chosen = {name: each for name, each in data["options"].items() if each["origin"] != "default"}
    others = len(data["options"]) - len(chosen)
    chosen.pop("dry_run", None)
    for name, each in chosen.items():
        value = f"{each['value']} -> {each['resolved']}" if "resolved" in each else each["value"]
        lines.append(
            f"  {name.replace('_', '-'):<26} {'-' if value in (None, '', []) else value!s:<28} {each['origin']}"
        )
    lines.append(f"  {others} others have their defaults: add --log-format json to see them")
    lines.append("environment added for the agent and the ranks")
    for name, each in data["environment"].items():
        lines.append(f"  {name:<38} {each['value']:<16} {each['origin']}")
    lines += _node_lines(data["node"]) if node is not None else []
    lines.append("command of the agent")
    lines.append("  " + shlex.join(data["agent"]))
    return "\n".join(lines) + "\n"


def _node_lines(node: Mapping[str, Any]) -> list[str]:
    route = node["route_to_node_0"]
    way = "not known" if route is None else f"from {route['from']} on {route['interface']} to {route['to']}"
    return [
        "facts of this node, compared with the other nodes before the start",
        *(f"  {name:<38} {value}" for name, value in node["facts"].items()),
        "route to node 0 (not compared)",
        f"  {way}",
    ]
