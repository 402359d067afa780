"""Ranks' bytes for `--console raw`: unchanged, in whole lines as far as these come, so that ranks do not mix. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, final

from ddp_run.values.lines import MAX_HELD, Stream

_SILENCE_S: Final = 0.2
"""What has no line end is shown after so many seconds: a prompt."""


@final
class RawLines:
    """Holds what of each rank's stream is no whole line yet. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, Stream], tuple[bytes, float]] = {}

    def take(self, rank: int, stream: Stream, data: bytes, now: float) -> bytes:
        """What of the stream can be shown, with `data` behind what was held."""
        held, _since = self._held.pop((rank, stream), (b"", now))
        data = held + data
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - whole > MAX_HELD:
            whole = len(data)
        if whole < len(data):
            self._held[rank, stream] = (data[whole:], now)
        return data[:whole]

    @property
    def deadline(self) -> float | None:
        """When `due` has something; null: never."""
        return min((since + _SILENCE_S for _data, since in self._held.values()), default=None)

    def due(self, now: float) -> list[tuple[Stream, bytes]]:
        """What has waited long enough."""
        ready = [key for key, (_data, since) in self._held.items() if since + _SILENCE_S <= now]
        return [(key[1], self._held.pop(key)[0]) for key in ready]

    def rest(self, streams: Collection[Stream]) -> list[tuple[Stream, bytes]]:
        """All that is held of these streams: nothing more of them comes."""
        return [(key[1], self._held.pop(key)[0]) for key in list(self._held) if key[1] in streams]
