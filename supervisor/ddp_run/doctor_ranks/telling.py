"""What ranks tell: lines in a file for the doctor on their node, and texts for each other."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
import torch.distributed as dist


class Report:
    """This rank's file; a line is written whole, at once."""

    def __init__(self, folder: str, rank: int) -> None:
        path = os.path.join(folder, f"rank_{rank}.jsonl")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def doing(self, what: str) -> None:
        """What begins now: it is told of where the ranks end before the next."""
        self.tell("doing", what=what)

    def tell(self, kind: str, **fields: Any) -> None:
        """A report."""
        os.write(self._fd, json.dumps({"report": kind, **fields}).encode() + b"\n")


def gather(told: Any, device: torch.device) -> list[Any]:
    """What each rank told, by rank, as JSON in tensors of bytes (gather_object would unpickle what others send)."""
    text = json.dumps(told).encode()
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(text)], dtype=torch.int64, device=device))
    most = max(int(length.item()) for length in lengths)
    mine = torch.zeros(most, dtype=torch.uint8, device=device)
    mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    theirs = [torch.zeros(most, dtype=torch.uint8, device=device) for _ in lengths]
    dist.all_gather(theirs, mine)
    return [
        json.loads(bytes(data[: int(length.item())].cpu().tolist()))
        for data, length in zip(theirs, lengths, strict=True)
    ]
