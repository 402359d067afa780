"""What a node reports about itself before the job starts, for comparison with the other nodes. Pure."""

from __future__ import annotations

from enum import StrEnum

from ddp_run.values.typed_fields import frozen

MOST_FACTS = 200
LONGEST_NAME = 100
LONGEST_VALUE = 400


@frozen
class Fact:
    """`name` is that of a variable, or one of `Known`."""

    name: str
    value: str


class Known(StrEnum):
    """What is compared besides variables. None of these names could be a variable's."""

    PYTHON = "Python"
    TORCH = "torch"
    CUDA = "torch's CUDA"
    NCCL = "NCCL version"
    DRIVER = "NVIDIA driver"
    GPUS = "number of GPUs"
    SCRIPT = "script (SHA-256)"
    ARGUMENTS = "script arguments (SHA-256)"
    RANKS = "ranks per node"
    INTERFACE = "interface to node 0"
    MTU = "MTU towards node 0"
    OPEN_FILES = "limit of open files"
    LOCKED_MEMORY = "limit of locked memory"
    SHM = "size of /dev/shm"
    CLOCK = "wall clock minus node 0's"
    """Measured by node 0; in seconds, as `clock` has it."""
    VARIABLES = "variables"
    """How many of them are given: any that isn't among them isn't set."""


def check(facts: tuple[Fact, ...]) -> None:
    """Raises ValueError for facts that no ddp-run sends."""
    if len(facts) > MOST_FACTS:
        raise ValueError(f"{len(facts)} facts")
    for fact in facts:
        if not 0 < len(fact.name) <= LONGEST_NAME or len(fact.value) > LONGEST_VALUE:
            raise ValueError("a fact that is too long")
        if not (fact.name.isprintable() and fact.value.isprintable()):
            raise ValueError("a fact that cannot be printed")
