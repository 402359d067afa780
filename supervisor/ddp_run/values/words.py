"""Numbers, sizes, plurals and lists of ranks in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

_PLURAL = {"waits": "wait", "is": "are", "sleeps": "sleep", "shows": "show", "works": "work"}


def conjugated(words: str, count: int) -> str:
    """`waits in barrier` for one, `wait in barrier` for more; an unknown verb stays."""
    verb, _, rest = words.partition(" ")
    mark = ":" if verb.endswith(":") else ""
    return words if count == 1 else " ".join(filter(None, (_PLURAL.get(verb.rstrip(":"), verb) + mark, rest)))


def is_or_are(many: Sequence[object]) -> str:
    """The form of `be` for that many."""
    return "is" if len(many) == 1 else "are"


def verb_s(many: Sequence[object]) -> str:
    """The ending of a verb for that many: `waits` for one."""
    return "s" if len(many) == 1 else ""


def rank_list(ranks: Iterable[int]) -> str:
    """Ranks in the short form `0,2,5-7`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def named_ranks(ranks: Collection[int]) -> str:
    """`rank 3`, `ranks 0,2,5-7`."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {rank_list(ranks)}"


def named_nodes(nodes: Collection[int]) -> str:
    """`node 3`, `nodes 1,4-7`."""
    return f"{'node' if len(nodes) == 1 else 'nodes'} {rank_list(nodes)}"


def node_name(node_rank: int | None, host: str | None) -> str:
    """`node 1 (gpu-07)`; `node 1` if the host isn't known, `gpu-07` if the number isn't."""
    if node_rank is None:
        return host or "a node"
    return f"node {node_rank} ({host})" if host else f"node {node_rank}"


def size_in_words(count: float) -> str:
    """Bytes in words, binary units."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            break
        count, unit = count / 1024, larger
    return f"{count:.0f} {unit}" if unit in ("B", "KiB") or count >= 100 else f"{count:.1f} {unit}"


def duration_in_words(seconds: float) -> str:
    """`7.3s`, `4m08s`, `2h05m`, `3d04h`: at most two units."""
    if seconds < 59.5:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"
