"""The rendezvous host: its address, and, if it is this machine, whether its port is free."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from ddp_run.plan.preflight import Answer, Check, Launch
from ddp_run.settings.options import Options, Source
from ddp_run.values.problem import Problem

_ONE_NODE_S = 5.0
_SEVERAL_NODES_S = 120.0
"""How long DNS may take to be ready: pods and instances of one job start minutes apart."""
_NO_ENDPOINT = "no --rdzv-endpoint: only nodes on the same host can meet; on several hosts, all need HOST:PORT of one"
_AGENT = "torch.distributed.run"
_NAMES_S = 5.0
_DRY_RUN_S = 1.0
"""A dry run doesn't wait: a login node may be unable to resolve the job's names."""


def _check(launch: Launch) -> Answer:
    answer = _master(launch)
    return replace(answer, warnings=(*_unsaid(launch.options), *answer.warnings))


def _unsaid(options: Options) -> Iterator[str]:
    """In a dry run, name the options that the other nodes need. Node 0 may leave them out."""
    if not options.dry_run or options.max_nodes == 1 or not options.is_static or options.rdzv_endpoint:
        return
    if "node_rank" not in options.given:
        yield "no --node-rank: this is node 0; each other node needs its own number"
    if "master_addr" not in options.given:
        yield f"no --master-addr: the nodes would meet at {options.master_addr}, which is each host itself"


def _master(launch: Launch) -> Answer:
    options = launch.options
    if options.max_nodes > 1 and options.rdzv_backend == "c10d" and not (options.rdzv_endpoint or options.standalone):
        return Answer(options, warnings=(_NO_ENDPOINT,))
    if not options.is_static and not options.meets_at_c10d:
        return Answer(options)
    from ddp_run.plan import net
    from ddp_run.values.addresses import is_local

    options = _drop_foreign_variables(options)
    c10d = options.meets_at_c10d
    if not (options.is_static or c10d) or options.master is None:
        return Answer(options)
    host, port = options.master
    several = options.max_nodes > 1
    deadline_s = _DRY_RUN_S if options.dry_run else _SEVERAL_NODES_S if several else _ONE_NODE_S
    say = _say if not options.dry_run else lambda _line: None
    try:
        # Each c10d agent asks whether the host is its own, so a name of this host may be a loopback address there.
        typed = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))
        found = net.resolve(
            host,
            port or 0,
            deadline_s,
            several_nodes=several,
            loopback_allowed=c10d,
            missing_s=net.TYPED_NAME_S if typed else net.MISSING_NAME_S,
            say=say,
        )
    except net.Unresolvable as error:
        if options.dry_run:
            warning = f"the master, {host}, does not resolve here: {error.reason}"
            return Answer(options, warnings=(warning,))
        setting = options.settings["rdzv_endpoint" if options.rdzv_endpoint else "master_addr"]
        helps = (*(_alike(host, launch) if error.missing else ()), *error.helps)
        problem = Problem("DDP203", error.reason, setting.word, "the master", setting.place, helps=helps)
        return Answer(options, problems=(problem,))
    interface = _interface_to(found.ip) if several and not net.leads_only_here(host, found.ip) else None
    if c10d:
        return Answer(options, master=found.ip, interface=interface)
    local = is_local(found.ip)
    if port and local and options.node_rank == 0 and not net.port_is_free(port, found.ip):
        return Answer(options, problems=(_port_taken(options, port),))
    # Not refused: behind address translation no interface has the host's public address.
    stranger = options.node_rank == 0 and not local
    why = "" if "node_rank" in options.given else " as no --node-rank is given"
    warnings = (f"the master, {host}, is not an address of this machine, which is node 0{why}",) if stranger else ()
    master = None if options.rdzv_endpoint or "master_addr" not in options.given else found.ip
    return Answer(options, warnings=warnings, master=master, interface=interface)


def _alike(host: str, launch: Launch) -> tuple[str, ...]:
    """Names like this one that this host or the scheduler knows."""
    import subprocess
    from contextlib import suppress

    from ddp_run.plan import net
    from ddp_run.settings import schedulers
    from ddp_run.values.problem import nearest

    names, job = net.names_in_hosts_file(), schedulers.job_nodes(launch.environ)
    if job is not None and job.host_names:
        with suppress(OSError, subprocess.SubprocessError):
            told = subprocess.run(job.host_names, capture_output=True, text=True, timeout=_NAMES_S, check=True)
            names |= set(told.stdout.split())
    return tuple(f"--master-addr={each}   # did you mean this host?" for each in nearest(host, names))


def _say(line: str) -> None:
    sys.stderr.write(f"ddp-run: {line}\n")
    sys.stderr.flush()


def _interface_to(ip: str) -> str | None:
    """Return the interface that leads there; None if unknown, or if the route is loopback."""
    from ipaddress import ip_address

    from ddp_run.plan import net

    route = net.route_to(ip)
    return None if route is None or ip_address(route.ip.partition("%")[0]).is_loopback else route.interface


def _drop_foreign_variables(options: Options) -> Options:
    """One node needs neither MASTER_ADDR nor MASTER_PORT. If they don't fit, they were set for another job."""
    if options.max_nodes > 1:
        return options
    from ddp_run.plan import net

    port = options.settings["master_port"]
    address = options.settings["master_addr"]
    if address.source is Source.VARIABLE and not _names_this_host(options.master_addr):
        dests = ["master_addr"] + (["master_port"] if port.source is Source.VARIABLE else [])
        return options.without(dests, f"{options.master_addr} is not this machine, and the job has one node")
    if port.source is Source.VARIABLE and options.master_port and not net.port_is_free(options.master_port):
        return options.without(["master_port"], f"port {options.master_port} is taken", quietly=True)
    return options


def _names_this_host(name: str) -> bool:
    from ddp_run.plan import net
    from ddp_run.values.addresses import is_this_host

    try:
        return name == "localhost" or is_this_host(name, net.resolve(name, 0, 1.0).ip)
    except net.Unresolvable:
        return is_this_host(name, "")


def _port_taken(options: Options, port: int) -> Problem:
    from ddp_run.plan import net

    setting = options.settings["rdzv_endpoint" if options.rdzv_endpoint else "master_port"]
    holder = net.port_holder(port)
    notes: tuple[str, ...] = ()
    if holder is not None and holder.pid is not None:
        command = (holder.command or holder.name or "")[:120]
        notes = (f"pid {holder.pid} listens there: {command}",)
    elif holder is not None:
        notes = ("another user's process listens there",)
    helps = [f"--master-port={net.free_port()}" if not options.rdzv_endpoint else "use another port in --rdzv-endpoint"]
    if options.max_nodes > 1 and holder is not None and _AGENT in (holder.command or ""):
        each = f"each of the {options.max_nodes} nodes has its own number"
        helps.insert(0, f"--node-rank=1   # if that is node 0 of this job: {each}")
    if options.max_nodes == 1:
        helps.append("omit --master-port: one node gets a free port automatically")
    title = f"port {port} is already taken on this host"
    return Problem("DDP201", title, setting.word, "taken", setting.place, notes, tuple(helps))


CHECK = Check("the master", _check, waits=True)
