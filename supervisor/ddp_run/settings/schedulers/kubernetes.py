"""Kubernetes: what a job's pods are given, and what that says about nodes. Pure.

An Indexed Job sets JOB_COMPLETION_INDEX in each pod (kubernetes.io, "Indexed Job for Parallel Processing"). It sets the
pod's host name to `JOB-INDEX`. If the job's pods have a headless service as their subdomain, that resolves as
`JOB-INDEX.SERVICE` ("Job with Pod-to-Pod Communication"). Nothing tells a pod how many there are, or the service's
name: users set NNODES and MASTER_ADDR. The pods of a JobSet are those of Indexed Jobs.

Kubeflow's operators set PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, which torchrun reads itself.
Older ones (training-operator, pkg/controller.v1/pytorch/envvar.go) set MASTER_ADDR, MASTER_PORT, WORLD_SIZE to the
number of pods and RANK to the pod's own. torchrun ignores the last two, and elsewhere they count ranks, so they only
cause a warning.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddp_run.settings.options import Options
from ddp_run.settings.schedulers import JobNodes, whole_number

_IN_A_POD = "KUBERNETES_SERVICE_HOST"
"""Set in every container of every pod (kubernetes.io, "Accessing the API from a Pod")."""


def job_nodes(environ: Mapping[str, str]) -> JobNodes | None:
    """Return the node rank of a pod of an Indexed Job."""
    index = whole_number(environ, "JOB_COMPLETION_INDEX")
    if index is None:
        return None
    return JobNodes(None, {"node_rank": (str(index), "JOB_COMPLETION_INDEX")}, "Indexed Job")


def likely_mistakes(options: Options, environ: Mapping[str, str]) -> list[str]:
    """Find pods that were told that they are one of several, when the job's options do not say so."""
    if _IN_A_POD not in environ or options.standalone or options.rdzv_endpoint:
        return []
    return [*_pod_of_several(options, environ), *_indexed_without_master(options, environ)]


def _pod_of_several(options: Options, environ: Mapping[str, str]) -> list[str]:
    pods, pod = whole_number(environ, "WORLD_SIZE"), whole_number(environ, "RANK")
    if pods is None or pod is None or pod >= pods or pods == 1:
        return []
    if "MASTER_ADDR" not in environ or "LOCAL_RANK" in environ:
        return []
    said = f"this pod has RANK={pod} and WORLD_SIZE={pods}"
    if "nnodes" not in options.given:
        return [f"{said}, but the job has one node; if each pod is a node: --nnodes=$WORLD_SIZE --node-rank=$RANK"]
    if "node_rank" not in options.given and options.is_static and options.max_nodes == pods and pod > 0:
        return [f"{said}, but no node rank was given, so it is node 0; if each pod is a node: --node-rank=$RANK"]
    return []


def _indexed_without_master(options: Options, environ: Mapping[str, str]) -> list[str]:
    index, nodes = whole_number(environ, "JOB_COMPLETION_INDEX"), whole_number(environ, "NNODES")
    if index is None or (nodes or 1) == 1 or options.max_nodes > 1 or "master_addr" in options.given:
        return []
    host = environ.get("HOSTNAME", "")
    job = host.removesuffix(f"-{index}") if host.endswith(f"-{index}") else "JOB"
    return [f"node 0 of an Indexed Job with a headless service as its subdomain is MASTER_ADDR={job}-0.SUBDOMAIN"]
