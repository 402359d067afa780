"""Advice for a death whose rule gives none."""

from __future__ import annotations

import shlex

from ddp_run.evidence.model import Death, Phase

_POINTS_TO: dict[Phase, str] = {
    "before-init": "exited before init_process_group{}: check its variables (ddp-run --ddp-debug …), imports and data; "
    "network and NCCL were not involved yet",
    "init": "exited in init_process_group{}: check MASTER_ADDR and MASTER_PORT, the network between the hosts and, "
    "with NCCL, its log (ddp-run --ddp-debug --nccl-debug info …)",
    "after-init": "exited after init_process_group{} and before its first step: check the chosen device "
    "(LOCAL_RANK), the model wrapper and the first batch",
    "shutdown": "training was over{}: check what runs after destroy_process_group and at exit",
}
"""The first thing to check, by the phase in which the rank died."""


def by_phase(death: Death) -> tuple[str, ...]:
    """Return the advice for the phase of a death with no other clue; empty if the rank had already trained."""
    where = f", in {death.call}" if death.call is not None else ""
    if death.phase is None or death.phase not in _POINTS_TO:
        return ()
    return (_POINTS_TO[death.phase].format(where),)


def by_core(death: Death) -> tuple[str, ...]:
    """Return commands that read the core dump, if the rank left one."""
    if death.core is None:
        return ()
    if death.core.startswith("/"):
        return (f'gdb -batch -ex bt "$(command -v python)" {shlex.quote(death.core)}',)
    if "systemd-coredump" in death.core and death.pid is not None:
        return (f"coredumpctl info {death.pid}",)
    return (f"the core dump went to {death.core.lstrip('|').split(' ')[0]} (kernel.core_pattern)",)
